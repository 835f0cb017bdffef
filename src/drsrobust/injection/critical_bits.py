"""Critical bits: the few bits whose flips cause most of the loss at low rates, how many of them flip, and strata by this.

A flip of the highest exponent bit makes most weights some 1e38 times as large. It matters where many rows of data use the
weight: outside the embedding tables, and in tables of few rows. At a bit error rate p the number K of critical flips is
Binomial(n, p) and independent of all other flips, so the mean of a metric is the sum over k of P(K = k) times its mean given
K = k (Cochran, Sampling Techniques, 3rd ed., 1977, chapter 5).
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from drsrobust._arguments import check_instance, check_whole, wrong
from drsrobust.injection.address_space import AddressSpace, EligibleBits
from drsrobust.injection.error_clock import uniform
from drsrobust.injection.number_formats import TOP, Bits, bit_set

MAX_SEPARATE_FLIPS = 3  # critical flips whose numbers are strata of their own; at least so many share the last stratum
MIN_STRATIFIED_PROBABILITY = 0.1  # of at most so many critical flips; under it plain maps take over
MAX_TAIL_SHARE = 0.05  # of the last stratum, that more flips may have
_AT_LEAST = re.compile(r"(\d+)\+")


# How far a mitigation may move errors: within the chip that they lie in, within a word (as a range check, which sets a word to
# 0), or anywhere.
SPREAD = ("chip", "word", "anywhere")


@dataclass(frozen=True)
class Stratum:
    """A part of the error maps of an error model.

    Attributes:
        name: the number of critical flips, as `0` or `2+`; the chips of a memory fault; `all` for plain maps.
        probability: that a plain map belongs to it.
        error_model: that draws its maps.
        bounded_within: the largest `SPREAD` of a mitigation under which no map of it is taken to lose more than those that
            were drawn; None: there may always be worse ones.
    """

    name: str
    probability: float
    error_model: Any
    bounded_within: str | None = None

    def is_bounded(self, spread: str) -> bool:
        """Whether its losses are taken to be bounded by those seen under a mitigation that moves errors so far."""
        return self.bounded_within is not None and SPREAD.index(spread) <= SPREAD.index(self.bounded_within)


def check_count(count: int | str) -> int | str:
    """A number of critical flips as an int, or as text for at least so many.

    Raises:
        ValueError: neither.
    """
    if isinstance(count, str) and (match := _AT_LEAST.fullmatch(count)):
        return f"{int(match[1])}+"
    if isinstance(count, str):
        raise wrong("critical", "a number of flips, 0 or more, or at least a number, as '3+'", count)
    return check_whole("critical", count, 0)


@dataclass(frozen=True)
class CriticalBits:
    """Which bits are critical.

    Args:
        bits: of a word, as in `BitFlip`; formats without them (integers have no exponent) have no critical bits.
        table_rows: embedding tables of at most so many rows count; 0: none.

    Raises:
        ValueError: an empty set of bits, or a negative number of rows.
    """

    bits: Bits = TOP
    table_rows: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", bit_set(() if self.bits is None else self.bits))
        object.__setattr__(self, "table_rows", check_whole("table_rows", self.table_rows, 0))

    def among(self, eligible: AddressSpace) -> AddressSpace:
        """The critical ones of the bits that may flip.

        Raises:
            ValueError: there are none, or only some of a tensor's critical bits may flip.
        """
        tensors = []
        for bits in eligible.eligible:
            masks = EligibleBits(bits.tensor, self.bits).masks
            masks_inside, table = masks & bits.masks, bits.tensor.stored is not None and bits.tensor.stored.embedding
            if not masks_inside.any() or (table and bits.tensor.shape[0] > self.table_rows):
                continue
            if (masks_inside != masks).any():
                raise ValueError(f"{self}: errors may hit only some of these bits of {bits.tensor.name}")
            tensors.append(bits.tensor)
        if not tensors:
            raise ValueError(
                f"the target has no critical bits: none of {list(self.bits)} outside of embedding tables with over "
                f"{self.table_rows} rows; sample plain maps, or pass other CriticalBits"
            )
        return AddressSpace(tensors, self.bits)


def check_critical_bits(critical_bits: CriticalBits) -> None:
    """Raises ArgumentError for something else."""
    check_instance("critical_bits", critical_bits, CriticalBits, "a CriticalBits, as CriticalBits(table_rows=0)")


def critical_masks(critical: AddressSpace, index: np.ndarray, error_map: Any) -> np.ndarray:
    """The critical bits of each word of an error map: masks uint64 [n].

    Args:
        critical: the critical bits.
        index: int32 [tensors], their tensors in the error map.
        error_map: with `tensor` and `word`, sorted.
    """
    masks = np.zeros(len(error_map), np.uint64)
    for number, bits in zip(index, critical.eligible, strict=True):
        start, end = np.searchsorted(error_map.tensor, [number, number + 1])
        masks[start:end] = bits.mask_of(error_map.word[start:end])
    return masks


def count_probability(count: int | str, n: int, ber: float) -> float:
    """P(K = count), or P(K >= count), of K ~ Binomial(n, ber).

    Example:
        >>> count_probability(0, 1000, 1e-3), count_probability("2+", 1000, 1e-3)
        (0.3676..., 0.2642...)
    """
    from scipy.stats import binom

    if isinstance(count, int):
        return float(binom.pmf(count, n, ber))
    return float(binom.sf(int(count[:-1]) - 1, n, ber))


def mean_count(count: int | str, n: int, ber: float) -> float:
    """The number of critical flips, or its mean given that there are at least so many.

    Raises:
        ValueError: more flips than bits, or flips at a rate of 0.
    """
    from scipy.stats import binom

    least = count if isinstance(count, int) else int(count[:-1])
    if least > n:
        raise ValueError(f"critical is {count!r}; the target has {n:,} critical bits")
    if isinstance(count, int):
        return float(count)
    if not count_probability(count, n, ber):
        raise ValueError(f"critical is {count!r}, which has no probability at ber {ber:g}")
    # E[K; K >= m] = n p P(K' >= m - 1) with K' ~ Binomial(n - 1, p).
    return float(n * ber * binom.sf(least - 2, n - 1, ber) / count_probability(count, n, ber))


def count_strata(n: int, ber: float) -> dict[int | str, float]:
    """Numbers of critical flips that are strata of their own, of n critical bits, and their probabilities; empty where plain
    maps do as well."""
    from scipy.stats import binom

    least = binom.sf(np.arange(-1, MAX_SEPARATE_FLIPS + 1), n, ber).tolist()  # P(K >= k)
    if 1 - least[-1] < MIN_STRATIFIED_PROBABILITY or not least[1]:
        return {}
    last = next(
        (k for k in range(1, MAX_SEPARATE_FLIPS) if least[k + 1] <= MAX_TAIL_SHARE * least[k]), MAX_SEPARATE_FLIPS
    )
    return dict(enumerate(binom.pmf(np.arange(last), n, ber).tolist())) | {f"{last}+": least[last]}


def draw_count(count: int | str, n: int, ber: float, raw: np.uint64) -> int:
    """The number of critical flips of one map; `raw` draws it if it is at least `count`, by inverting the distribution."""
    from scipy.stats import binom

    mean_count(count, n, ber)  # raises
    if isinstance(count, int):
        return count
    return int(binom.isf((1 - float(uniform(raw))) * count_probability(count, n, ber), n, ber))
