"""What answers for models whose memory is not the CPU's: who draws errors there, holds rows there, and counts pairs."""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
import torch

from drsrobust._registrations import load_registrations


class HeldWords(Protocol):
    """The wrong words of an error map, which lie on a device.

    Attributes:
        word: [n], flat index of the word in its tensor, sorted by tensor.
        mask: [n], the bits of its XOR mask.
        ends: int64 [tensors + 1], where the words of each tensor begin, and the end of the last one's.
        bits: how many are flipped.
    """

    word: torch.Tensor
    mask: torch.Tensor
    ends: np.ndarray
    bits: int

    def fetched(self, name: str) -> np.ndarray:
        """The array `tensor`, `word` or `mask` of the error map."""

    def counts(self) -> np.ndarray:
        """Flipped bits of each number in each tensor: int64 [tensors, 64]."""


class Accelerator(ABC):
    """What answers for models on one kind of device."""

    @abstractmethod
    def drawn(self, space: Any, clock: Any, rate: float) -> HeldWords | None:
        """The words of flips at a rate in an address space, drawn by the error clock there; None: a core draws them."""

    @abstractmethod
    def rows(self, model: Any, split: Any) -> tuple[Any, Any]:
        """A copy of a split's rows there, which makes batches, and their look-ups (`SplitLookups`)."""

    @abstractmethod
    def twice_won(self, clicked: np.ndarray, scores: np.ndarray, *, device: torch.device) -> int:
        """As `metrics.auc.twice_won`, counted there."""


_MADE: list[Accelerator] = []


def register_accelerator(accelerator: Accelerator) -> None:
    """Sets what answers for models on other devices than the CPU."""
    _MADE[:] = [accelerator]


def accelerator_of(device: torch.device | None) -> Accelerator | None:
    """What answers for models on a device; None for the CPU, and for memory on several devices."""
    if device is None or device.type in ("cpu", "meta"):
        return None
    load_registrations("devices")
    return _MADE[0]
