"""Targets at rest: which of a model's stored words errors may hit.

A target is a string (`"all"`, a component, a glob on tensor names) or one of the classes here; `a | b` is both. What is
transient (inputs, activations, gradients) is in `drsrobust.injection.transient`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.injection.region import TargetTensor
from drsrobust.injection.space import AddressSpace
from drsrobust.injection.storage import OPTIMIZER, Stored, check, optimizer_states, stored
from drsrobust.tensors import GROUPS, aliases, component_of, group_of, span

Chosen = dict[str, np.ndarray | None]  # tensor name -> which of its rows (int64, ascending); None: all


class Target:
    """Which stored words may be hit. `a | b` is what either means."""

    optimizer: Any = None

    def choose(self, model: nn.Module, memory: Mapping[str, Stored], home: Mapping[str, str]) -> Chosen:
        """Names of the targeted tensors, and their rows.

        Args:
            model: any module.
            memory: what is stored in it.
            home: tensor name -> component.
        """
        raise NotImplementedError

    def resolve(self, model: nn.Module, components: Mapping[str, str] | None = None) -> AddressSpace:
        """The address space of this target in a model.

        Raises:
            ValueError: as `drsrobust.injection.resolve`.
        """
        memory = stored(model, self.optimizer)
        home = component_of(model, components, [name for name in memory if not name.startswith(OPTIMIZER)])
        for name in memory:
            home.setdefault(name, home.get(name.removeprefix(OPTIMIZER).rpartition(".")[0], "optimizer"))
        chosen = self.choose(model, memory, home)
        tensors = []
        for name, rows in sorted(chosen.items()):
            here = memory[name]
            check(name, here.tensor)
            tensors.append(TargetTensor(name, home[name], tuple(here.tensor.shape), here.format, rows, here))
        space = AddressSpace(tensors)
        if not space.tensors:
            raise ValueError(f"target {str(self)!r} matches nothing with any element; {_what_there_is(memory, home)}")
        _refuse_overlaps(space)
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
    """What a string means: `all` (parameters and quantized tables), `everything` (and buffers), a component, a group, else a
    glob on tensor names."""

    text: str

    def __str__(self) -> str:
        return self.text

    def choose(self, model: nn.Module, memory: Mapping[str, Stored], home: Mapping[str, str]) -> Chosen:
        text, names = self.text, [name for name in memory if not name.startswith(OPTIMIZER)]
        parameters = {name for name in names if memory[name].parameter}
        if text in ("all", "everything"):
            return dict.fromkeys(parameters if text == "all" else names)
        if own := {name for name in names if home[name] == text}:
            return dict.fromkeys(own & parameters or own)  # a component of buffers alone is its buffers
        if own := {name for name in parameters if text in group_of(home[name])}:
            return dict.fromkeys(own)
        if own := {name for name in names if fnmatchcase(name, text)}:
            return dict.fromkeys(own)
        # A tied tensor goes by its first name; by another one it is the same memory.
        other = aliases(model)
        return dict.fromkeys(other[n] for n in other if fnmatchcase(n, text) or n.startswith(f"{text}."))


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

    def choose(self, model: nn.Module, memory: Mapping[str, Stored], home: Mapping[str, str]) -> Chosen:
        chosen = as_target(self.within).choose(model, memory, home)
        return {name: rows for name, rows in chosen.items() if memory[name].format.dtype == self.dtype}


@dataclass(frozen=True, eq=False)
class OptimizerState(Target):
    """An optimizer's state between two steps: moments, sums of squares, step counts.

    Its tensors are named `optimizer.<parameter>.<state>`, as `optimizer.0.weight.exp_avg`, and belong to their parameter's
    component. A map that hits them is applied again by `error_map.applied(model, optimizer=...)`.

    Args:
        optimizer: a `torch.optim.Optimizer` or one of TorchRec's; it must have made a step, or it has no state.
        glob: on names without `optimizer.`, as `*.exp_avg_sq`.
    """

    optimizer: Any
    glob: str = "*"

    def __str__(self) -> str:
        return f"OptimizerState({self.glob})"

    def choose(self, model: nn.Module, memory: Mapping[str, Stored], home: Mapping[str, str]) -> Chosen:
        names = optimizer_states(model, self.optimizer)
        chosen = [name for name in names if fnmatchcase(name.removeprefix(OPTIMIZER), self.glob)]
        if not chosen:
            there = ", ".join(name.removeprefix(OPTIMIZER) for name in names)
            raise ValueError(
                f"no optimizer state matches {self.glob!r}; "
                + (f"there are: {there}" if there else "there is none yet: take a step first")
            )
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

    def choose(self, model: nn.Module, memory: Mapping[str, Stored], home: Mapping[str, str]) -> Chosen:
        chosen: Chosen = {}
        for part in self.parts:
            found = part.choose(model, memory, home)
            if not found:
                raise ValueError(f"target {str(part)!r} matches nothing; {_what_there_is(memory, home)}")
            for name, rows in found.items():
                known = chosen.get(name, rows)
                chosen[name] = None if rows is None or known is None else np.union1d(known, rows)
        return chosen


def _what_there_is(memory: Mapping[str, Stored], home: Mapping[str, str]) -> str:
    components = sorted({home[name] for name in memory})
    groups = sorted(group for group in GROUPS if any(group in group_of(component) for component in components))
    return f"components: {', '.join(components + groups)}; tensors: {', '.join(sorted(memory))}"


def _refuse_overlaps(space: AddressSpace) -> None:
    """Raises ValueError when words of one tensor, or of two, lie in the same memory: they would count twice."""
    tensors = {tensor.name: tensor.memory for tensor in space.tensors}
    spans = sorted((*span(memory), name) for name, memory in tensors.items())
    for name in (name for *_, name in spans if not tensors[name].is_contiguous()):
        if len(np.unique(_places(tensors[name]))) < tensors[name].numel():
            raise ValueError(f"{name} repeats words of its memory (it was expanded); it cannot be hit word by word")
    reach, owner = 0, ""
    for start, end, name in spans:
        if start < reach and len(np.intersect1d(_places(tensors[owner]), _places(tensors[name]))):
            raise ValueError(f"{owner} and {name} share a part of their memory; target one of them by its name")
        if end > reach:
            reach, owner = end, name


def _places(tensor: torch.Tensor) -> np.ndarray:
    """The address of each word, int64."""
    place = np.full(1, tensor.data_ptr(), np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        place = (place[:, None] + tensor.element_size() * stride * np.arange(size)).ravel()
    return place
