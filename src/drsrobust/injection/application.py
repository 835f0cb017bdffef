"""Error maps in a model's memory: words through integer views, applied and undone exactly, open ones known per model.

Between entering a `with` and its first statement an interrupt can slip past any `__exit__`. So every model has a list of
the maps that are applied to it: a map is on the list before its first word changes, and leaves it after its last word is
back. `restore` undoes what is still on the list.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from drsrobust.tensors import named_tensors

if TYPE_CHECKING:
    from drsrobust.injection.error_map import ErrorMap

_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a word
_OPEN: "WeakKeyDictionary[nn.Module, list[Application]]" = WeakKeyDictionary()


class ErrorMapMismatch(ValueError):
    """An error map that was made for another model; the message names the first tensor that differs."""


class Words:
    """A tensor's words as integers of the same width, by flat index; its memory, not a copy."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device, self.type = tensor.device, _SIGNED[tensor.element_size()]
        view = tensor.detach().view(self.type)
        self._shape = view.shape
        self._flat = view.view(-1) if view.is_contiguous() else None
        self._view = view

    def read(self, index: torch.Tensor) -> torch.Tensor:
        """The words [n] at int64 indices [n]."""
        if self._flat is not None:
            return self._flat[index]
        return self._view[torch.unravel_index(index, self._shape)]

    def write(self, index: torch.Tensor, words: torch.Tensor) -> None:
        """Puts words [n] at distinct int64 indices [n]."""
        if self._flat is not None:
            self._flat[index] = words
        else:
            self._view[torch.unravel_index(index, self._shape)] = words


def words_of(error_map: "ErrorMap", model: nn.Module) -> Iterator[tuple[Words, torch.Tensor, torch.Tensor]]:
    """For each tensor that was hit: its words, the indices hit (int64 [n]) and their XOR masks (of the words' type).

    Raises:
        ErrorMapMismatch: before anything is given, when the model does not fit.
    """
    tensors = dict(named_tensors(model, buffers=True))
    for expected in error_map.fingerprint:
        tensor = tensors.get(expected.name)
        if tensor is None:
            raise ErrorMapMismatch(f"the error map hits {expected.name!r}, which this model does not have")
        found = f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
        if found != f"{list(expected.shape)} {expected.dtype}":
            raise ErrorMapMismatch(
                f"the error map was made for {expected.name!r} of {list(expected.shape)} {expected.dtype}; in this model "
                f"it is {found}"
            )
    bounds = np.searchsorted(error_map.tensor, np.arange(len(error_map.fingerprint) + 1))
    for number, (start, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        if start == end:
            continue
        words = Words(tensors[error_map.fingerprint[number].name])
        width = 8 * words.type.itemsize
        mask = error_map.mask[start:end].astype(f"uint{width}")
        mask = mask if width == 8 else mask.view(f"int{width}")
        index = torch.from_numpy(error_map.word[start:end].copy())
        yield words, index.to(words.device), torch.from_numpy(mask).to(words.device)


class Application:
    """One map applied to one model. `apply` and `undo` may be interrupted anywhere; `undo` may run twice."""

    def __init__(self, error_map: "ErrorMap", model: nn.Module) -> None:
        self.error_map, self._model = error_map, model
        self._saved: list[tuple[Words, torch.Tensor, torch.Tensor]] = []
        self._masks: list[torch.Tensor] = []

    def apply(self) -> None:
        """Saves the original words of all tensors, then changes them."""
        for words, index, mask in words_of(self.error_map, self._model):
            self._saved.append((words, index, words.read(index)))
            self._masks.append(mask)
        _OPEN.setdefault(self._model, []).append(self)
        for (words, index, original), mask in zip(self._saved, self._masks, strict=True):
            words.write(index, original ^ mask)

    def undo(self) -> None:
        """Writes the original words back; nothing when that was done before.

        Raises:
            RuntimeError: another map was applied later and is still there.
        """
        opened = _OPEN.get(self._model, [])
        if self not in opened:
            return
        if opened[-1] is not self:
            raise RuntimeError(
                f"error maps are undone last in, first out: {opened[-1].error_map!r} was applied after "
                f"{self.error_map!r} and is still in the model. drsrobust.restore(model) undoes all of them"
            )
        for words, index, original in self._saved:
            words.write(index, original)
        opened.remove(self)


def applied_maps(model: nn.Module) -> "tuple[ErrorMap, ...]":
    """The maps that are in the model now, in the order in which they were applied."""
    return tuple(application.error_map for application in _OPEN.get(model, []))


def restore(model: nn.Module) -> int:
    """Undoes every error map that is still in the model, as an interrupted `with` can leave one; how many there were."""
    opened = _OPEN.get(model, [])
    count = len(opened)
    while opened:
        opened[-1].undo()
    return count
