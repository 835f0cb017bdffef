"""Outputs of a model's modules, kept from the golden run and handed out again where errors leave them as they were."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from drsrobust.evaluation.intercept import Forward, intercepted


class KeptOutputs:
    """What some modules gave for each batch, within a budget of memory. Batches are kept whole, from the first on; those that
    the budget has no room for are scored in full later.

    Args:
        modules: name -> module whose outputs are kept.
        budget: bytes.

    Attributes:
        batches: of how many batches outputs are kept.
        nbytes: memory that they take; what several outputs share counts once.
    """

    def __init__(self, modules: dict[str, nn.Module], budget: int) -> None:
        self._modules, self._budget = modules, budget
        self._kept: list[dict[str, list[Any]]] = []
        self._storages: dict[int, int] = {}
        self.nbytes = 0
        self._batch: int | None = None
        self._calls: dict[str, int] = {}

    @property
    def batches(self) -> int:
        return len(self._kept)

    @contextmanager
    def recording(self, batches: list) -> Iterator[Iterator]:
        """Gives the batches one by one, and keeps what the modules give meanwhile."""
        full = not self._modules or not self._budget

        def record(name: str, forward: Forward) -> Forward:
            def recorded(*args, **kwargs):
                output = forward(*args, **kwargs)
                if self._batch is not None:
                    self._kept[self._batch].setdefault(name, []).append(output)
                return output

            return recorded

        def one_by_one() -> Iterator:
            nonlocal full
            for batch in batches:
                self._batch = None
                if not full:
                    self._batch = len(self._kept)
                    self._kept.append({})
                yield batch
                if self._batch is not None:
                    found = _memory(self._kept[-1])
                    taken = sum(size for address, size in found.items() if address not in self._storages)
                    if self.nbytes + taken > self._budget:
                        self._kept.pop()
                        full = True
                    else:
                        self._storages |= found
                        self.nbytes += taken
            self._batch = None

        try:
            with intercepted({} if full else self._modules, record):
                yield one_by_one()
        finally:
            self._batch = None

    @contextmanager
    def replaying(self, names: set[str], batches: list) -> Iterator[Iterator]:
        """Gives the batches one by one; meanwhile a call of a named module returns the output kept of that batch."""
        self._batch = None

        def answer(name: str, forward: Forward) -> Forward:
            def answered(*args, **kwargs):
                if self._batch is None:  # also when an interrupt left this standing in for the forward
                    return forward(*args, **kwargs)
                number = self._calls.get(name, 0)
                self._calls[name] = number + 1
                return self._kept[self._batch][name][number]

            return answered

        def one_by_one() -> Iterator:
            for number, batch in enumerate(batches):
                self._batch = number if number < len(self._kept) else None
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
            storage = leaf.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return storages
