"""What is asked of scores without errors: they are finite, and logits where they are taken for logits."""

import warnings
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np

from drsrobust.metrics import log_loss
from drsrobust.metrics.log_loss import entropy


def check_finite(golden: Any, rows: int, task: str, non_finite: Callable[..., tuple[int, int]]) -> None:
    """Raises ValueError for golden scores (of so many rows) that are not finite; for ranking, items that a row does not offer
    may have -inf. `non_finite` counts them (`Passes.non_finite`)."""
    rank = task == "ranking"
    nan_rows, inf_rows = non_finite(golden, golden if rank else None)
    if nan_rows or inf_rows:
        infinite, right = ("+inf", "finite, or -inf of masked items") if rank else ("infinite", "finite")
        raise ValueError(
            f"the model without errors gives {nan_rows} NaN and {inf_rows} {infinite} scores in {rows} rows; "
            f"all must be {right}"
        )


def warn_of_chance(name: str, auc: float, clicks: int, rows: int) -> None:
    """Warns of an AUC without errors that is within three standard errors of 0.5: errors have nothing to lose then.

    The standard error of the AUC of scores that tell nothing is that of Mann and Whitney's statistic (Annals of Mathematical
    Statistics 18, 1947).
    """
    error = sqrt((rows + 1) / (12 * clicks * (rows - clicks)))
    if abs(auc - 0.5) <= 3 * error:
        warnings.warn(
            f"{name}: the AUC without errors is {auc:.4f}, within three standard errors ({error:.2g} each) of 0.5: is this "
            "model trained, and are the labels those of these rows?",
            stacklevel=3,
        )


def warn_of_probabilities(
    name: str, scores: np.ndarray, labels: np.ndarray, tasks: Sequence[str], bounded: bool | None
) -> bool:
    """Warns if scores, or those of a task, look like probabilities; returns whether all do. Logits may lie in [0, 1] too, as
    of an untrained model: then no sigmoid made them, and as probabilities they are worse than the click rate.

    Args:
        name, tasks: of the model, and of the T tasks (none of one).
        scores, labels: [n], or [n, T].
        bounded: whether a sigmoid or a similar operation made the scores; None: unknown.
    """
    names = tasks or ("",)
    suspected = {}
    for task, values, clicks in zip(
        names, *(array.reshape(len(array), -1).T for array in (scores, labels)), strict=True
    ):
        low, high, observed = values.min(), values.max(), ~np.isnan(clicks)
        values, clicks = (values, clicks) if observed.all() else (values[observed], clicks[observed])
        if low >= 0 and high <= 1 and (bounded is not False or _predict(values, clicks)):
            suspected[task] = f"[{low:.3g}, {high:.3g}]"
    if not suspected:
        return False
    where = ", ".join(f"of {task!r} in {ends}" if task else f"in {ends}" for task, ends in suspected.items())
    right = "pass output='probability'" if len(suspected) == len(names) else "let forward return logits of all tasks"
    warnings.warn(
        f"{name}: all scores lie {where} and look like probabilities; {right}, else log loss, normalized entropy, "
        "threshold and epsilon are wrong (if they are logits: output='logit')",
        stacklevel=4,
    )
    return len(suspected) == len(names)


def _predict(values: np.ndarray, clicks: np.ndarray) -> bool:
    """Whether values [n] in [0, 1] are better probabilities of clicks than their sigmoid, and than the click rate."""
    # A million rows suffice.
    values, clicks = values[:1_000_000].astype(np.float64), clicks[:1_000_000]
    rate = float(clicks.mean())
    with np.errstate(divide="ignore"):
        loss = log_loss(clicks, np.log(values) - np.log1p(-values), rate)
    return loss < min(log_loss(clicks, values, rate), entropy(clicks > 0.5))
