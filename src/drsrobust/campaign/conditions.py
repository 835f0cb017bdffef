"""The conditions of a campaign (error model, target, mitigation) as a grid, from axes or from a list."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from itertools import product
from math import log10
from typing import Any

import numpy as np
from torch import nn

from drsrobust._arguments import check_instance, check_items, check_number
from drsrobust.injection import (
    AddressSpace,
    ErrorModel,
    FixedCount,
    Rows,
    Target,
    Transient,
    as_target,
    resolve,
)
from drsrobust.injection.critical_bits import SPREAD, Stratum
from drsrobust.injection.stored import Memory
from drsrobust.mitigation import Mitigation
from drsrobust.statistics.columns import NONE

_ERRORS = "a list of error models, as [BitFlip(ber=1e-6)], or one"
_MITIGATIONS = "a list of mitigations and None, or one"
_TARGETS = "a list of targets, as ['all', 'embedding']"


@dataclass(frozen=True)
class Condition:
    """One condition of a campaign. Errors are drawn over `space`: an address space, or a transient target."""

    error_model: ErrorModel
    target: str | Target | Transient
    space: AddressSpace | Transient
    mitigation: Mitigation | None = None
    stratum: Stratum | None = None

    @property
    def sampled_model(self) -> ErrorModel:
        """The error model that draws its maps: of a stratum, that of the stratum."""
        return self.error_model if self.stratum is None else self.stratum.error_model

    @property
    def transient(self) -> Transient | None:
        """The target, if its errors occur while the model runs."""
        return None if self.space.in_memory else self.space

    @property
    def key(self) -> tuple[str | float | None, ...]:
        """Error model, rate and target as the table names them, the mitigation's identity and, if it has one, the stratum."""
        key = self.error_model.label, self.error_model.rate, str(self.target), self.identity
        return key if self.stratum is None else (*key, self.stratum.name)

    @property
    def kind(self) -> tuple[str | None, ...]:
        """What decides which code its trials run: the kind of error, the target and the mitigation's identity."""
        return self.error_model.columns()["error_kind"], str(self.target), self.identity

    @property
    def protection(self) -> str:
        """The mitigation's label, which several settings may share."""
        return NONE if self.mitigation is None else self.mitigation.name

    @cached_property
    def identity(self) -> str | None:
        """The mitigation's identity; None without one."""
        return None if self.mitigation is None else self.mitigation.identity()

    @property
    def mitigation_id(self) -> str | None:
        """The identity as tables hold it: its first 12 digits."""
        return None if self.identity is None else self.identity[:12]

    @cached_property
    def columns(self) -> dict[str, Any]:
        """The columns of `table.SCHEMA` that all of its trials share. `ber` is the expected share of eligible bits that
        flip; None if it depends on the run."""
        in_memory = self.space.in_memory
        return {
            "error_model": self.error_model.label,
            "rate": self.error_model.rate,
            "ber": self.error_model.expected_share(self.space) if in_memory else self.error_model.transient_share(),
            "target": str(self.target),
            "mitigation": self.protection,
            "mitigation_id": self.mitigation_id,
        }

    def loss_is_bounded(self, harmful: Collection[str]) -> bool:
        """Whether no map of its stratum is taken to lose more than those that are drawn.

        Args:
            harmful: the names of the pilots that show harm (`critical_bits.harmful_pilots`).
        """
        spread = SPREAD[0] if self.mitigation is None else self.mitigation.spread
        return self.stratum is not None and self.stratum.is_bounded(spread, harmful)

    @property
    def description(self) -> dict[str, Any]:
        """The columns of `table.DESCRIPTION`: what figures group by, so that no label is parsed."""
        rows = self.target if isinstance(self.target, Rows) else None
        return {
            **self.error_model.columns(),
            "target_table": rows and rows.table,
            "target_rows": rows and rows.order,
            "target_share": rows and rows.share,
            "mitigation_kind": NONE if self.mitigation is None else type(self.mitigation).__name__,
            "corrects_mode": None if self.mitigation is None else self.mitigation.corrects_mode,
            "n_bits": self.space.bits if self.space.in_memory else None,
        }

    def check(self, model: nn.Module) -> None:
        """Raises ValueError for an error model or a target that does not fit the model."""
        if self.space.in_memory:
            self.error_model.expected_share(self.space)
        else:
            self.space.check(model, self.error_model)

    @cached_property
    def definition(self) -> list:
        """The resolved target as JSON: tensor names, with a hash of chosen rows; the text of a transient target."""
        if not self.space.in_memory:
            return [str(self.space)]
        return [
            tensor.name if tensor.rows is None else [tensor.name, hashlib.sha256(tensor.rows).hexdigest()]
            for tensor in self.space.tensors
        ]


def resolve_target(model: nn.Module, target: str | Target | Transient) -> AddressSpace | Transient:
    """The address space of a target in the model's present memory; a transient target itself."""
    return target if isinstance(target, Transient) else resolve(model, target)


@dataclass(frozen=True, eq=False)
class ResolvedTarget(Target):
    """A target that was resolved before: the same text, tensors and rows."""

    text: str
    rows: Mapping[str, np.ndarray | None]

    def __str__(self) -> str:
        return self.text

    def choose(self, model: nn.Module, memory: Memory) -> dict[str, np.ndarray | None]:
        return dict(self.rows)


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from low to high, both included.

    Raises:
        ValueError: an end that is not a power of ten, or low > high.

    Example:
        >>> decades(1e-4, 1e-2)
        [0.0001, 0.001, 0.01]
    """
    ends = []
    check_number("low", low)
    check_number("high", high)
    for value in (low, high):
        exponent = round(log10(value)) if value > 0 else 0
        if value != float(f"1e{exponent}"):
            raise ValueError(f"decades({low!r}, {high!r}): {value!r} is not a power of ten")
        ends.append(exponent)
    if ends[0] > ends[1]:
        raise ValueError(f"decades({low!r}, {high!r}): the first is larger than the second")
    return [float(f"1e{exponent}") for exponent in range(ends[0], ends[1] + 1)]


def condition_triples(
    errors: Iterable[ErrorModel] | ErrorModel | None,
    targets: Iterable[Any] | Target | Transient,
    mitigations: Iterable[Mitigation | None] | Mitigation | None,
    conditions: Iterable[Any] | None,
) -> list[tuple[ErrorModel, Any, Mitigation | None]]:
    """(error model, target, mitigation) of every condition: targets x errors x mitigations, or those of an explicit list.

    Args:
        errors, targets, mitigations: axes; one object alone is an axis of one.
        conditions: pairs (error model, target), triples with a mitigation, or mappings with the keys `error`, `target` and
            `mitigation` (default: all, none).

    Raises:
        TypeError: something else in place of an error model or a mitigation.
        ValueError: an empty axis, both axes and a list, or an entry of another form.
    """
    if conditions is None:
        for name, axis in (("targets", targets), ("errors", errors), ("mitigations", mitigations)):
            if isinstance(axis, str):
                raise ValueError(f"{name} must be a list, as [{axis!r}], got the text {axis!r}")
        errors = check_items("errors", () if errors is None else errors, _ERRORS, ErrorModel)
        mitigations = check_items("mitigations", mitigations, _MITIGATIONS, Mitigation | None)
        targets = list(map(_target_of, check_items("targets", targets, _TARGETS, Target | Transient)))
        triples = [(error, target, mitigation) for target, error, mitigation in product(targets, errors, mitigations)]
        if not triples:
            raise ValueError(
                f"{len(errors)} errors x {len(targets)} targets x {len(mitigations)} mitigations: no condition"
            )
    else:
        if errors is not None:
            raise ValueError("pass errors or conditions, not both: conditions is the whole list")
        right = "a list of (error model, target) or (error model, target, mitigation)"
        triples = [_triple(entry) for entry in check_items("conditions", conditions, right)]
        if not triples:
            raise ValueError("conditions is empty")
    for error, _, mitigation in triples:
        check_instance("each of errors", error, ErrorModel, "an error model, as BitFlip(ber=1e-6)")
        if mitigation is not None:
            check_instance("each of mitigations", mitigation, Mitigation, "a mitigation or None")
        _check_signature(error, "sample", "(self, space, *, seed, copy=0)")
        if mitigation is not None:
            _check_signature(mitigation, "screen", "(self, error_map, space, *, seed)")
    return triples


def _check_signature(thing: ErrorModel | Mitigation, method: str, expected: str) -> None:
    """Raises TypeError for a method of one's own class that takes other arguments, as before version 0.5."""
    arguments = signature(getattr(thing, method)).parameters.values()
    names = {argument.name for argument in arguments} | {"self"}
    if not set(re.findall(r"[a-z_]+", expected)) <= names and all(
        parameter.kind != parameter.VAR_KEYWORD for parameter in arguments
    ):
        written = ", ".join(argument.name for argument in arguments)
        raise TypeError(f"{type(thing).__name__}.{method}(self, {written}) must be {method}{expected}")


def _target_of(target: Any) -> Any:
    """A list of targets as their union; any other target as it is."""
    return as_target(target) if isinstance(target, list | tuple) else target


def _triple(entry: Any) -> tuple[ErrorModel, Any, Mitigation | None]:
    keys = ("error", "target", "mitigation")
    if isinstance(entry, Mapping):
        if "error" in entry and set(entry) <= set(keys):
            return entry["error"], _target_of(entry.get("target", "all")), entry.get("mitigation")
    elif isinstance(entry, tuple | list) and len(entry) in (2, 3):
        return entry[0], _target_of(entry[1]), entry[2] if len(entry) == 3 else None
    raise ValueError(
        f"conditions holds {entry!r}; each must be (error model, target), (error model, target, mitigation) or a mapping with "
        "error, target, mitigation"
    )


def grid(model: nn.Module, triples: list[tuple[ErrorModel, Any, Mitigation | None]]) -> list[Condition]:
    """The conditions, in the model's present memory. Each target is resolved once; mitigations of one identity become one
    object, which an evaluator recognises."""
    spaces: dict[int, Any] = {}
    first: dict[str, Mitigation] = {}  # by identity
    same: dict[int, Mitigation] = {}
    for _, target, mitigation in triples:
        if id(target) not in spaces:
            spaces[id(target)] = resolve_target(model, target)
        if mitigation is not None and id(mitigation) not in same:
            same[id(mitigation)] = first.setdefault(mitigation.identity(), mitigation)
    return [
        Condition(error, target, spaces[id(target)], same.get(id(mitigation))) for error, target, mitigation in triples
    ]


def sharing_maps(conditions: list[Condition]) -> list[list[int]]:
    """Numbers of the conditions that differ only in their mitigation, grouped: each group has the same error maps."""
    groups: dict[tuple, list[int]] = {}
    for number, condition in enumerate(conditions):
        groups.setdefault((*condition.key[:3], *condition.key[4:]), []).append(number)
    return list(groups.values())


def check_distinct(conditions: Sequence[Condition]) -> None:
    """Raises ValueError for a duplicate condition, and for different targets of one name."""
    keys, targets = set(), {}
    for condition in conditions:
        if condition.key in keys:
            raise ValueError(
                f"duplicate condition: {condition.error_model!r} in {str(condition.target)!r} with mitigation "
                f"{condition.protection!r}; give each once"
            )
        keys.add(condition.key)
        text = str(condition.target)
        if targets.setdefault(text, condition.definition) != condition.definition:
            raise ValueError(f"two different targets are both named {text!r}; run each in a campaign of its own")


def check_mitigations(conditions: Sequence[Condition], model: nn.Module) -> None:
    """Raises ValueError for a mitigation that cannot protect the model, or cannot screen a flip in a condition's target."""
    checked = set()
    for condition in conditions:
        key = condition.identity, str(condition.target)
        if condition.mitigation is None or key in checked:
            continue
        try:
            if condition.identity not in {identity for identity, _ in checked}:
                condition.mitigation.check(model)
            if isinstance(condition.space, AddressSpace):
                condition.mitigation.screen(FixedCount(1).sample(condition.space, seed=0), condition.space, seed=0)
        except ValueError as error:
            raise ValueError(f"mitigation {condition.protection!r} in {condition.target}: {error}") from error
        checked.add(key)
