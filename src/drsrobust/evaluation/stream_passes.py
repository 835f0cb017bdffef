"""A model's passes over a stream, of which nothing but metrics is kept."""

from collections.abc import Callable

import numpy as np
from torch import nn

from drsrobust._files import cache_folder, unnamed_file, writing
from drsrobust.data.row_stream import StreamedRows, StreamError
from drsrobust.evaluation.affected_rows import AffectedRows
from drsrobust.evaluation.dataflow import trace_dataflow
from drsrobust.evaluation.evaluation import TaskMetrics
from drsrobust.evaluation.passes import Passes, register
from drsrobust.evaluation.tensor_probes import ALONE, Probes, flipped, probe_tensors
from drsrobust.injection.stored import stored
from drsrobust.metrics.names import CLICK, HEADLINE, split_name
from drsrobust.metrics.own import OwnMetric
from drsrobust.metrics.streamed import Headline, StreamedMetrics
from drsrobust.mitigation.base import attached_mitigations
from drsrobust.models import Scoring, score
from drsrobust.models.scoring import BATCH, PaddedBatches


class StreamPasses(Passes):
    """The golden run over a stream, and further passes: for an evaluator `AffectedRows` and the metrics in one.

    Args:
        model: without errors.
        rows: the stream.
        scoring: makes scores of outputs.
        compare: as of `StreamedMetrics`.

    Attributes:
        scores: metrics of the golden run.
        ends: the least and the largest golden score.
        everything: as of `AffectedRows`.
    """

    everything = "its rows are a stream, whose blocks are made for whole passes"
    announced = True  # who passes a stream knows

    def __init__(self, model: nn.Module, rows: StreamedRows, scoring: Scoring, compare: str) -> None:
        self._model, self._rows, self._scoring, self._compare = model, rows, scoring, compare
        self.scores = self.full(golden=True)

    def compared(self, labels: None) -> tuple[np.ndarray, np.ndarray] | None:
        """The least and the largest score, where all may be probabilities."""
        ends = np.array(self.ends)
        return None if ends.min() < 0 or ends.max() > 1 or self._bounded() is False else (ends, ends)

    def clicks(self, rows: StreamedRows) -> int:
        """As of `Passes`."""
        return int(rows.clicks)

    def metrics(self, make: Callable[[], TaskMetrics]) -> "StreamPasses":
        """These are the metrics, too."""
        return self

    def kept(self, scores: Headline) -> None:
        """Nothing."""

    def check_metric(self, metric: OwnMetric) -> None:
        """Raises ValueError: a user's metric needs scores."""
        raise ValueError(f"metric {metric.name!r} needs all scores, and a stream keeps none")

    def _bounded(self) -> bool | None:
        """Whether a sigmoid or the like made the scores; it traces blocks up to the first whose scores may be probabilities."""
        for block in self._rows.blocks():
            flow, _ = trace_dataflow(self._model, PaddedBatches(block), self._scoring)
            if flow.bounded is not False:
                return flow.bounded
        return False

    def full(self, golden: bool = False) -> Headline:
        """Metrics of all rows by the model in its present state; `golden` as of `score`.

        Raises:
            StreamError: of the blocks, or the scores' order cannot be written.
        """
        folder = cache_folder("streams")
        with unnamed_file(folder) as keys, unnamed_file(folder) as clicked:
            metrics = StreamedMetrics(self._rows.prior, self._compare, keys, clicked)
            for block in self._rows.blocks():
                scores = score(self._model, PaddedBatches(block), len(block), self._scoring, golden=golden)
                try:
                    with writing(folder):
                        metrics.add(block.labels, scores)
                except OSError as error:  # else it would count as the model's
                    raise StreamError(str(error)) from error
            if golden:
                self.ends = metrics.low, metrics.high
            return metrics.headline()

    def probe(self) -> Probes | None:
        """Tensors that no score depends on: flips in each change no score of the first rows, and no metric of a pass. Where
        flips in all of them change a metric, `ALONE` of them are tried one by one, and the others are not named.

        Raises:
            StreamError: as `full`.
        """
        if attached_mitigations(self._model):
            return None
        first = next(self._rows.blocks())
        few = AffectedRows(self._model, first.take(np.arange(min(BATCH, len(first)))), 0, self._scoring)
        names = probe_tensors(self._model, few, reruns=False, effects=True).unread

        def intact(some: tuple[str, ...]) -> bool:
            with flipped(self._model, stored(self._model), few, some):
                try:
                    return self.intact()
                except StreamError:
                    raise
                except Exception:  # the model raises where it reads them
                    return False

        if names and not intact(names):  # some only later rows read
            names = tuple(name for name in names[:ALONE] if intact((name,)))
        return Probes(unread=names)

    def headline(self, scores: Headline, changed: None) -> tuple[float, float, float]:
        """AUC, log loss and normalised entropy."""
        return scores[:3]

    def intact(self) -> bool:
        """Whether the model without errors gives the golden metrics."""
        return self.full() == self.scores

    def check(self, golden: Headline) -> None:
        """Nothing to check: no array is kept."""

    def check_name(self, name: str) -> None:
        """Raises ValueError for a metric that is unknown, or that needs all scores."""
        if name not in HEADLINE:
            split_name(name, CLICK)
            raise ValueError(f"metric {name!r} needs all scores, and a stream keeps none; it has {', '.join(HEADLINE)}")


register(
    lambda model, rows: isinstance(rows, StreamedRows),
    lambda asked: StreamPasses(asked.model, asked.rows, asked.scoring, asked.options["scores"]),
)
