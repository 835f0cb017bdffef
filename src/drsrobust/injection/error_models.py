"""What every error model is: a frozen dataclass with one verb, `sample`.

Several error models in one trial.

Single flipped bits: independent ones, a fixed number of them, one of a given place in its word, stuck ones."""

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from drsrobust._hashing import canonical_json
from drsrobust.injection.address_space import AddressSpace
from drsrobust.injection.error_clock import Arrivals, ErrorClock, check_rate
from drsrobust.injection.error_map import ErrorMap, Fingerprint, Source, first_of_runs, union
from drsrobust.injection.number_formats import Bits, bit_set

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
        pass

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
    about.setdefault("n_events", bits)
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
        """`n_sites` and `n_events` of the error map."""
        return {"n_sites": self.clock.n, "n_events": len(self.word)}


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


@dataclass(frozen=True)
class Sum(ErrorModel):
    """Error models side by side, as `a + b` makes it: a bit is wrong when one of them hits it (once, if several do).

    Each draws from streams of its own, so that a sum's map holds its summands' maps of the same seed, and `a + b` equals
    `b + a`. Of models that differ in their rate or count alone, the one with the larger draws first: its map holds the maps of
    the others of the same seed. (`RowError`s that differ in rate and in density the other way round are the exception: such a
    sum holds the map of the one with the larger rate.)

    Args:
        parts: the summands.
    """

    rate = None

    parts: tuple[ErrorModel, ...]

    def __post_init__(self) -> None:
        flat = [part for one in self.parts for part in (one.parts if isinstance(one, Sum) else (one,))]
        for part in flat:
            if not isinstance(part, ErrorModel):
                raise TypeError(f"a sum of error models holds {part!r}")
        if not flat:
            raise ValueError("a sum of no error models was asked for")
        object.__setattr__(self, "parts", tuple(sorted(flat, key=order)))

    @property
    def label(self) -> str:
        """The summands with their rates, which no column of a table holds."""
        return " + ".join(repr(part) for part in self.parts)

    def __str__(self) -> str:
        return " + ".join(str(part) for part in self.parts)

    def canonical(self) -> str:
        """The canonical forms of its summands."""
        return canonical_json({"error_model": "Sum", "parts": [part.canonical() for part in self.parts]})

    def eligible(self, space: AddressSpace) -> AddressSpace:
        """The bits that any of the summands may flip."""
        bits = [(part.bit,) if isinstance(part, SingleBit) else getattr(part, "bits", None) for part in self.parts]
        return space if None in bits else space.only({bit for some in bits for bit in some})

    def expected_share(self, space: AddressSpace) -> None:
        """None: how the summands' bits overlap is not counted."""
        for part in self.parts:
            part.expected_share(space)

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        """The union of the summands' maps."""
        seen = Counter(before)
        maps = []
        for part in self.parts:
            maps.append(part.sample(space, seed=seed, before=seen))
            seen.update(parts_of(part))
        return replace(union(maps), error_model=self.label, eligible_bits=self.eligible(space).bits)


def parts_of(model: ErrorModel) -> Iterator[str]:
    """The canonical forms of the models that draw: the summands of a sum, else the model itself."""
    return (part.canonical() for part in (model.parts if isinstance(model, Sum) else (model,)))


def order(model: ErrorModel) -> tuple[str, float, float]:
    """By what summands are sorted: their canonical form, then the largest rate or count first, then the largest density."""
    size = model.rate if model.COUNT is None else getattr(model, model.COUNT)
    return model.canonical(), -(size or 0.0), -getattr(model, "density", 0.0)


@dataclass(frozen=True)
class BitFlip(ErrorModel):
    """Every eligible bit flips independently with probability `ber`, exactly, at every rate from 0 to 1.

    P(a set S of bits flips, and no other) = ber^|S| (1 - ber)^(N - |S|). Source: the error model of arXiv:2307.10244, drawn
    by the error clock.

    Args:
        ber: bit error rate, per eligible bit.
        bits: eligible bits: numbers, 0 the lowest (in float32: 0-22 mantissa, 23-30 exponent, 31 sign), or fields of the
            format (`"sign"`, `"exponent"`, `"mantissa"`; of integers `"sign"`, `"value"`; of quantized rows `"value"`,
            `"scale"`, `"bias"`, `"padding"`), one or several; None: all but padding.

    Example:
        >>> BitFlip(1e-6, bits="exponent"), str(BitFlip(1e-6, bits=("sign", 30)))
        (BitFlip(ber=1e-06, bits=('exponent',)), "BitFlip(ber=1e-06, bits=[30, 'sign'])")
    """

    RATE = "ber"

    ber: float
    bits: Bits = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ber", check_rate("ber", self.ber))
        object.__setattr__(self, "bits", bit_set(self.bits))

    @property
    def rate(self) -> float:
        """The bit error rate."""
        return float(self.ber)

    def eligible(self, space: AddressSpace) -> AddressSpace:
        return space.only(self.bits)

    def expected_share(self, space: AddressSpace) -> float:
        """The bit error rate."""
        self.eligible(space)
        return self.rate

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        eligible = self.eligible(space)
        found = self.clock(eligible.bits, seed, before).until_in_parts(self.rate)
        return from_bits(self, eligible, found, seed, requested_rate=self.rate, n_sites=eligible.bits)


@dataclass(frozen=True)
class FixedCount(ErrorModel):
    """Exactly `k` distinct eligible bits flip, a uniform k-subset: the first k of the error clock.

    By it a metric is estimated given the number of errors (arXiv:2405.01741 uses one and several). For one seed the map of
    fewer errors is part of the map of more.

    Args:
        k: how many bits flip.
        bits: eligible bits, as in `BitFlip`.
    """

    COUNT = "k"
    rate = None

    k: int
    bits: Bits = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole("k", self.k, 0, "a whole number of errors"))
        object.__setattr__(self, "bits", bit_set(self.bits))

    def eligible(self, space: AddressSpace) -> AddressSpace:
        return space.only(self.bits)

    def expected_share(self, space: AddressSpace) -> float:
        """k over the number of eligible bits."""
        eligible = self.eligible(space).bits
        if self.k > eligible:
            raise ValueError(f"{self.k} errors were asked for among {eligible} bits")
        return self.k / eligible

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        eligible = self.eligible(space)
        about = {"requested_rate": self.expected_share(space), "n_sites": eligible.bits, "n_events": self.k}
        return from_bits(self, eligible, self.clock(eligible.bits, seed, before).first_in_parts(self.k), seed, **about)


@dataclass(frozen=True)
class SingleBit(ErrorModel):
    """Exactly one flip, of bit number `bit` in a word drawn uniformly from the target: the first place of the error clock over
    the bits with this number. By such trials bit positions are compared (arXiv:2405.01741).

    Args:
        bit: 0 the lowest; in float32: 0-22 mantissa, 23-30 exponent, 31 sign.
    """

    rate = None

    bit: int

    def __post_init__(self) -> None:
        if isinstance(self.bit, str):
            raise ValueError(f"bit is {self.bit!r}; it must be an integer, 0 for the lowest bit")
        object.__setattr__(self, "bit", bit_set((self.bit,))[0])

    def eligible(self, space: AddressSpace) -> AddressSpace:
        return space.only((self.bit,))

    def expected_share(self, space: AddressSpace) -> float:
        """One over the number of eligible bits (those with this number)."""
        return 1 / self.eligible(space).bits

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        eligible = self.eligible(space)
        about = {"requested_rate": 1 / eligible.bits, "n_sites": eligible.bits, "n_events": 1}
        return from_bits(self, eligible, self.clock(eligible.bits, seed, before).first_in_parts(1), seed, **about)


@dataclass(frozen=True)
class StuckAt(ErrorModel):
    """Every eligible bit is stuck at `value` with probability `rate`: an error where it holds the other value, none where it
    has this one already. Source: the classical stuck-at fault; arXiv:2605.04213 injects it at gates.

    Which bits are stuck follows from the seed alone; which of them are errors, from the words that the model holds. So the map
    keeps those words, and is refused where others stand.

    Args:
        value: 0 or 1.
        rate: per eligible bit.
        bits: eligible bits, as in `BitFlip`.
    """

    RATE = "rate"

    value: int
    rate: float
    bits: Bits = None

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or self.value not in (0, 1):
            raise ValueError(f"value is {self.value!r}; a bit can be stuck at 0 or at 1")
        object.__setattr__(self, "value", int(self.value))
        object.__setattr__(self, "rate", check_rate("rate", self.rate))
        object.__setattr__(self, "bits", bit_set(self.bits))

    def eligible(self, space: AddressSpace) -> AddressSpace:
        return space.only(self.bits)

    def expected_share(self, space: AddressSpace) -> None:
        """None: it depends on how many bits hold the other value."""
        self.eligible(space)

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        eligible = self.eligible(space)
        found = self.clock(eligible.bits, seed, before).until(self.rate)
        tensor, word, bit = eligible.locate(found)
        held = (eligible.read(tensor, word) >> bit.astype(np.uint64)) & np.uint64(1)
        drawn = from_bits(self, eligible, [found[held != self.value]], seed, n_sites=eligible.bits, n_events=len(found))
        return with_originals(drawn, eligible)
