"""The recorded operations of one batch, and how they are run again."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from drsrobust.evaluation.operations import storage_of

_FRESH = {torch.ops.aten.addmm.default._op, torch.ops.aten.mm.default._op, torch.ops.aten.native_batch_norm.default._op}
_RELU, _RELU_IN_PLACE = torch.ops.aten.relu.default._op, torch.ops.aten.relu_.default._op
_STEP_BYTES = 1000  # of a step's Python objects, about


class Step:
    """One operation.

    Attributes:
        call: it.
        args, kwargs: what it is given; places for results of other steps are empty.
        places: where results go: (list or dictionary in the arguments, index there, number of the result).
        results: numbers that its own results get; None for what is no tensor.
        many: whether it gives several.
        last: results that no later step reads.
    """

    __slots__ = ("args", "call", "kwargs", "last", "many", "places", "results")

    def __init__(self, call: Callable[..., Any], args: list, kwargs: dict, places: list[tuple[Any, Any, int]]) -> None:
        self.call, self.args, self.kwargs, self.places = call, args, kwargs, places
        self.results: list[int | None] = []
        self.many, self.last = False, ()


class Tape:
    """The recorded operations of one batch.

    Args:
        steps: in their order.
        logits: number of the result that is the logits [B].
        kept: what they read that is neither a result nor the model's own.

    Attributes:
        storages: address -> bytes of the memory of `kept`.
        own_bytes: memory of the tape without that, about.
    """

    def __init__(self, steps: list[Step], logits: int, kept: Sequence[torch.Tensor]) -> None:
        self._steps, self._logits = steps, logits
        self._results: list[torch.Tensor | None] = [None] * (
            1 + max(number for step in steps for number in step.results if number is not None)
        )
        self._versions = [(tensor, tensor._version) for tensor in kept]
        storages = [storage_of(tensor) for tensor in kept]
        self.storages = {storage.data_ptr(): storage.nbytes() for storage in storages}
        self.own_bytes = _STEP_BYTES * len(steps)
        later = {logits}
        for step in reversed(steps):
            read = {number for _, _, number in step.places} | {n for n in step.results if n is not None}
            step.last = tuple(read - later)
            later |= read
        self._spare_memory()

    def _spare_memory(self) -> None:
        """Has ReLU write to what it reads where nobody else does: the same numbers, 5 % sooner in an MLP."""
        fresh = {step.results[0] for step in self._steps if step.call in _FRESH}
        reads = Counter(number for step in self._steps for _, _, number in step.places)
        for step in self._steps:
            if step.call is _RELU and step.places[0][2] in fresh and reads[step.places[0][2]] == 1:
                step.call = _RELU_IN_PLACE

    def intact(self) -> bool:
        """Whether nobody wrote to what is kept."""
        return all(tensor._version == version for tensor, version in self._versions)

    def run(self) -> torch.Tensor:
        """The logits [B], with the model's tensors as they are now."""
        results = self._results
        try:
            for step in self._steps:
                for container, index, number in step.places:
                    container[index] = results[number]
                found = step.call(*step.args, **step.kwargs)
                if step.many:
                    for number, one in zip(step.results, found, strict=True):
                        if number is not None:
                            results[number] = one
                else:
                    results[step.results[0]] = found
                for container, index, _ in step.places:
                    container[index] = None
                for number in step.last:  # freed as early as by the model's own code: caches hold what comes next
                    results[number] = None
            found = results[self._logits]
        finally:
            results[:] = [None] * len(results)
        return found
