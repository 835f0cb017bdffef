"""Pairs that clicks win, counted on a GPU, which sorts a million scores in a hundredth of a core's time."""

import numpy as np
import torch


def twice_won(clicked: np.ndarray, scores: np.ndarray, *, device: torch.device) -> int:
    """As `metrics.auc.twice_won`, equal for any scores: integers alone are added.

    Args:
        clicked: bool [n].
        scores: [n].
        device: that counts.
    """
    is_click, values = (torch.from_numpy(np.array(array)).to(device) for array in (clicked, scores))
    clicks, n = int(is_click.sum()), len(clicked)
    is_number = ~values.isnan()
    ascending, order = values[is_number].sort()
    clicks_below = torch.nn.functional.pad(is_click[is_number][order].cumsum(0), (1, 0))
    ends = torch.nn.functional.pad(torch.unique_consecutive(ascending, return_counts=True)[1].cumsum(0), (1, 0))
    clicks_at = clicks_below[ends]  # clicks below each run of equal scores, and in all
    others_at = ends - clicks_at
    won = ((clicks_at[1:] - clicks_at[:-1]) * (others_at[1:] + others_at[:-1])).sum()
    clicks_known, others_known, won = torch.stack([clicks_at[-1], others_at[-1], won]).tolist()
    return won + clicks * (n - clicks) - clicks_known * others_known
