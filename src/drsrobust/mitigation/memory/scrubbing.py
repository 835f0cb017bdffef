"""Checksums of rows, blocks or tensors, checked from time to time; what does not fit is loaded anew."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from drsrobust._environment import unknown
from drsrobust._hashing import splitmix64
from drsrobust.injection import BitFlip, Burst, FixedCount, RowError, SingleBit, StuckAt, Target
from drsrobust.injection.error_clock import uniform
from drsrobust.injection.error_map import Source
from drsrobust.mitigation.memory.check_memory import CheckBits, own_stream
from drsrobust.mitigation.memory.protected_words import NOTHING, Area, Errors, aligned, distinct, joined, ones
from drsrobust.mitigation.memory.storage import StorageProtection, Trial, Verdict

CHECKSUMS = ("crc32", "sum")
_BITS = 32
_AT_ONCE = 1 << 20  # words read at once to reckon checksums


class Scrubbing(StorageProtection):
    """A checksum of 32 bits per row (or tensor, or block of bytes); a scrubber comes by every `period`, compares, and loads
    what does not fit from a golden copy (into sound memory, where bits are stuck).

    The errors of a map are those that gathered over a time `window`, H. Each arrived at a time that is uniform over it. Tensors
    are scrubbed one row after the other, without a pause, so at the time of use the last visit to a row is A ago, A uniform
    over [0, T], T the period (where in its round the scrubber is, is drawn per trial and tensor). What is younger than A is
    still there: the share E[min(A, H)] / H, that is T / (2 H) for T <= H and 1 - H / (2 T) for T >= H (`exposure`). T = 0:
    every use is checked.

    Bits that err by themselves (`BitFlip`, `FixedCount`, `StuckAt`, a loaded map) arrive by themselves, the bits of a word
    together where words are hit, those of a checked unit together for `Burst` and `RowError`. (One burst over several units
    arrives at several times.) An arrival is a hash of its place, so what is left is nested over rates.

    - `"crc32"`: that another pattern has the same CRC has probability 2^-32 and is left out.
    - `"sum"` of the words modulo 2^32 (64-bit words in halves): which patterns escape is reckoned exactly, from the words: as
      2^b in one word and -2^b in another; an error of the checksum that fits the data's among them. All of a unit's errors
      older than the last visit are taken together, as if there had been no visit before.

    Stored bits: 32 per unit. Checksums take errors themselves, which costs a reload and does no harm.

    Args:
        period: of the scrubber, in any unit of time.
        window: over which errors gathered, in the same unit.
        per: `"row"` (of a vector: all of it), `"tensor"`, or a number of bytes.
        checksum: `"crc32"` or `"sum"`.
        target: what is protected.

    `report` counts units: `reloaded` (`sound` of them had errors in the checksum alone), `escaped`.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> table = nn.EmbeddingBag(10_000, 16)
        >>> drawn = dr.BitFlip(1e-3).sample(dr.resolve(table), seed=1)
        >>> scrubbing = Scrubbing(period=1, window=10)
        >>> left = scrubbing.screen(drawn, table, seed=1)
        >>> scrubbing.exposure, round(left.bits / drawn.bits, 3), scrubbing.cost(table).stored_bits
        (0.05, 0.053, 320000)
    """

    def __init__(
        self,
        period: float = 0.0,
        window: float = 1.0,
        per: str | int = "row",
        checksum: str = "crc32",
        target: str | Target = "all",
    ) -> None:
        super().__init__(target)
        for name, value, positive in (("period", period, False), ("window", window, True)):
            number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not number or not (0 < value < np.inf if positive else 0 <= value < np.inf):
                raise ValueError(
                    f"{name} is {value!r}; it must be a time, {'more than 0' if positive else '0 or more'}"
                )
        if checksum not in CHECKSUMS:
            raise unknown("checksum", checksum, CHECKSUMS)
        if per not in ("row", "tensor") and (isinstance(per, bool) or not isinstance(per, int | np.integer) or per < 8):
            raise ValueError(f"per is {per!r}; it must be 'row', 'tensor' or a number of bytes, 8 or more")
        self.period, self.window, self.checksum = float(period), float(window), checksum
        self.per = per if isinstance(per, str) else int(per)
        unit = per if isinstance(per, str) else f"{per} bytes"
        when = "checked at use" if not period else f"scrubbed every {self.period / self.window:g} of the time"
        self.name = f"{checksum.upper() if checksum == 'crc32' else 'sum'} per {unit}, {when}{self.of_target()}"

    @property
    def exposure(self) -> float:
        """The expected share of errors that are still there."""
        ratio = self.period / self.window
        return ratio / 2 if ratio <= 1 else 1 - 1 / (2 * ratio)

    @property
    def label(self) -> str:
        return f"Scrubbing per {self.per}"

    def settings(self) -> Any:
        own = {"period": self.period, "window": self.window, "per": self.per, "checksum": self.checksum}
        return {**super().settings(), **own}

    def words(self, area: Area, errors: Errors, beside: Mapping[str, Errors], trial: Trial) -> Verdict:
        size, stream = self._unit(area), own_stream(trial.seed, f"{self.label} {area.name}")
        phase, key, own_key = (int(raw) for raw in stream.random_raw(3))

        def oldest(unit: np.ndarray) -> np.ndarray:
            """The age from which on errors in a unit are gone, as a share of the window."""
            place = unit / self._units(area) + phase * 2.0**-64
            return self.period / self.window * (place - np.floor(place))

        old = _old(errors, errors.index // size, oldest, key, _together(trial.sources), size)
        own = beside.get(area.name, NOTHING)
        own = joined(own.index, _old(own, own.index, oldest, own_key, "bit", 1))
        older = joined(errors.index, old)
        in_units = joined(older.index // size, np.ones(len(older.index), np.uint64))
        unit, data, check = aligned(in_units, own)
        if self.checksum == "sum":
            noticed = _sum_of(older, area, size, unit) != self._sum_error(area, unit, check)
        else:
            noticed = np.ones(len(unit), bool)
        reloaded = unit[noticed]
        gone = np.isin(errors.index // size, reloaded)
        left = np.where(gone, errors.mask & ~old, errors.mask)
        counts = {"reloaded": len(reloaded), "sound": int((data[noticed] == 0).sum()), "escaped": int((~noticed).sum())}
        return Verdict(joined(errors.index, left), bool(len(reloaded)), False, counts)

    def checks(self, area: Area) -> CheckBits:
        return CheckBits(self._units(area), _BITS)

    def units(self, area: Area, words: np.ndarray) -> np.ndarray:
        return distinct(words // self._unit(area))

    def content(self, area: Area, unit: np.ndarray) -> np.ndarray:
        size, found = self._unit(area), np.zeros(len(unit), np.uint64)
        step = max(1, _AT_ONCE // size)
        for start in range(0, len(unit), step):
            local = unit[start : start + step, None] * size + np.arange(size)
            there = local < area.words  # the last unit may be short
            held = np.zeros(local.shape, np.uint64)
            held[there] = area.read(local[there])
            if self.checksum == "sum":
                found[start : start + step] = _folded(held, area).sum(axis=1) & ones(_BITS)
            else:
                rows = held.astype(f"<u{area.width // 8}")
                crcs = [zlib.crc32(row[inside].tobytes()) for row, inside in zip(rows, there, strict=True)]
                found[start : start + step] = crcs
        return found

    def _unit(self, area: Area) -> int:
        """Words of a unit."""
        if isinstance(self.per, int):
            return max(1, 8 * self.per // area.width)
        return area.unit if self.per == "row" else max(1, area.words)

    def _units(self, area: Area) -> int:
        return -(-area.words // self._unit(area))

    def _sum_error(self, area: Area, unit: np.ndarray, check: np.ndarray) -> np.ndarray:
        """By how much a unit's stored sum is wrong, modulo 2^32."""
        found = np.zeros(len(unit), np.uint64)
        hit = check != 0
        held = self.content(area, unit[hit])
        found[hit] = ((held ^ check[hit]) - held) & ones(_BITS)
        return found


def _together(sources: tuple[Source, ...]) -> str:
    """What arrives at one time: a bit, a word or a checked unit."""
    models = [source.error_model for source in sources]
    if all(isinstance(model, BitFlip | FixedCount | SingleBit | StuckAt) for model in models):
        return "bit"
    return "unit" if any(isinstance(model, Burst | RowError) for model in models) else "word"


def _old(
    errors: Errors, unit: np.ndarray, oldest: Callable[[np.ndarray], np.ndarray], key: int, together: str, size: int
) -> np.ndarray:
    """The masks of those errors that the scrubber has met: uint64 [n]."""
    limit = oldest(unit)
    if together != "bit":
        place = unit if together == "unit" else errors.index
        return np.where(_age(place, 0, key) >= limit, errors.mask, np.uint64(0))
    old = np.zeros_like(errors.mask)
    for bit in range(int(np.bitwise_or.reduce(errors.mask)).bit_length() if len(old) else 0):
        here = np.flatnonzero(errors.mask & np.uint64(1 << bit))
        here = here[_age(errors.index[here], bit, key) >= limit[here]]
        old[here] |= np.uint64(1 << bit)
    return old


def _age(place: np.ndarray, bit: int, key: int) -> np.ndarray:
    """How long ago errors arrived, as a share of the window: SplitMix64 of key and place."""
    return uniform(splitmix64((place.astype(np.uint64) * np.uint64(64) + np.uint64(bit)) ^ np.uint64(key)))


def _folded(words: np.ndarray, area: Area) -> np.ndarray:
    """What words add to a sum modulo 2^32: 64-bit words their halves."""
    if area.width <= _BITS:
        return words
    return (words & ones(_BITS)) + (words >> np.uint64(_BITS))


def _sum_of(errors: Errors, area: Area, size: int, unit: np.ndarray) -> np.ndarray:
    """By how much errors change the sums of units (ascending), modulo 2^32."""
    right = area.read(errors.index)
    by = _folded(right ^ errors.mask, area) - _folded(right, area)
    found = np.zeros(len(unit), np.uint64)
    np.add.at(found, np.searchsorted(unit, errors.index // size), by)
    return found & ones(_BITS)
