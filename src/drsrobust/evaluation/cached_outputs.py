"""Outputs of modules, cached in the golden run and used again where errors do not change them (`dataflow` says where)."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from drsrobust.evaluation.dataflow import storage_of
from drsrobust.introspection.wrappers import ModuleForward, intercepted


class CachedOutputs:
    """Outputs of some modules for each batch, within a budget of memory. Later batches without room are scored in full.

    Args:
        modules: name -> module whose outputs are cached.
        budget: bytes.

    Attributes:
        batches: number of batches with cached outputs.
        nbytes: their memory; storage that several outputs share counts once.
        batch: number of the batch that is scored, where its outputs are cached; else None.
    """

    def __init__(self, modules: dict[str, nn.Module], budget: int) -> None:
        self._modules, self._budget = modules, budget
        self._outputs: list[dict[str, list[Any]]] = []
        self._storages: dict[int, int] = {}
        self.nbytes = 0
        self.batch: int | None = None
        self._calls: dict[str, int] = {}

    @property
    def modules(self) -> Collection[str]:
        """Names of the modules whose outputs are cached."""
        return self._modules.keys()

    @property
    def batches(self) -> int:
        return len(self._outputs)

    def takes(self, nbytes: int) -> bool:
        """Counts further memory, if there is room for it."""
        room = self.nbytes + nbytes <= self._budget
        self.nbytes += nbytes if room else 0
        return room

    def drop(self, number: int) -> None:
        """Forgets the outputs of batch `number`, if it has any, and of all later ones."""
        del self._outputs[number:]
        self._storages = {address: size for outputs in self._outputs for address, size in _memory(outputs).items()}
        self.nbytes = sum(self._storages.values())

    @contextmanager
    def recording(self, batches: Iterable[Any]) -> Iterator[Iterator[Any]]:
        """Yields an iterator over the batches; caches the modules' outputs meanwhile."""
        full = not self._modules or not self._budget

        def record(name: str, forward: ModuleForward) -> ModuleForward:
            def recorded(*args, **kwargs):
                output = forward(*args, **kwargs)
                if self.batch is not None:
                    self._outputs[self.batch].setdefault(name, []).append(output)
                return output

            return recorded

        def one_by_one() -> Iterator:
            nonlocal full
            for batch in batches:
                self.batch = None
                if not full:
                    self.batch = len(self._outputs)
                    self._outputs.append({})
                yield batch
                if self.batch is not None:
                    memory = _memory(self._outputs[-1])
                    taken = sum(size for address, size in memory.items() if address not in self._storages)
                    if self.nbytes + taken > self._budget:
                        self._outputs.pop()
                        full = True
                    else:
                        self._storages |= memory
                        self.nbytes += taken
            self.batch = None

        try:
            with intercepted({} if full else self._modules, record):
                yield one_by_one()
        finally:
            self.batch = None

    @contextmanager
    def replaying(self, names: set[str], batches: Sequence[Any], numbers: Iterable[int]) -> Iterator[Iterator]:
        """Yields an iterator over the batches of these numbers; meanwhile a call of a named module returns its cached output of
        the batch."""
        self.batch = None

        def answer(name: str, forward: ModuleForward) -> ModuleForward:
            def answered(*args, **kwargs):
                if self.batch is None:  # also if an interrupt left this in place of the forward
                    return forward(*args, **kwargs)
                number = self._calls.get(name, 0)
                self._calls[name] = number + 1
                return self._outputs[self.batch][name][number]

            return answered

        def one_by_one() -> Iterator:
            for number in numbers:
                self.batch = number if number < len(self._outputs) else None
                self._calls = {}
                yield batches[number]
            self.batch = None

        try:
            with intercepted({name: module for name, module in self._modules.items() if name in names}, answer):
                yield one_by_one()
        finally:
            self.batch = None


def _memory(outputs: dict[str, list[Any]]) -> dict[int, int]:
    """Address -> bytes."""
    storages = {}
    for leaf in tree_leaves(list(outputs.values())):
        if isinstance(leaf, torch.Tensor):
            storage = storage_of(leaf)
            storages[storage.data_ptr()] = storage.nbytes()
    return storages
