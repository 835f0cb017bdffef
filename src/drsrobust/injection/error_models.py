"""Error models: rules for how stored bits go wrong. Frozen dataclasses with one verb, `sample`."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from drsrobust._storage import canonical_json
from drsrobust.injection.clock import ErrorClock, check_rate
from drsrobust.injection.error_map import ErrorMap, Fingerprint
from drsrobust.injection.space import AddressSpace


@dataclass(frozen=True)
class BitFlip:
    """Every eligible bit flips independently with probability `ber`, exactly, at every rate from 0 to 1.

    Source: the error model of arXiv:2307.10244, drawn by the error clock.

    Args:
        ber: bit error rate, per eligible bit.
        bits: eligible bit numbers, 0 the lowest (in float32: 0-22 mantissa, 23-30 exponent, 31 sign); None: all.
    """

    ber: float
    bits: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_rate("ber", self.ber)
        if self.bits is not None:
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
            ValueError: an eligible bit that a targeted tensor's words do not have.
        """
        space.only(self.bits)
        return self.rate

    def sample(self, space: AddressSpace, *, seed: int) -> ErrorMap:
        """The error map of one trial. For one seed, the map at a lower rate is part of the map at a higher one.

        Raises:
            ValueError: an eligible bit that a targeted tensor's words do not have.
        """
        eligible = space.only(self.bits)
        clock = ErrorClock(eligible.bits, seed=seed, summand=_summand(self))
        return _error_map(self, eligible, clock.until(self.rate), seed, self.rate)


@dataclass(frozen=True)
class SingleBit:
    """Exactly one flip, of bit number `bit` in a word drawn uniformly from the target: the single-error trials by which
    bit positions are compared (arXiv:2405.01741).

    Args:
        bit: 0 the lowest; in float32: 0-22 mantissa, 23-30 exponent, 31 sign.
    """

    bit: int

    def __post_init__(self) -> None:
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


ErrorModel = BitFlip | SingleBit


def _bit_set(bits: tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(bits, str) or not isinstance(bits, Iterable):
        raise ValueError(f"bits are {bits!r}; they must be a tuple of integers, 0 for the lowest bit")
    bits = tuple(bits)
    if not bits or any(isinstance(bit, bool) or not isinstance(bit, int | np.integer) for bit in bits):
        raise ValueError(f"bits are {bits!r}; they must be one or more integers, 0 for the lowest bit")
    return tuple(sorted({int(bit) for bit in bits}))


def canonical(model: ErrorModel) -> str:
    """The error model without its rate or count, as canonical JSON: what a seed is combined with."""
    fields = {"bits": list(model.bits) if model.bits else None} if isinstance(model, BitFlip) else {"bit": model.bit}
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
