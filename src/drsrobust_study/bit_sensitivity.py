"""Magnitudes of all weights after a flip of one bit, and claim C8."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from drsrobust.introspection.tensors import component_of, named_tensors
from drsrobust.models import model_name
from drsrobust.statistics.summary import summarise
from drsrobust_study.findings import COUNTS
from drsrobust_study.thirds import by_thirds

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

COSTLY = 0.01  # mean AUC loss by a flip of some bit: components that lose less say little of which bit is the worst


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


def bit_claim(data: "pd.DataFrame", bit: int = 30) -> "pd.DataFrame":
    """Findings on claim C8: in how many components a flip of one bit costs most AUC.

    Args:
        data: one row per model, target and bit, with `auc_drop`, `auc_drop_low`, `auc_drop_high`.
        bit: the bit that is claimed to dominate.

    Returns:
        two rows with `reading`, `value`, `low`, `high`, `n` components, `interval`, `detail` and `reason`. `most`: the share of
        components in which the mean AUC loss of the bit is the largest; `low`, in which its interval lies above those of all
        other bits; `high`, in which no other bit's interval lies above its. `worst`: the same of the components in which a flip
        of some bit costs a mean of over 0.01 AUC, with `low` as the value.

    Raises:
        ValueError: there are no flips of this bit, or none of others.
    """
    import pandas as pd

    rows = []
    for _, group in data.groupby(["model", "target"], sort=False):
        of_bit, others = group[group["bit"] == bit], group[group["bit"] != bit]
        if of_bit.empty or others.empty:
            raise ValueError(f"data must hold flips of bit {bit} and of other bits in every component")
        row = {"by_mean": of_bit["auc_drop"].iloc[0] > others["auc_drop"].max()}
        row |= {"clear": of_bit["auc_drop_low"].iloc[0] > others["auc_drop_high"].max()}
        row |= {"beaten": others["auc_drop_low"].max() > of_bit["auc_drop_high"].iloc[0]}
        rows.append(row | {"costly": group["auc_drop"].max() > COSTLY})
    components = pd.DataFrame(rows)
    shares, counts, n = components.mean(), components.sum(), len(components)
    detail = f"bit {bit} has the largest mean AUC loss in {counts['by_mean']} of {n} components, clearly in "
    detail += f"{counts['clear']}; another bit clearly in {counts['beaten']}"
    most = {"reading": "most", "value": shares["by_mean"], "low": shares["clear"], "high": 1 - shares["beaten"], "n": n}
    most |= {"interval": COUNTS, "detail": detail, "reason": ""}
    costly = components[components["costly"]]
    shares, clear = costly.astype(float).mean(), int(costly["clear"].sum())  # without a component NaN
    detail = f"in {len(costly)} of {n} components a flip costs over {COSTLY:g} AUC; bit {bit} is clearly the worst in {clear}"
    worst = {"reading": "worst", "value": shares["clear"], "low": shares["clear"], "high": 1 - shares["beaten"]}
    worst |= {"n": len(costly), "interval": COUNTS, "detail": f"{detail} of them"}
    worst |= {"reason": "" if len(costly) else f"no flip costs over {COSTLY:g} AUC"}
    return pd.DataFrame([most, worst])


def size_claim(flipped: "pd.DataFrame") -> "pd.DataFrame":
    """The finding on claim C8: the median |w| of a component with the bit flipped, which is exact.

    Args:
        flipped: as `flipped_magnitudes` returns it.

    Returns:
        one row with `reading` (`size`), `value` (the median over components), `low` and `high` (the smallest and the greatest),
        `n` components, `interval`, `detail` and `reason`.
    """
    import pandas as pd

    medians = flipped["flipped_median"]
    row = {"reading": "size", "value": medians.median(), "low": medians.min(), "high": medians.max(), "n": len(medians)}
    row |= {"interval": f"range over {len(medians)} components", "reason": ""}
    detail = f"median |w| of a component {row['low']:.1e} to {row['high']:.1e} with the bit flipped"
    return pd.DataFrame([row | {"detail": detail}])


def claims(table: "pd.DataFrame", flipped: "pd.DataFrame") -> "pd.DataFrame":
    """All findings on claim C8, on all trials and on thirds of them.

    Args:
        table: trials of campaigns of `SingleBit` over all components of one or more models.
        flipped: `flipped_magnitudes` of these models.
    """
    import pandas as pd

    def find(trials: "pd.DataFrame") -> "pd.DataFrame":
        return bit_claim(summarise(trials).rename(columns={"error_bit": "bit"}))

    return pd.concat([by_thirds(find, table), size_claim(flipped).assign(third=0)], ignore_index=True)
