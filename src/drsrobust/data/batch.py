"""Batches of rows: TorchRec's `Batch` where TorchRec is installed, else objects with the same methods."""

import importlib.util
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

import torch

from drsrobust.introspection.embedding_modules import torchrec


@dataclass
class Batch:
    """B rows, as of `torchrec.datasets.utils.Batch`.

    Attributes:
        dense_features: float32 [B, D].
        sparse_features: the ids of all features.
        labels: [B], or [B, T].
    """

    dense_features: torch.Tensor
    sparse_features: "KeyedIds"
    labels: torch.Tensor

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device."""
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


class KeyedIds:
    """Ids of several features for B rows, with the methods of `torchrec.KeyedJaggedTensor` that models need.

    Args:
        keys: names of the F features.
        values: all ids, feature by feature, and row by row within a feature.
        lengths: [F * B], ids of each row.
    """

    def __init__(self, keys: list[str], values: torch.Tensor, lengths: torch.Tensor) -> None:
        self._keys, self._values, self._lengths = keys, values, lengths

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> torch.Tensor:
        return self._values

    def lengths(self) -> torch.Tensor:
        return self._lengths

    def offsets(self) -> torch.Tensor:
        """[F * B + 1]: where each row's ids begin in `values`."""
        return self._offsets

    @cached_property
    def _offsets(self) -> torch.Tensor:
        return torch.nn.functional.pad(self._lengths.cumsum(0, dtype=self._lengths.dtype), (1, 0))

    @cached_property
    def _per_key(self) -> list[int]:
        return self._lengths.view(len(self._keys), -1).sum(dim=1).tolist() if len(self._keys) else []

    def weights_or_none(self) -> None:
        return None

    def stride(self) -> int:
        """The number of rows, B."""
        return len(self._lengths) // len(self._keys) if self._keys else 0

    def length_per_key(self) -> list[int]:
        """The number of ids of each feature."""
        return self._per_key

    def offset_per_key(self) -> list[int]:
        """[F + 1]: where each feature's ids begin in `values`."""
        return [sum(self._per_key[:end]) for end in range(len(self._keys) + 1)]

    def __getitem__(self, key: str) -> "KeyedIds":
        """The ids of one feature; `values`, `lengths` and `offsets` are those of its rows."""
        number, rows, bounds = self._keys.index(key), self.stride(), self.offset_per_key()
        values = self._values[bounds[number] : bounds[number + 1]]
        return KeyedIds([key], values, self._lengths[number * rows : (number + 1) * rows])

    def to_dict(self) -> dict[str, "KeyedIds"]:
        return {key: self[key] for key in self._keys}

    def to(self, device: torch.device | str) -> "KeyedIds":
        """The ids on a device."""
        if self._values.device == torch.device(device):
            return self  # with its offsets, for which a GPU would have to finish its work
        return KeyedIds(self._keys, self._values.to(device), self._lengths.to(device))


@cache
def has_torchrec() -> bool:
    """Whether TorchRec is installed."""
    return importlib.util.find_spec("torchrec") is not None


def make_batch(
    dense: torch.Tensor, keys: list[str], values: torch.Tensor, lengths: torch.Tensor, labels: torch.Tensor
) -> Any:
    """A batch of B rows.

    Args:
        dense: float32 [B, D].
        keys, values, lengths: as of `KeyedIds`.
        labels: [B], or [B, T].
    """
    if not has_torchrec():
        return Batch(dense, KeyedIds(keys, values, lengths), labels)
    ids = torchrec().KeyedJaggedTensor(keys=keys, values=values, lengths=lengths)
    return torchrec().datasets.utils.Batch(dense_features=dense, sparse_features=ids, labels=labels)
