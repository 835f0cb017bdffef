"""Which tensors scores, and the outputs of modules, depend on, as the golden run of each batch shows it.

PyTorch's dispatch mode sees every operation with its operands. Dependence is recorded by storage, so that views and in-place
writes are followed. A number read back into Python (`.item()`, `if x.any()`) may decide everything after it, which then depends
on it too. Every batch is traced: a model may call a module, or read a tensor, in some batches only. What cannot be traced is a
`problem`: then nothing is cached, and every rerun is a full run.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drsrobust.introspection.embedding_modules import table_configs
from drsrobust.introspection.tensors import is_sparse, listed, named_modules
from drsrobust.introspection.wrappers import ModuleForward, evaluating, intercepted, is_compiled
from drsrobust.models import Scoring

_TO_PYTHON = {"numpy", "tolist", "__array__", "data_ptr", "__dlpack__"}  # values leave PyTorch without an operation


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in the arguments or the result of an operation, in nested lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for part in value for tensor in tensors_in(part)]


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The memory of a tensor, which its views share; of a sparse one that of its values.

    Raises:
        TypeError: a wrapper around other tensors.
    """
    try:
        if is_sparse(tensor):
            tensor = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError) as error:
        raise TypeError(f"a {type(tensor).__name__} has no memory of its own") from error


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether values are in plain memory: not for empty or sparse tensors, nor on the meta device."""
    return tensor.layout is torch.strided and not tensor.is_meta and bool(tensor.numel())


def written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operation writes to, by its schema."""
    if not func._schema.is_mutable:
        return
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(args[i] if i < len(args) else kwargs.get(argument.name))


class Escapes(TorchFunctionMode):
    """Calls `on_escape` with each tensor whose values leave PyTorch without an operation."""

    def __init__(self, on_escape: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._seen = on_escape

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in _TO_PYTHON and args and isinstance(args[0], torch.Tensor):
            self._seen(args[0])
        return func(*args, **(kwargs or {}))


# Operations after which scores may be probabilities, and those whose results may have any value again.
_BOUNDED = {"sigmoid", "hardsigmoid", "softmax", "exp", "tanh", "hardtanh", "clamp", "erf", "special_ndtr"}
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear", "convolution"}
_UNBOUNDED = _PRODUCTS | {"log", "logit", "log_sigmoid"}

_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device)


@dataclass
class Dataflow:
    """The dependences seen in all batches. Sets of tensors are integers: bit i is the i-th name of `number`.

    Attributes:
        number: tensor name (the first one of tied tensors) -> its bit.
        effects: of each batch, the tensors that its scores may depend on: all that it reads.
        calls: module name -> what was seen of its calls.
        elsewhere: tensors that an operation outside of the modules that own them reads, or of those that look up in them.
        control: tensors that numbers read back into Python depend on.
        branched: whether Python read a number back in any batch, which may decide what is read.
        problem: why nothing is known; None otherwise.
        bounded: whether an operation with a bounded result, as a sigmoid, made the scores of any batch, with no matrix product
            after it; None: unknown.
    """

    number: dict[str, int]
    effects: list[int] = field(default_factory=list)
    calls: "dict[str, Calls]" = field(default_factory=dict)
    elsewhere: int = 0
    control: int = 0
    branched: bool = False
    problem: str | None = None
    bounded: bool | None = None

    @property
    def uniform(self) -> bool:
        """Whether all batches read the same tensors."""
        return len(set(self.effects)) < 2

    @property
    def read(self) -> int:
        """The tensors that any batch reads."""
        union = 0
        for effect in self.effects:
            union |= effect
        return union

    @property
    def unknown(self) -> int:
        """The tensors that no batch reads, where a branch may be why."""
        return ((1 << len(self.number)) - 1) & ~self.read if self.branched else 0

    def unaffected(self, hit: int) -> set[str]:
        """The modules whose outputs do not depend on a set of tensors, and can be cached."""
        if hit & self.unknown:
            return set()
        return {name for name, calls in self.calls.items() if calls.whole and not calls.reads & hit}

    def worth_keeping(self) -> set[str]:
        """The outermost modules whose output errors in some one tensor do not change. For errors in several tensors, the
        outermost unaffected modules are among these too."""
        worth, read = set(), self.read
        for bit in range(len(self.number)):
            if read >> bit & 1:
                skipped = self.unaffected(1 << bit)
                worth |= {name for name in skipped if not self.calls[name].parents <= skipped}
        return worth

    def replayable(self, hit: int, kept: Iterable[str]) -> set[str]:
        """The kept modules whose cached outputs hold for errors in a set of tensors.

        Cached outputs are numbered by the calls of their module. So a module that is called inside of a replayed one and
        outside of it too, of which only some calls happen in a rerun, computes again.
        """
        names = self.unaffected(hit) & set(kept)
        if all(len(calls.parents) == 1 for calls in self.calls.values()):
            return names
        # Of each module, whether some of its calls happen in a rerun, and whether some do not; both only grow.
        happen, vanish = dict.fromkeys(self.calls, False), dict.fromkeys(self.calls, False)
        changed = True
        while changed:
            changed = False
            for name, calls in self.calls.items():
                for parent in calls.parents:
                    runs = parent is None or (happen[parent] and parent not in names)
                    skips = parent is not None and (vanish[parent] or (happen[parent] and parent in names))
                    if (runs and not happen[name]) or (skips and not vanish[name]):
                        happen[name], vanish[name] = happen[name] or runs, vanish[name] or skips
                        changed = True
            if not changed and (mixed := {name for name in names if happen[name] and vanish[name]}):
                names -= mixed
                happen, vanish = dict.fromkeys(self.calls, False), dict.fromkeys(self.calls, False)
                changed = True
        return names

    def replace_last(self, other: "Dataflow") -> None:
        """Puts what was seen of another batch in the place of the last one's effects."""
        self.effects[-1:] = other.effects
        self.elsewhere |= other.elsewhere
        self.control |= other.control
        self.branched |= other.branched
        for name, seen in other.calls.items():
            calls = self.calls.setdefault(name, seen)
            calls.reads |= seen.reads
            calls.inputs |= seen.inputs
            calls.whole &= seen.whole
            calls.once &= seen.once
            calls.parents |= seen.parents

    def of_batches(self, effects: list[int]) -> "Dataflow":
        """What was seen, for batches of which each may depend on these tensors."""
        return replace(self, effects=effects)


def trace_dataflow(model: nn.Module, batches: Iterable[Any], scoring: Scoring) -> tuple[Dataflow, list[np.ndarray]]:
    """Traces a forward pass of each batch, to the first problem; returns the dependences and the scores of each batch."""
    everything, modules = listed(model), named_modules(model)
    scores: list[np.ndarray] = []
    flow = Dataflow({entry.name: i for i, entry in enumerate(everything)})
    if any(is_compiled(module) for module in model.modules()):
        flow.problem = "the model is compiled"
        return flow, scores
    try:
        dispatch = _Dispatch(flow, {entry.name: entry.tensor for entry in everything}, modules)
        with evaluating(model), intercepted(dict(modules), dispatch.around):
            for batch in batches:
                scores.append(dispatch.trace(scoring, model, batch))
                if flow.problem:
                    break
    except Exception as error:  # an error of the model itself is raised again in the golden run
        flow.problem = f"its operations could not be traced ({type(error).__name__}: {error})"
    return flow, scores


@dataclass
class Calls:
    """All calls of one module."""

    reads: int = 0
    inputs: int = 0  # tensors that its arguments depend on
    whole: bool = True  # it has no effect but its output, which nothing changes later
    once: bool = True  # in each batch that calls it
    last: int | None = None  # batch that called it
    parents: set[str | None] = field(default_factory=set)


@dataclass
class _Call:
    name: str
    number: int
    outputs: set[int] = field(default_factory=set)


class _Dispatch(TorchDispatchMode):
    """Records dependences at every operation, of one batch after another.

    Args:
        flow: what is recorded goes there.
        tensors: of the model, by name, in the order of their bits.
        modules: of the model, with their names.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch imports its compiler, 2 s, to keep it away from here; compiled models are refused before

    def __init__(
        self, flow: Dataflow, tensors: Mapping[str, torch.Tensor], modules: list[tuple[str, nn.Module]]
    ) -> None:
        super().__init__()
        self._flow, self._thread = flow, threading.get_ident()
        self._alive: list[Any] = []  # so that no two storages have the same address
        self._tensor_bits: dict[int, int] = {}  # storage -> its tensors, a bit each
        self._owners: dict[int, set[str]] = {}
        direct: dict[int, set[str]] = {}
        for name, module in modules:
            for held in (*module._parameters.values(), *module._buffers.values()):
                direct.setdefault(id(held), set()).add(name)
        collections = [name for name, module in modules if table_configs(module) is not None]
        for i, (name, tensor) in enumerate(tensors.items()):
            if not has_memory(tensor):
                continue
            key = self._key(tensor)
            self._tensor_bits[key] = self._tensor_bits.get(key, 0) | 1 << i
            around = {other for other in collections if name.startswith(f"{other}." if other else "")}
            self._owners.setdefault(key, set()).update(direct.get(id(tensor), set()), around)
        # Of a table those that look up in it: a layer that holds it too, as a tied output, reads all its rows.
        look_ups = {name for name, module in modules if isinstance(module, nn.Embedding | nn.EmbeddingBag)}
        look_ups.update(collections)
        self._owners = {key: names & look_ups or names for key, names in self._owners.items()}
        self._of_model, self._alive = self._alive, []
        self._begin()

    def _begin(self) -> None:
        self.control = self.read = 0
        self._depends: dict[int, int] = dict(self._tensor_bits)  # storage -> tensors it depends on
        self._bounded: set[int] = set()  # storages of values that follow a bounded operation
        self._made_in: dict[int, tuple[int, ...]] = {}  # storage -> calls that were open at its creation
        self._numbers = count()
        self._open: list[_Call] = []
        self._ended: dict[int, _Call] = {}
        self._output_of: dict[int, list[_Call]] = {}  # storage -> ended calls whose output it is
        self._alive = []

    def trace(self, scores_of: Callable[..., torch.Tensor], *arguments: Any) -> np.ndarray:
        """The scores of one batch, float32 (float64 if the model's are)."""
        self._begin()
        with Escapes(self.escaped), self:
            scores = scores_of(*arguments)
        flow = self._flow
        flow.effects.append(self.read | self.depends(scores) | self.control)
        flow.control |= self.control
        flow.bounded = bool(flow.bounded) or self._key(scores) in self._bounded
        self._begin()
        return scores.to("cpu", torch.promote_types(scores.dtype, torch.float32)).numpy()

    def _key(self, tensor: torch.Tensor) -> int:
        storage = storage_of(tensor)
        self._alive.append(storage)
        return storage.data_ptr()

    def depends(self, value: Any) -> int:
        """The tensors that a value depends on."""
        dependencies = 0
        for tensor in tensors_in(value):
            dependencies |= self._depends.get(self._key(tensor), 0)
        return dependencies

    def escaped(self, tensor: torch.Tensor) -> None:
        """Values of a tensor were read by Python."""
        self.control |= self.depends(tensor)
        self.read |= self._tensor_bits.get(self._key(tensor), 0)
        self._flow.branched = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = {self._key(tensor) for tensor in tensors_in((args, kwargs))}
        for key in inputs:
            self._read(key)
        result = func(*args, **kwargs)
        mask = self.control
        for key in inputs:
            mask |= self._depends.get(key, 0)
        if func is torch.ops.aten._local_scalar_dense.default:
            self.control = mask
            self._flow.branched = True
        changed = {self._key(tensor) for tensor in written(func, args, kwargs)}
        open_calls = tuple(call.number for call in self._open)
        for key in changed:
            self._write(key)
        returned = {self._key(tensor) for tensor in tensors_in(result)}
        for key in returned - inputs:
            self._made_in.setdefault(key, open_calls)
        changed |= returned
        for key in changed:
            self._depends[key] = self._depends.get(key, 0) | mask
        name = func.overloadpacket.__name__.strip("_")
        if name in _BOUNDED or (name not in _UNBOUNDED and not inputs.isdisjoint(self._bounded)):
            self._bounded |= changed
        return result

    def _read(self, key: int) -> None:
        if key in self._tensor_bits:
            self.read |= self._tensor_bits[key]
            if not any(call.name in self._owners[key] for call in self._open):
                self._flow.elsewhere |= self._tensor_bits[key]
        open_now = {call.number for call in self._open}
        for number in self._made_in.get(key, ()):
            if number not in open_now and key not in self._ended[number].outputs:
                self._flow.calls[self._ended[number].name].whole = False  # passed on other than by its output

    def _write(self, key: int) -> None:
        if key in self._tensor_bits:
            self._flow.problem = "it writes to its own tensors while it scores"
        made_in = self._made_in.get(key, ())
        for call in self._open:
            if call.number not in made_in:
                self._flow.calls[call.name].whole = False  # changes its input
        for call in self._output_of.get(key, ()):
            self._flow.calls[call.name].whole = False  # its output is changed later

    def around(self, name: str, forward: ModuleForward) -> ModuleForward:
        """The forward of a module, with its beginning and end recorded."""

        def observed(*args, **kwargs):
            if threading.get_ident() != self._thread:  # where dispatch modes see nothing
                self._flow.problem = f"it calls {name or 'itself'} in another thread"
                return forward(*args, **kwargs)
            call = _Call(name, next(self._numbers))
            calls = self._flow.calls.setdefault(name, Calls())
            calls.parents.add(self._open[-1].name if self._open else None)
            calls.inputs |= self.depends((args, kwargs)) | self.control
            calls.once &= calls.last != (batch := len(self._flow.effects))
            calls.last = batch
            self._open.append(call)
            try:
                output = forward(*args, **kwargs)
            finally:
                self._open.remove(call)
                self._ended[call.number] = call
            calls.reads |= self.control
            for leaf in tree_leaves(output):
                if isinstance(leaf, torch.Tensor):
                    key = self._key(leaf)
                    call.outputs.add(key)
                    self._output_of.setdefault(key, []).append(call)
                    calls.reads |= self._depends.get(key, 0)
                elif not isinstance(leaf, _PLAIN):
                    calls.whole = False
            return output

        return observed
