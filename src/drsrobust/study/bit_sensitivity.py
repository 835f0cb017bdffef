"""What a flip of one bit makes of weights, computed for all of them (experiment E1)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from drsrobust.introspection.tensors import component_of, named_tensors
from drsrobust.models import model_name

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


def flipped_magnitudes(models: "Sequence[nn.Module]", bit: int = 30) -> "pd.DataFrame":
    """How large the float32 weights of each component are, and how large each would be with one bit flipped.

    Args:
        models: with parameters of float32; others are left out.
        bit: 0 the lowest of the mantissa, 31 the sign.

    Returns:
        one row per model and component: `model`, `target`, `words`, `median` of |w|, and of |w| with the bit flipped
        `flipped_q10`, `flipped_median`, `flipped_q90` (infinity and NaN count as infinite) and `infinite`, the share of these.

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
        raise ValueError(f"bit is {bit!r}; a float32 has bits 0 to 31")
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
    """What flips by bit say of claim C8: one bit dominates, and makes weights as large as said.

    A component's bit is surely first where the interval of its mean AUC loss lies above those of all other bits, and surely
    beaten where another one's lies above its.

    Args:
        data: one row per model, target and bit, with `auc_drop`, `auc_drop_low`, `auc_drop_high`.
        flipped: `flipped_magnitudes` of the same models.
        bit: that is said to dominate.
        least: |w| of a weight that it is flipped in.

    Returns:
        two rows, with `reading`, `value`, `verdict` and `detail` (the sentence that says why). `most`: the share of components
        in which the bit is surely first; `reproduced` where that is half or more and it is nowhere beaten, `partly` where it
        is first in some, else `not`. `size`: the smallest median |w| of a component with the bit flipped; `reproduced` where
        it is `least` or more, `partly` where it is in some components, else `not`.

    Raises:
        ValueError: there are no flips of this bit, or none of others.
    """
    import pandas as pd

    first = worst = beaten = parts = 0
    for _, group in data.groupby(["model", "target"], sort=False):
        own, others = group[group["bit"] == bit], group[group["bit"] != bit]
        if own.empty or others.empty:
            raise ValueError(f"the flips must be of bit {bit} and of others, to tell whether it dominates")
        parts += 1
        worst += bool(own["auc_drop"].iloc[0] > others["auc_drop"].max())
        first += bool(own["auc_drop_low"].iloc[0] > others["auc_drop_high"].max())
        beaten += bool(others["auc_drop_low"].max() > own["auc_drop_high"].iloc[0])
    why = f"bit {bit} has the largest mean AUC loss in {worst} of {parts} components, surely in {first}"
    most = "not" if not first else "partly" if beaten or 2 * first < parts else "reproduced"
    sizes = flipped["flipped_median"]
    size = "reproduced" if sizes.min() >= least else "partly" if sizes.max() >= least else "not"
    ends = f"median |w| of a component {sizes.min():.1e} to {sizes.max():.1e} with bit {bit} flipped"
    rows = [
        ("most", first / parts, most, f"{why}; another bit surely has in {beaten}"),
        ("size", sizes.min(), size, ends),
    ]
    return pd.DataFrame(rows, columns=["reading", "value", "verdict", "detail"])
