"""Error models: rules for how stored bits go wrong. Frozen dataclasses with one verb, `sample`."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from drsrobust._names import unknown
from drsrobust._storage import canonical_json
from drsrobust.injection.clock import ErrorClock, check_rate
from drsrobust.injection.error_map import ErrorMap, Fingerprint
from drsrobust.injection.formats import FIELDS
from drsrobust.injection.space import AddressSpace

Bits = tuple[int | str, ...] | str | None


@dataclass(frozen=True)
class BitFlip:
    """Every eligible bit flips independently with probability `ber`, exactly, at every rate from 0 to 1.

    Source: the error model of arXiv:2307.10244, drawn by the error clock.

    Args:
        ber: bit error rate, per eligible bit.
        bits: eligible bits: numbers, 0 the lowest (in float32: 0-22 mantissa, 23-30 exponent, 31 sign), or fields of the
            format (`"sign"`, `"exponent"`, `"mantissa"`; of integers `"sign"`, `"value"`), one or several; None: all.

    Example:
        >>> BitFlip(1e-6, bits="exponent"), str(BitFlip(1e-6, bits=("sign", 30)))
        (BitFlip(ber=1e-06, bits=('exponent',)), "BitFlip(bits=[30, 'sign'])")
    """

    ber: float
    bits: Bits = None

    def __post_init__(self) -> None:
        check_rate("ber", self.ber)
        object.__setattr__(self, "bits", _bit_set(self.bits))

    @property
    def rate(self) -> float:
        """The bit error rate."""
        return float(self.ber)

    def __str__(self) -> str:
        return "BitFlip" if self.bits is None else f"BitFlip(bits={list(self.bits)})"

    def expected_share(self, space: AddressSpace) -> float:
        """Expected share of the space's eligible bits that flip.

        Raises:
            ValueError: an eligible bit that the targeted words do not have.
        """
        space.only(self.bits)
        return self.rate

    def sample(self, space: AddressSpace, *, seed: int) -> ErrorMap:
        """The error map of one trial. For one seed, the map at a lower rate is part of the map at a higher one.

        Raises:
            ValueError: an eligible bit that the targeted words do not have.
        """
        eligible = space.only(self.bits)
        clock = ErrorClock(eligible.bits, seed=seed, summand=_summand(self))
        return _error_map(self, eligible, clock.until(self.rate), seed, self.rate)


@dataclass(frozen=True)
class FixedCount:
    """Exactly `k` distinct eligible bits flip, a uniform k-subset: the first k of the error clock.

    By it a metric is estimated given the number of errors (arXiv:2405.01741 uses one and several). For one seed the map of
    fewer errors is part of the map of more.

    Args:
        k: how many bits flip.
        bits: eligible bits, as in `BitFlip`.
    """

    k: int
    bits: Bits = None

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int | np.integer) or self.k < 0:
            raise ValueError(f"k is {self.k!r}; it must be a whole number of errors, 0 or more")
        object.__setattr__(self, "k", int(self.k))
        object.__setattr__(self, "bits", _bit_set(self.bits))

    @property
    def rate(self) -> None:
        """None: it has a count, not a rate."""
        return None

    def __str__(self) -> str:
        return f"FixedCount(k={self.k})" if self.bits is None else f"FixedCount(k={self.k}, bits={list(self.bits)})"

    def expected_share(self, space: AddressSpace) -> float:
        """k over the number of eligible bits.

        Raises:
            ValueError: as `sample`.
        """
        eligible = space.only(self.bits).bits
        if self.k > eligible:
            raise ValueError(f"{self.k} errors were asked for among {eligible} bits")
        return self.k / eligible

    def sample(self, space: AddressSpace, *, seed: int) -> ErrorMap:
        """The error map of one trial.

        Raises:
            ValueError: an eligible bit that the targeted words do not have, or fewer eligible bits than k.
        """
        eligible = space.only(self.bits)
        clock = ErrorClock(eligible.bits, seed=seed, summand=_summand(self))
        return _error_map(self, eligible, clock.first(self.k), seed, None)


@dataclass(frozen=True)
class SingleBit:
    """Exactly one flip, of bit number `bit` in a word drawn uniformly from the target: the single-error trials by which
    bit positions are compared (arXiv:2405.01741).

    Args:
        bit: 0 the lowest; in float32: 0-22 mantissa, 23-30 exponent, 31 sign.
    """

    bit: int

    def __post_init__(self) -> None:
        if isinstance(self.bit, str):
            raise ValueError(f"bit is {self.bit!r}; it must be an integer, 0 for the lowest bit")
        object.__setattr__(self, "bit", _bit_set((self.bit,))[0])

    @property
    def rate(self) -> None:
        """None: it has a count, not a rate."""
        return None

    def __str__(self) -> str:
        return f"SingleBit(bit={self.bit})"

    def expected_share(self, space: AddressSpace) -> float:
        """One over the number of eligible bits (those with this number).

        Raises:
            ValueError: a targeted tensor whose words do not have this bit.
        """
        return 1 / space.only((self.bit,)).bits

    def sample(self, space: AddressSpace, *, seed: int) -> ErrorMap:
        """The error map of one trial.

        Raises:
            ValueError: a targeted tensor whose words do not have this bit.
        """
        eligible = space.only((self.bit,))
        clock = ErrorClock(eligible.bits, seed=seed, summand=_summand(self))
        return _error_map(self, eligible, clock.first(1), seed, None)


ErrorModel = BitFlip | FixedCount | SingleBit


def _bit_set(bits: Bits) -> tuple[int | str, ...] | None:
    """Numbers in ascending, then fields in alphabetical order, each once.

    Raises:
        ValueError: nothing, or something else than numbers and fields.
    """
    if bits is None:
        return None
    if not isinstance(bits, str | Iterable):
        raise ValueError(f"bits are {bits!r}; they must be a field as 'exponent', or a tuple of bit numbers and fields")
    bits = (bits,) if isinstance(bits, str) else tuple(bits)
    names = sorted({bit for bit in bits if isinstance(bit, str)})
    numbers = [bit for bit in bits if not isinstance(bit, str)]
    if not bits or any(isinstance(bit, bool) or not isinstance(bit, int | np.integer) for bit in numbers):
        raise ValueError(f"bits are {bits!r}; they must be one or more integers, 0 for the lowest bit, or fields")
    for name in names:
        if name not in FIELDS:
            raise unknown("field of a number format", name, FIELDS)
    return (*sorted({int(bit) for bit in numbers}), *names)


def canonical(model: ErrorModel) -> str:
    """The error model without its rate or count, as canonical JSON: what a seed is combined with."""
    fields = {"bit": model.bit} if isinstance(model, SingleBit) else {"bits": list(model.bits) if model.bits else None}
    return canonical_json({"error_model": type(model).__name__, **fields})


def _summand(model: ErrorModel, occurrence: int = 0) -> int:
    """The first 4 bytes (big-endian) of SHA-256 over the canonical form, plus its occurrence number, modulo 2**32."""
    digest = hashlib.sha256(canonical(model).encode()).digest()
    return (int.from_bytes(digest[:4], "big") + occurrence) % 2**32


def _error_map(
    model: ErrorModel, space: AddressSpace, positions: np.ndarray, seed: int, rate: float | None
) -> ErrorMap:
    tensor, word, bit = space.locate(positions)
    mask = np.uint64(1) << bit.astype(np.uint64)
    if len(word):
        # Positions ascend, so the bits of one word stand side by side: join them into one mask.
        starts = np.flatnonzero(np.concatenate(([True], (word[1:] != word[:-1]) | (tensor[1:] != tensor[:-1]))))
        tensor, word, mask = tensor[starts], word[starts], np.bitwise_or.reduceat(mask, starts)
    fingerprint = tuple(
        Fingerprint(t.name, t.shape, str(t.dtype).removeprefix("torch."), t.component) for t in space.tensors
    )
    return ErrorMap(tensor, word, mask, fingerprint, int(seed), str(model), space.bits, rate)
