"""Error maps in a model's memory: words through integer views, applied and undone exactly, open ones known.

Between entering a `with` and its first statement an interrupt can slip past any `__exit__`. So there is a list of the maps
that are applied: a map is on it before its first word changes, and leaves it after its last word is back. `restore` undoes
what is still there. Maps belong together by the memory they hit, so a module and its parent know of each other's.
"""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from drsrobust.tensors import named_tensors, overlap, span

if TYPE_CHECKING:
    from drsrobust.injection.error_map import ErrorMap

_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a word
_OPEN: "list[Application]" = []


class ErrorMapMismatch(ValueError):
    """An error map that was made for another model; the message names the first tensor that differs."""


class Words:
    """A tensor's words as integers of the same width, by flat index; its memory, not a copy."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device, self.type, self.span = tensor.device, _SIGNED[tensor.element_size()], span(tensor)
        view = tensor.detach().view(self.type)
        self._shape = view.shape
        self._flat = view.view(-1) if view.is_contiguous() else None
        self._view = view

    def read(self, index: torch.Tensor) -> torch.Tensor:
        """The words [n] at int64 indices [n]."""
        if self._flat is not None:
            return self._flat.index_select(0, index)
        return self._view[torch.unravel_index(index, self._shape)]

    def write(self, index: torch.Tensor, words: torch.Tensor) -> None:
        """Puts words [n] at distinct int64 indices [n]."""
        if self._flat is not None:
            self._flat.scatter_(0, index, words)
        else:
            self._view[torch.unravel_index(index, self._shape)] = words


def words_of(error_map: "ErrorMap", model: nn.Module) -> Iterator[tuple[str, Words, torch.Tensor, torch.Tensor]]:
    """For each tensor that was hit: name, words, the indices hit (int64 [n]) and their XOR masks (of the words' type).

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
        name = error_map.fingerprint[number].name
        words = Words(tensors[name])
        width = 8 * words.type.itemsize
        mask = error_map.mask[start:end].astype(f"uint{width}")
        mask = mask if width == 8 else mask.view(f"int{width}")
        index = torch.from_numpy(error_map.word[start:end].copy())
        yield name, words, index.to(words.device), torch.from_numpy(mask).to(words.device)


class Application:
    """One map applied to one model. `apply` and `undo` may be interrupted anywhere; `undo` may run twice.

    Nothing is changed before `apply`. It raises ErrorMapMismatch for a map that was made for another model.
    """

    def __init__(self, error_map: "ErrorMap", model: nn.Module) -> None:
        self.error_map = error_map
        self._model = model
        self._saved: dict[str, tuple[Words, torch.Tensor, torch.Tensor]] = {}

    def apply(self) -> None:
        """Saves the original words of all tensors, then changes them."""
        masks = {}
        for name, words, index, mask in words_of(self.error_map, self._model):
            self._saved[name] = (words, index, words.read(index))
            masks[name] = mask
        _OPEN.append(self)
        for name, (words, index, original) in self._saved.items():
            words.write(index, original ^ masks[name])

    def undo(self) -> None:
        """Writes the original words back; nothing when that was done before.

        Raises:
            RuntimeError: another map was applied to the same memory later and is still there; or a tensor was replaced
                meanwhile (by `.to()`, `.double()`, an assignment to `.data`), so that its errors live on in the new one.
        """
        if self not in _OPEN:
            return
        for later in _OPEN[_OPEN.index(self) + 1 :]:
            if later.hits(self.spans):
                raise RuntimeError(
                    f"error maps are undone last in, first out: {later.error_map!r} was applied after "
                    f"{self.error_map!r} and is still in the model. drsrobust.restore(model) undoes all of them"
                )
        for words, index, original in self._saved.values():
            words.write(index, original)
        _OPEN.remove(self)
        now = dict(named_tensors(self._model, buffers=True))
        replaced = [n for n, (words, *_) in self._saved.items() if n in now and span(now[n]) != words.span]
        if replaced:
            raise RuntimeError(
                f"{', '.join(replaced)}: replaced while errors were in it (by .to(), .double() or an assignment), so the "
                "errors could not be undone there. Convert a model before injecting into it"
            )

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The memory of the tensors that were hit."""
        return [words.span for words, _, _ in self._saved.values()]

    def hits(self, spans: list[tuple[int, int]]) -> bool:
        """Whether a tensor that was hit has memory in common with one of these."""
        return any(overlap(one, other) for one in self.spans for other in spans)


def _open_in(model: nn.Module) -> list[Application]:
    if not _OPEN:
        return []
    spans = [span(tensor) for _, tensor in named_tensors(model, buffers=True)]
    return [application for application in _OPEN if application.hits(spans)]


def applied_maps(model: nn.Module) -> "tuple[ErrorMap, ...]":
    """The maps that are in the model's memory now, in the order in which they were applied."""
    return tuple(application.error_map for application in _open_in(model))


def restore(model: nn.Module) -> int:
    """Undoes every error map that is still in the model, as an interrupted `with` can leave one.

    Returns:
        how many there were.

    Raises:
        RuntimeError: a tensor was replaced while errors were in it; all others are restored all the same.
    """
    left, errors = _open_in(model), []
    for application in reversed(left):
        try:
            application.undo()
        except RuntimeError as error:  # what it could put back is back; the others are still to come
            errors.append(error)
    if errors:
        raise errors[0]
    return len(left)


def restore_leftovers(model: nn.Module) -> None:
    """As `restore`, with a warning when there was anything: for those who start to work with a model."""
    if left := restore(model):
        warnings.warn(
            f"{left} error map(s) were still in the model and have been undone: an interrupted `with` left them, or this is "
            "inside one (make an Evaluator or a Campaign before injecting)",
            stacklevel=3,
        )
