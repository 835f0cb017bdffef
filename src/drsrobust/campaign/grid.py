"""The grid of a campaign, from axes or from an explicit list."""

from collections.abc import Iterable, Mapping
from itertools import product
from math import log10
from typing import Any

from torch import nn

from drsrobust.campaign.conditions import Condition, resolved
from drsrobust.injection import ErrorModel
from drsrobust.mitigation import Mitigation


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from low to high, both included.

    Raises:
        ValueError: an end that is not a power of ten, or low > high.

    Example:
        >>> decades(1e-4, 1e-2)
        [0.0001, 0.001, 0.01]
    """
    ends = []
    for value in (low, high):
        exponent = round(log10(value)) if value > 0 else 0
        if value != float(f"1e{exponent}"):
            raise ValueError(f"decades({low!r}, {high!r}): {value!r} is not a power of ten")
        ends.append(exponent)
    if ends[0] > ends[1]:
        raise ValueError(f"decades({low!r}, {high!r}): the first is larger than the second")
    return [float(f"1e{exponent}") for exponent in range(ends[0], ends[1] + 1)]


def cells(
    errors: Iterable[ErrorModel] | None,
    targets: Iterable[Any],
    mitigations: Iterable[Mitigation | None],
    conditions: Iterable[Any] | None,
) -> list[tuple[ErrorModel, Any, Mitigation | None]]:
    """(error model, target, mitigation) of every condition: targets x errors x mitigations, or those of an explicit list.

    Args:
        errors, targets, mitigations: axes.
        conditions: pairs (error model, target), triples with a mitigation, or mappings with the keys `error`, `target` and
            `mitigation` (the latter two may be left out: all, none).

    Raises:
        TypeError: something that is no error model, or no mitigation.
        ValueError: an empty axis, axes beside a list, or an entry of another form.
    """
    if conditions is None:
        for name, axis in (("targets", targets), ("errors", errors), ("mitigations", mitigations)):
            if isinstance(axis, str):
                raise ValueError(f"{name} is the text {axis!r}; it must be a list, as [{axis!r}]")
        errors, targets, mitigations = list(errors or ()), list(targets), list(mitigations)
        found = [(error, target, one) for target, error, one in product(targets, errors, mitigations)]
        if not found:
            raise ValueError(
                f"{len(errors)} errors x {len(targets)} targets x {len(mitigations)} mitigations: nothing to do"
            )
    else:
        if errors is not None:
            raise ValueError("errors and conditions were both given; conditions is the whole list by itself")
        found = [_cell(entry) for entry in conditions]
        if not found:
            raise ValueError("conditions is empty: nothing to do")
    for error, _, mitigation in found:
        if not isinstance(error, ErrorModel):
            raise TypeError(f"errors holds {error!r}; each must be an error model, as BitFlip(ber=1e-6)")
        if mitigation is not None and not isinstance(mitigation, Mitigation):
            raise TypeError(f"mitigations holds {mitigation!r}; each must be a mitigation or None")
    return found


def _cell(entry: Any) -> tuple[ErrorModel, Any, Mitigation | None]:
    keys = ("error", "target", "mitigation")
    if isinstance(entry, Mapping):
        if "error" in entry and set(entry) <= set(keys):
            return entry["error"], entry.get("target", "all"), entry.get("mitigation")
    elif isinstance(entry, tuple | list) and len(entry) in (2, 3):
        return entry[0], entry[1], entry[2] if len(entry) == 3 else None
    raise ValueError(
        f"conditions holds {entry!r}; each must be (error model, target), (error model, target, mitigation) or a mapping with "
        "error, target, mitigation"
    )


def grid(model: nn.Module, found: list[tuple[ErrorModel, Any, Mitigation | None]]) -> list[Condition]:
    """The conditions, in the model's present memory. Each target is resolved once; mitigations of one identity become one
    object, which an evaluator recognises."""
    spaces: dict[int, Any] = {}
    first: dict[str, Mitigation] = {}  # by identity
    same: dict[int, Mitigation] = {}
    for _, target, mitigation in found:
        if id(target) not in spaces:
            spaces[id(target)] = resolved(model, target)
        if mitigation is not None and id(mitigation) not in same:
            same[id(mitigation)] = first.setdefault(mitigation.identity(), mitigation)
    return [
        Condition(error, target, spaces[id(target)], same.get(id(mitigation))) for error, target, mitigation in found
    ]


def sharing_maps(conditions: list[Condition]) -> list[list[int]]:
    """Numbers of the conditions that differ in their mitigation alone: they are judged on the same maps."""
    groups: dict[tuple, list[int]] = {}
    for number, condition in enumerate(conditions):
        groups.setdefault(condition.key[:3], []).append(number)
    return list(groups.values())
