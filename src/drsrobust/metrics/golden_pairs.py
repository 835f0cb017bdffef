"""AUC of scores that differ from the golden ones in few rows: only pairs with a changed row are counted again."""

import numpy as np

from drsrobust.metrics.roc import share_won, twice_won


class GoldenPairs:
    """The pairs (click, other row) of golden scores, sorted once.

    Args:
        clicked: bool [n].
        golden: scores [n], finite.
    """

    def __init__(self, clicked: np.ndarray, golden: np.ndarray) -> None:
        self._clicked, self._golden = clicked, golden
        clicks, others = np.flatnonzero(clicked), np.flatnonzero(~clicked)
        clicks, others = clicks[np.argsort(golden[clicks])], others[np.argsort(golden[others])]
        self._clicks, self._others = golden[clicks], golden[others]
        self._won = np.zeros(len(golden), np.int64)  # twice, of a row's pairs with all of the other class, by the click
        self._won[clicks] = twice_above(self._clicks, self._others)
        self._won[others] = 2 * len(clicks) - twice_above(self._others, self._clicks)
        self._twice = int(self._won[clicks].sum())

    def auc(self, scores: np.ndarray, rows: np.ndarray | None) -> float:
        """AUC of scores [n], of which all but `rows` (distinct, int64; None: any row) are golden; exactly `roc.auc`."""
        twice = twice_won(self._clicked, scores) if rows is None else self._twice + self._gain(scores, rows)
        return share_won(twice, len(self._clicks), len(self._others))

    def _gain(self, scores: np.ndarray, rows: np.ndarray) -> int:
        """What changed rows add to twice the pairs won.

        Pairs of a changed and a golden row: as if all rows of the other class were golden. That counts pairs of two changed
        rows as (new, golden) and as (golden, new) instead of (new, new), each against (golden, golden): set right after.
        """
        clicked = self._clicked.take(rows)
        clicks, others = rows[clicked], rows[~clicked]
        new_clicks, new_others = np.sort(scores.take(clicks)), np.sort(scores.take(others))
        gain = int(twice_above(new_clicks, self._others).sum()) - int(self._won.take(clicks).sum())
        gain += int((2 * len(self._clicks) - twice_above(new_others, self._clicks)).sum())
        gain -= int(self._won.take(others).sum())
        if len(clicks) and len(others):
            old_clicks, old_others = np.sort(self._golden.take(clicks)), np.sort(self._golden.take(others))
            gain += int(twice_above(new_clicks, new_others).sum()) - int(twice_above(new_clicks, old_others).sum())
            gain += int(twice_above(old_clicks, old_others).sum()) - int(twice_above(old_clicks, new_others).sum())
        return gain


def twice_above(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Twice the number of others that each score beats, ties and NaN counting one.

    Args:
        scores: [m].
        others: [n], sorted, NaN last.

    Returns:
        int64 [m].
    """
    missing = int(np.count_nonzero(np.isnan(others)))
    known = others[: len(others) - missing]
    twice = np.searchsorted(known, scores, "left") + np.searchsorted(known, scores, "right") + missing
    return np.where(np.isnan(scores), len(others), twice)
