"""Error models of single flipped or stuck bits."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from drsrobust._arguments import check_number, check_rate, check_whole
from drsrobust._hashing import canonical_json
from drsrobust.injection.address_space import AddressSpace
from drsrobust.injection.critical_bits import (
    CriticalBits,
    Stratum,
    check_count,
    check_critical_bits,
    count_strata,
    critical_masks,
    draw_count,
    mean_count,
)
from drsrobust.injection.error_map import ErrorMap
from drsrobust.injection.error_models import ErrorModel, from_bits, from_rate, from_words
from drsrobust.injection.number_formats import Bits, bit_set
from drsrobust.statistics.strata import ALL


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
        if self.critical_bits is not None:
            check_critical_bits(self.critical_bits)
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
        error_map = from_rate(self, eligible, self.ber, seed, copy)
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
        self._set(k=check_whole("k", self.k, 0))

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
