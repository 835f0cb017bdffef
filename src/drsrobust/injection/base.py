"""What every error model is: a frozen dataclass with one verb, `sample`."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from drsrobust._storage import canonical_json
from drsrobust.injection.clock import Arrivals, ErrorClock
from drsrobust.injection.error_map import ErrorMap, Fingerprint, Source
from drsrobust.injection.space import AddressSpace
from drsrobust.injection.union import first_of_runs

Before = Mapping[str, int]  # canonical form -> how many models
NONE: Before = MappingProxyType({})


class ErrorModel(ABC):
    """A rule for how stored bits go wrong. `a + b` is both: the union of their flips.

    To write one: a frozen dataclass that derives from this, names in `RATE` (or `COUNT`) the field that says how many errors
    there are, and defines `rate` (None for models of a fixed count), `expected_share` and `sample`.
    """

    RATE: ClassVar[str | None] = None
    COUNT: ClassVar[str | None] = None

    if TYPE_CHECKING:
        rate: float | None

    def eligible(self, space: AddressSpace) -> AddressSpace:
        """The bits of a space that this model may flip."""
        return space

    @abstractmethod
    def expected_share(self, space: AddressSpace) -> float | None:
        """Expected share of the space's eligible bits that flip; None where that depends on what the memory holds.

        Raises:
            ValueError: the model cannot hit this space (as a bit that the targeted words do not have).
        """

    @abstractmethod
    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        """The error map of one trial. For one seed, the map at a lower rate or count is part of the map at a higher one.

        Args:
            space: what may be hit.
            seed: 0 .. 2**64 - 1; decides everything.
            before: of models that draw in the same trial before this one, how many there are of each canonical form: equal
                models draw from streams of their own.

        Raises:
            ValueError: the model cannot hit this space, or a seed out of range.
        """

    def __add__(self, other: "ErrorModel") -> "ErrorModel":
        if not isinstance(other, ErrorModel):
            return NotImplemented
        from drsrobust.injection.combine import Sum

        return Sum((self, other))

    @property
    def label(self) -> str:
        """The model without its rate, as tables name it: the rate is a column of its own."""
        shown = self._settings(name for name in self._fields() if name != self.RATE)
        return type(self).__name__ + (f"({shown})" if shown else "")

    def __str__(self) -> str:
        return f"{type(self).__name__}({self._settings(self._fields())})"

    def _fields(self) -> list[str]:
        return [field.name for field in fields(self)]

    def _settings(self, names: Iterable[str]) -> str:
        given = {name: getattr(self, name) for name in names}
        return ", ".join(
            f"{name}={list(value) if isinstance(value, tuple) else value!r}"
            for name, value in given.items()
            if value is not None
        )

    def canonical(self) -> str:
        """The model without its rate or count: what a seed is combined with. JSON without blanks, keys sorted, of
        `error_model` (the class's name) and every other field by its name; tuples are arrays."""
        left = (self.RATE, self.COUNT)
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left}
        return canonical_json({"error_model": type(self).__name__, **given})

    def clock(self, places: int, seed: int, before: Before = NONE) -> ErrorClock:
        """The error clock of this model. Its summand is the first 4 bytes (big-endian) of SHA-256 over the canonical form,
        plus the number of equal models before it, modulo 2**32."""
        number = int.from_bytes(hashlib.sha256(self.canonical().encode()).digest()[:4], "big")
        return ErrorClock(places, seed=seed, summand=(number + before.get(self.canonical(), 0)) % 2**32)


def from_bits(model: ErrorModel, space: AddressSpace, positions: Iterable[np.ndarray], seed: int, **about) -> ErrorMap:
    """The error map of flips at ascending, distinct positions, given in parts."""
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    bits = 0
    for part in positions:
        tensor, word, mask = _words_of_bits(space, part)
        if parts and len(word) and (parts[-1][0][-1], parts[-1][1][-1]) == (tensor[0], word[0]):
            parts[-1][2][-1] |= mask[0]  # a word that two parts share
            tensor, word, mask = tensor[1:], word[1:], mask[1:]
        if len(word):
            parts.append((tensor, word, mask))
        bits += len(part)
    if not parts:
        parts.append(_words_of_bits(space, np.empty(0, np.int64)))
    tensor, word, mask = (
        parts[0] if len(parts) == 1 else (np.concatenate(column) for column in zip(*parts, strict=True))
    )
    about.setdefault("events", bits)
    return make(model, space, tensor, word, mask, seed, **about)


def _words_of_bits(space: AddressSpace, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tensor index, word and mask [n] of the words that ascending positions of bits lie in."""
    tensor, word, bit = space.locate(positions)
    mask = np.left_shift(np.uint64(1), bit.view(np.uint64))
    # Positions ascend, so the bits of one word stand side by side. Few words have several: join those.
    again = np.flatnonzero((word[1:] == word[:-1]) & (tensor[1:] == tensor[:-1])) + 1
    if len(again):
        first = np.ones(len(word), bool)
        first[again] = False
        np.bitwise_or.at(mask, _run_starts(again), mask[again])
        tensor, word, mask = tensor[first], word[first], mask[first]
    return tensor, word, mask


def _run_starts(again: np.ndarray) -> np.ndarray:
    """Where the runs begin that ascending entries [n] go on with."""
    leads = np.append(True, np.diff(again) > 1)  # entries right behind a run's first one
    return again[leads][np.cumsum(leads) - 1] - 1


def from_words(
    model: ErrorModel, space: AddressSpace, tensor: np.ndarray, word: np.ndarray, mask: np.ndarray, seed: int, **about
) -> ErrorMap:
    """The error map of masks in any order; several masks of one word are joined, empty ones left out."""
    kept = mask != 0
    tensor, word, mask = tensor[kept], word[kept], mask[kept]
    order = np.lexsort((word, tensor))
    tensor, word, mask = tensor[order], word[order], mask[order]
    starts = first_of_runs(tensor, word)
    if len(starts) < len(word):
        tensor, word, mask = tensor[starts], word[starts], np.bitwise_or.reduceat(mask, starts)
    return make(model, space, tensor, word, mask, seed, **about)


def make(
    model: ErrorModel, space: AddressSpace, tensor: np.ndarray, word: np.ndarray, mask: np.ndarray, seed: int, **about
) -> ErrorMap:
    """The error map of sorted entries, one per word."""
    about.setdefault("requested_rate", None)
    return ErrorMap(
        tensor.astype(np.int32, copy=False),
        word,
        mask,
        tuple(Fingerprint(t.name, t.shape, t.format.name, t.component) for t in space.tensors),
        seed=int(seed),
        error_model=model.label,
        eligible_bits=space.bits,
        sources=(Source(model, {t.name: t.rows for t in space.tensors}),),
        **about,
    )


def with_originals(error_map: ErrorMap, space: AddressSpace) -> ErrorMap:
    """The map with the words that its masks were made from."""
    return replace(error_map, original=space.read(error_map.tensor, error_map.word))


class ReachedWords(NamedTuple):
    """The words at which errors begin: clock, arrivals, tensor index (int32) and flat word index (int64) [n]."""

    clock: ErrorClock
    arrivals: Arrivals
    tensor: np.ndarray
    word: np.ndarray

    @property
    def about(self) -> dict[str, int]:
        """`places` and `events` of the error map."""
        return {"places": self.clock.n, "events": len(self.word)}


def reach_words(model: ErrorModel, space: AddressSpace, seed: int, before: Before) -> ReachedWords:
    """The words that a model whose rate is per word reaches."""
    clock = model.clock(space.words, seed, before)
    arrivals = clock.arrivals(model.rate)
    return ReachedWords(clock, arrivals, *space.locate_words(arrivals.place))


def whole(name: str, value: int, least: int, what: str) -> int:
    """A setting that is a whole number from `least` up, as a Python int.

    Raises:
        ValueError: something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be {what}, {least} or more")
    return int(value)
