"""What protections of memory have in common: a target, the errors in what they store, what they leave of an error map."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import nn

from drsrobust.injection import ErrorMap, ErrorMapMismatch, Target, as_target
from drsrobust.injection.address_space import TargetTensor
from drsrobust.injection.error_map import Source
from drsrobust.introspection.tensors import listed
from drsrobust.mitigation.base import Cost, Mitigation
from drsrobust.mitigation.memory.check_memory import CheckBits, check_errors
from drsrobust.mitigation.memory.protected_words import Area, Errors

if TYPE_CHECKING:
    import pandas as pd


class Screened(NamedTuple):
    """What a protection did with an error map: what it left, and how often what happened (as `corrected`)."""

    left: ErrorMap
    counts: dict[str, int]


class Trial(NamedTuple):
    """The seed of a trial and what its errors were drawn from."""

    seed: int
    sources: tuple[Source, ...]


class Verdict(NamedTuple):
    """What a protection leaves of the errors in one tensor's protected words, and what happened."""

    errors: Errors
    noticed: bool = False
    unrepaired: bool = False  # of what it noticed, something is still wrong
    counts: Mapping[str, int] = MappingProxyType({})


class StorageProtection(Mitigation):
    """A protection of words in memory. The computation is as it was.

    To write one: `words` (what is left in one tensor) and, if it stores check bits, `checks` (how many), `units` (about which
    words) and `content` (what they hold); if it stores copies, `beside` and `extra_bits`.

    Args:
        target: what is protected: `"all"`, a component, a glob on tensor names or a `Target`.
    """

    tells_errors = True

    def __init__(self, target: str | Target) -> None:
        self.target = as_target(target)

    @property
    def label(self) -> str:
        """What the errors in its check bits are drawn by."""
        return type(self).__name__

    def settings(self) -> Any:
        return {"target": str(self.target)}

    def screen(self, error_map: ErrorMap, model: nn.Module, *, seed: int) -> ErrorMap:
        return self.report(error_map, model, seed=seed).left

    def report(self, error_map: ErrorMap, model: nn.Module, *, seed: int) -> Screened:
        """As `screen`, with counts of what happened."""
        if not error_map.fingerprint:  # of transient errors alone
            return Screened(error_map, {})
        areas = self._areas(error_map, model)
        data, beside = error_map, {}
        if areas:
            data, beside = self._drawn_beside(error_map, {area.name: area for area in areas.values()}, seed)
        parts, verdicts = [], []
        entries = dict(data.by_tensor())
        hit = {number for number, area in areas.items() if number in entries or area.name in beside}
        for number in sorted({*entries, *hit}):
            here = entries.get(number, slice(0, 0))
            word, mask = data.word[here], data.mask[here]
            if number in hit:
                area = areas[number]
                inside, outside = _split(area, Errors(word, mask))
                verdict = self.words(area, inside, beside.get(area.name, {}), Trial(seed, error_map.sources))
                verdicts.append(verdict)
                word, mask = area.flat(verdict.errors.index), verdict.errors.mask
                if outside is not None:
                    word, mask = np.append(word, outside.index), np.append(mask, outside.mask)
            parts.append((np.full(len(word), number, np.int32), word, mask))
        if parts:
            now = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
            before = (data.tensor, data.word, data.mask)
            if not all(np.array_equal(one, other) for one, other in zip(now, before, strict=True)):
                data = data.remaining(*now)
        if self.tells_errors:
            noticed = any(one.noticed for one in verdicts)
            data = data.with_detection(
                detected=noticed, repaired=not any(one.unrepaired for one in verdicts) if noticed else None
            )
        counts: dict[str, int] = {}
        for verdict in verdicts:
            for name, count in verdict.counts.items():
                counts[name] = counts.get(name, 0) + count
        return Screened(data, counts)

    @abstractmethod
    def words(self, area: Area, errors: Errors, beside: Mapping[str, Errors], trial: Trial) -> Verdict:
        """What is left of the errors in an area.

        Args:
            area: protected words of one tensor; to be read where their contents matter.
            errors: in them, by their numbers in the area.
            beside: in what is stored beside, by tensor: in check bits (under the area's name) by unit, in copies by word.
            trial: which one.
        """

    def checks(self, area: Area) -> CheckBits | None:
        """What check bits are stored beside an area."""
        return None

    def units(self, area: Area, words: np.ndarray) -> np.ndarray:
        """Which units' check bits are about some words (ascending numbers)."""
        raise NotImplementedError(f"{type(self).__name__} has no check bits")

    def content(self, area: Area, unit: np.ndarray) -> np.ndarray:
        """The check bits (uint64 [n]) of units while nothing is wrong."""
        raise NotImplementedError(f"{type(self).__name__} has no check bits")

    def beside(self, area: Area, rows: np.ndarray | None) -> Iterator[TargetTensor]:
        """The tensors that hold what is stored beside an area, as far as it is about some rows of its tensor (None: all)."""
        if checks := self.checks(area):
            words = area.hit_rows(rows)
            yield checks.tensor(area, None if words is None else self.units(area, words))

    def extra_bits(self, area: Area) -> int:
        """Bits stored beside an area."""
        checks = self.checks(area)
        return 0 if checks is None else checks.units * checks.bits

    def cost(self, model: nn.Module) -> Cost:
        """The bits stored beside. What a memory controller reads along with each word, and the encoder and decoder in it, are
        not counted."""
        return Cost(stored_bits=sum(self.extra_bits(area) for area in self.areas(model)))

    def areas(self, model: nn.Module) -> Iterator[Area]:
        """What it protects in a model."""
        return (Area(tensor) for tensor in self.target.resolve(model).tensors)

    def of_target(self) -> str:
        """The end of its name: of what, unless it is everything."""
        return "" if str(self.target) == "all" else f" of {self.target}"

    def _drawn_beside(
        self, error_map: ErrorMap, areas: Mapping[str, Area], seed: int
    ) -> tuple[ErrorMap, dict[str, dict[str, Errors]]]:
        """The errors in the data and, by area, in what is stored beside it: by tensor."""
        owner: dict[str, str] = {}

        def memory(rows: Mapping[str, np.ndarray | None]) -> Iterator[TargetTensor]:
            for name, area in areas.items():
                for tensor in self.beside(area, rows[name]) if name in rows else ():
                    owner[tensor.name] = name
                    yield tensor

        def content(name: str, word: np.ndarray) -> np.ndarray:
            area = areas[name]
            return self.checks(area).packed(area, word, partial(self.content, area))

        data, found = check_errors(error_map, memory, content, seed=seed, label=self.label)
        by_area: dict[str, dict[str, Errors]] = {}
        for name, errors in found.items():
            if name in areas:
                errors = self.checks(areas[name]).unpacked(areas[name], errors)
            by_area.setdefault(owner[name], {})[name] = errors
        return data, by_area

    def _areas(self, error_map: ErrorMap, model: nn.Module) -> dict[int, Area]:
        """The protected words among the map's tensors, by number."""
        number = {entry.name: index for index, entry in enumerate(error_map.fingerprint)}
        found = {number[area.name]: area for area in self.areas(model) if area.name in number}
        for index, area in found.items():
            expected = error_map.fingerprint[index]
            if (area.tensor.shape, area.format.name) != (expected.shape, expected.format):
                raise ErrorMapMismatch(
                    f"the error map was made for {expected.name!r} of {list(expected.shape)} {expected.format}; in this model "
                    f"it is {list(area.tensor.shape)} {area.format.name}"
                )
        return found


def _split(area: Area, errors: Errors) -> tuple[Errors, Errors | None]:
    """Errors by flat index: those in an area, by its numbers, and the others."""
    local, inside = area.local(errors.index)
    if inside is None or inside.all():
        return Errors(local, errors.mask), None
    return Errors(local[inside], errors.mask[inside]), Errors(errors.index[~inside], errors.mask[~inside])


def storage_overhead(model: "nn.Module", mitigations: Iterable[Mitigation]) -> "pd.DataFrame":
    """What mitigations store beside a model.

    Returns:
        one row each: `mitigation` (its name), `stored_bits` and `stored_percent`, of the bits of the model's parameters.
    """
    import pandas as pd

    bits = sum(8 * one.tensor.element_size() * one.tensor.numel() for one in listed(model) if one.parameter)
    extra = [(mitigation.name, mitigation.cost(model).stored_bits) for mitigation in mitigations]
    return pd.DataFrame(
        [(*one, 100 * one[1] / bits) for one in extra], columns=["mitigation", "stored_bits", "stored_percent"]
    )
