"""Metrics that errors can harm: what their values can be, which way is worse, and what they are without errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.statistics.columns import DECISIONS
from drsrobust.statistics.intervals import UNIT

if TYPE_CHECKING:
    import pandas as pd

HIGHER_IS_BETTER = dict.fromkeys(("auc", "ndcg", "hit_rate", "recall", "overlap", "spearman"), True)
HIGHER_IS_BETTER |= dict.fromkeys(("logloss", "ne"), False)
# Least and greatest possible value of each metric.
BOUNDS = dict.fromkeys(("auc", "detected", "repaired", "ndcg", "hit_rate", "recall", "overlap"), UNIT)
BOUNDS |= dict.fromkeys(("list_changed", "users_harmed", "score_changed", "deviated_0.01", "deviated_0.1"), UNIT)
BOUNDS |= dict.fromkeys(DECISIONS, UNIT) | {"spearman": (-1.0, 1.0)}
BOUNDS |= dict.fromkeys(("logloss", "ne", "calibration", "median_change"), (0.0, float("inf")))
_GOLDEN, _DROP = "_golden", "_drop"  # columns of a headline: its value without errors, and what it lost


@dataclass(frozen=True)
class Headline:
    """A metric that says how good a model is, and what a loss of it is.

    Attributes:
        name: the column of trials that holds it, as `auc` or `ndcg@10`.
        golden: its value without errors.
    """

    name: str
    golden: float

    @classmethod
    def of(cls, trials: "pd.DataFrame") -> "list[Headline]":
        """The headlines of trials of one condition, the main one first: of each column `<name>_golden` that has a value."""
        first = {name: trials[column].to_numpy(float, na_value=np.nan)[0] for name, column in golden(trials).items()}
        return [cls(name, float(value)) for name, value in first.items() if not np.isnan(value)]

    @classmethod
    def without_errors(cls, evaluation: Any, metrics: Sequence[str] = ("ndcg",)) -> "list[Headline]":
        """The headlines of a golden `Evaluation`: AUC; without it (of rankings) those among `metrics`."""
        values = {"auc": evaluation.auc}
        if evaluation.auc is None:
            values = evaluation.metrics([name for name in metrics if _base(name) in HIGHER_IS_BETTER])
        return [cls(name, value) for name, value in values.items() if value is not None]

    @property
    def unit(self) -> str:
        """As texts name it."""
        return self.name.upper() if self.name == "auc" else self.name

    @property
    def drop(self) -> str:
        """The column of the loss."""
        return self.name + _DROP

    @property
    def columns(self) -> tuple[str, str]:
        """The columns of the value and of the loss."""
        return self.name, self.drop

    @property
    def higher_is_better(self) -> bool:
        """Whether a loss is a decrease."""
        return HIGHER_IS_BETTER[_base(self.name)]

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest possible value."""
        return BOUNDS[_base(self.name)]

    def bounds_of(self, column: str) -> tuple[float, float]:
        """The least and the greatest possible number in one of `columns`."""
        low, high = sorted(map(self.loss, self.bounds)) if column == self.drop else self.bounds
        return low, high

    def worst_of(self, column: str) -> float:
        """What a trial without scores counts as in one of `columns`."""
        worst = self.bounds[not self.higher_is_better]
        return self.loss(worst) if column == self.drop else worst

    def value(self, evaluation: Any) -> float:
        """The metric of an `Evaluation`; the worst value where the model raised."""
        known = getattr(evaluation, self.name, None)
        found = evaluation.metric(self.name) if known is None and evaluation.outcome != "raised" else known
        return self.worst_of(self.name) if found is None else found

    def losses(self, trials: "pd.DataFrame") -> np.ndarray:
        """The losses of trials, float64; NaN of those without scores."""
        return trials[self.drop].to_numpy(float, na_value=np.nan)

    def loss(self, value: Any) -> Any:
        """What is lost at a value, or at an array of them."""
        return self.golden - value if self.higher_is_better else value - self.golden


def golden(table: "pd.DataFrame") -> dict[str, str]:
    """The headlines that a table has, and their columns without errors; raises ValueError for a table without any."""
    names = [name.removesuffix(_GOLDEN) for name in map(str, table) if name.endswith(_GOLDEN)]
    found = {name: name + _GOLDEN for name in names if _base(name) in HIGHER_IS_BETTER}
    if not found:
        raise ValueError("table has no column of a metric without errors, as 'auc_golden'; it must be one of trials")
    return found


def losses_of(trials: "pd.DataFrame") -> np.ndarray | None:
    """The losses of trials, float64, NaN of those without scores, in the first headline that they have any of; or None."""
    for name in map(str, trials):
        if name.endswith(_DROP) and _base(name.removesuffix(_DROP)) in HIGHER_IS_BETTER and trials[name].notna().any():
            return trials[name].to_numpy(float, na_value=np.nan)
    return None


def known_bounds(name: str) -> tuple[float, float] | None:
    """Least and greatest possible value of a built-in metric; None if they are unknown, as of losses and of own metrics.

    Args:
        name: with or without the length of a list and a task.

    Example:
        >>> known_bounds("ndcg@10/buy"), known_bounds("logloss"), known_bounds("mine")
        ((0.0, 1.0), (0.0, inf), None)
    """
    return BOUNDS.get(_base(name))


def _base(name: str) -> str:
    return name.partition("/")[0].partition("@")[0]
