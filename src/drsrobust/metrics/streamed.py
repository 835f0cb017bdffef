"""Metrics of click scores that come in blocks and are never in memory together."""

import math
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from drsrobust._files import unnamed_file, write_array, writing
from drsrobust.metrics._inputs import checked
from drsrobust.metrics.auc import best_first_keys, share_won, twice_won_by_ranges
from drsrobust.metrics.log_loss import entropy, factors, mean_log, served


class StreamedNumbers(NamedTuple):
    """AUC, log loss (nats per row) and normalised entropy; rows whose score is NaN, and infinite."""

    auc: float
    logloss: float
    ne: float
    nan_rows: int
    inf_rows: int


class StreamedMetrics:
    """AUC, log loss and normalised entropy of scores in blocks. AUC equals `metrics.auc` of all scores in every bit, the others
    are equal within 1e-12, since their sums have another order.

    Args:
        prior: click rate of the training rows, what a NaN predicts.
        compare: what AUC compares: `logit`, or `probability` (float32, as `served` gives it).
        folder: for 4 bytes and 1 byte a row, in files that go when the block ends.

    Attributes:
        low, high: the least and the largest score of numbers.

    Raises:
        OSError: of `add`, a file cannot be written.
    """

    def __init__(self, prior: float, compare: str, folder: Path) -> None:
        self._prior, self._compare, self._folder = prior, compare, folder
        self._losses: list[float] = []
        self._nan_rows = self._inf_rows = 0
        self.low, self.high = math.inf, -math.inf

    def __enter__(self) -> Self:
        with ExitStack() as files:
            self._keys, self._clicked = (files.enter_context(unnamed_file(self._folder)) for _ in range(2))
            self._files = files.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def add(self, labels: np.ndarray, scores: np.ndarray) -> None:
        """Adds the rows of a block.

        Args:
            labels: [m], 0 or 1.
            scores: logits [m]; float32 where AUC compares them.

        Raises:
            ValueError: labels and scores of different lengths, a label other than 0 and 1, or logits of another type.
        """
        clicked, scores = checked(labels, scores)
        keys = best_first_keys(served(scores) if self._compare == "probability" else scores)
        if keys.itemsize > 4:
            raise ValueError(f"scores are {scores.dtype}; in a stream, scores='logit' compares float32 alone")
        with writing(self._folder):
            write_array(self._keys, keys)
            write_array(self._clicked, clicked)
        self._losses.append(mean_log(factors(clicked, scores, self._prior)) * len(scores))
        self._nan_rows += int(np.count_nonzero(np.isnan(scores)))
        self._inf_rows += int(np.count_nonzero(np.isinf(scores)))
        self.low, self.high = np.fmin.reduce(scores, initial=self.low), np.fmax.reduce(scores, initial=self.high)

    def of_clicks(self) -> StreamedNumbers:
        """The metrics of all rows that were added."""
        keys, clicked = (np.memmap(file, kind, "r") for file, kind in ((self._keys, np.uint32), (self._clicked, bool)))
        clicks = int(np.count_nonzero(clicked))
        area = share_won(twice_won_by_ranges(clicked, keys), clicks, len(keys) - clicks)
        logloss = math.fsum(self._losses) / len(keys)
        return StreamedNumbers(area, logloss, logloss / entropy(clicked), self._nan_rows, self._inf_rows)
