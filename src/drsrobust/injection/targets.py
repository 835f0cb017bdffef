"""Targets in memory: which of a model's stored words errors may hit.

A target is a string (`"all"`, a component, a module, a glob on tensor names) or one of the classes here, in `rows` and `rank`;
`a | b` is both, and so is a list of them. Targets while the model runs (inputs, activations, gradients) are in `transient`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from drsrobust._arguments import check_text, wrong
from drsrobust.injection.address_space import AddressSpace, TargetTensor
from drsrobust.injection.hidden_words import warn_of_hidden_words, warn_of_integers
from drsrobust.injection.stored import OPTIMIZER, Memory, check, distinct_spans, hittable, optimizer_states, stored
from drsrobust.introspection.tensors import GROUPS, SPARSE_LAYOUTS, declared_groups, group_of

LISTED = 20  # tensors in a message, at most
NEAREST = 3  # names that a message suggests, at most


class RowParts(NamedTuple):
    """Parts of a tensor's rows: numbers of runs of `width` words (int64, ascending)."""

    width: int
    rows: np.ndarray


# Tensor name -> which of its rows (int64, ascending), or parts of rows; None: all.
Chosen = dict[str, np.ndarray | RowParts | None]


class Target(ABC):
    """Which stored words may be hit. `a | b` targets the words of both."""

    optimizer: Any = None
    of_rank: int | None = None  # whose replicas are hit

    @abstractmethod
    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        """Names of the targeted tensors, and their rows.

        Args:
            model: any module.
            memory: its tensors.
        """

    def resolve(self, model: nn.Module, components: Mapping[str, str] | None = None) -> AddressSpace:
        """The address space of this target in a model.

        Warns:
            UserWarning: once for a model with weights that no target can hold, or that a fake-quantize module rounds; once for
                a glob that leaves buffers of integers out.

        Raises:
            TypeError, ValueError: as `drsrobust.injection.resolve`.
        """
        memory = stored(model, self.optimizer, components)
        warn_of_hidden_words(model)
        tensors, hit = [], {}
        for name, rows in sorted(self.chosen(model, memory).items()):
            entry = memory[name]
            for number, tensor in enumerate(entry.memory()):
                try:
                    check(name, tensor)
                except ValueError as error:
                    raise ValueError(f"{error}{_instead(self.chosen(model, memory), memory)}") from None
                hit[name if entry.spread is None else f"part {number} of {name}"] = tensor
            width, shape = None, tuple(entry.tensor.shape)
            if isinstance(rows, RowParts):
                width, rows = rows
            component, rank = memory.component[name], None if entry.spread else self.of_rank
            tensors.append(TargetTensor(name, component, shape, entry.format, rows, entry, width, rank))
        space = AddressSpace(tensors).in_model(model, memory)
        if not space.tensors:
            raise ValueError(f"target {str(self)!r} matches nothing with any element{_known(str(self), model, memory)}")
        distinct_spans(hit)
        return space

    def chosen(self, model: nn.Module, memory: Memory) -> Chosen:
        """As `choose`.

        Raises:
            ValueError: it chooses nothing.
        """
        if chosen := self.choose(model, memory):
            return chosen
        raise ValueError(f"target {str(self)!r} matches nothing{_known(str(self), model, memory)}")

    def with_optimizer(self, optimizer: Any) -> "Target":
        """This target, of another optimizer if it names one's state."""
        return self

    def __or__(self, other: "TargetLike") -> "Target":
        return Union((self, as_target(other)))

    def __ror__(self, other: "TargetLike") -> "Target":
        return Union((as_target(other), self))


TargetLike = str | Target | Sequence[str | Target]


def resolve(model: nn.Module, target: TargetLike = "all", components: Mapping[str, str] | None = None) -> AddressSpace:
    """The address space of a target in a model.

    Args:
        model: any module.
        target: `"all"` (parameters), `"everything"` (and buffers), a component (its parameters; its buffers if it has no
            parameters), a group (`mlp`: the components whose names end in `_mlp`), a module (`"mlp.0"`; its
            parameters or buffers as of a component), else a glob on names of parameters and buffers (where it matches
            parameters, no buffers of integers, as indices and masks); or a `Target`, as `Rows`; or a list of these, for all.
        components: overrides of which tensor belongs to which component, as in `components()`.

    Raises:
        ValueError: a target that matches nothing (with the names there are); a tensor that cannot be hit (complex, bool,
            quantized, sparse, uninitialised, on the meta device, a wrapper); words that share memory; a model that is
            sharded over ranks in a way that is not supported.
    """
    return as_target(target).resolve(model, components)


def as_target(target: TargetLike, name: str = "target") -> Target:
    """A target from a string or a list of targets; a `Target` is returned as it is. `name` is the argument's, for the message.

    Raises:
        ValueError: anything else.
    """
    if isinstance(target, str):
        return Named(target)
    if isinstance(target, Target):
        return target
    if isinstance(target, list | tuple) and target:
        return as_target(target[0]) if len(target) == 1 else Union(tuple(map(as_target, target)))
    raise wrong(
        name,
        "'all', 'everything', a component, a module, a glob on tensor names, a target as Rows(...) or a list of these",
        target,
    )


def _known(text: str, model: nn.Module, memory: Memory) -> str:
    """The end of a message on a target that matches nothing: the nearest names, and those that there are."""
    components = {memory.component[name] for name in memory}
    groups = {group for group in GROUPS if any(group in group_of(component) for component in components)}
    names = [*sorted(components), *sorted(groups | set(declared_groups(model)))]
    if text == "all" and memory:
        return f": the model has no parameters; 'everything' takes its buffers, too; components: {', '.join(names)}"
    near = get_close_matches(text, dict.fromkeys([*names, *_modules(memory), *memory]), n=NEAREST)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
    tensors = f"tensors: {', '.join(sorted(memory))}"
    if near or len(memory) > LISTED:
        tensors = f"{len(memory)} tensors, named as {min(memory)!r}"
    return f"{hint} components: {', '.join(names)}; {tensors}"


def _instead(chosen: Iterable[str], memory: Memory) -> str:
    """The end of a message on a tensor that cannot be hit: targets that hold the other chosen ones, if there are any."""
    fits = {name: all(map(_can_be_hit, memory[name].memory())) for name in sorted(chosen)}
    wrong = [name for name, fit in fits.items() if not fit]
    names: dict[str, None] = {}
    for name in (name for name, fit in fits.items() if fit):
        starts = [*_modules([name]), name]
        names[next(s for s in starts if not any(f"{other}.".startswith(f"{s}.") for other in wrong))] = None
    return f"; the others are {list(names)}" if names else ""


def _can_be_hit(tensor: torch.Tensor) -> bool:
    try:
        check("", tensor)
    except ValueError:
        return False
    return True


def _modules(names: Iterable[str]) -> list[str]:
    """The modules that hold some tensors, by the tensors' names."""
    parts = (name.split(".") for name in names)
    return list(dict.fromkeys(".".join(path[:end]) for path in parts for end in range(1, len(path))))


@dataclass(frozen=True)
class Named(Target):
    """A target given as a string: `all` (parameters and quantized tables), `everything` (and buffers, except complex and bool
    ones), a tensor's name, a component, a group (of all models, or one that this model declares), a module, else a glob on
    names. All but a tensor's name leave sparse tensors out; a glob that matches parameters leaves out buffers of integers
    (indices, masks) too, with a warning.

    Attributes:
        floats_alone: whether a glob leaves these buffers out.
    """

    text: str
    floats_alone: bool = field(default=True, kw_only=True, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        text = self.text
        if text in ("all", "everything"):
            in_model = [(name, entry) for name, entry in memory.items() if not name.startswith(OPTIMIZER)]
            chosen = [n for n, e in in_model if e.parameter or (text == "everything" and hittable(e.tensor))]
            return dict.fromkeys(n for n in chosen if memory[n].tensor.layout not in SPARSE_LAYOUTS)
        # All names, also further ones of tied tensors.
        first = {name: memory.first.get(name, name) for name in memory.component if not name.startswith(OPTIMIZER)}
        if text in first:
            return {first[text]: None}
        parameters = {name for name in first if memory[first[name]].parameter}
        members = {name for name in first if memory.component[name] == text}
        members = members & parameters or members  # a component, or module, that has only buffers means these
        members = members or {name for name in parameters if text in group_of(memory.component[name])}
        if not members:
            globs = declared_groups(model).get(text, ())
            members = {name for name in parameters if any(fnmatchcase(name, glob) for glob in globs)}
        if not members:
            members = {name for name in first if name.startswith(f"{text}.")}
            members = members & parameters or members
        if not members:
            members = {name for name in first if fnmatchcase(name, text)}
            numbers = {n for n in members - parameters if not memory[first[n]].tensor.is_floating_point()}
            if members & parameters and numbers and self.floats_alone:
                warn_of_integers(model, text, sorted(numbers))
                members -= numbers
        dense = {name for name in members if memory[first[name]].tensor.layout not in SPARSE_LAYOUTS}
        return dict.fromkeys(first[name] for name in dense or members)


@dataclass(frozen=True)
class Dtype(Target):
    """Parameters and buffers whose words are of one dtype.

    Args:
        dtype: as `torch.float16` or `"float16"`. Quantized rows of integers count as `uint8`.
        within: a target that holds them.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False).half())
        >>> [tensor.name for tensor in resolve(model, Dtype("float16")).tensors]
        ['1.weight']
    """

    dtype: torch.dtype | str
    within: "Target | str" = "everything"

    def __post_init__(self) -> None:
        dtype = getattr(torch, self.dtype, None) if isinstance(self.dtype, str) else self.dtype
        if not isinstance(dtype, torch.dtype):
            raise wrong("dtype", "a torch.dtype or its name, as 'float16'", self.dtype)
        object.__setattr__(self, "dtype", dtype)
        as_target(self.within, "within")  # raises

    def __str__(self) -> str:
        within = "" if str(self.within) == "everything" else f", within={self.within}"
        return f"Dtype({str(self.dtype).removeprefix('torch.')}{within})"

    @property
    def optimizer(self) -> Any:
        return as_target(self.within).optimizer

    @property
    def of_rank(self) -> int | None:  # type: ignore[override]  # that of another target, never set here
        return as_target(self.within).of_rank

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        within = as_target(self.within)
        if isinstance(within, Named):
            within = replace(within, floats_alone=False)  # the dtype says which
        chosen = within.choose(model, memory)
        return {name: rows for name, rows in chosen.items() if memory[name].dtype == self.dtype}


@dataclass(frozen=True, eq=False)
class OptimizerState(Target):
    """An optimizer's state between two steps: moments, sums of squares, step counts.

    Its tensors are named `optimizer.<parameter>.<state>`, as `optimizer.0.weight.exp_avg`, and belong to their parameter's
    component. Apply a map that hits them again by `error_map.applied(model, optimizer=...)`.

    Args:
        optimizer: a `torch.optim.Optimizer` or one of TorchRec's; it has no state before its first step. None: that of a
            `TrainingCampaign`.
        glob: on names without `optimizer.`, as `*.exp_avg_sq`.
    """

    optimizer: Any = field(default=None, repr=False)
    glob: str = "*"

    def __post_init__(self) -> None:
        check_text("glob", self.glob, "a glob on names, as '*.exp_avg'")
        if self.optimizer is not None and not isinstance(getattr(self.optimizer, "state", None), Mapping):
            raise wrong("optimizer", "a torch.optim.Optimizer or one of TorchRec's", self.optimizer)

    def __str__(self) -> str:
        return f"OptimizerState({self.glob})"

    def with_optimizer(self, optimizer: Any) -> "OptimizerState":
        return replace(self, optimizer=optimizer)

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        names = [name.removeprefix(OPTIMIZER) for name in optimizer_states(model, self.optimizer)]
        chosen = [f"{OPTIMIZER}{name}" for name in names if fnmatchcase(name, self.glob)]
        if not chosen:
            reason = "it is the optimizer of other parameters" if self.optimizer.state else "take a step first"
            present = f"there are: {', '.join(names)}" if names else f"there is none of this model: {reason}"
            raise ValueError(f"no optimizer state matches {self.glob!r}; {present}")
        return dict.fromkeys(chosen)


@dataclass(frozen=True)
class Union(Target):
    """The words of several targets; each word once."""

    parts: tuple[Target, ...]

    @property
    def of_rank(self) -> int | None:  # type: ignore[override]  # that of its parts, never set here
        """The rank of its parts, one at most."""
        if len(of_parts := {part.of_rank for part in self.parts}) > 1:
            raise ValueError(
                f"{self} joins replicas of different ranks; give each a target, or an error map, of its own"
            )
        return of_parts.pop()

    @property
    def optimizer(self) -> Any:
        """The optimizer of its parts, at most one."""
        optimizers = {id(part.optimizer): part.optimizer for part in self.parts if part.optimizer is not None}
        if len(optimizers) > 1:
            raise ValueError(f"{self} names the states of {len(optimizers)} optimizers; target one at a time")
        return next(iter(optimizers.values()), None)

    def __str__(self) -> str:
        return " | ".join(sorted(str(part) for part in self.parts))

    def with_optimizer(self, optimizer: Any) -> "Union":
        return Union(tuple(part.with_optimizer(optimizer) for part in self.parts))

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        union: Chosen = {}
        for part in self.parts:
            for name, rows in part.chosen(model, memory).items():
                union[name] = _joined(union.get(name, rows), rows, prod(memory[name].tensor.shape[1:]))
        return union


def _joined(
    rows: np.ndarray | RowParts | None, others: np.ndarray | RowParts | None, row_words: int
) -> np.ndarray | RowParts | None:
    """The rows, or parts of rows, of either; None: all."""
    if rows is None or others is None:
        return None
    if isinstance(rows, np.ndarray) and isinstance(others, np.ndarray):
        return np.union1d(rows, others)
    width = gcd(*(part.width if isinstance(part, RowParts) else row_words for part in (rows, others)))
    return RowParts(width, np.union1d(*(in_parts(part, row_words, width) for part in (rows, others))))


def in_parts(rows: np.ndarray | RowParts, row_words: int, width: int) -> np.ndarray:
    """Rows as numbers of runs of `width` words."""
    per_row, numbers = (rows.width // width, rows.rows) if isinstance(rows, RowParts) else (row_words // width, rows)
    return (numbers[:, None] * per_row + np.arange(per_row)).ravel()
