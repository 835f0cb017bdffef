"""Outputs of modules, cached in the golden run and used again where errors do not change them.

Which tensors each module's output depends on is traced in one forward pass of a small batch: PyTorch's dispatch mode shows
every operation with its operands. Dependence is recorded by storage, so that views and in-place writes are followed. A number
read back into Python (`.item()`, `if x.any()`) may decide everything after it, which then depends on it too. What cannot be
traced is a `problem`: then nothing is cached.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
_UNBOUNDED = {
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "mv",
    "addmv",
    "dot",
    "linear",
    "convolution",
    "log",
    "logit",
    "log_sigmoid",
}

_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device)


@dataclass
class Dataflow:
    """The dependences seen in one forward pass. Sets of tensors are integers: bit i is the i-th name of `number`.

    Attributes:
        number: tensor name (the first one of tied tensors) -> its bit.
        result: the tensors that the scores depend on.
        reads: module name -> tensors that its output depends on; only modules whose output can be cached.
        parents: module name -> modules that called it (None: the model's caller).
        elsewhere: tensors that an operation outside of the modules that own them reads.
        problem: why nothing is known; None otherwise.
        bounded: whether an operation with a bounded result, as a sigmoid, made the scores, with no matrix product after it;
            None: unknown.
    """

    number: dict[str, int]
    result: int = 0
    reads: dict[str, int] = field(default_factory=dict)
    parents: dict[str, set[str | None]] = field(default_factory=dict)
    elsewhere: int = 0
    problem: str | None = None
    bounded: bool | None = None

    def unaffected(self, hit: int) -> set[str]:
        """The modules whose outputs do not depend on a set of tensors."""
        return {name for name, reads in self.reads.items() if not reads & hit}

    def worth_keeping(self) -> set[str]:
        """The outermost modules whose output errors in some one tensor do not change. For errors in several tensors, the
        outermost unaffected modules are among these too."""
        worth = set()
        for bit in range(len(self.number)):
            if self.result >> bit & 1:
                skipped = self.unaffected(1 << bit)
                worth |= {name for name in skipped if not self.parents[name] <= skipped}
        return worth


def trace_dataflow(model: nn.Module, batch: Any, scoring: Scoring) -> tuple[Dataflow, np.ndarray | None]:
    """Traces one forward pass; returns its dependences and the scores of the batch (None if there is a problem)."""
    everything, modules = listed(model), named_modules(model)
    flow = Dataflow({entry.name: i for i, entry in enumerate(everything)})
    if any(is_compiled(module) for module in model.modules()):
        flow.problem = "the model is compiled"
        return flow, None
    try:
        dispatch = _Dispatch({entry.name: entry.tensor for entry in everything}, modules)
        with evaluating(model):
            with Escapes(dispatch.escaped), dispatch, intercepted(dict(modules), dispatch.around):
                scores = scoring(model, batch)
            flow.result, flow.bounded = dispatch.depends(scores) | dispatch.control, dispatch.is_bounded(scores)
    except Exception as error:  # an error of the model itself is raised again in the golden run
        flow.problem = f"its operations could not be traced ({type(error).__name__}: {error})"
        return flow, None
    flow.parents = {name: calls.parents for name, calls in dispatch.calls.items()}
    flow.reads = {name: calls.reads for name, calls in dispatch.calls.items() if calls.whole}
    flow.elsewhere, flow.problem = dispatch.elsewhere, dispatch.problem
    return flow, scores.to("cpu", torch.promote_types(scores.dtype, torch.float32)).numpy()


@dataclass
class _Calls:
    """All calls of one module."""

    reads: int = 0
    whole: bool = True  # it has no effect but its output, which nothing changes later
    parents: set[str | None] = field(default_factory=set)


@dataclass
class _Call:
    name: str
    number: int
    outputs: set[int] = field(default_factory=set)


class _Dispatch(TorchDispatchMode):
    """Records dependences at every operation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch imports its compiler, 2 s, to keep it away from here; compiled models are refused before

    def __init__(self, tensors: Mapping[str, torch.Tensor], modules: list[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self.calls: dict[str, _Calls] = {}
        self.control = self.elsewhere = 0
        self.problem: str | None = None
        self._depends: dict[int, int] = {}  # storage -> tensors it depends on
        self._bounded: set[int] = set()  # storages of values that follow a bounded operation
        self._made_in: dict[int, tuple[int, ...]] = {}  # storage -> calls that were open at its creation
        self._alive: list[Any] = []  # so that no two storages have the same address
        self._numbers = count()
        self._open: list[_Call] = []
        self._ended: dict[int, _Call] = {}
        self._output_of: dict[int, list[_Call]] = {}  # storage -> ended calls whose output it is
        self._tensor_bits: dict[int, int] = {}  # storage -> its tensors, a bit each
        owners: dict[int, set[str]] = {}
        for i, (name, tensor) in enumerate(tensors.items()):
            if not has_memory(tensor):
                continue
            key = self._key(tensor)
            self._tensor_bits[key] = self._tensor_bits.get(key, 0) | 1 << i
            owners.setdefault(key, set()).update(_owners(name, modules, tensor))
        self._owners = owners
        self._depends |= self._tensor_bits

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

    def is_bounded(self, tensor: torch.Tensor) -> bool:
        """Whether an operation with a bounded result made a tensor, with no matrix product after it."""
        return self._key(tensor) in self._bounded

    def escaped(self, tensor: torch.Tensor) -> None:
        """Values of a tensor were read by Python."""
        self.control |= self.depends(tensor)

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
        if key in self._tensor_bits and not any(call.name in self._owners[key] for call in self._open):
            self.elsewhere |= self._tensor_bits[key]
        open_now = {call.number for call in self._open}
        for number in self._made_in.get(key, ()):
            if number not in open_now and key not in self._ended[number].outputs:
                self.calls[self._ended[number].name].whole = False  # passed on other than by its output

    def _write(self, key: int) -> None:
        if key in self._tensor_bits:
            self.problem = "it writes to its own tensors while it scores"
        made_in = self._made_in.get(key, ())
        for call in self._open:
            if call.number not in made_in:
                self.calls[call.name].whole = False  # changes its input
        for call in self._output_of.get(key, ()):
            self.calls[call.name].whole = False  # its output is changed later

    def around(self, name: str, forward: ModuleForward) -> ModuleForward:
        """The forward of a module, with its beginning and end recorded."""

        def observed(*args, **kwargs):
            call = _Call(name, next(self._numbers))
            calls = self.calls.setdefault(name, _Calls())
            calls.parents.add(self._open[-1].name if self._open else None)
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


def _owners(name: str, modules: list[tuple[str, nn.Module]], tensor: torch.Tensor) -> set[str]:
    """The modules that own a tensor, with the collections of tables around it."""
    direct = {
        module_name
        for module_name, module in modules
        if any(held_tensor is tensor for held_tensor in (*module._parameters.values(), *module._buffers.values()))
    }
    collections = {
        module_name
        for module_name, module in modules
        if name.startswith(f"{module_name}." if module_name else "") and table_configs(module) is not None
    }
    return direct | collections


class CachedOutputs:
    """Outputs of some modules for each batch, within a budget of memory. Later batches without room are scored in full.

    Args:
        modules: name -> module whose outputs are cached.
        budget: bytes.

    Attributes:
        batches: number of batches with cached outputs.
        nbytes: their memory; storage that several outputs share counts once.
    """

    def __init__(self, modules: dict[str, nn.Module], budget: int) -> None:
        self._modules, self._budget = modules, budget
        self._outputs: list[dict[str, list[Any]]] = []
        self._storages: dict[int, int] = {}
        self.nbytes = 0
        self._batch: int | None = None
        self._calls: dict[str, int] = {}

    @property
    def batches(self) -> int:
        return len(self._outputs)

    def drop(self, number: int) -> None:
        """Forgets the outputs of batch `number`, if it has any, and of all later ones."""
        del self._outputs[number:]
        self._storages = {address: size for outputs in self._outputs for address, size in _memory(outputs).items()}
        self.nbytes = sum(self._storages.values())

    @contextmanager
    def recording(self, batches: list) -> Iterator[Iterator]:
        """Yields an iterator over the batches; caches the modules' outputs meanwhile."""
        full = not self._modules or not self._budget

        def record(name: str, forward: ModuleForward) -> ModuleForward:
            def recorded(*args, **kwargs):
                output = forward(*args, **kwargs)
                if self._batch is not None:
                    self._outputs[self._batch].setdefault(name, []).append(output)
                return output

            return recorded

        def one_by_one() -> Iterator:
            nonlocal full
            for batch in batches:
                self._batch = None
                if not full:
                    self._batch = len(self._outputs)
                    self._outputs.append({})
                yield batch
                if self._batch is not None:
                    memory = _memory(self._outputs[-1])
                    taken = sum(size for address, size in memory.items() if address not in self._storages)
                    if self.nbytes + taken > self._budget:
                        self._outputs.pop()
                        full = True
                    else:
                        self._storages |= memory
                        self.nbytes += taken
            self._batch = None

        try:
            with intercepted({} if full else self._modules, record):
                yield one_by_one()
        finally:
            self._batch = None

    @contextmanager
    def replaying(self, names: set[str], batches: list) -> Iterator[Iterator]:
        """Yields an iterator over the batches; meanwhile a call of a named module returns its cached output of the batch."""
        self._batch = None

        def answer(name: str, forward: ModuleForward) -> ModuleForward:
            def answered(*args, **kwargs):
                if self._batch is None:  # also if an interrupt left this in place of the forward
                    return forward(*args, **kwargs)
                number = self._calls.get(name, 0)
                self._calls[name] = number + 1
                return self._outputs[self._batch][name][number]

            return answered

        def one_by_one() -> Iterator:
            for number, batch in enumerate(batches):
                self._batch = number if number < len(self._outputs) else None
                self._calls = {}
                yield batch
            self._batch = None

        try:
            with intercepted({name: module for name, module in self._modules.items() if name in names}, answer):
                yield one_by_one()
        finally:
            self._batch = None


def _memory(outputs: dict[str, list[Any]]) -> dict[int, int]:
    """Address -> bytes."""
    storages = {}
    for leaf in tree_leaves(list(outputs.values())):
        if isinstance(leaf, torch.Tensor):
            storage = storage_of(leaf)
            storages[storage.data_ptr()] = storage.nbytes()
    return storages
