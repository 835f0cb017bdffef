"""Rows on a GPU: batches of some of them, and which of them look up given rows of tables."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.data import Ids, Split, make_batch
from drsrobust.extend import SplitLookups
from drsrobust.injection import ErrorMap


class DeviceIds:
    """The ids of one feature of all rows, on a device.

    Args:
        ids: of the feature.
        device: to which they are copied.
    """

    def __init__(self, ids: Ids, device: torch.device) -> None:
        self._values = _copy(ids.values, device)
        self._cardinality = int(ids.values.max(initial=-1)) + 1  # a number over all ids
        self._lengths = self._ends = self._rows = None
        if ids.lengths is not None:
            self._lengths, self._ends = _copy(ids.lengths, device), _copy(ids.ends(), device)
            self._rows = torch.repeat_interleave(self._lengths)  # the row of each id

    def take(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and lengths of rows, int64 [m], in their order."""
        if self._lengths is None:
            return self._values[rows], torch.ones(len(rows), dtype=torch.int32, device=rows.device)
        lengths = self._lengths[rows]
        # Of each row, by how much its ids lie further on in all ids than in those that are taken.
        shift = self._ends[rows] - lengths.cumsum(0)
        positions = torch.repeat_interleave(shift, lengths)
        positions += torch.arange(len(positions), device=rows.device)
        return self._values[positions], lengths

    def mark(self, reached: torch.Tensor, chosen: torch.Tensor) -> None:
        """Sets `reached` (bool [n]) for the rows that look up any of some ids, int64 [m]."""
        # Ids that no row has share the last place: choosing the others would wait for the GPU.
        wrong = torch.zeros(self._cardinality + 1, dtype=torch.bool, device=reached.device)
        wrong.index_fill_(0, chosen.clamp(max=self._cardinality), True)
        if self._rows is None:
            reached |= wrong[self._values]
        else:
            reached[self._rows[wrong[self._values]]] = True


class DeviceRows:
    """A copy of a split's rows on a device, where a GPU makes batches several times as fast as a core.

    Args:
        split: the rows.
        device: of the model.

    Attributes:
        sparse: feature -> its ids.
    """

    def __init__(self, split: Split, device: torch.device) -> None:
        self._device, self._n = device, len(split)
        self._dense = _copy(np.asarray(split.dense, np.float32), device)
        self._labels = _copy(split.labels_of(slice(None)), device)
        self.sparse = {name: DeviceIds(ids, device) for name, ids in split.sparse.items()}

    def __len__(self) -> int:
        return self._n

    def none(self) -> torch.Tensor:
        """False for each row: bool [n]."""
        return torch.zeros(self._n, dtype=torch.bool, device=self._device)

    def batch(self, rows: np.ndarray | slice = slice(None)) -> Any:
        """As `Split.batch`, on the device."""
        numbers = torch.from_numpy(np.arange(self._n)[rows]).to(self._device)
        taken = [ids.take(numbers) for ids in self.sparse.values()]
        none = torch.empty(0, dtype=torch.int32, device=self._device)
        values, lengths = (torch.cat([none, *parts]) for parts in zip(*taken, strict=True)) if taken else (none, none)
        return make_batch(self._dense[numbers], list(self.sparse), values, lengths, self._labels[numbers])


class DeviceLookups(SplitLookups):
    """`SplitLookups` of a model on a GPU, which reads all ids of a feature in less time than a core searches its index.

    Args:
        model: any module.
        split: the rows.
        device_rows: the same rows on the model's device.
    """

    def __init__(self, model: nn.Module, split: Split, device_rows: DeviceRows) -> None:
        super().__init__(model, split)
        self._device_rows = device_rows

    def words(self, error_map: ErrorMap) -> Any:
        return (error_map.on_device or error_map).word

    def rows(self, hits: Iterable[tuple[str, Any]], enough: float = np.inf) -> np.ndarray:
        reached = self._device_rows.none()
        for table, ids in hits:
            chosen = torch.as_tensor(ids, device=reached.device)
            for feature in self.features(table):
                self._device_rows.sparse[feature].mark(reached, chosen)
        return reached.nonzero()[:, 0].cpu().numpy()


def _copy(array: np.ndarray, device: torch.device) -> torch.Tensor:
    # A copy first: arrays may be mapped from files for reading.
    return torch.from_numpy(np.array(array)).to(device)
