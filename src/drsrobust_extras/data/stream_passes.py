"""A model's passes over a stream, of which nothing but metrics is kept."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from drsrobust.evaluation import Passes, Probes, RowsError
from drsrobust.extend import AffectedRows, attached_mitigations, cache_folder, flipped, probe_tensors, stored
from drsrobust.metrics import CLICK, OF_CLICKS, OwnMetric, StreamedMetrics, StreamedNumbers, split_name
from drsrobust.models import BATCH, PaddedBatches, Scoring, score

ALONE = 4  # passes, at most, that find out of which tensors flips change scores, where flips in all of them do


class StreamError(RowsError):
    """Blocks of a stream that cannot be made or used, or that are not those of its first pass."""


class StreamPasses(Passes):
    """The golden run over a stream, and further passes: for an evaluator `AffectedRows` and the metrics in one.

    Args:
        model: without errors.
        rows: the stream (`StreamedRows`).
        scoring: makes scores of outputs.
        compare: as of `StreamedMetrics`.

    Attributes:
        scores: metrics of the golden run.
        ends: the least and the largest golden score.
        everything: as of `AffectedRows`.
    """

    everything = "its rows are a stream, whose blocks are made for whole passes"
    announced = True  # who passes a stream knows

    def __init__(self, model: nn.Module, rows: Any, scoring: Scoring, compare: str) -> None:
        self._model, self._rows, self._scoring, self._compare = model, rows, scoring, compare
        self.scores = self.full(golden=True)

    def compared(self, labels: None) -> tuple[np.ndarray, np.ndarray] | None:
        """The least and the largest score, where all may be probabilities."""
        ends = np.array(self.ends)
        return None if ends.min() < 0 or ends.max() > 1 or self._bounded() is False else (ends, ends)

    def clicks(self, rows: Any) -> int:
        """As of `Passes`."""
        return int(rows.clicks)

    def metrics(self, make: Callable[[], Any]) -> "StreamPasses":
        """These are the metrics, too."""
        return self

    def kept(self, scores: StreamedNumbers) -> None:
        """Nothing."""

    def check_metric(self, metric: OwnMetric) -> None:
        """Raises ValueError: a user's metric needs scores."""
        raise ValueError(f"metric {metric.name!r} needs all scores, and a stream keeps none")

    def _bounded(self) -> bool | None:
        """Whether a sigmoid or the like made the scores; it traces blocks up to the first whose scores may be probabilities."""
        for block in self._rows.blocks():
            if (bounded := AffectedRows(self._model, block, 0, self._scoring).bounded) is not False:
                return bounded
        return False

    def full(self, golden: bool = False) -> StreamedNumbers:
        """Metrics of all rows by the model in its present state; `golden` as of `score`.

        Raises:
            StreamError: of the blocks, or the scores' order cannot be written.
        """
        with StreamedMetrics(self._rows.prior, self._compare, cache_folder("streams")) as metrics:
            for block in self._rows.blocks():
                scores = score(self._model, PaddedBatches(block), len(block), self._scoring, golden=golden)
                try:
                    metrics.add(block.labels, scores)
                except OSError as error:  # else it would count as the model's
                    raise StreamError(str(error)) from error
            if golden:
                self.ends = metrics.low, metrics.high
            return metrics.of_clicks()

    def probe(self) -> Probes | None:
        """Tensors that no score depends on, as of `unread_tensors`.

        Raises:
            StreamError: as `full`.
        """
        if attached_mitigations(self._model):
            return None
        first = next(self._rows.blocks())
        few = AffectedRows(self._model, first.take(np.arange(min(BATCH, len(first)))), 0, self._scoring)
        return Probes(unread=unread_tensors(self._model, few, self.intact))

    def of_clicks(self, scores: StreamedNumbers, changed: None) -> tuple[float, float, float]:
        """AUC, log loss and normalised entropy."""
        return scores[:3]

    def non_finite(self, scores: StreamedNumbers, golden: StreamedNumbers | None = None) -> tuple[int, int]:
        """As of `Passes`."""
        return scores.nan_rows, scores.inf_rows

    def intact(self) -> bool:
        """Whether the model without errors gives the golden metrics."""
        return self.full() == self.scores

    def check(self, golden: StreamedNumbers) -> None:
        """Nothing to check: no array is kept."""

    def check_name(self, name: str) -> None:
        """Raises ValueError for a metric that is unknown, or that needs all scores."""
        if name not in OF_CLICKS:
            split_name(name, CLICK)
            raise ValueError(
                f"metric {name!r} needs all scores, and a stream keeps none; it has {', '.join(OF_CLICKS)}"
            )


def unread_tensors(model: nn.Module, few: AffectedRows, intact: Callable[[], bool]) -> tuple[str, ...]:
    """Tensors that no score depends on, where only passes over all rows show it: flips in each change no score of a few rows,
    and nothing of a pass. Where flips in all of them do, `ALONE` of them are tried one by one, and the others are not named.

    Args:
        model: without errors.
        few: the golden run of a few rows.
        intact: whether a pass over all rows gives what it gave without errors.

    Raises:
        RowsError: of `intact`.
    """

    def unchanged(names: tuple[str, ...]) -> bool:
        with flipped(model, stored(model), few, names):
            try:
                return intact()
            except RowsError:
                raise
            except Exception:  # the model raises where it reads them
                return False

    names = probe_tensors(model, few, reruns=False, effects=True).unread
    if names and not unchanged(names):  # some only later rows read
        names = tuple(name for name in names[:ALONE] if unchanged((name,)))
    return names
