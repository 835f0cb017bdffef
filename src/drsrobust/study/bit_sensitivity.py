"""Magnitudes of all weights after a flip of one bit, and claim C8 (experiment E1)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from drsrobust.introspection.tensors import component_of, named_tensors
from drsrobust.models import model_name
from drsrobust.study.findings import verdicts

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


def flipped_magnitudes(models: "Sequence[nn.Module]", bit: int = 30) -> "pd.DataFrame":
    """How large the float32 weights of each component are, and how large each would be with one bit flipped.

    Args:
        models: parameters of other types than float32 are skipped.
        bit: 0 the lowest of the mantissa, 31 the sign.

    Returns:
        one row per model and component: `model`, `target`, `words`, `median` of |w|; of |w| with the bit flipped
        `flipped_q10`, `flipped_median`, `flipped_q90` (NaN counts as infinite) and `infinite`, the share of infinite ones.

    Raises:
        ValueError: a bit that a float32 does not have.

    Example:
        >>> from torch import nn
        >>> flipped_magnitudes([nn.Linear(4, 1, bias=False).requires_grad_(False).apply(lambda m: m.weight.fill_(0.5))])[
        ...     ["median", "flipped_median"]].to_numpy().tolist()
        [[0.5, 1.70...e+38]]
    """
    import pandas as pd

    if bit not in range(32):
        raise ValueError(f"bit must be 0 to 31 for float32, got {bit!r}")
    rows = []
    for model in models:
        home = component_of(model)
        words: dict[str, list[np.ndarray]] = {}
        for name, tensor in named_tensors(model, buffers=False):
            if tensor.dtype == torch.float32:
                words.setdefault(home[name], []).append(tensor.detach().cpu().numpy().ravel())
        for component, parts in words.items():
            before = np.concatenate(parts)
            after = np.abs((before.view(np.uint32) ^ np.uint32(1 << bit)).view(np.float32))
            after[np.isnan(after)] = np.inf
            low, middle, high = np.quantile(after, (0.1, 0.5, 0.9), method="nearest").tolist()
            row = {"model": model_name(model), "target": component, "words": len(before)}
            row |= {"median": float(np.median(np.abs(before))), "flipped_q10": low, "flipped_median": middle}
            rows.append(row | {"flipped_q90": high, "infinite": float(np.isinf(after).mean())})
    return pd.DataFrame(rows)


def bit_verdict(data: "pd.DataFrame", flipped: "pd.DataFrame", bit: int = 30, least: float = 1e36) -> "pd.DataFrame":
    """Findings and verdicts on claim C8: one bit dominates, and its flips make weights very large.

    Args:
        data: one row per model, target and bit, with `auc_drop`, `auc_drop_low`, `auc_drop_high`.
        flipped: `flipped_magnitudes` of the same models.
        bit: the bit that is claimed to dominate.
        least: |w| with this bit flipped.

    Returns:
        two rows with `reading`, `value`, `verdict` and `detail`. `most`: the share of components in which the interval of the
        bit's mean AUC loss lies above those of all other bits; `beaten`: components in which another bit's lies above its.
        `size`: the smallest median |w| of a component with the bit flipped; `greatest`: the largest.

    Raises:
        ValueError: there are no flips of this bit, or none of others.
    """
    import pandas as pd

    clear = by_mean = beaten = components = 0
    for _, group in data.groupby(["model", "target"], sort=False):
        own, others = group[group["bit"] == bit], group[group["bit"] != bit]
        if own.empty or others.empty:
            raise ValueError(f"data must hold flips of bit {bit} and of other bits in every component")
        components += 1
        by_mean += bool(own["auc_drop"].iloc[0] > others["auc_drop"].max())
        clear += bool(own["auc_drop_low"].iloc[0] > others["auc_drop_high"].max())
        beaten += bool(others["auc_drop_low"].max() > own["auc_drop_high"].iloc[0])
    most = f"bit {bit} has the largest mean AUC loss in {by_mean} of {components} components, clearly in {clear}; "
    most = {
        "reading": "most",
        "value": clear / components,
        "beaten": beaten,
        "detail": f"{most}another bit clearly in {beaten}",
    }
    smallest, greatest = flipped["flipped_median"].min(), flipped["flipped_median"].max()
    size = f"median |w| of a component {smallest:.1e} to {greatest:.1e} with bit {bit} flipped"
    size = {"reading": "size", "value": smallest, "greatest": greatest, "detail": size}
    table = pd.DataFrame([most, size])
    words = [*verdicts(table[:1], "dominates"), *verdicts(table[1:], "large", bound=least)]
    return table.assign(verdict=words)
