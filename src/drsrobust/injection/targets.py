"""Targets at rest: which of a model's stored words errors may hit.

A target is a string (`"all"`, a component, a glob on tensor names) or one of the classes here; `a | b` is both. What is
transient (inputs, activations, gradients) is in `drsrobust.injection.transient`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.injection.overlap import refuse_overlaps
from drsrobust.injection.region import TargetTensor
from drsrobust.injection.space import AddressSpace
from drsrobust.injection.storage import (
    OPTIMIZER,
    Memory,
    check,
    hittable,
    optimizer_states,
    stored,
    warn_of_hidden_words,
)
from drsrobust.tensors import GROUPS, declared_groups, group_of

Chosen = dict[str, np.ndarray | None]  # tensor name -> which of its rows (int64, ascending); None: all


class Target(ABC):
    """Which stored words may be hit. `a | b` is what either means."""

    optimizer: Any = None

    @abstractmethod
    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        """Names of the targeted tensors, and their rows.

        Args:
            model: any module.
            memory: what is stored in it.
        """

    def resolve(self, model: nn.Module, components: Mapping[str, str] | None = None) -> AddressSpace:
        """The address space of this target in a model.

        Warns:
            UserWarning: once for a model with weights that no target can hold.

        Raises:
            TypeError, ValueError: as `drsrobust.injection.resolve`.
        """
        memory = stored(model, self.optimizer, components)
        warn_of_hidden_words(model)
        tensors = []
        for name, rows in sorted(self.choose(model, memory).items()):
            here = memory[name]
            check(name, here.tensor)
            tensors.append(
                TargetTensor(name, memory.component[name], tuple(here.tensor.shape), here.format, rows, here)
            )
        space = AddressSpace(tensors)
        if not space.tensors:
            raise ValueError(f"target {str(self)!r} matches nothing with any element; {_what_there_is(model, memory)}")
        refuse_overlaps({tensor.name: tensor.memory for tensor in space.tensors})
        return space

    def __or__(self, other: "Target | str") -> "Target":
        return Union((self, as_target(other)))

    def __ror__(self, other: str) -> "Target":
        return Union((as_target(other), self))


def as_target(target: "Target | str") -> Target:
    """A target given as a string or as it is.

    Raises:
        ValueError: something else.
    """
    if isinstance(target, str):
        return Named(target)
    if isinstance(target, Target):
        return target
    raise ValueError(
        f"target is {target!r}; it must be 'all', 'everything', a component, a glob on tensor names or a target as Rows(...)"
    )


@dataclass(frozen=True)
class Named(Target):
    """What a string means: `all` (parameters and quantized tables), `everything` (and buffers, but for complex and bool ones),
    a tensor's name, a component, a group (of all models, or one that this model declares), else a glob on tensor names."""

    text: str

    def __str__(self) -> str:
        return self.text

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        text = self.text
        if text in ("all", "everything"):
            kept = (
                name for name, one in memory.items() if one.parameter or (text == "everything" and hittable(one.tensor))
            )
            return dict.fromkeys(name for name in kept if not name.startswith(OPTIMIZER))
        # Further names of tied tensors are among them.
        names = [name for name in memory.component if not name.startswith(OPTIMIZER)]
        first = {name: memory.first.get(name, name) for name in names}
        if text in first:
            return {first[text]: None}
        parameters = {name for name in names if memory[first[name]].parameter}
        own = {name for name in names if memory.component[name] == text}
        own = own & parameters or own  # a component of buffers alone is its buffers
        own = own or {name for name in parameters if text in group_of(memory.component[name])}
        globs = declared_groups(model).get(text, ())
        own = own or {name for name in parameters if any(fnmatchcase(name, glob) for glob in globs)}
        own = own or {name for name in names if fnmatchcase(name, text)}
        return dict.fromkeys(first[name] for name in own)


@dataclass(frozen=True)
class Dtype(Target):
    """Parameters and buffers whose words are of one dtype.

    Args:
        dtype: as `torch.float16` or `"float16"`. Quantized rows of integers count as `uint8`.
        within: which of them: a target.
    """

    dtype: torch.dtype | str
    within: "Target | str" = "everything"

    def __post_init__(self) -> None:
        dtype = getattr(torch, self.dtype, None) if isinstance(self.dtype, str) else self.dtype
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"dtype is {self.dtype!r}; it must be a torch.dtype or its name, as 'float16'")
        object.__setattr__(self, "dtype", dtype)

    def __str__(self) -> str:
        within = "" if str(self.within) == "everything" else f", within={self.within}"
        return f"Dtype({str(self.dtype).removeprefix('torch.')}{within})"

    @property
    def optimizer(self) -> Any:
        """That of `within`."""
        return as_target(self.within).optimizer

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        chosen = as_target(self.within).choose(model, memory)
        return {name: rows for name, rows in chosen.items() if memory[name].dtype == self.dtype}


@dataclass(frozen=True, eq=False)
class OptimizerState(Target):
    """An optimizer's state between two steps: moments, sums of squares, step counts.

    Its tensors are named `optimizer.<parameter>.<state>`, as `optimizer.0.weight.exp_avg`, and belong to their parameter's
    component. A map that hits them is applied again by `error_map.applied(model, optimizer=...)`.

    Args:
        optimizer: a `torch.optim.Optimizer` or one of TorchRec's; it must have made a step, or it has no state.
        glob: on names without `optimizer.`, as `*.exp_avg_sq`.
    """

    optimizer: Any = field(repr=False)
    glob: str = "*"

    def __str__(self) -> str:
        return f"OptimizerState({self.glob})"

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        names = optimizer_states(model, self.optimizer)
        chosen = [name for name in names if fnmatchcase(name.removeprefix(OPTIMIZER), self.glob)]
        if not chosen:
            there = ", ".join(name.removeprefix(OPTIMIZER) for name in names)
            why = "take a step first" if not self.optimizer.state else "it is the optimizer of other parameters"
            what = f"there are: {there}" if there else f"there is none of this model: {why}"
            raise ValueError(f"no optimizer state matches {self.glob!r}; {what}")
        return dict.fromkeys(chosen)


@dataclass(frozen=True)
class Union(Target):
    """What any of some targets means; each word once."""

    parts: tuple[Target, ...]

    @property
    def optimizer(self) -> Any:
        """The optimizer of its parts; there can be one."""
        found = {id(part.optimizer): part.optimizer for part in self.parts if part.optimizer is not None}
        if len(found) > 1:
            raise ValueError(f"{self} names the states of {len(found)} optimizers; target one at a time")
        return next(iter(found.values()), None)

    def __str__(self) -> str:
        return " | ".join(sorted(str(part) for part in self.parts))

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        chosen: Chosen = {}
        for part in self.parts:
            found = part.choose(model, memory)
            if not found:
                raise ValueError(f"target {str(part)!r} matches nothing; {_what_there_is(model, memory)}")
            for name, rows in found.items():
                known = chosen.get(name, rows)
                chosen[name] = None if rows is None or known is None else np.union1d(known, rows)
        return chosen


def _what_there_is(model: nn.Module, memory: Memory) -> str:
    components = sorted({memory.component[name] for name in memory})
    groups = {group for group in GROUPS if any(group in group_of(component) for component in components)}
    groups = sorted(groups | set(declared_groups(model)))
    return f"components: {', '.join(components + groups)}; tensors: {', '.join(sorted(memory))}"
