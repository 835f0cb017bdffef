"""Rows one by one, as a `torch.utils.data.Dataset` gives them, and batches collated from them.

A row is a record of four NumPy views, and a batch is stacked from them: of the ways that were tried the fastest that still
asks for every row by itself. On 100,000 rows of 26 ids PyTorch's own collate takes 4 times as long for rows that are tensors,
and 70 times for lists of single ids, as the study's dataset gives them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Dataset

from drsrobust._torchrec import torchrec
from drsrobust.data import Split

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

Row = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.float32]


class RowDataset(Dataset):
    """The rows of a split, in memory. A row is: dense [D], its ids feature by feature, how many of each feature [F] (None: one
    each), label.

    Args:
        split: the rows.
    """

    def __init__(self, split: Split) -> None:
        self.dense = np.array(split.dense, np.float32)
        self.labels = np.array(split.labels, np.float32)
        columns = list(split.sparse.values())
        self._lengths = None
        if all(ids.lengths is None for ids in columns):
            self._ids = np.stack([ids.values for ids in columns], axis=1)
            return
        ones = np.ones(len(split), np.int32)
        self._lengths = np.stack([ones if ids.lengths is None else ids.lengths for ids in columns], axis=1)
        row = np.concatenate([np.repeat(np.arange(len(split)), counts) for counts in self._lengths.T])
        self._ids = np.concatenate([ids.values for ids in columns])[np.argsort(row, kind="stable")]
        self._starts = [0, *np.cumsum(self._lengths.sum(axis=1)).tolist()]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Row:
        if self._lengths is None:
            return self.dense[index], self._ids[index], None, self.labels[index]
        ids = self._ids[self._starts[index] : self._starts[index + 1]]
        return self.dense[index], ids, self._lengths[index], self.labels[index]


def collate(features: Sequence[str]) -> "Callable[[list[Row]], Batch]":
    """A collate function for rows of these features."""
    keys = list(features)

    def collated(rows: "list[Row]") -> "Batch":
        dense, ids, lengths, labels = zip(*rows, strict=True)
        if lengths[0] is None:
            values = np.stack(ids).T.ravel()
            counts = np.ones(len(values), np.int32)
        else:
            by_row = np.stack(lengths)  # [B, F]
            feature = np.repeat(np.tile(np.arange(len(keys)), len(rows)), by_row.ravel())
            values = np.concatenate(ids)[np.argsort(feature, kind="stable")]
            counts = by_row.T.ravel()
        return torchrec().datasets.utils.Batch(
            dense_features=torch.from_numpy(np.stack(dense)),
            sparse_features=torchrec().KeyedJaggedTensor(
                keys=keys, values=torch.from_numpy(values), lengths=torch.from_numpy(counts)
            ),
            labels=torch.from_numpy(np.array(labels)),
        )

    return collated
