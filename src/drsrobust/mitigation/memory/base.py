"""`StorageProtection`, the base class of protections of memory, and `storage_overhead`."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import nn

from drsrobust._arguments import check_instance, check_items
from drsrobust._hashing import digest
from drsrobust.injection import AddressSpace, ErrorMap, ErrorMapMismatch, Target, as_target
from drsrobust.injection.address_space import TargetTensor
from drsrobust.injection.error_map import MapSource
from drsrobust.injection.error_models import equal_before
from drsrobust.introspection.tensors import listed
from drsrobust.mitigation.base import Cost, Mitigation, Screened, confined_name, tensor_names
from drsrobust.mitigation.memory.check_bits import CheckBits, label_stream
from drsrobust.mitigation.memory.protected_words import Errors, ProtectedWords

if TYPE_CHECKING:
    import pandas as pd


_MANY = 10**6  # words of joined tensors, at most: more would take memory, and no less time


class DrawContext(NamedTuple):
    """The seed of a trial and the error models that its map was drawn from."""

    seed: int
    sources: tuple[MapSource, ...]


class StorageProtection(Mitigation):
    """A protection of words in memory; the computation is unchanged.

    A subclass implements `decode` (the errors that remain in one tensor). With check bits it also implements `check_bits` (how
    many), `units` (which belong to some words); with copies, `stored_tensors` and `extra_bits`.

    Args:
        target: protected tensors: `"all"`, a component, a glob on tensor names or a `Target`.
    """

    detects = True
    only: frozenset[str] | None = None  # tensors that it is confined to

    def __init__(self, target: str | Target) -> None:
        self.target = as_target(target)

    @property
    def label(self) -> str:
        """The name that decides the errors in its check bits."""
        return type(self).__name__

    def settings(self) -> Any:
        return {"target": str(self.target)}

    def identity(self) -> str:
        identity = super().identity()
        return identity if self.only is None else digest([identity, sorted(self.only)])

    def screen(self, error_map: ErrorMap, space: AddressSpace, *, seed: int) -> Screened:
        """The errors that remain, whether it detected errors and repaired them all, and counts of events.

        Raises:
            ErrorMapMismatch: the map hits a tensor that the space does not have, or that has another shape or format there.
            ValueError: errors in parts of rows, as of a `Rank` that holds columns of a table.
        """
        if not error_map.fingerprint:  # transient errors only
            return Screened(error_map)
        if part := next((tensor.name for tensor in space.tensors if tensor.width is not None), None):
            raise ValueError(f"{self.name} protects whole rows, and these errors are drawn over columns of {part}")
        in_map = self._in_map(error_map, space)
        stored = self._draw_stored(error_map, space, in_map.values(), seed) if in_map else {}
        trial = DrawContext(seed, error_map.sources)
        columns, results, spans = [], [], dict(error_map.by_tensor())
        hit = {number for number, (words, _) in in_map.items() if words.name in stored}
        for words, run in groupby(
            sorted({*spans, *hit}), key=lambda number: in_map[number].words if number in in_map else None
        ):
            numbers = list(run)
            parts = [spans[number] for number in numbers if number in spans]
            part = slice(parts[0].start, parts[-1].stop) if parts else slice(0, 0)
            entries = error_map.tensor[part], error_map.word[part], error_map.mask[part]
            if words is not None:
                places = [in_map[number].part for number in numbers]
                entries, result = self._decoded(words, np.array(numbers, np.int32), places, entries, stored, trial)
                results.append(result)
            columns.append(entries)
        # The map itself where nothing changed: a trial then need not apply another one.
        remaining = error_map
        if columns:
            joined = tuple(map(np.concatenate, zip(*columns, strict=True)))
            if not all(map(np.array_equal, joined, (error_map.tensor, error_map.word, error_map.mask))):
                remaining = error_map.with_words(*joined)
        screened = Screened.joined(remaining, results)
        if not self.detects:
            return replace(screened, detected=None, repaired=None, stopped=None)
        detected = bool(screened.detected)
        return replace(screened, detected=detected, repaired=screened.repaired if detected else None)

    def _decoded(
        self,
        words: ProtectedWords,
        numbers: np.ndarray,
        places: list[int],
        entries: "_Entries",
        stored: Mapping[str, Mapping[str, Errors]],
        trial: DrawContext,
    ) -> tuple["_Entries", Screened]:
        """What remains of entries of a map, which are ascending, and what `decode` said.

        Args:
            words: of one tensor, or of several.
            numbers, places: of each tensor in the map, and among the words.
        """
        tensor, word, mask = entries
        local, is_protected = words.local(word)
        unprotected: _Entries | None = None
        if is_protected is not None and not is_protected.all():
            unprotected = tensor[~is_protected], word[~is_protected], mask[~is_protected]
            tensor, local, mask = tensor[is_protected], local[is_protected], mask[is_protected]
        starts = words.starts[places]
        local = local + _spread(starts, tensor, numbers)
        result = self.decode(words, Errors(local, mask), stored.get(words.name, {}), trial)
        index, mask = result.remaining
        word = words.flat(index - _spread(starts, index, starts))
        remaining = np.broadcast_to(_spread(numbers, index, starts), index.shape), word, mask
        if unprotected is not None:
            tensor, word, mask = map(np.append, remaining, unprotected)
            remaining = tensor, word, mask
        return remaining, result

    def together(self, protected: ProtectedWords) -> Any:
        """Neighbouring tensors of which this is equal are decoded at once, as `ProtectedWords.joined`; None (the default): each
        by itself."""
        return None

    @abstractmethod
    def decode(
        self, protected: ProtectedWords, errors: Errors, stored: Mapping[str, Errors], trial: DrawContext
    ) -> Screened:
        """What it makes of errors in protected words; `remaining` are `Errors`, and `repaired` is false if a detected error
        remains.

        Args:
            protected: words of one tensor (or of several, see `together`); read where their contents matter.
            errors: in these words, by word number.
            stored: errors in its own memory, by tensor: in check bits (under the name of `protected`) by unit, in copies by
                word; of several tensors under the names of the first one's.
            trial: seed and error models.
        """

    def check_bits(self, protected: ProtectedWords) -> CheckBits | None:
        """The check bits of protected words; None without any."""
        return None

    def units(self, protected: ProtectedWords, words: np.ndarray) -> np.ndarray:
        """The units of check bits that belong to some words (ascending numbers)."""
        raise NotImplementedError(f"{type(self).__name__} has no check bits")

    def stored_tensors(self, protected: ProtectedWords, rows: np.ndarray | None) -> Iterator[TargetTensor]:
        """The tensors of its own memory that belong to some rows of the protected tensor (None: all)."""
        if checks := self.check_bits(protected):
            words = protected.in_rows(rows)
            yield checks.tensor(protected, None if words is None else self.units(protected, words))

    def extra_bits(self, protected: ProtectedWords) -> int:
        """Bits of its own memory for protected words."""
        checks = self.check_bits(protected)
        return 0 if checks is None else checks.units * checks.bits

    def cost(self, model: nn.Module) -> Cost:
        """Stored bits only, see `Cost`."""
        return Cost(
            stored_bits=sum(self.extra_bits(protected) for protected in self._confined(self.protected(model)).values())
        )

    def covers(self, model: nn.Module) -> set[str]:
        return set(self._confined(self.protected(model)))

    def on(self, tensors: Iterable[str]) -> "StorageProtection":
        confined = copy(self)
        confined.only = tensor_names(tensors) if self.only is None else self.only & tensor_names(tensors)
        confined.name = confined_name(self.name, confined.only)
        return confined

    def check(self, model: nn.Module) -> None:
        """Raises ValueError for a model without the protected tensors or bits."""
        super().check(model)
        self.protected(model)

    def protected(self, model: nn.Module) -> list[ProtectedWords]:
        """The protected words of a model, tensor by tensor.

        Raises:
            ValueError: there are none.
        """
        return list(self.words_of(lambda target: target.resolve(model).tensors))

    def words_of(self, tensors_of: Callable[[Target], Iterable[TargetTensor]]) -> Iterator[ProtectedWords]:
        """The protected words of the tensors that its targets hold."""
        return map(ProtectedWords, tensors_of(self.target))

    def _confined(self, words: Iterable[ProtectedWords]) -> dict[str, ProtectedWords]:
        return {
            tensor_words.name: tensor_words
            for tensor_words in words
            if self.only is None or tensor_words.name in self.only
        }

    def target_suffix(self) -> str:
        """The end of its name: the target, unless it is everything."""
        return "" if str(self.target) == "all" else f" of {self.target}"

    def _draw_stored(
        self, error_map: ErrorMap, space: AddressSpace, protected: Iterable["_Place"], seed: int
    ) -> dict[str, dict[str, Errors]]:
        """The errors in its own memory, by protected tensor (of several, the first) and stored tensor."""
        own_seed = int(label_stream(seed, self.label).random_raw())
        hits: dict[tuple[ProtectedWords, str], list[tuple[np.ndarray, np.ndarray]]] = {}
        copies = equal_before([source.error_model for source in error_map.sources])
        for source, copy_number in zip(error_map.sources, copies, strict=True):
            data = _drawn_over(space, source.rows)
            make = partial(self._own_memory, protected, source.rows)
            # Nearly all trials draw over the whole space, whose check bits are laid out once.
            memory, places = space.once((self, "own memory"), make) if data is space else make()
            if not memory.bits:
                continue
            errors = source.error_model.sample_check_bits(
                memory, data, seed=own_seed, data_seed=error_map.seed, copy=copy_number
            )
            for number, entries in errors.by_tensor() if errors else ():
                words, name, start = places[number]
                hits.setdefault((words, name), []).append((errors.word[entries] + start, errors.mask[entries]))
        stored: dict[str, dict[str, Errors]] = {}
        for (words, name), parts in hits.items():
            merged = Errors.merged(*map(np.concatenate, zip(*parts, strict=True)))
            if name == words.name:
                starts = self._first_units(words)
                ends = starts + [self.check_bits(part).units for part in words.parts]
                merged = self.check_bits(words).unpacked(words, merged, starts, ends)
            stored.setdefault(words.name, {})[name] = merged
        return stored

    def _own_memory(
        self, protected: Iterable["_Place"], rows: Mapping[str, np.ndarray | None]
    ) -> tuple[AddressSpace, list[tuple[ProtectedWords, str, int]]]:
        """Check bits and copies of some tensors and rows. Of each stored tensor the protected words, the name of the one that
        belongs to the first of these, and where it begins in the memory of all of these."""
        place: dict[TargetTensor, tuple[ProtectedWords, str, int]] = {}
        begins: dict[ProtectedWords, dict[str, np.ndarray]] = {}
        for words, number in protected:
            part = words.parts[number]
            if part.name not in rows:
                continue
            if words not in begins:  # in the memory of copies, and in that of check bits
                names = [tensor.name for tensor in self.stored_tensors(words.parts[0], None)]
                checks = self.check_bits(words)
                checks_at = words.starts if checks is None else self._first_units(words) * checks.bits // words.width
                begins[words] = {name: checks_at if name == words.name else words.starts for name in names}
            for (name, starts), tensor in zip(
                begins[words].items(), self.stored_tensors(part, rows[part.name]), strict=True
            ):
                place[tensor] = words, name, int(starts[number])
        memory = AddressSpace(place)
        return memory, [place[tensor] for tensor in memory.tensors]

    def _first_units(self, words: ProtectedWords) -> np.ndarray:
        """The first unit of check bits of each part: int64 [parts]."""
        if len(words.parts) == 1:
            return words.starts
        return self.units(words, words.starts).reshape(len(words.parts), -1)[:, 0]

    def _in_map(self, error_map: ErrorMap, space: AddressSpace) -> dict[int, "_Place"]:
        """Where the protected words of the map's tensors are, by tensor number."""
        places = space.once(self, lambda: self._joined(space))
        in_map = {}
        for number, expected in enumerate(error_map.fingerprint):
            tensor = space.by_name.get(expected.name)
            if tensor is None or (tensor.shape, tensor.format.name) != (expected.shape, expected.format):
                present_as = f"it is {list(tensor.shape)} {tensor.format.name}" if tensor else "it is not targeted"
                raise ErrorMapMismatch(
                    f"the error map was made for {expected.name!r} of {list(expected.shape)} {expected.format}; "
                    f"here {present_as}"
                )
            if expected.name in places:
                in_map[number] = places[expected.name]
        return in_map

    def _joined(self, space: AddressSpace) -> dict[str, "_Place"]:
        """Where the protected words of each tensor are: neighbours are joined as `together` says."""
        protected = self._confined(self.words_of(space.targeted_by))
        runs: list[list[ProtectedWords]] = []
        before = None
        for words in map(protected.get, (tensor.name for tensor in space.tensors)):
            key = None if words is None or words.tensor.rows is not None else self.together(words)
            if words is not None:
                if key is None or key != before or sum(one.words for one in (*runs[-1], words)) > _MANY:
                    runs.append([])
                runs[-1].append(words)
            before = key
        joined = map(ProtectedWords.joined, runs)
        return {part.name: _Place(words, number) for words in joined for number, part in enumerate(words.parts)}


_Entries = tuple[np.ndarray, np.ndarray, np.ndarray]  # tensor, word and mask


class _Place(NamedTuple):
    """Words that are decoded at once, and the number of one tensor's among their parts."""

    words: ProtectedWords
    part: int


def storage_overhead(model: nn.Module, mitigations: Iterable[Mitigation]) -> "pd.DataFrame":
    """Extra memory of mitigations on a model.

    Returns:
        one row each: `mitigation` (its name), `stored_bits` and `stored_percent`, of the bits of the model's parameters.
    """
    import pandas as pd

    mitigations = [
        check_instance("each of mitigations", mitigation, Mitigation, "a mitigation")
        for mitigation in check_items("mitigations", mitigations, "a list of mitigations, or one", Mitigation)
    ]
    bits = sum(8 * entry.tensor.element_size() * entry.tensor.numel() for entry in listed(model) if entry.parameter)
    stored = [(mitigation.name, mitigation.cost(model).stored_bits) for mitigation in mitigations]
    rows = [(name, extra, 100 * extra / bits) for name, extra in stored]
    return pd.DataFrame(rows, columns=["mitigation", "stored_bits", "stored_percent"])


def _spread(values: np.ndarray, ascending: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """For each of ascending numbers [n] the value of its part; of a single part [1].

    Args:
        values: of each part.
        ascending: numbers.
        firsts: the first number of each part, or a smaller one.
    """
    if len(values) == 1:
        return values
    ends = np.append(ascending.searchsorted(firsts[1:]), len(ascending))
    return np.repeat(values, np.diff(ends, prepend=0))


def _drawn_over(space: AddressSpace, rows: Mapping[str, np.ndarray | None]) -> AddressSpace:
    """The part of a space with these tensors and rows; mostly all of it."""
    if len(rows) == len(space.tensors) and all(rows.get(tensor.name, rows) is tensor.rows for tensor in space.tensors):
        return space
    return AddressSpace(replace(tensor, rows=rows[tensor.name]) for tensor in space.tensors if tensor.name in rows)
