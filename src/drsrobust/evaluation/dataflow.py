"""Which of a model's tensors each of its modules' outputs depends on, seen from the operations of one forward pass.

One small batch is scored under PyTorch's dispatch mode, which shows every operation with its operands. Dependence is kept by
storage, so that views and writes in place are followed; a number read back into Python (`.item()`, `if x.any()`) may steer all
that comes after it, which therefore depends on it too. What cannot be followed is a `problem`: then nothing is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drsrobust.evaluation.intercept import Forward, intercepted
from drsrobust.evaluation.operations import Escapes, has_memory, storage_of, tensors_in, written
from drsrobust.models import evaluating, logits_of
from drsrobust.tensors import listed, named_modules

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device)


@dataclass
class Dataflow:
    """What one forward pass showed. Sets of tensors are integers: bit i stands for the i-th name of `number`.

    Attributes:
        number: tensor name (its first one, as `listed` gives it) -> its bit.
        result: the tensors that the logits depend on.
        reads: module name -> tensors that its output depends on; of modules whose output can be kept and handed out again.
        parents: module name -> modules whose calls it was called in (None: the model's caller).
        elsewhere: tensors that some operation outside of the modules that own them reads.
        problem: why nothing is known; None when all is.
    """

    number: dict[str, int]
    result: int = 0
    reads: dict[str, int] = field(default_factory=dict)
    parents: dict[str, set[str | None]] = field(default_factory=dict)
    elsewhere: int = 0
    problem: str | None = None

    def names(self, tensors: int) -> list[str]:
        """The names of a set of tensors."""
        return [name for name, bit in self.number.items() if tensors >> bit & 1]

    def unaffected(self, hit: int) -> set[str]:
        """The modules whose outputs errors in a set of tensors leave as they were."""
        return {name for name, reads in self.reads.items() if not reads & hit}

    def worth_keeping(self) -> set[str]:
        """The modules whose output can stand in for a call when errors are in some one tensor: unaffected by it, inside no
        other that is. (Of errors in several tensors, the outermost unaffected modules are among these too.)"""
        kept = set()
        for bit in range(len(self.number)):
            if self.result >> bit & 1:
                skipped = self.unaffected(1 << bit)
                kept |= {name for name in skipped if not self.parents[name] <= skipped}
        return kept


def trace(model: nn.Module, batch: "Batch") -> tuple[Dataflow, np.ndarray | None]:
    """Follows one forward pass.

    Args:
        model: any module.
        batch: some rows.

    Returns:
        what was seen, and the logits [B] of the batch; None for these where there is a problem.
    """
    everything, modules = listed(model), named_modules(model)
    flow = Dataflow({one.name: i for i, one in enumerate(everything)})
    if any("_orig_mod" in module._modules or module._compiled_call_impl is not None for module in model.modules()):
        flow.problem = "the model is compiled"
        return flow, None
    try:
        seen = _Dispatch({one.name: one.tensor for one in everything}, modules)
        with evaluating(model):
            with Escapes(seen.escaped), seen, intercepted(dict(modules), seen.around):
                logits = logits_of(model, batch)
            flow.result = seen.depends(logits) | seen.control
    except Exception as error:  # the model's own mistakes show again in the golden run
        flow.problem = f"its operations could not be followed ({type(error).__name__}: {error})"
        return flow, None
    flow.parents = {name: calls.parents for name, calls in seen.calls.items()}
    flow.reads = {name: calls.reads for name, calls in seen.calls.items() if calls.whole}
    flow.elsewhere, flow.problem = seen.elsewhere, seen.problem
    return flow, logits.to("cpu", torch.promote_types(logits.dtype, torch.float32)).numpy()


@dataclass
class _Calls:
    """All calls of one module."""

    reads: int = 0
    whole: bool = True  # its output is all that it does, and nobody changes that output
    parents: set[str | None] = field(default_factory=set)


@dataclass
class _Call:
    name: str
    number: int
    outputs: set[int] = field(default_factory=set)


class _Dispatch(TorchDispatchMode):
    """Sees every operation."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], modules: list[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self.calls: dict[str, _Calls] = {}
        self.control = self.elsewhere = 0
        self.problem: str | None = None
        self._depends: dict[int, int] = {}  # storage -> tensors it depends on
        self._made_in: dict[int, tuple[int, ...]] = {}  # storage -> the calls that were open when it was made
        self._alive: list[Any] = []  # so that no two storages have one address
        self._numbers = count()
        self._open: list[_Call] = []
        self._ended: dict[int, _Call] = {}
        self._kept_by: dict[int, list[_Call]] = {}  # storage -> ended calls whose output it is
        self._own: dict[int, int] = {}
        owners: dict[int, set[str]] = {}
        for i, (name, tensor) in enumerate(tensors.items()):
            if not has_memory(tensor):
                continue
            key = self._key(tensor)
            self._own[key] = self._own.get(key, 0) | 1 << i
            owners.setdefault(key, set()).update(_owners(name, modules, tensor))
        self._owners = owners
        self._depends |= self._own

    def _key(self, tensor: torch.Tensor) -> int:
        storage = storage_of(tensor)
        self._alive.append(storage)
        return storage.data_ptr()

    def depends(self, value: Any) -> int:
        """The tensors that something made of tensors depends on."""
        found = 0
        for tensor in tensors_in(value):
            found |= self._depends.get(self._key(tensor), 0)
        return found

    def escaped(self, tensor: torch.Tensor) -> None:
        """Values of a tensor are in Python's hands."""
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
        here = tuple(call.number for call in self._open)
        for key in changed:
            self._write(key)
        given = {self._key(tensor) for tensor in tensors_in(result)}
        for key in given - inputs:
            self._made_in.setdefault(key, here)
        changed |= given
        for key in changed:
            self._depends[key] = self._depends.get(key, 0) | mask
        return result

    def _read(self, key: int) -> None:
        if key in self._own and not any(call.name in self._owners[key] for call in self._open):
            self.elsewhere |= self._own[key]
        open_now = {call.number for call in self._open}
        for number in self._made_in.get(key, ()):
            if number not in open_now and key not in self._ended[number].outputs:
                self.calls[self._ended[number].name].whole = False  # handed on behind the caller's back

    def _write(self, key: int) -> None:
        if key in self._own:
            self.problem = "it writes to its own tensors while it scores"
        made_in = self._made_in.get(key, ())
        for call in self._open:
            if call.number not in made_in:
                self.calls[call.name].whole = False  # changes what it was given
        for call in self._kept_by.get(key, ()):
            self.calls[call.name].whole = False  # its output is changed afterwards

    def around(self, name: str, forward: Forward) -> Forward:
        """What stands in for a module's forward: the same, with its beginning and end noted."""

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
                    self._kept_by.setdefault(key, []).append(call)
                    calls.reads |= self._depends.get(key, 0)
                elif not isinstance(leaf, _PLAIN):
                    calls.whole = False
            return output

        return observed


def _owners(name: str, modules: list[tuple[str, nn.Module]], tensor: torch.Tensor) -> set[str]:
    """The modules that hold a tensor as their own, the outermost collection of tables among them."""
    direct = {
        module_name
        for module_name, module in modules
        if any(one is tensor for one in (*module._parameters.values(), *module._buffers.values()))
    }
    collections = {
        module_name
        for module_name, module in modules
        if name.startswith(f"{module_name}." if module_name else "") and _is_collection(module)
    }
    return direct | collections


def _is_collection(module: nn.Module) -> bool:
    return callable(getattr(module, "embedding_bag_configs", None)) or callable(
        getattr(module, "embedding_configs", None)
    )
