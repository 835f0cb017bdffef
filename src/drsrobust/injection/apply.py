"""Applying error maps to a model's memory and undoing them exactly, and the registry of what is applied now.

An interrupt between entering a `with` and its first statement can slip past any `__exit__`. So a change enters the registry
before it touches its model and leaves it after the model is restored: `restore` undoes what is still there."""

import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from drsrobust.injection.copy_watch import unwatch_copies, watch_copies
from drsrobust.injection.read_only import refuse_read_only
from drsrobust.injection.stored import OPTIMIZER, Stored, distinct_spans
from drsrobust.injection.words import WordView, as_integers
from drsrobust.introspection.tensors import named_tensors, overlap, span, unwrapped
from drsrobust.introspection.wrappers import check_module

Span = tuple[int, int]  # first byte and end of a tensor's memory


class Flips(Protocol):
    """The part of an `ErrorMap` that is applied."""

    @property
    def fingerprint(self) -> tuple[Any, ...]: ...
    @property
    def word(self) -> np.ndarray: ...
    @property
    def mask(self) -> np.ndarray: ...
    @property
    def original(self) -> np.ndarray | None: ...
    @property
    def depends(self) -> np.ndarray | None: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def on_device(self) -> Any: ...
    def by_tensor(self) -> Iterator[tuple[int, slice]]: ...


class Change(ABC):
    """Something done to a model that can be undone: an error map in its memory, or hooks on it.

    Attributes:
        model: the model.
        spans: the memory that it changes.
        thread: the thread that made it.
    """

    model: nn.Module
    spans: list[Span]
    thread: int

    @abstractmethod
    def apply(self) -> None:
        """Makes the change."""

    @abstractmethod
    def undo(self) -> None:
        """Restores the model; does nothing if that was done before."""

    def unreached(self) -> list[str]:
        """Places that were never reached while it was applied, so that nothing could be hit there."""
        return []

    def open(self, already: str) -> None:
        """Notes that it is applied now; RuntimeError with this text if it is already, or if another thread has errors in the
        model."""
        with OPEN.lock:
            if self in OPEN:
                raise RuntimeError(already)
            OPEN.add(self)

    def close(self) -> None:
        """Notes that it is undone."""
        with OPEN.lock:
            OPEN.remove(self)


class OpenChanges:
    """The process-wide registry of changes that are applied to models now, in their order.

    A change concerns a model if it was made to the model, to a part of it or to a module that holds it, or if it changed
    memory that the model uses too (tied weights). A model takes the changes of one thread at a time.

    Attributes:
        lock: held while the registry or a model's words change, so that apply and undo are atomic among threads.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._changes: list[Change] = []
        # Another thread of the parent may hold it.
        os.register_at_fork(after_in_child=self.lock._at_fork_reinit)  # type: ignore[attr-defined]  # not in typeshed

    def __contains__(self, change: Change) -> bool:
        return change in self._changes

    def __bool__(self) -> bool:
        return bool(self._changes)

    def add(self, change: Change) -> None:
        """Adds a change of this thread.

        Raises:
            RuntimeError: another thread has changes in the model, or in a part of it.
        """
        change.thread = threading.get_ident()
        if any(other.thread != change.thread and _share_modules(change.model, other.model) for other in self._changes):
            raise RuntimeError(
                "another thread has errors in this model; give each thread a copy of the model, or let them take turns. "
                "If that thread has ended, drsrobust.restore(model) undoes its errors"
            )
        self._changes.append(change)

    def remove(self, change: Change) -> None:
        """Removes a change, if it is there."""
        if change in self._changes:
            self._changes.remove(change)

    def of(self, model: nn.Module) -> list[Change]:
        """The changes that concern a model."""
        changes = list(self._changes)  # other threads may add and remove some meanwhile
        if all(change.model is model for change in changes):  # nearly always; comparing memory takes longer
            return changes
        spans = [span(tensor) for _, tensor in named_tensors(model, buffers=True)]
        return [change for change in changes if _share_modules(model, change.model) or _overlap(change.spans, spans)]

    def other_maps(self, applied: "AppliedMap", *, later: bool = False) -> "list[AppliedMap]":
        """The other applied maps; only the ones that were applied later, if asked for."""
        changes = self._changes[self._changes.index(applied) + 1 :] if later else self._changes
        return [change for change in changes if isinstance(change, AppliedMap) and change is not applied]


OPEN = OpenChanges()


def _share_modules(model: nn.Module, other: nn.Module) -> bool:
    modules = {id(module) for module in model.modules()}
    return any(id(module) in modules for module in other.modules())


def _overlap(spans: list[Span], others: list[Span]) -> bool:
    return any(overlap(span, other) for span in spans for other in others)


def open_in(model: nn.Module) -> list[Change]:
    """Error maps and hooks that are in a model now, in the order in which they were applied."""
    return OPEN.of(model)


def applied_maps(model: nn.Module) -> tuple[Any, ...]:
    """The error maps that are in the model's memory now, in the order in which they were applied."""
    return tuple(change.error_map for change in OPEN.of(model) if isinstance(change, AppliedMap))


def maps_with(error_map: Any, model: nn.Module) -> tuple[list[Any], bool]:
    """The error maps that are in the model's memory now, and whether errors are drawn while it runs, too.

    Raises:
        ValueError: an error map is none of these.
    """
    changes = OPEN.of(model)
    maps = [change.error_map for change in changes if isinstance(change, AppliedMap)]
    transient = len(maps) < len(changes)
    if not any(applied is error_map for applied in maps) and not (transient and error_map.log is not None):
        raise ValueError(f"{error_map!r} is not in the model; call this inside `with dr.inject(...) as error_map:`")
    return maps, transient


def restore(model: nn.Module) -> int:
    """Undoes every error map that is still in the model and removes every hook, as an interrupted `with` can leave them.

    Returns:
        how many there were.

    Raises:
        RuntimeError: a tensor was replaced while errors were in it; all others are restored first.

    Example:
        >>> import drsrobust as dr
        >>> model = torch.nn.PReLU()  # has one weight, 0.25
        >>> interrupted = dr.inject(model, dr.SingleBit(31), seed=0)
        >>> _ = interrupted.__enter__()
        >>> model.weight.item(), restore(model), model.weight.item()
        (-0.25, 1, 0.25)
    """
    check_module(model)
    changes, errors = OPEN.of(model), []
    for change in reversed(changes):
        try:
            change.undo()
        except RuntimeError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return len(changes)


def restore_leftovers(model: nn.Module) -> None:
    """As `restore`, with a warning if there was anything. Evaluators, campaigns and fitted mitigations call it first."""
    if count := restore(model):
        warnings.warn(
            f"{count} error map(s) or hooks were still in the model and have been undone: an interrupted `with` left them, or "
            "this is inside one (make an Evaluator or a Campaign before injecting)",
            stacklevel=3,
        )


@contextmanager
def suspended(model: nn.Module) -> Iterator[None]:
    """Undoes all changes of a model while the block runs, and makes them again."""
    changes = OPEN.of(model)
    try:
        for change in reversed(changes):
            change.undo()
        yield
    finally:
        for change in changes:
            if change not in OPEN:
                change.apply()


class ErrorMapMismatch(ValueError):
    """An error map that was made for another model; the message names the first tensor that differs."""


class AppliedMap(Change):
    """One map that is, or will be, applied to one model. `apply` and `undo` may be interrupted anywhere; `undo` may run twice.

    Args:
        error_map: which words.
        memory: the tensors of the model, as `stored(model)`.
        model: the model.
    """

    def __init__(self, error_map: Flips, memory: Mapping[str, Stored], model: nn.Module) -> None:
        self.error_map, self.memory, self.model = error_map, memory, model
        self.spans, self.thread = [], threading.get_ident()
        self._hit: list[tuple[str, torch.Tensor]] = []
        self._versions: list[int] = []
        self._saved: list[tuple[WordView, torch.Tensor, torch.Tensor]] = []

    def apply(self) -> None:
        """Saves the original words, then changes them.

        Raises:
            ErrorMapMismatch: the map was made for another model.
            RuntimeError: the map is applied already, or another thread has errors in the model.
            ValueError: hit words share memory, or a tensor lies in read-only memory.
        """
        with OPEN.lock:
            if self in OPEN:
                raise RuntimeError(f"{self.error_map!r} is in the model already")
            hits, self.spans = _words_to_hit(self.error_map, self.memory)
            self._hit, self._saved = [(hit.name, hit.tensor) for hit in hits], []
            self._versions = [_version(tensor) for _, tensor in self._hit]
            OPEN.add(self)
            watch_copies(self.model)
            for hit in hits:
                self._saved.append((hit.words, hit.places, hit.words.read(hit.places)))
            for (words, index, original), hit in zip(self._saved, hits, strict=True):
                words.write(index, original ^ hit.mask)

    def undo(self) -> None:
        """Writes the original words back; does nothing if that was done before.

        Raises:
            RuntimeError: another map was applied to the same memory later and is still there; or a tensor was replaced
                meanwhile (by `.to()`, `.double()`, an assignment to `.data`), so that the new one keeps its errors; or the
                model or its user wrote to it (an optimizer's step, `load_state_dict`, an embedding's `max_norm`): words that
                were hit are restored all the same, others are what was written.
        """
        with OPEN.lock:
            if self not in OPEN:
                return
            self.check_order()
            for words, index, original in reversed(self._saved):
                words.write(index, original)
            if not any(other.model is self.model for other in OPEN.other_maps(self)):
                unwatch_copies(self.model)
            OPEN.remove(self)  # last: after an interrupt above, `restore` still finds the map
        spans = list(map(span, self._tensors_now()))
        names = [name for name, _ in self._hit]
        if replaced := [name for name, old, new in zip(names, self.spans, spans, strict=True) if old != new]:
            raise RuntimeError(
                f"{', '.join(replaced)}: replaced while errors were in it (by .to(), .double() or an assignment), so the "
                "errors could not be undone there. Convert a model before injecting into it"
            )
        versions = [_version(tensor) for _, tensor in self._hit]
        if written := [name for name, old, new in zip(names, self._versions, versions, strict=True) if old != new]:
            raise RuntimeError(
                f"{', '.join(written)}: written to while errors were in it (by an optimizer's step, load_state_dict, max_norm, "
                "batch statistics in training mode ...). Words that were hit are restored, others are what was written. For "
                "lasting errors use error_map.apply(model)"
            )

    def check_order(self) -> None:
        """Raises RuntimeError if a map that was applied later is still in the same memory."""
        for other in OPEN.other_maps(self, later=True) if self in OPEN else ():
            if _overlap(self.spans, other.spans):
                raise RuntimeError(
                    f"error maps are undone last in, first out: {other.error_map!r} was applied after "
                    f"{self.error_map!r} and is still in the model. drsrobust.restore(model) undoes all of them"
                )

    def _tensors_now(self) -> list[torch.Tensor]:
        """The tensors that have the names of the hit ones by now; the hit one, if no tensor has."""
        model, tensors = unwrapped(self.model), []
        for name, tensor in self._hit:
            stored = self.memory[name]
            if stored.rows is None and stored.spread is None and not name.startswith(OPTIMIZER):
                try:
                    *path, last = name.split(".")
                    owner = reduce(getattr, path, model)
                    # An attribute may be what a module computes of its parameter.
                    now = owner._parameters[last] if last in owner._parameters else getattr(owner, last)
                    tensor = now if isinstance(now, torch.Tensor) else tensor
                except AttributeError:
                    pass
            tensors.append(tensor)
        return tensors


def apply_for_good(error_map: Flips, memory: Mapping[str, Stored]) -> None:
    """Changes the words of a model for good. Arguments and errors as of `AppliedMap`."""
    with OPEN.lock:
        for hit in _words_to_hit(error_map, memory)[0]:
            hit.words.write(hit.places, hit.words.read(hit.places) ^ hit.mask)


class _Hit(NamedTuple):
    """Words of one tensor that a map hits: the tensor's name and memory, their int64 indices [n] and XOR masks [n]."""

    name: str
    tensor: torch.Tensor
    words: WordView
    places: torch.Tensor
    mask: torch.Tensor


def _words_to_hit(error_map: Flips, memory: Mapping[str, Stored]) -> tuple[list[_Hit], list[Span]]:
    """The words that a map hits in this process, and the spans of their tensors. Changes nothing.

    Raises:
        ErrorMapMismatch: the map was made for another model.
        ValueError: hit words share memory, or lie in read-only memory.
    """
    for expected in error_map.fingerprint:
        if expected.name not in memory:
            kind = "optimizer state (name it by optimizer=)" if expected.name.startswith(OPTIMIZER) else "tensor"
            raise ErrorMapMismatch(f"the error map hits {expected.name!r}; this model does not have this {kind}")
        present = memory[expected.name]
        if tuple(present.tensor.shape) != expected.shape or present.format_name != expected.format:
            raise ErrorMapMismatch(
                f"the error map was made for {expected.name!r} of {list(expected.shape)} {expected.format}; in this model "
                f"it is {list(present.tensor.shape)} {present.format_name}"
            )
    hits, tensors = [], {}
    masks: dict[torch.dtype, np.ndarray] = {}  # of all words, by type
    for number, entries in error_map.by_tensor():
        name, drawn = error_map.fingerprint[number].name, error_map.on_device
        whole = memory[name].tensor
        if drawn is not None and memory[name].spread is None and whole.device == drawn.word.device:
            words, tensors[name] = WordView(whole), whole
            hits.append(_Hit(name, whole, words, drawn.word[entries], drawn.mask[entries].to(words.type)))
            continue
        for tensor, chosen, index in _held(memory[name], error_map.word[entries], error_map.rank):
            words = WordView(tensor)
            if error_map.original is not None:
                depends = slice(None) if error_map.depends is None else error_map.depends[entries][chosen]
                _check_original(name, words, index[depends], error_map.original[entries][chosen][depends])
            position = torch.from_numpy(np.ascontiguousarray(index)).to(words.device)
            if words.type not in masks:
                masks[words.type] = as_integers(error_map.mask, words.type)
            mask = torch.from_numpy(masks[words.type][entries][chosen]).to(words.device)
            hits.append(_Hit(name, tensor, words, position, mask))
            tensors[f"{name}, part {len(tensors)}" if name in tensors else name] = tensor
    spans = distinct_spans(tensors)
    refuse_read_only(tensors)
    return hits, spans


def _held(stored: Stored, word: np.ndarray, rank: int | None) -> Iterator[tuple[torch.Tensor, Any, np.ndarray]]:
    """The memory of this process that some words [n] lie in, which of them lie there, and their flat index there. Of a replica
    `rank` hits its own alone."""
    if stored.spread is None:
        if rank is not None and rank != torch.distributed.get_rank():
            return
        yield stored.tensor, slice(None), word
    else:
        yield from stored.spread.held(word)


def _check_original(name: str, words: WordView, index: np.ndarray, made_from: np.ndarray) -> None:
    """Raises ErrorMapMismatch unless words at an index [n] are those that masks were made from."""
    present = words.read_uint64(index)
    if (present != made_from).any():
        first = int(np.flatnonzero(present != made_from)[0])
        raise ErrorMapMismatch(
            f"the error map was made from words of {name!r} that this model does not hold: word {index[first]} was "
            f"{made_from[first]:#x}, here it is {present[first]:#x}"
        )


def _version(tensor: torch.Tensor) -> int:
    """PyTorch's count of writes to a tensor, without ours through `.data`; 0 for inference tensors, which have none."""
    return 0 if tensor.is_inference() else tensor._version


def _count_fused_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
    """Counts the writes of a fused step while errors are in some model, because PyTorch counts only other steps. (Comparing
    words would miss a step that leaves a word of 1e37 as it is, and would find the writes of a repair.)"""
    if not OPEN:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            state = optimizer.state.get(parameter, {}).values()
            for tensor in (parameter, *state) if parameter.grad is not None else ():
                if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
                    increment_version(tensor)


register_optimizer_step_post_hook(_count_fused_step)
