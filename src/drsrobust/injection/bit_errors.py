"""Error models of single flipped or stuck bits."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from drsrobust._arguments import check_number, check_rate, check_whole
from drsrobust._hashing import canonical_json
from drsrobust.injection.address_space import AddressSpace
from drsrobust.injection.critical_bits import (
    CriticalBits,
    Parts,
    Stratum,
    bit_strata,
    check_count,
    check_critical_bits,
    count_probability,
    count_strata,
    draw_count,
    flips_in,
    masks_in,
    mean_count,
)
from drsrobust.injection.error_map import ErrorMap
from drsrobust.injection.error_models import ErrorModel, from_bits, from_rate, from_words
from drsrobust.injection.number_formats import Bits, bit_set
from drsrobust.statistics.columns import ALL

_CONDITION = ("critical", "critical_bits", "others", "mild")  # fields that are left out of names where they are None


class _ChosenBits(ErrorModel):
    """An error model with the field `bits`, of the data: check bits stay clean where it is set."""

    unit = "bit"
    bits: Bits

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


class _CountedFlips(_ChosenBits):
    """An error model of flips, which may be counted in parts of the bits (`critical_bits.Parts`): with the fields `critical`,
    `critical_bits` and `others`, and with or without `mild`."""

    critical: int | str | None
    critical_bits: CriticalBits | None  # None where `critical` is

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critical_bits is not None:
            check_critical_bits(self.critical_bits)
        if self.critical is not None:
            self._set(critical_bits=self.critical_bits or CriticalBits())
            self._set(**{name: check_count(count, name) for name, count in self._counts.items()})
            return
        self._set(critical_bits=None)
        for name, count in self._counts.items():
            raise ValueError(f"{name} is {count!r}; it needs critical=, the number of critical flips, as critical=0")

    @property
    def _counts(self) -> dict[str, int | str]:
        """The parts of the bits whose flips are counted, and how many flip."""
        counts = {name: getattr(self, name, None) for name in ("critical", "others", "mild")}
        return {name: count for name, count in counts.items() if count is not None}

    def __repr__(self) -> str:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        given = (f"{name}={value!r}" for name, value in values if name not in _CONDITION or value is not None)
        return f"{type(self).__name__}({', '.join(given)})"

    def canonical(self) -> str:
        """As of other models, without the fields of a condition where they are None."""
        form: dict[str, Any] = {"error_model": type(self).__name__, "bits": self.bits} | self._counts
        if self.critical_bits is not None:
            form |= {"critical_bits": asdict(self.critical_bits)}
        return canonical_json(form)


@dataclass(frozen=True, repr=False)
class BitFlip(_CountedFlips):
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
        others: with `critical`, how many other bits of sign and exponent flip, outside of large tables (`CriticalBits.parts`).
        mild: with `critical`, how many of the remaining bits outside of large tables flip, as those of mantissas.

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
    others: int | str | None = None
    mild: int | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(ber=check_rate("ber", self.ber))

    @property
    def rate(self) -> float:
        """The bit error rate."""
        return self.ber

    def expected_share(self, space: AddressSpace) -> float:
        """The bit error rate; of a map with numbers of flips in parts of the bits, their share and that of the other flips."""
        eligible = self.eligible(space)
        if self.critical_bits is None:
            return self.ber
        parts, flips, free = self.critical_bits.parts(eligible), 0.0, eligible.bits
        for name, count in self._counts.items():
            n = getattr(parts, name).bits
            flips, free = flips + mean_count(count, n, self.ber, name), free - n
        return (self.ber * free + flips) / eligible.bits

    def strata(self, space: AddressSpace, critical_bits: CriticalBits) -> list[Stratum]:
        """By the number of critical flips: `0`, `1`, ... and the last one with more of them; `0` by whether other bits of sign
        and exponent flip."""
        if type(self) is not BitFlip or self.critical is not None:
            return []
        parts = critical_bits.parts(self.eligible(space))
        means = self.ber * parts.others.bits, self.ber * parts.mild.bits
        no_others, counts = float((1 - self.ber) ** parts.others.bits), count_strata(parts.critical.bits, self.ber)
        return bit_strata(self, self, parts, counts, no_others, means, critical_bits) or [Stratum(ALL, 1.0, self)]

    def critical_probe(self, critical_bits: CriticalBits) -> ErrorModel:
        return replace(self, ber=0.0, critical=1, critical_bits=critical_bits)

    def transient_share(self) -> float:
        return self.ber

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        eligible = self.eligible(space)
        error_map = from_rate(self, eligible, self.ber, seed, copy)
        if self.critical_bits is None:
            return error_map
        parts, drawn, free, kept = self.critical_bits.parts(eligible), [], eligible.bits, error_map.mask
        for name, count in self._counts.items():
            part = getattr(parts, name)
            mean_count(count, part.bits, self.ber, name)  # raises
            free, kept = free - part.bits, kept & ~masks_in(part, eligible, error_map)
            if part.bits:
                clock = self.clock(part.bits, seed, copy, name)
                raw = clock.values(np.zeros(1, np.int64), 1)[0, 0]
                drawn.append((part, clock.first(draw_count(count, part.bits, self.ber, raw))))
        tensor, word, mask = flips_in(eligible, drawn)
        return from_words(
            self,
            eligible,
            np.append(error_map.tensor, tensor),
            np.append(error_map.word, word),
            np.append(kept, mask),
            seed,
            requested_rate=self.expected_share(space),
            n_sites=free,  # of the flips that come at the rate
            n_events=int(np.bitwise_count(kept).sum()),
        )


@dataclass(frozen=True, repr=False)
class FixedCount(_CountedFlips):
    """Exactly `k` distinct eligible bits flip, a uniform k-subset: the first k of the error clock.

    For a metric given the number of errors (arXiv:2405.01741 uses one and several). For one seed the map of fewer errors is
    part of the map of more, unless they are counted by `critical`.

    Args:
        k: how many bits flip.
        bits: eligible bits, as in `BitFlip`.
        critical: how many of them are critical, as in `BitFlip`: the map is one of this model under that condition.
        critical_bits: which bits are critical; None: `CriticalBits()`.
        others: with a number as `critical`, how many other bits of sign and exponent flip, as in `BitFlip`.
    """

    COUNT = "k"
    rate = None

    k: int
    bits: Bits = None
    critical: int | str | None = None
    critical_bits: CriticalBits | None = None
    others: int | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(k=check_whole("k", self.k, 0))
        if self.others is not None and isinstance(self.critical, str):
            raise ValueError(f"critical is {self.critical!r}; with others= it must be a number of flips, 0 or more")

    def expected_share(self, space: AddressSpace) -> float:
        """k over the number of eligible bits."""
        eligible = self.eligible(space)
        if self.k > eligible.bits:
            raise ValueError(f"k is {self.k}; it must be from 0 to {eligible.bits}, the number of eligible bits")
        if self.critical_bits is not None:
            self._drawn(self.critical_bits.parts(eligible), np.zeros(2, np.uint64))  # raises
        return self.k / eligible.bits

    def strata(self, space: AddressSpace, critical_bits: CriticalBits) -> list[Stratum]:
        """As of `BitFlip`; the numbers of flips are hypergeometric."""
        if type(self) is not FixedCount or self.critical is not None:
            return []
        self.expected_share(space)  # raises
        parts = critical_bits.parts(self.eligible(space))
        others, mild, left = parts.others.bits, parts.mild.bits, parts.others.bits + parts.rest.bits
        counts = count_strata(parts.critical.bits, self.k, left + parts.critical.bits)
        means = self.k * others / max(1, left), self.k * mild / max(1, left)
        no_others = count_probability(0, others, self.k, left) if self.k <= left else 0.0
        pilot = BitFlip(0.0, self.bits)
        return bit_strata(self, pilot, parts, counts, no_others, means, critical_bits) or [Stratum(ALL, 1.0, self)]

    def critical_probe(self, critical_bits: CriticalBits) -> ErrorModel:
        return BitFlip(0.0, self.bits, critical=1, critical_bits=critical_bits)

    def _drawn(self, parts: Parts, raw: np.ndarray) -> tuple[int, int]:
        """The numbers of critical and of other flips of sign and exponent, drawn by two raw words."""
        counts, others, left = self._counts, parts.others.bits, parts.others.bits + parts.rest.bits
        critical = draw_count(counts["critical"], parts.critical.bits, self.k, raw[0], bits=left + parts.critical.bits)
        return critical, draw_count(counts.get("others", "0+"), others, self.k - critical, raw[1], "others", bits=left)

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        eligible, share = self.eligible(space), self.expected_share(space)
        counts: dict[str, Any] = {"requested_rate": share, "n_sites": eligible.bits, "n_events": self.k}
        if self.critical_bits is None:
            clock = self.clock(eligible.bits, seed, copy)
            return from_bits(self, eligible, clock.first_in_parts(self.k), seed, **counts)
        parts = self.critical_bits.parts(eligible)
        raw = self.clock(1, seed, copy, "counts").values(np.arange(2), 1)[:, 0]
        critical, others = self._drawn(parts, raw)
        numbers = {"critical": critical, "others": others, "rest": self.k - critical - others}
        drawn = [
            (getattr(parts, name), self.clock(getattr(parts, name).bits, seed, copy, name).first(number))
            for name, number in numbers.items()
            if number
        ]
        return from_words(self, eligible, *flips_in(eligible, drawn), seed, **counts)

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
        self._set(bit=check_whole("bit", self.bit, 0, 63))

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
        value = check_number("value", self.value, "0 or 1", lambda value: value in (0, 1))
        self._set(value=int(value), rate=check_rate("rate", self.rate))

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
