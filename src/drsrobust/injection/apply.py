"""Warnings when a model is copied, pickled or saved while errors are in it: the copy keeps them for good.

Error maps in a model's memory: applied and undone exactly, open ones known.

Between entering a `with` and its first statement an interrupt can slip past any `__exit__`. So there is a list of the maps
that are applied: a map is on it before its first word changes, and leaves it after its last word is back. `restore` undoes
what is still there. Maps belong together by the memory they hit, so a module and its parent know of each other's. A lock
makes apply and undo one step each among threads; a model takes the maps of one thread at a time."""

import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from ctypes import c_char
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from drsrobust.injection.address_space import OPTIMIZER, Stored, Words, refuse_overlaps
from drsrobust.introspection.tensors import named_tensors, overlap, span, unwrapped

if TYPE_CHECKING:
    from drsrobust.injection.error_map import ErrorMap


class CopyWatch:
    """Replaces a module's `state_dict` and its `__getstate__`, which `copy.deepcopy`, `pickle` and `torch.save` call; a
    parent's call them too. (A hook of `state_dict` takes 10 us to put on, and would be copied.)"""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.warned = False
        module.__dict__ |= {"__getstate__": self, "state_dict": self._state_dict}

    def __call__(self) -> Any:
        self._warn("copied or pickled")
        state = type(self._module).__getstate__(self._module)
        if isinstance(state, dict):
            state = {name: value for name, value in state.items() if name not in ("__getstate__", "state_dict")}
        return state

    def _state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self._warn("read by state_dict()")
        return type(self._module).state_dict(self._module, *args, **kwargs)

    def _warn(self, what: str) -> None:
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"{type(self._module).__name__} was {what} while errors are in it: the copy has these errors, and undo does "
                "not reach it. Copy a model before injecting into it",
                stacklevel=4,
            )

    def remove(self) -> None:
        """Gives the module its own methods back."""
        for name in ("__getstate__", "state_dict"):
            self._module.__dict__.pop(name, None)


def watch_copies(module: nn.Module) -> None:
    """Warns of the next copy of a module. TorchScript's modules, which cannot be watched, are left as they are."""
    watch = module.__dict__.get("__getstate__")
    if isinstance(watch, CopyWatch):
        watch.warned = False
    elif not isinstance(module, torch.jit.ScriptModule):
        CopyWatch(module)


def unwatch_copies(module: nn.Module) -> None:
    """Undoes `watch_copies`; nothing where that was done before."""
    watch = module.__dict__.get("__getstate__")
    if isinstance(watch, CopyWatch):
        watch.remove()


class Open(Protocol):
    """Something that is done to a model and can be undone: a map in its memory, or hooks on it."""

    def undo(self) -> None:
        """Puts the model back; nothing when that was done before."""

    def concerns(self, model: nn.Module, spans: list[tuple[int, int]]) -> bool:
        """Whether it was done to this model, or to memory among these spans."""


OPEN: list[Open] = []
LOCK = threading.RLock()  # held while OPEN or a model's words change
os.register_at_fork(after_in_child=LOCK._at_fork_reinit)  # another thread of the parent may have held it


class ErrorMapMismatch(ValueError):
    """An error map that was made for another model; the message names the first tensor that differs."""


class WordsHit(NamedTuple):
    """The words of one tensor that a map hits: where (int64 [n]) and their XOR masks (of the words' type)."""

    name: str
    words: Words
    index: torch.Tensor
    mask: torch.Tensor


def hits(error_map: "ErrorMap", memory: Mapping[str, Stored]) -> Iterator[WordsHit]:
    """What a map hits in a model, tensor by tensor.

    Raises:
        ErrorMapMismatch: before anything is given, when the model does not fit.
        ValueError: words that are hit lie in the same memory.
    """
    for expected in error_map.fingerprint:
        if expected.name not in memory:
            kind = "optimizer state (name it by optimizer=)" if expected.name.startswith("optimizer.") else "tensor"
            raise ErrorMapMismatch(f"the error map hits {expected.name!r}; this model does not have this {kind}")
        here = memory[expected.name]
        if tuple(here.tensor.shape) != expected.shape or here.format_name != expected.format:
            raise ErrorMapMismatch(
                f"the error map was made for {expected.name!r} of {list(expected.shape)} {expected.format}; in this model "
                f"it is {list(here.tensor.shape)} {here.format_name}"
            )
    by_name = [(error_map.fingerprint[number].name, entries) for number, entries in error_map.by_tensor()]
    tensors = {name: memory[name].tensor for name, _ in by_name}
    refuse_overlaps(tensors)
    _refuse_read_only(tensors)
    found = []
    for name, entries in by_name:
        words = Words(memory[name].tensor)
        index = error_map.word[entries]
        if error_map.original is not None:
            depends = slice(None) if error_map.depends is None else error_map.depends[entries]
            present, made_from = words.read_uint64(index[depends]), error_map.original[entries][depends]
            if (present != made_from).any():
                first = int(np.flatnonzero(present != made_from)[0])
                raise ErrorMapMismatch(
                    f"the error map was made from words of {name!r} that this model does not hold: word "
                    f"{index[depends][first]} was {made_from[first]:#x}, here it is {present[first]:#x}"
                )
        place = torch.from_numpy(np.ascontiguousarray(index)).to(words.device)
        found.append(WordsHit(name, words, place, words.masks(error_map.mask[entries])))
    yield from found


class Application:
    """One map applied to one model. `apply` and `undo` may be interrupted anywhere; `undo` may run twice.

    Nothing is changed before `apply`. It raises ErrorMapMismatch for a map that was made for another model.

    Attributes:
        error_map, memory, model: as given.

    Args:
        error_map: which words.
        memory: what the model has stored, as `stored(model)`.
        model: the model.
    """

    def __init__(self, error_map: "ErrorMap", memory: Mapping[str, Stored], model: nn.Module) -> None:
        self.error_map = error_map
        self.memory, self.model = memory, model
        self.thread = threading.get_ident()
        self._saved: dict[str, tuple[Words, torch.Tensor, torch.Tensor]] = {}
        self._versions: dict[str, int] = {}

    def apply(self) -> None:
        """Saves the original words of each tensor, then changes them.

        Raises:
            RuntimeError: the map is applied already, or another thread has errors in the model.
            ValueError: as `hits`, or a tensor lies in read-only memory.
        """
        with LOCK:
            if self in OPEN:
                raise RuntimeError(f"{self.error_map!r} is in the model already")
            found = list(hits(self.error_map, self.memory))  # first: it says so when the map does not fit
            self.thread = threading.get_ident()
            refuse_other_threads(self.model)
            OPEN.append(self)
            watch_copies(self.model)
            for name, words, index, mask in found:
                self._versions[name] = _version(self.memory[name].tensor)
                original = words.read(index)
                self._saved[name] = (words, index, original)
                words.write(index, original ^ mask)

    def undo(self) -> None:
        """Writes the original words back; nothing when that was done before.

        Raises:
            RuntimeError: another map was applied to the same memory later and is still there; or a tensor was replaced
                meanwhile (by `.to()`, `.double()`, an assignment to `.data`), so that its errors live on in the new one; or
                the model or its user wrote to it (an optimizer's step, `load_state_dict`, an embedding's `max_norm`): words
                that were hit are what they were before all the same, others are what was written.
        """
        with LOCK:
            if self not in OPEN:
                return
            self.check_order()
            for words, index, original in reversed(list(self._saved.values())):
                words.write(index, original)
            others = [one for one in OPEN if isinstance(one, Application) and one is not self]
            if not any(one.model is self.model for one in others):
                unwatch_copies(self.model)
            OPEN.remove(self)  # last: after an interrupt above, `restore` still finds the map
        replaced = [name for name, (words, *_) in self._saved.items() if self._moved(name, words)]
        if replaced:
            raise RuntimeError(
                f"{', '.join(replaced)}: replaced while errors were in it (by .to(), .double() or an assignment), so the "
                "errors could not be undone there. Convert a model before injecting into it"
            )
        written = [name for name, version in self._versions.items() if _version(self.memory[name].tensor) != version]
        if written:
            raise RuntimeError(
                f"{', '.join(written)}: written to while errors were in it (by an optimizer's step, load_state_dict, max_norm, "
                "batch statistics in training mode ...). Words that were hit are what they were before, others are what was "
                "written. For errors that are to stay, use error_map.apply(model)"
            )

    def check_order(self) -> None:
        """Raises RuntimeError when a map that was applied later is still in the same memory."""
        there = list(OPEN)
        for later in there[there.index(self) + 1 :] if self in there else ():
            if isinstance(later, Application) and later.hits(self.spans):
                raise RuntimeError(
                    f"error maps are undone last in, first out: {later.error_map!r} was applied after "
                    f"{self.error_map!r} and is still in the model. drsrobust.restore(model) undoes all of them"
                )

    def _moved(self, name: str, words: Words) -> bool:
        """Whether the tensor of that name lies elsewhere by now."""
        now = self.memory[name].tensor
        if self.memory[name].rows is None and not name.startswith(OPTIMIZER):
            try:
                now = reduce(getattr, name.split("."), unwrapped(self.model))
            except AttributeError:
                return False  # it is not there any more
        return isinstance(now, torch.Tensor) and span(now) != words.span

    def concerns(self, model: nn.Module, spans: list[tuple[int, int]]) -> bool:
        """Whether it was applied to this model, or hit memory among these spans."""
        return share_modules(model, self.model) or self.hits(spans)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The memory of the tensors that were hit."""
        return [words.span for words, *_ in self._saved.values()]

    def hits(self, spans: list[tuple[int, int]]) -> bool:
        """Whether a tensor that was hit has memory in common with one of these."""
        return any(overlap(one, other) for one in self.spans for other in spans)


def _count_fused_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
    """Counts the writes of a fused step while errors are in some model; PyTorch counts those of other steps only. (Comparing
    words would not do: in a step a word of 1e37 may keep its value, and a repair writes words too.)"""
    if not OPEN:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            state = optimizer.state.get(parameter, {}).values()
            for tensor in (parameter, *state) if parameter.grad is not None else ():
                if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
                    increment_version(tensor)


register_optimizer_step_post_hook(_count_fused_step)


def _refuse_read_only(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError for a tensor in read-only memory (a file mapped for reading), where a write would end the process.

    The kernel reads a byte from a pipe into the tensor's first byte, which has that value already; it refuses read-only memory
    with an error instead of a signal.
    """
    source, sink = os.pipe()
    try:
        for name, tensor in tensors.items():
            if not tensor.is_cpu:
                continue
            first = c_char.from_address(tensor.data_ptr())
            os.write(sink, first.value)
            try:
                os.readv(source, [first])
            except OSError:
                raise ValueError(
                    f"{name} lies in read-only memory (a file mapped for reading?); errors need a copy: "
                    f"model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)"
                ) from None
    finally:
        os.close(source)
        os.close(sink)


def refuse_other_threads(model: nn.Module) -> None:
    """Raises RuntimeError when another thread has errors in a model, or in a part of it."""
    mine = threading.get_ident()
    others = [one for one in OPEN if getattr(one, "thread", mine) != mine]
    if any(share_modules(model, one.model) for one in others):
        raise RuntimeError(
            "another thread has errors in this model; give each thread a copy of the model, or let them take turns. "
            "drsrobust.restore(model) undoes what a thread left that has ended"
        )


def share_modules(one: nn.Module, other: nn.Module) -> bool:
    """Whether one of two models is or holds a part of the other."""
    modules = {id(module) for module in one.modules()}
    return any(id(module) in modules for module in other.modules())


def _version(tensor: torch.Tensor) -> int:
    """PyTorch's count of writes to a tensor (ours, through `.data`, are not counted); 0 where it keeps none."""
    return 0 if tensor.is_inference() else tensor._version


def open_in(model: nn.Module) -> list[Open]:
    """Maps and hooks that are in a model now, in the order in which they came."""
    there = list(OPEN)  # other threads may put maps into their models, and take them out, meanwhile
    if not there:
        return []
    if len(there) == 1 and getattr(there[0], "model", None) is model:  # nearly always; comparing memory takes longer
        return there
    spans = [span(tensor) for _, tensor in named_tensors(model, buffers=True)]
    return [one for one in there if one.concerns(model, spans)]


def applied_maps(model: nn.Module) -> "tuple[ErrorMap, ...]":
    """The maps that are in the model's memory now, in the order in which they were applied."""
    return tuple(one.error_map for one in open_in(model) if isinstance(one, Application))


def restore(model: nn.Module) -> int:
    """Undoes every error map that is still in the model and takes every hook of ours off it, as an interrupted `with` can
    leave them.

    Returns:
        how many there were.

    Raises:
        RuntimeError: a tensor was replaced while errors were in it; all others are restored all the same.
    """
    left, errors = open_in(model), []
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
            f"{left} error map(s) or hooks were still in the model and have been undone: an interrupted `with` left them, or "
            "this is inside one (make an Evaluator or a Campaign before injecting)",
            stacklevel=3,
        )
