"""Error models: the base class, sums, and models of single flipped or stuck bits.

An error model is a frozen dataclass that draws error maps: it defines `rate`, `expected_share` and `sample`, and inherits the
rest. Models of several bits are in `field_errors`."""

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from drsrobust._hashing import canonical_json
from drsrobust.injection.address_space import AddressSpace
from drsrobust.injection.critical_bits import (
    CriticalBits,
    Stratum,
    check_count,
    count_strata,
    critical_masks,
    draw_count,
    mean_count,
)
from drsrobust.injection.error_clock import ErrorClock
from drsrobust.injection.error_map import ErrorMap, Fingerprint, MapSource, first_of_runs, union
from drsrobust.injection.number_formats import Bits, bit_set
from drsrobust.statistics.strata import ALL

UNITS = ("bit", "word", "row")  # from the smallest


class ErrorModel(ABC):
    """A rule for how stored bits go wrong. `a + b` is both: the union of their flips.

    To write one: derive a frozen dataclass, name in `RATE` (or `COUNT`) the field that sets how many errors there are, and
    define `rate` (None for models of a fixed count), `expected_share` and `sample`. Further methods say how it draws in check
    bits, which strata it has, and what tables hold of it; their defaults suit errors of whole words at a rate.

    Attributes:
        unit: what goes wrong at one time: a `bit`, a `word`, or a `row` (neighbouring words).
            `Scrubbing` lets the bits of a unit arrive together.
    """

    RATE: ClassVar[str | None] = None
    COUNT: ClassVar[str | None] = None
    unit: ClassVar[str] = "word"

    if TYPE_CHECKING:
        rate: float | None

    def eligible(self, space: AddressSpace) -> AddressSpace:
        """The bits of a space that this model may flip."""
        return space

    @abstractmethod
    def expected_share(self, space: AddressSpace) -> float | None:
        """Expected share of the space's eligible bits that flip; None where it depends on the words in memory.

        Raises:
            ValueError: the model cannot hit this space (as a bit that the targeted words do not have).
        """

    @abstractmethod
    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        """The error map of one trial. For one seed, the map at a lower rate or count is part of the map at a higher one.

        Args:
            space: what may be hit.
            seed: 0 .. 2**64 - 1; decides everything.
            copy: how many equal models draw before this one in the same trial, so that each draws from streams of its own.
                `a + b` and `inject` count them.

        Raises:
            ValueError: the model cannot hit this space, or a seed out of range.
        """

    def sample_check_bits(
        self, checks: AddressSpace, data: AddressSpace, *, seed: int, data_seed: int, copy: int = 0
    ) -> ErrorMap | None:
        """The errors of the same trial in the memory of a protection (check bits, checksums, copies): by default those that
        `sample` draws there. None: that memory stays clean, as under models that cannot hit its words.

        Args:
            checks: that memory. Copies have tensors in memory, check bits have not.
            data: what the errors of the data were drawn over, with `data_seed`.
            seed: for errors in `checks`.
            data_seed: of the trial.
            copy: as of `sample`.
        """
        try:
            self.expected_share(checks)
        except ValueError:  # such as more bits per word than these words have
            return None
        return self.sample(checks, seed=seed, copy=copy)

    def transient_share(self) -> float | None:
        """Expected share of bits that flip in values that exist only while the model runs; None (the default): it depends on
        their shape or contents."""
        return None

    def columns(self) -> dict[str, Any]:
        """What a campaign's table says of this model, so that no label is parsed: `error_kind`, and those that apply of
        `error_bit`, `error_count`, `error_mode`, `error_chips` and `error_mapping`."""
        return {"error_kind": type(self).__name__}

    def strata(self, space: AddressSpace, critical_bits: CriticalBits) -> list[Stratum]:
        """The parts of this model's maps that have trials of their own in a stratified campaign; their probabilities sum to 1.
        One stratum `all` where plain maps do as well; none (the default) if the model cannot be stratified.

        Args:
            space: what may be hit.
            critical_bits: whose flips strata may count.

        Raises:
            ValueError: a target without critical bits, of a model that needs them.
        """
        return []

    def critical_probe(self, critical_bits: CriticalBits) -> "ErrorModel | None":
        """A model whose maps hold one critical error alone. Where a mitigation removes such errors from memory, plain maps
        replace the strata. None (the default): strata hold under every mitigation.

        Args:
            critical_bits: that the strata count.
        """
        return None

    def summands(self) -> Sequence["ErrorModel"]:
        """The models of a sum; the model alone otherwise."""
        return (self,)

    def __add__(self, other: "ErrorModel") -> "ErrorModel":
        return Sum((self, other)) if isinstance(other, ErrorModel) else NotImplemented

    @property
    def label(self) -> str:
        """The model without its rate, as in tables, which have a column for the rate."""
        settings = self._settings(without=self.RATE)
        return type(self).__name__ + (f"({settings})" if settings else "")

    def __str__(self) -> str:
        return f"{type(self).__name__}({self._settings()})"

    def _settings(self, without: str | None = None) -> str:
        values = ((field.name, getattr(self, field.name)) for field in fields(self) if field.name != without)
        settings = ((name, list(value) if isinstance(value, tuple) else value) for name, value in values)
        return ", ".join(f"{name}={value!r}" for name, value in settings if value is not None)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def canonical(self) -> str:
        """The model without its rate or count, from which seeds are derived: JSON without blanks, keys sorted, of
        `error_model` (the class's name) and every other field; tuples are arrays."""
        names = (field.name for field in fields(self) if field.name not in (self.RATE, self.COUNT))
        return canonical_json({"error_model": type(self).__name__, **{name: getattr(self, name) for name in names}})

    def clock(self, places: int, seed: int, copy: int = 0, stream: str = "") -> ErrorClock:
        """The error clock of this model. Its summand is the first 4 bytes (big-endian) of SHA-256 over the canonical form and
        the name of a further stream, plus the number of equal models before it, modulo 2**32."""
        number = int.from_bytes(hashlib.sha256((self.canonical() + stream).encode()).digest()[:4], "big")
        return ErrorClock(places, seed=seed, summand=(number + copy) % 2**32)


def from_bits(
    model: ErrorModel, space: AddressSpace, positions: Iterable[np.ndarray], seed: int, **about: Any
) -> ErrorMap:
    """The error map of flips at ascending, distinct positions, in parts; `about` holds further attributes of the map."""
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    bits = 0
    for part in positions:
        tensor, word, mask = space.locate_masks(part)
        if parts and len(word) and (parts[-1][0][-1], parts[-1][1][-1]) == (tensor[0], word[0]):
            parts[-1][2][-1] |= mask[0]  # two parts share a word
            tensor, word, mask = tensor[1:], word[1:], mask[1:]
        if len(word):
            parts.append((tensor, word, mask))
        bits += len(part)
    if not parts:
        parts.append(space.locate_masks(np.empty(0, np.int64)))
    columns = parts[0] if len(parts) == 1 else (np.concatenate(column) for column in zip(*parts, strict=True))
    return from_sorted_words(model, space, *columns, seed, **{"n_events": bits} | about)


def from_words(
    model: ErrorModel,
    space: AddressSpace,
    tensor: np.ndarray,
    word: np.ndarray,
    mask: np.ndarray,
    seed: int,
    **about: Any,
) -> ErrorMap:
    """The error map of masks in any order; masks of one word are joined, empty ones dropped."""
    is_wrong = mask != 0
    tensor, word, mask = tensor[is_wrong], word[is_wrong], mask[is_wrong]
    order = np.lexsort((word, tensor))
    tensor, word, mask = tensor[order], word[order], mask[order]
    starts = first_of_runs(tensor, word)
    if len(starts) < len(word):
        tensor, word, mask = tensor[starts], word[starts], np.bitwise_or.reduceat(mask, starts)
    return from_sorted_words(model, space, tensor, word, mask, seed, **about)


def from_sorted_words(
    model: ErrorModel,
    space: AddressSpace,
    tensor: np.ndarray,
    word: np.ndarray,
    mask: np.ndarray,
    seed: int,
    **about: Any,
) -> ErrorMap:
    """The error map of masks that are sorted by tensor and word, one per word, none of them 0."""
    return ErrorMap(
        tensor.astype(np.int32, copy=False),
        word,
        mask,
        tuple(Fingerprint(t.name, t.shape, t.format.name, t.component) for t in space.tensors),
        seed=int(seed),
        error_model=model.label,
        eligible_bits=space.bits,
        rank=space.rank,
        sources=(MapSource(model, {t.name: t.rows for t in space.tensors}),),
        **about,
    )


def draw_words(
    model: ErrorModel, space: AddressSpace, seed: int, copy: int, raw_words: int, first: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, int]]:
    """The words at which errors of a rate per word begin.

    Args:
        raw_words: raw words that each arrival of the error clock owns.
        first: how many of them to return; None: all.

    Returns:
        tensor index (int32) and flat word index (int64) [n], raw words uint64 [n, first], and the error map's `n_sites` and
        `n_events`.
    """
    clock = model.clock(space.words, seed, copy)
    position, order = clock.arrivals(model.rate)
    raw = clock.values(order, raw_words, first=first)
    return *space.locate_words(position), raw, {"n_sites": clock.n, "n_events": len(position)}


def check_rate(name: str, rate: float) -> float:
    """The rate as a Python float.

    Raises:
        ValueError: not a number in [0, 1].
    """
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.number) or not 0 <= rate <= 1:
        raise ValueError(f"{name} is {rate!r}; it must be a number from 0 to 1")
    return float(rate)


def check_whole(name: str, value: int, least: int, kind: str) -> int:
    """A setting as a Python int.

    Raises:
        ValueError: not a whole number from `least` up; the message calls it a `kind`.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be {kind}, {least} or more")
    return int(value)


@dataclass(frozen=True)
class Sum(ErrorModel):
    """Several error models at once, made by `a + b`: a bit is wrong if one or more of them hit it.

    Each draws from streams of its own, so that the sum's map holds its summands' maps of the same seed, and `a + b` equals
    `b + a`. Of models that differ only in their rate or count, the one with the larger draws first: its map holds the maps of
    the others of the same seed. (Exception: of two `RowError`, one of which has the higher rate and the other the higher
    density, the sum holds the map of the one with the higher rate.)

    Args:
        parts: the summands.
    """

    rate = None

    parts: tuple[ErrorModel, ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            if not isinstance(part, ErrorModel):
                raise TypeError(f"each part of a sum must be an error model, got {part!r}")
        summands = [summand for part in self.parts for summand in part.summands()]
        if not summands:
            raise ValueError("a sum needs at least 1 error model, got 0")
        self._set(parts=tuple(sorted(summands, key=drawing_order)))

    @property
    def label(self) -> str:
        """The summands with their rates, for which tables have no column."""
        return " + ".join(repr(part) for part in self.parts)

    def summands(self) -> Sequence[ErrorModel]:
        return self.parts

    @property
    def unit(self) -> str:
        """The largest unit of its summands."""
        return max((part.unit for part in self.parts), key=UNITS.index)

    def __str__(self) -> str:
        return " + ".join(str(part) for part in self.parts)

    def canonical(self) -> str:
        """The canonical forms of its summands."""
        return canonical_json({"error_model": "Sum", "parts": [part.canonical() for part in self.parts]})

    def eligible(self, space: AddressSpace) -> AddressSpace:
        """The bits that any of the summands may flip."""
        chosen = [part.eligible(space).chosen_bits for part in self.parts]
        return space if None in chosen else space.only({bit for bits in chosen for bit in bits})

    def expected_share(self, space: AddressSpace) -> None:
        """None: the overlap of the summands' bits is not counted."""
        for part in self.parts:
            part.expected_share(space)

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        """The union of the summands' maps."""
        before = equal_before(self.parts)
        maps = [part.sample(space, seed=seed, copy=copy + more) for part, more in zip(self.parts, before, strict=True)]
        return replace(union(maps), error_model=self.label, eligible_bits=self.eligible(space).bits)


def equal_before(models: Sequence[ErrorModel]) -> list[int]:
    """The `copy` of each model of one trial: how many equal ones come before it; of a sum, before any of its parts. So equal
    models draw from streams of their own."""
    if len(models) == 1:
        return [0]
    count: Counter[str] = Counter()
    copies = []
    for model in models:
        forms = [part.canonical() for part in model.summands()]
        copies.append(max(count[form] for form in forms))
        for form in forms:
            count[form] = max(count[form], copies[-1]) + 1
    return copies


def drawing_order(model: ErrorModel) -> tuple[str, float, float]:
    """Sort key of the models of one trial: canonical form, then descending rate or count, then descending density."""
    size = model.rate if model.COUNT is None else getattr(model, model.COUNT)
    return model.canonical(), -(size or 0.0), -getattr(model, "density", 0.0)


class _ChosenBits(ErrorModel):
    """An error model with the field `bits`, of the data: check bits stay clean where it is set."""

    unit = "bit"

    def __post_init__(self) -> None:
        if self.bits is not None:
            self._set(bits=bit_set(self.bits))

    def eligible(self, space: AddressSpace) -> AddressSpace:
        return space.only(self.bits)

    def sample_check_bits(
        self, checks: AddressSpace, data: AddressSpace, *, seed: int, data_seed: int, copy: int = 0
    ) -> ErrorMap | None:
        if self.bits is not None:
            return None
        return super().sample_check_bits(checks, data, seed=seed, data_seed=data_seed, copy=copy)


@dataclass(frozen=True, repr=False)
class BitFlip(_ChosenBits):
    """Every eligible bit flips independently with probability `ber`, exactly, at every rate from 0 to 1.

    P(a set S of bits flips, and no other) = ber^|S| (1 - ber)^(N - |S|). Source: the error model of arXiv:2307.10244, drawn
    by the error clock.

    Args:
        ber: bit error rate, per eligible bit.
        bits: eligible bits: numbers, 0 the lowest (in float32: 0-22 mantissa, 23-30 exponent, 31 sign), or fields of the
            format (`"sign"`, `"exponent"`, `"mantissa"`; of integers `"sign"`, `"value"`; of quantized rows `"value"`,
            `"scale"`, `"bias"`, `"padding"`, and `"exponent_top"`, the highest exponent bit), one or several; None: all but
            padding.
        critical: how many critical bits flip: a number, or at least a number (`"3+"`). The map is one of this model under that
            condition: the numbers of flips in critical bits and elsewhere are independent.
        critical_bits: which bits are critical; None: `CriticalBits()`.

    Example:
        >>> BitFlip(1e-6, bits="exponent"), str(BitFlip(1e-6, bits=("sign", 30)))
        (BitFlip(ber=1e-06, bits=('exponent',)), "BitFlip(ber=1e-06, bits=[30, 'sign'])")
        >>> str(BitFlip(1e-6, critical=2))
        "BitFlip(ber=1e-06, critical=2, critical_bits=CriticalBits(bits=('exponent_top',), table_rows=100))"
    """

    RATE = "ber"

    ber: float
    bits: Bits = None
    critical: int | str | None = None
    critical_bits: CriticalBits | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(ber=check_rate("ber", self.ber))
        if self.critical is None:
            self._set(critical_bits=None)
        else:
            self._set(critical=check_count(self.critical), critical_bits=self.critical_bits or CriticalBits())

    def __repr__(self) -> str:
        condition = (
            "" if self.critical is None else f", critical={self.critical!r}, critical_bits={self.critical_bits!r}"
        )
        return f"BitFlip(ber={self.ber!r}, bits={self.bits!r}{condition})"

    def canonical(self) -> str:
        """As of other models, without `critical` and `critical_bits` where they are None."""
        form = {"error_model": type(self).__name__, "bits": self.bits}
        if self.critical is not None:
            form |= {"critical": self.critical, "critical_bits": asdict(self.critical_bits)}
        return canonical_json(form)

    @property
    def rate(self) -> float:
        """The bit error rate."""
        return self.ber

    def expected_share(self, space: AddressSpace) -> float:
        """The bit error rate; of a map with a number of critical flips, their share and that of the other flips."""
        eligible = self.eligible(space)
        if self.critical is None:
            return self.ber
        n = self.critical_bits.among(eligible).bits
        return (self.ber * (eligible.bits - n) + mean_count(self.critical, n, self.ber)) / eligible.bits

    def strata(self, space: AddressSpace, critical_bits: CriticalBits) -> list[Stratum]:
        """By the number of critical flips: `0`, `1`, ... and the last one with more of them."""
        if type(self) is not BitFlip or self.critical is not None:
            return []
        counts = count_strata(critical_bits.among(self.eligible(space)).bits, self.ber)
        return [
            Stratum(
                str(count),
                probability,
                replace(self, critical=count, critical_bits=critical_bits),
                bounded_within=None if count else "anywhere",
            )
            for count, probability in counts.items()
        ] or [Stratum(ALL, 1.0, self)]

    def critical_probe(self, critical_bits: CriticalBits) -> ErrorModel:
        return replace(self, ber=0.0, critical=1, critical_bits=critical_bits)

    def transient_share(self) -> float:
        return self.ber

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        eligible = self.eligible(space)
        positions = self.clock(eligible.bits, seed, copy).until_in_parts(self.ber)
        error_map = from_bits(self, eligible, positions, seed, requested_rate=self.ber, n_sites=eligible.bits)
        if self.critical is None:
            return error_map
        critical = self.critical_bits.among(eligible)
        clock = self.clock(critical.bits, seed, copy, "critical")
        count = draw_count(self.critical, critical.bits, self.ber, clock.values(np.zeros(1, np.int64), 1)[0, 0])
        index = np.array([space.tensors.index(tensor) for tensor in critical.tensors], np.int32)
        tensor, word, mask = critical.locate_masks(clock.first(count))
        others = error_map.mask & ~critical_masks(critical, index, error_map)
        return from_words(
            self,
            eligible,
            np.append(error_map.tensor, index[tensor]),
            np.append(error_map.word, word),
            np.append(others, mask),
            seed,
            requested_rate=self.expected_share(space),
            n_sites=eligible.bits - critical.bits,  # of the flips that come at the rate
            n_events=int(np.bitwise_count(others).sum()),
        )


@dataclass(frozen=True)
class FixedCount(_ChosenBits):
    """Exactly `k` distinct eligible bits flip, a uniform k-subset: the first k of the error clock.

    For a metric given the number of errors (arXiv:2405.01741 uses one and several). For one seed the map of fewer errors is
    part of the map of more.

    Args:
        k: how many bits flip.
        bits: eligible bits, as in `BitFlip`.
    """

    COUNT = "k"
    rate = None

    k: int
    bits: Bits = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(k=check_whole("k", self.k, 0, "a whole number of errors"))

    def expected_share(self, space: AddressSpace) -> float:
        """k over the number of eligible bits."""
        eligible = self.eligible(space).bits
        if self.k > eligible:
            raise ValueError(f"k is {self.k}; it must be from 0 to {eligible}, the number of eligible bits")
        return self.k / eligible

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        eligible = self.eligible(space)
        counts = {"requested_rate": self.expected_share(space), "n_sites": eligible.bits, "n_events": self.k}
        return from_bits(self, eligible, self.clock(eligible.bits, seed, copy).first_in_parts(self.k), seed, **counts)

    def sample_check_bits(self, checks: AddressSpace, data: AddressSpace, **_: int) -> None:
        """None: all k errors lie in the data."""

    def columns(self) -> dict[str, Any]:
        return {**super().columns(), "error_count": self.k}


@dataclass(frozen=True)
class SingleBit(ErrorModel):
    """Exactly one flip, of bit number `bit` in a word drawn uniformly from the target: the first place of the error clock over
    the bits with this number. Used to compare bit positions (arXiv:2405.01741).

    Args:
        bit: 0 the lowest; in float32: 0-22 mantissa, 23-30 exponent, 31 sign.
    """

    rate = None
    unit = "bit"

    bit: int

    def __post_init__(self) -> None:
        if isinstance(self.bit, str):
            raise ValueError(f"bit is {self.bit!r}; it must be an integer, 0 for the lowest bit")
        self._set(bit=bit_set((self.bit,))[0])

    def eligible(self, space: AddressSpace) -> AddressSpace:
        return space.only((self.bit,))

    def expected_share(self, space: AddressSpace) -> float:
        """One over the number of eligible bits."""
        return 1 / self.eligible(space).bits

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        eligible = self.eligible(space)
        counts = {"requested_rate": 1 / eligible.bits, "n_sites": eligible.bits, "n_events": 1}
        return from_bits(self, eligible, self.clock(eligible.bits, seed, copy).first_in_parts(1), seed, **counts)

    def sample_check_bits(self, checks: AddressSpace, data: AddressSpace, **_: int) -> None:
        """None: the error lies in the data."""

    def columns(self) -> dict[str, Any]:
        return {**super().columns(), "error_bit": self.bit}


@dataclass(frozen=True)
class StuckAt(_ChosenBits):
    """Every eligible bit is stuck at `value` with probability `rate`: an error where it holds the other value. Source: the
    classical stuck-at fault; arXiv:2605.04213 injects it at gates.

    The seed alone decides which bits are stuck; the words in memory decide which of them are errors. So the map keeps these
    words, and is refused where others are in memory.

    Args:
        value: 0 or 1.
        rate: per eligible bit.
        bits: eligible bits, as in `BitFlip`.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> model = nn.PReLU()  # has one weight, 0.25
        >>> with dr.inject(model, StuckAt(1, rate=1, bits="sign"), seed=0):
        ...     model.weight.item()
        -0.25
    """

    RATE = "rate"

    value: int
    rate: float
    bits: Bits = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.value, bool) or self.value not in (0, 1):
            raise ValueError(f"value is {self.value!r}; it must be 0 or 1")
        self._set(value=int(self.value), rate=check_rate("rate", self.rate))

    def expected_share(self, space: AddressSpace) -> None:
        """None: it depends on how many bits hold the other value."""
        self.eligible(space)

    def sample_check_bits(
        self, checks: AddressSpace, data: AddressSpace, *, seed: int, data_seed: int, copy: int = 0
    ) -> ErrorMap | None:
        """In copies alone, whose words are known; check bits stay clean."""
        if any(tensor.memory is None for tensor in checks.tensors):
            return None
        return super().sample_check_bits(checks, data, seed=seed, data_seed=data_seed, copy=copy)

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        eligible = self.eligible(space)
        stuck = self.clock(eligible.bits, seed, copy).until(self.rate)
        tensor, word, bit = eligible.locate(stuck)
        bit_now = (eligible.read(tensor, word) >> bit.astype(np.uint64)) & np.uint64(1)
        error_map = from_bits(
            self, eligible, [stuck[bit_now != self.value]], seed, n_sites=eligible.bits, n_events=len(stuck)
        )
        return replace(error_map, original=eligible.read(error_map.tensor, error_map.word))
