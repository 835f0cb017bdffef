"""Targets that are hit while a model runs: what the core asks of them."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from drsrobust.injection.address_space import AddressSpace, TargetTensor
from drsrobust.injection.apply import Change
from drsrobust.injection.error_map import ErrorMap
from drsrobust.injection.error_models import ErrorModel
from drsrobust.injection.number_formats import plain
from drsrobust.injection.stored import Stored, check


class InjectionError(ValueError):
    """Errors could not be drawn while a model ran: a mistake in the request, not an exception of the model."""


class Transient(ABC):
    """A target that is hit while the model runs."""

    in_memory = False

    @abstractmethod
    def change(self, model: nn.Module, error_model: ErrorModel, seed: int, copy: int, log: Any) -> Change:
        """What hits the model while it is applied, and adds what it drew to a log.

        Args:
            model: any module.
            error_model: draws at each call.
            seed: decides everything that is drawn.
            copy: how many equal error models were before this one.
            log: of `new_log`.
        """

    @abstractmethod
    def new_log(self, pairs: int) -> Any:
        """The log of all calls of so many (error model, target) pairs."""

    @abstractmethod
    def check(self, model: nn.Module, error_model: ErrorModel) -> None:
        """Raises ValueError for a model that has no such place, and for one that an evaluator never reaches."""

    def with_optimizer(self, optimizer: Any) -> "Transient":
        """As of `Target`: this target."""
        return self

    def tensors(self, model: nn.Module) -> "list[tuple[Transient, int]]":
        """Parts of this target of one tensor (or module) each, with the number of its words, 1 where that is not known."""
        return [(self, 1)]


def sample_in(
    name: str, tensor: torch.Tensor, words: torch.Tensor, model: ErrorModel, seed: int, copy: int
) -> ErrorMap:
    """The error map of some words of a tensor that no model holds.

    Args:
        name: of the tensor, in the map and in messages.
        tensor: any.
        words: of it, [n], or all in its shape.
        model: draws the map; `seed` and `copy` as of `ErrorModel.sample`.

    Raises:
        ValueError: the tensor has no words, or not those that the model hits.
    """
    check(name, tensor)
    target = TargetTensor(name, name, tuple(words.shape) or (1,), plain(tensor.dtype), None, Stored(words))
    return model.sample(AddressSpace([target]), seed=seed, copy=copy)
