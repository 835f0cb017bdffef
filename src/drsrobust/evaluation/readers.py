"""Which samples read a row of a table: an inverted index of a feature's ids."""

import numpy as np

from drsrobust.data import Split
from drsrobust.data.dataset import Ids


class Readers:
    """The rows of data that read given ids of one feature.

    The positions of the ids are sorted by id, and for ranges of neighbouring ids it is kept where they begin; inside a range
    the ids themselves are compared. With half as many ranges as ids this takes at most 1.5 times the memory of the ids.

    Args:
        ids: the feature's, of n rows.

    Example:
        >>> Readers(Ids(np.array([3, 1, 3, 0], np.int32))).of(np.array([3]))
        array([0, 2])
    """

    def __init__(self, ids: Ids) -> None:
        self._ids, self._ends = ids, ids.ends()
        values = np.asarray(ids.values)
        self.cardinality = int(values.max()) + 1 if len(values) else 0
        self._shift = 0
        while (self.cardinality >> self._shift) + 2 > max(len(values) // 2, 2):
            self._shift += 1
        ranges = values >> self._shift
        self._positions = np.argsort(ranges, kind="stable").astype(np.int32 if len(values) < 2**31 else np.int64)
        counts = np.bincount(ranges, minlength=(self.cardinality >> self._shift) + 1)
        self._starts = np.concatenate(([0], np.cumsum(counts))).astype(self._positions.dtype)

    @property
    def nbytes(self) -> int:
        """Memory of the index, without the ids."""
        return self._positions.nbytes + self._starts.nbytes

    def of(self, wanted: np.ndarray) -> np.ndarray:
        """The rows that read any of some ids, ascending, each once.

        Args:
            wanted: distinct ids, int64 [m]; ids that no row reads are allowed.

        Returns:
            int64 [rows reached].
        """
        wanted = wanted[wanted < self.cardinality]
        if not len(wanted):
            return np.empty(0, np.int64)
        if len(wanted) * 8 > self.cardinality:  # many: looking at all ids is quicker than at pieces of the index
            chosen = np.zeros(self.cardinality, bool)
            chosen[wanted] = True
            positions = np.flatnonzero(chosen[self._ids.values])
        else:
            ranges = wanted >> self._shift
            if self._shift:
                ranges = np.unique(ranges)
            starts, ends = self._starts[ranges].astype(np.int64), self._starts[ranges + 1].astype(np.int64)
            lengths = ends - starts
            within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            positions = self._positions[np.repeat(starts, lengths) + within].astype(np.int64)
            if self._shift:  # neighbours of what is wanted are among them
                positions = positions[np.isin(self._ids.values[positions], wanted)]
            positions.sort()
        if self._ends is None:
            return positions
        rows = np.searchsorted(self._ends, positions, side="right")
        return rows[np.append(True, rows[1:] != rows[:-1])] if len(rows) else rows


class ReadersOf:
    """The index of every feature of a split, made when it is first asked for."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._made: dict[str, Readers] = {}

    def __getitem__(self, feature: str) -> Readers:
        if feature not in self._made:
            self._made[feature] = Readers(self._split.sparse[feature])
        return self._made[feature]

    @property
    def nbytes(self) -> int:
        """Memory of the indexes made so far."""
        return sum(readers.nbytes for readers in self._made.values())
