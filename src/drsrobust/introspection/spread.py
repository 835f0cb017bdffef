"""Tensors that are spread over the processes of a group, and what answers for models that have them.

Names, shapes and addresses are those of the whole model; only memory is local to a process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust._registrations import load_registrations


class SpreadTensor(ABC):
    """A tensor of which each process of a group holds a part.

    Attributes:
        shape: of the whole tensor.
        dtype: of its words.
        module: that it belongs to.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    module: nn.Module

    @abstractmethod
    def words(self) -> Any:
        """Its words, read and written by flat index in the whole tensor, as of a `WordView`; all processes make the same
        calls."""

    @abstractmethod
    def held(self, word: np.ndarray) -> Iterator[tuple[torch.Tensor, np.ndarray | slice, np.ndarray]]:
        """This process's parts of some words [n], given by ascending flat index in the whole tensor: the part's memory, which m
        words lie in it, and their flat index in it (int64 [m])."""

    @abstractmethod
    def memory(self) -> list[torch.Tensor]:
        """What this process holds of it."""

    @abstractmethod
    def whole(self) -> torch.Tensor:
        """The present tensor, in every process."""


class Group(ABC):
    """What answers for the models of a process group.

    Attributes:
        rank: of this process.
        world: how many processes there are.
    """

    rank: int
    world: int

    @abstractmethod
    def tensors(self, modules: Iterable[tuple[str, nn.Module]]) -> dict[str, dict[str, SpreadTensor | torch.Tensor]]:
        """Of each module with spread tensors, by its name, its tensors by their names in the whole model; a plain tensor where
        each process has a replica. Raises ValueError for what is spread in a way that is not supported."""

    @abstractmethod
    def check(self, model: nn.Module) -> None:
        """Raises ValueError for a model of which each process holds other words, in a way that `tensors` does not see."""

    @abstractmethod
    def state_digest(self, model: nn.Module) -> str:
        """Of all words of a model with spread tensors: equal in all processes, however they are spread."""


_MAKERS: list[Callable[[], Group]] = []


def register_group(make: Callable[[], Group]) -> None:
    """Sets what answers for the models of a process group."""
    _MAKERS[:] = [make]


def process_group() -> Group | None:
    """What answers for the models of the default process group; None without one."""
    group = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        return None
    load_registrations("groups")
    return _MAKERS[0]()


def is_sharded(model: nn.Module) -> bool:
    """Whether tables of a model are spread over the ranks of a process group, of one rank too."""
    return process_group() is not None and any(map(is_sharded_module, model.modules()))


def is_sharded_module(module: nn.Module) -> bool:
    """Whether a module is one of TorchRec's, with tables that it spreads over ranks."""
    return _is_sharded_class(type(module))


@cache
def _is_sharded_class(kind: type) -> bool:
    return any(base.__name__ == "ShardedModule" for base in kind.__mro__)
