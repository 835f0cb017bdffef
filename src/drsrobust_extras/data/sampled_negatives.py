"""Ranking of a row's item among a few sampled others: the protocol of SASRec's paper (arXiv:1808.09781, section IV-B)."""

from typing import Any

import numpy as np

from drsrobust.data import Split
from drsrobust.extend import check_choice, check_whole
from drsrobust_extras.data.sequences import HISTORY

MEASURES = ("hit_rate", "ndcg")


class SampledNegatives:
    """A metric of next items for `dr.Campaign(metrics={...: it})` and on arrays: HR@k or NDCG@k of each row's item among itself
    and items that are drawn once, each with the same probability, of those that are not in the row's history: of 1 to the
    largest of these rows.

    Sampled negatives overstate quality, and can change the order of models (W. Krichene and S. Rendle, KDD 2020): it is here
    for comparison with published values. An item that ties with the row's comes before it; one whose score is NaN is not shown.

    Args:
        rows: of next items, those that are scored.
        measure: `hit_rate` or `ndcg`.
        n: items that are drawn for each row.
        k: length of a list.
        seed: of the draw.

    Raises:
        ValueError: another measure, a number under 1, rows without a history; when it is called, items of other rows.
    """

    def __init__(self, rows: Split, measure: str = "hit_rate", *, n: int = 100, k: int = 10, seed: int = 0) -> None:
        check_choice("measure", measure, MEASURES)
        self.measure, self.k = measure, check_whole("k", k, 1)
        if HISTORY not in rows.sparse:
            raise ValueError(
                f"rows must have the feature {HISTORY!r}, as those of amazon-games, got {sorted(rows.sparse)}"
            )
        self._items = rows.labels.values
        self.drawn = _draw(rows, check_whole("n", n, 1), np.random.default_rng(seed))

    def __call__(self, labels: Any, scores: np.ndarray, golden_scores: Any = None, users: Any = None) -> float:
        """The metric of scores [rows, items]."""
        return float(self.of_rows(labels.values, scores, slice(None)).mean())

    def of_rows(self, items: np.ndarray, scores: np.ndarray, part: slice) -> np.ndarray:
        """The metric of each row, float64 [m], of some rows' items [m] and scores [m, items]."""
        if not np.array_equal(items, self._items[part]):
            raise ValueError(
                f"rows of SampledNegatives have other next items than the {len(items)} rows that are scored"
            )
        own = np.take_along_axis(scores, items[:, None], axis=1)
        others = np.take_along_axis(scores, self.drawn[part], axis=1)
        place = np.where(np.isnan(own[:, 0]), self.k, np.count_nonzero(others >= own, axis=1))
        gains = np.ones(len(place)) if self.measure == "hit_rate" else 1 / np.log2(place + 2.0)
        return np.where(place < self.k, gains, 0.0)


def _draw(rows: Split, n: int, rng: np.random.Generator) -> np.ndarray:
    """Items int64 [rows, n] that are neither in a row's history nor its own; items are numbered from 1."""
    history, items = rows.sparse[HISTORY], rows.labels.values
    last = int(max(history.values.max(initial=0), items.max(initial=0)))
    known = np.repeat(np.arange(len(rows)), history.lengths) * (last + 1) + history.values
    known = np.unique(np.concatenate((known, np.arange(len(rows)) * (last + 1) + items)))
    if (most := int(np.bincount(known // (last + 1)).max())) >= last:
        raise ValueError(f"a row has all {most} items in its history, so that no other can be drawn")
    drawn = rng.integers(1, last + 1, (len(rows), n))
    start = np.arange(len(rows))[:, None] * (last + 1)
    while len(again := np.flatnonzero(np.isin(start + drawn, known))):
        drawn.flat[again] = rng.integers(1, last + 1, len(again))
    return drawn
