"""The operations of a batch that errors in some tensors reach, recorded to be run again without the model's Python code.

A tape holds these operations in their order, as the dispatcher sees them below autograd, and by reference what they read
besides each other's results: the model's own tensors, and results that no error reaches. Running it gives the logits. It is
made while the model scores the batch; what could make it wrong another time, with other errors, makes it refused:

- a value that errors reach gets into Python (`.item()`, `if x.any()`, `.numpy()`) and may steer what is computed;
- the shape of a result depends on such values, or an operation draws random numbers;
- an operation writes to memory that the tape keeps, or to the model's own tensors;
- results stay in the model after the batch, or come from where operations are not seen;
- an operation that is not PyTorch's own, of which nothing of this is known.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from drsrobust.evaluation.operations import Escapes, has_memory, storage_of, tensors_in, written
from drsrobust.evaluation.tape import Step, Tape

_UNSAFE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}
_PRODUCTS = {torch.ops.aten.addmm.default: 1, torch.ops.aten.mm.default: 0}  # which argument is the first factor
_RESHAPES = {torch.ops.aten.squeeze.dim._op, torch.ops.aten.view.default._op, torch.ops.aten.unsqueeze.default._op}
_LARGE, _NARROW = 1 << 20, 64  # bytes of a product's first factor, columns of its result


class Refused(Exception):
    """Operations that cannot be run again by themselves; the text says why."""


class Recorder:
    """Makes the tapes of a model's batches, one after another.

    Args:
        own: the model's tensors, all of them.
        hit: those that errors may be in.
    """

    def __init__(self, own: Sequence[torch.Tensor], hit: Sequence[torch.Tensor]) -> None:
        self._own = {storage_of(tensor).data_ptr() for tensor in own if has_memory(tensor)}
        self._hit = {storage_of(tensor).data_ptr() for tensor in hit if has_memory(tensor)}
        self._kept: set[int] = set()  # addresses, of all tapes: no batch may write to what another one keeps

    def tape(self, forward: Callable[[], torch.Tensor]) -> Tape:
        """The tape of one batch.

        Args:
            forward: scores it, giving the logits [B].

        Raises:
            Refused: with the reason. What else is raised is the model's doing.
        """
        watch = _Watch(self._own, self._hit, self._kept)
        with Escapes(watch.escaped), watch:
            logits = forward()
        tape = watch.tape(logits)
        made = [StorageWeakRef(storage) for storage in watch.made.values()]
        del watch, logits
        if not all(storage.expired() for storage in made):
            raise Refused("results stay in the model after the batch")
        return tape


class _Watch(TorchDispatchMode):
    """Sees the operations of one batch."""

    def __init__(self, own: set[int], hit: set[int], kept: set[int]) -> None:
        super().__init__()
        self.made: dict[int, torch.UntypedStorage] = {}  # of results: address -> storage
        self._own, self._hit, self._kept = own, hit, kept
        self._here: dict[int, torch.Tensor] = {}  # what this tape keeps, by identity
        self._numbers: dict[int, int] = {}  # identity of a result -> its number
        self._alive: list[torch.Tensor] = []
        self._steps: list[Step] = []
        self._why: str | None = None  # not raised at once: the model might catch it

    def escaped(self, tensor: torch.Tensor) -> None:
        """Values of a tensor are in Python's hands."""
        if self._reached(tensor):
            self._refuse("a value that errors reach is read by Python")

    def tape(self, logits: torch.Tensor) -> Tape:
        """What was recorded.

        Raises:
            Refused: with the reason.
        """
        number = self._numbers.get(id(logits))
        if number is None:
            self._refuse("the logits are no result of an operation that was seen")
        if self._why is not None:
            raise Refused(self._why)
        steps = list(self._steps)
        while len(steps) > 1 and self._only_reshapes(steps[-1], number):  # logits may be [B, 1] as well
            number = steps.pop().places[0][2]
        return Tape(steps, number, list(self._here.values()))

    def _only_reshapes(self, step: Step, number: int) -> bool:
        """Whether a step makes a column of logits from one that is in the same order."""
        if step.call not in _RESHAPES or step.results != [number] or len(step.places) != 1:
            return False
        before = self._alive[step.places[0][2]]
        rows = self._alive[number].numel()
        return before.shape in ((rows,), (rows, 1))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given, changed = tensors_in((args, kwargs)), list(written(func, args, kwargs))
        reached = any(self._reached(tensor) for tensor in given)
        if reached and self._why is None:
            self._allow(func, args, changed)
            step = self._step(func, args, kwargs)
            result = func(*args, **kwargs)
            self._read_ahead(func, args)
            self._end(step, given, result)
            return result
        if any(self._address(tensor) in self._kept or self._address(tensor) in self._own for tensor in changed):
            self._refuse("memory that is kept, or the model's, is written to")
        return func(*args, **kwargs)

    def _refuse(self, why: str) -> None:
        self._why = self._why or why

    def _address(self, tensor: torch.Tensor) -> int:
        return storage_of(tensor).data_ptr()

    def _reached(self, tensor: torch.Tensor) -> bool:
        if id(tensor) in self._numbers:
            return True
        address = self._address(tensor)
        return address in self._hit or address in self.made

    def _allow(self, func: Any, args: Sequence[Any], changed: list[torch.Tensor]) -> None:
        """Refuses an operation that may do something else another time, or must not be done again."""
        if func.namespace != "aten":
            self._refuse(f"{func} is not PyTorch's own")
        unsafe = _UNSAFE.intersection(func.tags)
        if func is torch.ops.aten.index.Tensor and not _by_mask(args[1]):
            unsafe.discard(torch.Tag.dynamic_output_shape)
        if unsafe:
            self._refuse(f"{func}: {', '.join(sorted(tag.name for tag in unsafe))}")
        if not all(self._address(tensor) in self.made for tensor in changed):
            self._refuse(f"{func} writes to memory that is kept, or the model's")

    def _read_ahead(self, func: Any, args: Sequence[Any]) -> None:
        """Has what a narrow matrix product reads from main memory read in its order before. The product itself jumps in it,
        which processors do not foresee: 18 ms for 100,000 rows of 192 floats by 16 columns, 13 ms with a sum before (Zen 4).
        A single column is reckoned in the order of memory anyway."""
        place = _PRODUCTS.get(func)
        if place is None:
            return
        factor, other = args[place : place + 2]
        if (
            id(factor) not in self._numbers
            and self._address(factor) not in self._own
            and factor.device.type == "cpu"
            and factor.nbytes >= _LARGE
            and 1 < other.shape[1] <= _NARROW
        ):
            ahead = Step(torch.ops.aten.sum.default._op, [factor], {}, [])
            self._alive.append(factor)
            ahead.results.append(len(self._alive) - 1)
            self._steps.append(ahead)

    def _step(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Step:
        places: list[tuple[Any, Any, int]] = []
        step = Step(func._op, list(args), dict(kwargs), places)
        for container, items in ((step.args, enumerate(args)), (step.kwargs, kwargs.items())):
            for index, value in items:
                self._fill(container, index, value, places)
        return step

    def _fill(self, container: Any, index: Any, value: Any, places: list[tuple[Any, Any, int]]) -> None:
        if isinstance(value, list | tuple) and tensors_in(value):
            container[index] = list(value)
            for i, one in enumerate(value):
                self._fill(container[index], i, one, places)
        elif isinstance(value, torch.Tensor):
            number = self._numbers.get(id(value))
            if number is not None:
                places.append((container, index, number))
                container[index] = None
                return
            address = self._address(value)
            if address in self.made:
                self._refuse("a result comes from where operations are not seen")
            elif value.is_inference():
                self._refuse("PyTorch does not count writes to an inference tensor")
            elif address and address not in self._own:
                self._here[id(value)] = value
                self._kept.add(address)

    def _end(self, step: Step, given: list[torch.Tensor], result: Any) -> None:
        step.many = isinstance(result, list | tuple)
        leaves = result if step.many else [result]
        if not all(isinstance(leaf, torch.Tensor) or (leaf is None and step.many) for leaf in leaves):
            self._refuse("a value that errors reach is read by Python")
            return
        found = [leaf for leaf in leaves if leaf is not None]
        if (
            not any(id(tensor) in self._numbers for tensor in given)
            and found
            and all(self._address(tensor) in self._own for tensor in found)
        ):
            self._alive += found  # a view of the model's tensors is always up to date
            return
        for leaf in leaves:
            if leaf is None:
                step.results.append(None)
                continue
            if id(leaf) not in self._numbers:
                self._numbers[id(leaf)] = len(self._alive)
                self._alive.append(leaf)
            step.results.append(self._numbers[id(leaf)])
            storage = storage_of(leaf)
            if storage.data_ptr() not in self._kept and storage.data_ptr() not in self._own and leaf.numel():
                self.made[storage.data_ptr()] = storage
        self._steps.append(step)


def _by_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    """Whether a tensor is indexed by a mask: then how many are true decides the shape."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
