"""Critical bits: the few bits whose flips cause most of the loss at low rates, how many of them flip, and strata by this.

A flip of the highest exponent bit makes most weights some 1e38 times as large. It matters where many rows of data use the
weight: outside the embedding tables, and in tables of few rows. At a bit error rate p the number K of critical flips is
Binomial(n, p) and independent of all other flips, so the mean of a metric is the sum over k of P(K = k) times its mean given
K = k (Cochran, Sampling Techniques, 3rd ed., 1977, chapter 5).

The sign and the other bits of the exponent of the same weights do less harm each, but in small models and narrow formats much
of all of it: where no critical bit flips, maps with and without such flips are strata of their own.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from drsrobust._arguments import check_instance, check_whole, wrong
from drsrobust.injection.address_space import AddressSpace, EligibleBits, TargetTensor
from drsrobust.injection.error_clock import uniform
from drsrobust.injection.number_formats import PADDING, TOP, Bits, Format, bit_set, harmful_masks

MAX_SEPARATE_FLIPS = 3  # critical flips whose numbers are strata of their own; at least so many share the last stratum
MIN_STRATIFIED_PROBABILITY = 0.1  # of at most so many critical flips; under it plain maps take over
MAX_TAIL_SHARE = 0.05  # of the last stratum, that more flips may have
# In a map of a pilot; at most one in so many bits of their kind, so that losses add up.
PILOT_FLIPS, PILOT_PART = 64, 64
# Of the mean loss: a smaller share hardly moves an interval over some hundred trials (measured by `make bench BENCH=coverage`).
MATERIAL = 0.08
_AT_LEAST = re.compile(r"(\d+)\+")
# How far a mitigation may move errors: within the chip that they lie in, within a word (as a range check, which sets a word to
# 0), or anywhere.
SPREAD = ("chip", "word", "anywhere")


@dataclass(frozen=True)
class Stratum:
    """A part of the error maps of an error model, or a pilot.

    Attributes:
        name: the number of critical flips, as `0` or `2+`, and of other flips of sign and exponent, as `0, others 1+`; the
            chips of a memory fault; `all` for plain maps.
        probability: that a plain map belongs to it; 0 of a pilot, whose trials have no weight.
        error_model: that draws its maps.
        bounded_within: the largest `SPREAD` of a mitigation under which no map of it is taken to lose more than those that
            were drawn; None: there may always be worse ones.
        unless: names of pilots. Where one of them shows harm, no bound is taken.
        pilot_share: of a pilot with many flips of one kind in a map: the mean number of these in plain maps without critical
            flips, times the probability of such maps, over the number in the pilot's maps. None: no pilot.
    """

    name: str
    probability: float
    error_model: Any
    bounded_within: str | None = None
    unless: tuple[str, ...] = ()
    pilot_share: float | None = None

    @property
    def is_pilot(self) -> bool:
        """Whether its trials have no weight."""
        return self.pilot_share is not None

    def is_bounded(self, spread: str, harmful: Collection[str] = ()) -> bool:
        """Whether its losses are taken to be bounded by those seen under a mitigation that moves errors so far.

        Args:
            spread: of the mitigation.
            harmful: the names of the pilots that show harm.
        """
        is_known = self.bounded_within is not None and not set(harmful) & set(self.unless)
        return is_known and SPREAD.index(spread) <= SPREAD.index(self.bounded_within)


def harmful_pilots(strata: Sequence[Stratum], losses: Sequence[np.ndarray]) -> set[str]:
    """The names of the pilots whose kind of flips makes a share of the mean loss that matters (`MATERIAL`).

    Args:
        strata: of one condition.
        losses: of the trials of each, without NaN.
    """
    means = [max(0.0, float(values.mean())) if len(values) else 0.0 for values in losses]
    pilots = {s.name: s.pilot_share * mean for s, mean in zip(strata, means, strict=True) if s.pilot_share is not None}
    # Of the strata that are bounded by what was seen the mean may miss what the pilots are about.
    critical = sum(
        s.probability * mean for s, mean in zip(strata, means, strict=True) if not s.is_pilot and not s.unless
    )
    return {name for name, loss in pilots.items() if loss > MATERIAL * (critical + loss)}


def check_count(count: int | str, name: str = "critical") -> int | str:
    """A number of critical flips as an int, or as text for at least so many.

    Raises:
        ValueError: neither.
    """
    if isinstance(count, str) and (match := _AT_LEAST.fullmatch(count)):
        return f"{int(match[1])}+"
    if isinstance(count, str):
        raise wrong(name, "a number of flips, 0 or more, or at least a number, as '3+'", count)
    return check_whole(name, count, 0)


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
        return eligible.once(("critical", self), lambda: self._among(eligible))

    def _among(self, eligible: AddressSpace) -> AddressSpace:
        tensors = []
        chosen: Any = self.bits  # a tuple since `__post_init__`
        for bits in eligible.eligible:
            masks = EligibleBits(bits.tensor, chosen).masks
            masks_inside = masks & bits.masks
            if not masks_inside.any() or self._is_large_table(bits.tensor):
                continue
            if (masks_inside != masks).any():
                raise ValueError(f"{self}: errors may hit only some of these bits of {bits.tensor.name}")
            tensors.append(bits.tensor)
        if not tensors:
            raise ValueError(
                f"the target has no critical bits: none of {list(chosen)} outside of embedding tables with over "
                f"{self.table_rows} rows; sample plain maps, or pass other CriticalBits"
            )
        return AddressSpace(tensors, self.bits)

    def parts(self, eligible: AddressSpace) -> "Parts":
        """The bits that may flip, by what a flip does.

        Raises:
            ValueError: as `among`.
        """
        critical = self.among(eligible)
        return eligible.once(("parts", self), lambda: self._parts(eligible, critical))

    def _parts(self, eligible: AddressSpace, critical: AddressSpace) -> "Parts":
        of_critical = {bits.tensor.name: bits.masks for bits in critical.eligible}
        others, mild, rest, joined = [], [], [], []
        for bits in eligible.eligible:
            left = bits.masks & ~of_critical.get(bits.tensor.name, np.uint64(0))
            harmful = left & (np.uint64(0) if self._is_large_table(bits.tensor) else harmful_masks(bits.tensor.format))
            others.append(_with_bits(bits.tensor, harmful))
            rest.append(_with_bits(bits.tensor, left & ~harmful))
            mild += [] if self._is_large_table(bits.tensor) else rest[-1:]
            wrong = of_critical.get(bits.tensor.name, np.uint64(0)) | harmful
            joined.append(_with_bits(bits.tensor, np.broadcast_to(wrong, bits.masks.shape)))
        return Parts(critical, *(AddressSpace(filter(None, tensors)) for tensors in (others, mild, rest, joined)))

    def _is_large_table(self, tensor: TargetTensor) -> bool:
        return tensor.stored is not None and tensor.stored.embedding and tensor.shape[0] > self.table_rows


def check_critical_bits(critical_bits: CriticalBits) -> None:
    """Raises ArgumentError for something else."""
    check_instance("critical_bits", critical_bits, CriticalBits, "a CriticalBits, as CriticalBits(table_rows=0)")


class Parts(NamedTuple):
    """Bits that may flip, by what a flip does; all but `critical` may be empty.

    Attributes:
        critical: the critical ones.
        others: the other bits of sign and exponent (`harmful_masks`), outside of large tables.
        mild: all others there, as of mantissas.
        rest: `mild` and all bits of large tables.
        harmful: `critical` and `others`.
    """

    critical: AddressSpace
    others: AddressSpace
    mild: AddressSpace
    rest: AddressSpace
    harmful: AddressSpace


def _with_bits(tensor: TargetTensor, masks: np.ndarray) -> TargetTensor | None:
    """The tensor with these bits alone (uint64 [period]); None without any."""
    if not masks.any():
        return None
    layout = tensor.format
    return replace(tensor, format=Format(layout.name, layout.dtype, {"value": masks, PADDING: np.zeros_like(masks)}))


def flips_in(
    eligible: AddressSpace, parts: Iterable[tuple[AddressSpace, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tensor in a space (int32), word (int64) and mask (uint64) of flips.

    Args:
        eligible: the space.
        parts: parts of its bits, each with the places in it that flip.
    """
    tensors, words, masks = [np.empty(0, np.int32)], [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for part, places in parts:
        tensor, word, mask = part.locate_masks(places)
        tensors.append(_index(eligible, part)[tensor])
        words.append(word)
        masks.append(mask)
    return np.concatenate(tensors), np.concatenate(words), np.concatenate(masks)


def masks_in(part: AddressSpace, eligible: AddressSpace, error_map: Any) -> np.ndarray:
    """The bits of a part of a space in each word of an error map: masks uint64 [n].

    Args:
        part: of the space.
        eligible: the space.
        error_map: over the space, with `tensor` and `word`, sorted.
    """
    masks = np.zeros(len(error_map), np.uint64)
    for number, bits in zip(_index(eligible, part), part.eligible, strict=True):
        start, end = np.searchsorted(error_map.tensor, [number, number + 1])
        masks[start:end] = bits.mask_of(error_map.word[start:end])
    return masks


def _index(eligible: AddressSpace, part: AddressSpace) -> np.ndarray:
    """The tensors of a part of a space in the space: int32 [tensors]."""
    number = {tensor.name: index for index, tensor in enumerate(eligible.tensors)}
    return np.array([number[tensor.name] for tensor in part.tensors], np.int32)


def count_probability(count: int | str, n: int, ber: float) -> float:
    """P(K = count), or P(K >= count), of K ~ Binomial(n, ber).

    Example:
        >>> count_probability(0, 1000, 1e-3), count_probability("2+", 1000, 1e-3)
        (0.3676..., 0.2642...)
    """
    return _probability(count, *_numbers(n, ber, None))


def _numbers(n: int, drawn: float, bits: int | None) -> tuple[Any, tuple[float, ...]]:
    """The distribution of how many of n bits flip, with its parameters: binomial at the rate `drawn`, or hypergeometric where
    `drawn` of all `bits` flip."""
    from scipy.stats import binom, hypergeom

    return (binom, (n, drawn)) if bits is None else (hypergeom, (bits, n, drawn))


def _probability(count: int | str, law: Any, parameters: tuple[float, ...]) -> float:
    if isinstance(count, int):
        return float(law.pmf(count, *parameters))
    return float(law.sf(int(count[:-1]) - 1, *parameters))


def mean_count(count: int | str, n: int, ber: float, name: str = "critical") -> float:
    """The number of flips in n bits of a kind, or its mean given that there are at least so many.

    Raises:
        ValueError: more flips than bits, or flips at a rate of 0.
    """
    from scipy.stats import binom

    _check_possible(count, n, ber, name)
    if isinstance(count, int):
        return float(count)
    least = int(count[:-1])
    # E[K; K >= m] = n p P(K' >= m - 1) with K' ~ Binomial(n - 1, p).
    return float(n * ber * binom.sf(least - 2, n - 1, ber) / count_probability(count, n, ber)) if least else n * ber


def _check_possible(count: int | str, n: int, drawn: float, name: str, bits: int | None = None) -> None:
    """Raises ValueError for more flips than bits, and for numbers that never come."""
    least = count if isinstance(count, int) else int(count[:-1])
    if least > n:
        raise ValueError(
            f"{name} is {count!r}; the target has {n:,} {'critical' if name == 'critical' else 'such'} bits"
        )
    # Flips in a given number may be asked for at any rate; those of a fixed count must leave the others room.
    if (bits is not None or isinstance(count, str)) and not _probability(count, *_numbers(n, drawn, bits)):
        raise ValueError(
            f"{name} is {count!r}, which has no probability at ber {drawn:g}"
            if bits is None
            else f"{name} is {count!r}, which is impossible where {drawn} of {bits:,} bits flip, {n:,} of them such"
        )


def count_strata(n: int, drawn: float, bits: int | None = None) -> dict[int | str, float]:
    """Numbers of critical flips that are strata of their own, of n critical bits, and their probabilities; empty where plain
    maps do as well.

    Args:
        n: critical bits.
        drawn: the bit error rate, or how many bits flip.
        bits: of which as many as `drawn` flip; None: `drawn` is a rate.
    """
    law, parameters = _numbers(n, drawn, bits)
    least = law.sf(np.arange(-1, MAX_SEPARATE_FLIPS + 1), *parameters).tolist()  # P(K >= k)
    if 1 - least[-1] < MIN_STRATIFIED_PROBABILITY or not least[1] or not law.pmf(0, *parameters):
        return {}
    last = next(
        (k for k in range(1, MAX_SEPARATE_FLIPS) if least[k + 1] <= MAX_TAIL_SHARE * least[k]), MAX_SEPARATE_FLIPS
    )
    return dict(enumerate(law.pmf(np.arange(last), *parameters).tolist())) | {f"{last}+": least[last]}


def bit_strata(
    model: Any,
    pilot: Any,
    parts: Parts,
    counts: Mapping[int | str, float],
    no_others: float,
    means: tuple[float, float],
    critical_bits: CriticalBits,
) -> list[Stratum]:
    """The strata of an error model of flips, and its pilots: by the number of critical flips; maps without any by whether
    other bits of sign and exponent flip, unless these nearly always do.

    Args:
        model: with the fields `critical`, `critical_bits` and `others`.
        pilot: the model of pilots, with `mild` too.
        parts: the bits that it may flip.
        counts: numbers of critical flips that are strata of their own, and their probabilities.
        no_others: P(no flip in `parts.others`), given that no critical bit flips.
        means: mean number of flips in `parts.others` and in `parts.mild`, given that no critical bit flips.
        critical_bits: which bits are critical.
    """
    strata: list[Stratum] = []
    pilots = pilots_of(pilot, parts, tuple(counts.get(0, 0.0) * mean for mean in means), critical_bits)
    harm = {name: tuple(one.name for one in pilots if name in one.name) for name in ("others", "mild")}
    for count, probability in counts.items():
        drawn = replace(model, critical=count, critical_bits=critical_bits)
        if count:
            strata.append(Stratum(str(count), probability, drawn))
        elif MIN_STRATIFIED_PROBABILITY <= no_others < 1:
            for other, share in ((0, no_others), ("1+", 1 - no_others)):
                name = f"{count}, others {other}"
                unless = harm["others"] if other else harm["mild"]
                strata.append(Stratum(name, probability * share, replace(drawn, others=other), "anywhere", unless))
        else:
            strata.append(Stratum(str(count), probability, drawn, "anywhere", harm["others"] + harm["mild"]))
    return strata + pilots


def pilots_of(model: Any, parts: Parts, means: Sequence[float], critical_bits: CriticalBits) -> list[Stratum]:
    """The pilots with many flips in `parts.others`, and with many in `parts.mild`.

    Args:
        model: with the fields `critical`, `critical_bits`, `others` and `mild`.
        parts: the bits that may flip.
        means: mean number of flips of each in a plain map without critical flips, times the probability of such maps; no pilot
            where it is 0.
        critical_bits: which bits are critical.
    """
    pilots = []
    for (name, part), mean in zip((("others", parts.others), ("mild", parts.mild)), means, strict=True):
        if mean:
            flips = min(PILOT_FLIPS, -(-part.bits // PILOT_PART))
            drawn = replace(model, critical=0, critical_bits=critical_bits, **{name: flips})
            pilots.append(Stratum(f"pilot, {name} {flips}", 0.0, drawn, pilot_share=mean / flips))
    return pilots


def draw_count(
    count: int | str, n: int, drawn: float, raw: Any, name: str = "critical", bits: int | None = None
) -> int:
    """The number of flips in n bits of a kind; `raw` draws it if it is at least `count`, by inverting the distribution.

    Args:
        count, n, name: of the flips.
        raw: uint64.
        drawn, bits: as of `count_strata`.

    Raises:
        ValueError: more flips than bits, or a number that never comes.
    """
    _check_possible(count, n, drawn, name, bits)
    if isinstance(count, int):
        return count
    law, parameters = _numbers(n, drawn, bits)
    return int(law.isf((1 - float(uniform(raw))) * _probability(count, law, parameters), *parameters))
