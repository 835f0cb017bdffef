"""Single flipped bits: independent ones, a fixed number of them, one of a given place in its word, stuck ones."""

from dataclasses import dataclass

import numpy as np

from drsrobust.injection.base import NONE, Before, ErrorModel, from_bits, whole, with_originals
from drsrobust.injection.clock import check_rate
from drsrobust.injection.error_map import ErrorMap
from drsrobust.injection.formats import Bits, bit_set
from drsrobust.injection.space import AddressSpace


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
        return from_bits(self, eligible, found, seed, requested_rate=self.rate, places=eligible.bits)


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
        about = {"requested_rate": self.expected_share(space), "places": eligible.bits, "events": self.k}
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
        about = {"requested_rate": 1 / eligible.bits, "places": eligible.bits, "events": 1}
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
        drawn = from_bits(self, eligible, [found[held != self.value]], seed, places=eligible.bits, events=len(found))
        return with_originals(drawn, eligible)
