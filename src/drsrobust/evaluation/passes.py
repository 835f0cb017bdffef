"""How an evaluator scores all rows, and again those that errors affect.

Rows of a Split, or in batches of their own, in one process are `AffectedRows`. Further rows make their passes themselves
(`OtherRows`), and other kinds of models are registered (`register_passes`); an evaluator asks nothing else about them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import nn

from drsrobust._registrations import load_registrations
from drsrobust.evaluation.evaluation import non_finite_rows
from drsrobust.models import Scoring

if TYPE_CHECKING:
    from drsrobust.data import Ids
    from drsrobust.evaluation.evaluation import TaskMetrics
    from drsrobust.injection import ErrorMap
    from drsrobust.introspection.ranks import Ranks
    from drsrobust.metrics.own import OwnMetric
    from drsrobust.mitigation import Mitigation


@dataclass(frozen=True)
class Probes:
    """What the probes of a model's tensors showed.

    Attributes:
        full_run: why reruns must be full runs; None if they need not be.
        rounded: tensors with errors in which a rerun has other last bits than a full run.
        without_effect: tensors that batches read, and that no score depends on.
        unread: tensors that no batch reads as far as is known, and that no score depends on.
    """

    full_run: str | None = None
    rounded: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


class Passes:
    """What an evaluator needs of its rows and model. The defaults are those of one process that keeps all scores.

    Attributes:
        scores: of the golden run.
        everything: why every rerun is a full run; None otherwise.
        bounded: whether an operation with a bounded result, as a sigmoid, made the scores; None: unknown.
        announced: whether their users know that every rerun is a full run.
        ranks: the processes that make the same calls; None: this one alone.
        traced: whether the golden run was traced, so that all tensors can be probed (`tensor_probes`).
    """

    scores: Any
    everything: str | None = None
    bounded: bool | None = None
    announced = False
    ranks: "Ranks | None" = None
    traced = False

    def full(self) -> Any:
        """Scores of all rows, as logits (`Scoring.logits`), by the model in its present state: a server gets its weights first.

        Raises:
            RowsError: rows could not be scored, as for a lost connection; any other exception counts as the model's.
        """
        raise NotImplementedError

    def of(self, maps: Iterable["ErrorMap"]) -> Any:
        """What the errors of several maps together affect."""
        raise NotImplementedError

    def score(self, affected: Any) -> tuple[Any, np.ndarray | None]:
        """Scores of all rows, of which the affected ones are computed, and the numbers of rows that may differ (None: any)."""
        raise NotImplementedError

    def intact(self) -> bool:
        """Whether the model without errors gives the golden scores."""
        raise NotImplementedError

    def probe(self) -> Probes | None:
        """What probes of the model's tensors show where the golden run was not traced; None: nothing is probed."""
        return None

    def metrics(self, make: Callable[[], "TaskMetrics"]) -> Any:
        """The metrics of the golden scores; `make` gives those of a task."""
        return make()

    def non_finite(self, scores: Any, golden: np.ndarray | None = None) -> tuple[int, int]:
        """The number of rows with NaN, and of other rows with an infinite score; as `non_finite_rows`."""
        return non_finite_rows(scores, golden)

    def kept(self, scores: Any) -> np.ndarray | None:
        """The scores that an evaluation keeps."""
        return scores

    def compared(self, labels: Any) -> tuple[Any, Any] | None:
        """Scores and labels that show whether the scores look like probabilities; None where they cannot."""
        return self.scores, labels

    def clicks(self, rows: Any) -> int:
        """How many labels are a click."""
        return int(np.sum(rows.labels))

    def on_first(self, function: Callable[[], Any]) -> Any:
        """What a function returns; of several processes what it returns in the one that has scores."""
        return function()

    def check_mitigation(self, mitigation: "Mitigation") -> None:
        """Raises ValueError for a mitigation that cannot act on these passes."""

    def check_metric(self, metric: "OwnMetric") -> None:
        """Raises ValueError for a user's metric that these passes cannot measure."""


class Asked(NamedTuple):
    """What passes are made of: the model without errors, the rows, how outputs become scores, the evaluator's options."""

    model: nn.Module
    rows: Any
    scoring: Scoring
    options: dict[str, Any]


class OtherRows:
    """Rows that are no Split: they come in batches that are scored as they are, or make their passes themselves.

    Attributes:
        in_batches: whether they come in batches: a dataclass that has `batches`, `sizes` (rows of each, int64), and `labels`,
            `users` and `prior` as of a Split. Otherwise `passes` makes their passes.
        dataset: name, in tables and figures.
        tasks: names of the T tasks of each row; none of one.
        fingerprint: SHA-256 (hex) of all that decides a result.
        here_alone: why other processes cannot make them; None if they are sent there.
    """

    in_batches = False
    dataset: str
    tasks: tuple[str, ...] = ()
    fingerprint: str
    here_alone: str | None = None
    # Of rows in batches, the last three of others too. Without values, which fields of a dataclass would take for defaults.
    batches: Sequence[Any]
    sizes: np.ndarray
    labels: "np.ndarray | Ids"
    users: np.ndarray | None
    prior: float

    def of_task(self, task: str) -> "OtherRows":
        """These rows for a task of an evaluator.

        Raises:
            ValueError: the labels are not those of the task.
        """
        return self

    def passes(self, asked: Asked) -> Passes:
        """Makes the golden run."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


class RowsError(ValueError):
    """Rows cannot be made again as they were: no outcome of a model."""


_REGISTERED: list[tuple[Callable[[nn.Module, Any], bool], Callable[[Asked], Passes]]] = []


def register_passes(takes: Callable[[nn.Module, Any], bool], make: Callable[[Asked], Passes]) -> None:
    """Adds a kind of passes.

    Args:
        takes: whether a model is of this kind, on these rows; it is asked of each evaluator, so it computes next to nothing.
        make: makes the golden run.
    """
    _REGISTERED.append((takes, make))


def registered(model: nn.Module, rows: Any) -> Callable[[Asked], Passes] | None:
    """What makes the passes of a model of a kind that was registered, or of other rows; None of others."""
    load_registrations("passes")
    by_rows = rows.passes if isinstance(rows, OtherRows) and not rows.in_batches else None
    return next((make for takes, make in _REGISTERED if takes(model, rows)), by_rows)
