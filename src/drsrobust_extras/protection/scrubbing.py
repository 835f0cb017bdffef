"""Scrubbing: checksums of rows, blocks or tensors, checked periodically; units that fail are reloaded."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from drsrobust.extend import (
    CheckBits,
    Errors,
    MapSource,
    ProtectedWords,
    check_choice,
    check_number,
    check_whole,
    distinct,
    label_stream,
    ones,
    splitmix64,
    uniform,
    wrong,
)
from drsrobust.injection import UNITS, Target
from drsrobust.mitigation import NO_ERRORS, DrawContext, Screened, StorageProtection

CHECKSUMS = ("crc32", "sum")
_BITS = 32
_AT_ONCE = 1 << 20  # words read at once


class Scrubbing(StorageProtection):
    """A checksum of 32 bits per row (or tensor, or block of bytes). Every `period` a scrubber compares it and reloads a unit
    that fails from a golden copy (into sound memory, where bits are stuck).

    The errors of a map gathered over a time `window`, H; each arrived at a time uniform over it. Tensors are scrubbed row by
    row without a pause, so at the time of use the last visit to a row is A ago, A uniform over [0, T], T the period (the
    scrubber's position in its round is drawn per trial and tensor). Errors younger than A are still present: the share
    E[min(A, H)] / H, that is T / (2 H) for T <= H and 1 - H / (2 T) for T >= H (`exposure`). T = 0: every use is checked.

    Bits arrive together by the `unit` of the error model: each bit by itself (as of `BitFlip` and of a loaded map), the bits of
    a word, or those of a checked unit (as of `RowError`; one burst over several units arrives at several times). An arrival is
    a hash of its place, so the errors that remain are nested over rates.

    - `"crc32"`: the probability 2^-32 that a wrong unit has the same CRC is neglected.
    - `"sum"` of the words modulo 2^32 (64-bit words in halves): which patterns escape is computed exactly from the words, such
      as 2^b in one word and -2^b in another, or an error of the checksum that fits the data's. All errors of a unit older than
      the last visit are checked together, as if there had been no visit before.

    Stored bits: 32 per unit. Checksums take errors too, which cost a reload and do no harm.

    Args:
        period: of the scrubber, in any unit of time.
        window: over which errors gathered, in the same unit.
        per: `"row"` (of a vector: all of it), `"tensor"`, or a number of bytes.
        checksum: `"crc32"` or `"sum"`.
        target: protected tensors.

    `counts` of `screen`, of units: `reloaded` (`sound` of them had errors only in the checksum), `escaped`.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> table = nn.EmbeddingBag(10_000, 16)
        >>> space = dr.resolve(table)
        >>> drawn = dr.BitFlip(1e-3).sample(space, seed=1)
        >>> scrubbing = Scrubbing(period=1, window=10)
        >>> remaining = scrubbing.screen(drawn, space, seed=1).remaining
        >>> scrubbing.exposure, round(remaining.bits / drawn.bits, 3), scrubbing.cost(table).stored_bits
        (0.05, 0.052, 320000)
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
        self.period, self.window = checked_times(period, window)
        check_choice("checksum", checksum, CHECKSUMS)
        if isinstance(per, str) and per not in ("row", "tensor"):
            raise wrong("per", "'row', 'tensor' or a number of bytes, 8 or more", per)
        self.checksum = checksum
        self.per = per if isinstance(per, str) else check_whole("per", per, 8)
        unit = per if isinstance(per, str) else f"{self.per} bytes"
        when = "checked at use" if not period else f"scrubbed every {self.period / self.window:g} of the time"
        self.name = f"{checksum.upper() if checksum == 'crc32' else 'sum'} per {unit}, {when}{self.target_suffix()}"

    @property
    def exposure(self) -> float:
        """The expected share of errors that are still present at the time of use."""
        return exposure(self.period, self.window)

    @property
    def label(self) -> str:
        return f"Scrubbing per {self.per}"

    def settings(self) -> Any:
        options = {"period": self.period, "window": self.window, "per": self.per, "checksum": self.checksum}
        return {**super().settings(), **options}

    def decode(
        self, protected: ProtectedWords, errors: Errors, stored: Mapping[str, Errors], trial: DrawContext
    ) -> Screened:
        size, stream = self._unit_words(protected), label_stream(trial.seed, f"{self.label} {protected.name}")
        phase, key, check_key = (int(raw) for raw in stream.random_raw(3))

        def last_visit(unit: np.ndarray) -> np.ndarray:
            """How long ago units were scrubbed, as a share of the window."""
            place = unit / self._n_units(protected) + phase * 2.0**-64
            return self.period / self.window * (place - np.floor(place))

        errors_unit = errors.index // size
        old = arrived_before(errors, errors_unit, last_visit, key, arriving_together(trial.sources))
        check = stored.get(protected.name, NO_ERRORS)
        check = Errors.merged(check.index, arrived_before(check, check.index, last_visit, check_key, "bit"))
        old_errors = Errors.merged(errors.index, old)
        in_units = Errors.merged(old_errors.index // size, np.ones(len(old_errors.index), np.uint64))
        unit, data, check_mask = Errors.aligned(in_units, check)
        if self.checksum == "sum":
            fails = _sum_change(old_errors, protected, size, unit) != self._check_change(protected, unit, check_mask)
        else:
            fails = np.ones(len(unit), bool)
        reloaded = unit[fails]
        remaining = np.where(np.isin(errors_unit, reloaded), errors.mask & ~old, errors.mask)
        counts = {"reloaded": len(reloaded), "sound": int((data[fails] == 0).sum()), "escaped": int((~fails).sum())}
        return Screened(Errors.merged(errors.index, remaining), bool(len(reloaded)), True, counts=counts)

    def check_bits(self, protected: ProtectedWords) -> CheckBits:
        return CheckBits(self._n_units(protected), _BITS)

    def units(self, protected: ProtectedWords, words: np.ndarray) -> np.ndarray:
        return distinct(words // self._unit_words(protected))

    def content(self, protected: ProtectedWords, unit: np.ndarray) -> np.ndarray:
        size, sums = self._unit_words(protected), np.zeros(len(unit), np.uint64)
        step = max(1, _AT_ONCE // size)
        for start in range(0, len(unit), step):
            local = unit[start : start + step, None] * size + np.arange(size)
            exists = local < protected.words  # the last unit may be short
            words = np.zeros(local.shape, np.uint64)
            words[exists] = protected.read(local[exists])
            if self.checksum == "sum":
                sums[start : start + step] = _folded(words, protected).sum(axis=1) & ones(_BITS)
            else:
                rows = words.astype(f"<u{protected.width // 8}")
                crcs = [zlib.crc32(row[columns].tobytes()) for row, columns in zip(rows, exists, strict=True)]
                sums[start : start + step] = crcs
        return sums

    def _unit_words(self, protected: ProtectedWords) -> int:
        if isinstance(self.per, int):
            return max(1, 8 * self.per // protected.width)
        return protected.row_words if self.per == "row" else max(1, protected.words)

    def _n_units(self, protected: ProtectedWords) -> int:
        return -(-protected.words // self._unit_words(protected))

    def _check_change(self, protected: ProtectedWords, unit: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """By how much errors change the stored sums of units, modulo 2^32."""
        change = np.zeros(len(unit), np.uint64)
        hit = mask != 0
        sums = self.content(protected, unit[hit])
        change[hit] = ((sums ^ mask[hit]) - sums) & ones(_BITS)
        return change


def checked_times(period: float, window: float) -> tuple[float, float]:
    """The period of a periodic check and the time over which errors gather, as floats.

    Raises:
        ValueError: a period under 0, a window of 0 or less, or no finite number.
    """
    period = check_number("period", period, "a time of 0 or more", lambda time: time >= 0)
    return period, check_number("window", window, "a time over 0", lambda time: time > 0)


def exposure(period: float, window: float) -> float:
    """The expected share of errors, gathered at uniform times over a window, that arrived after the last of periodic checks.

    Example:
        >>> exposure(1, 10), exposure(10, 1)
        (0.05, 0.95)
    """
    ratio = period / window
    return ratio / 2 if ratio <= 1 else 1 - 1 / (2 * ratio)


def arriving_together(sources: tuple[MapSource, ...]) -> str:
    """The bits that arrive at one time: a `bit`, a `word`, or a `row`, which is a checked unit here."""
    return max((source.error_model.unit for source in sources), key=UNITS.index, default="bit")


def arrived_before(
    errors: Errors, unit: np.ndarray, last_visit: Callable[[np.ndarray], np.ndarray], key: int, groups: str
) -> np.ndarray:
    """The masks (uint64 [n]) of errors that arrived before the last visit.

    Args:
        errors: of one tensor, n words.
        unit: int64 [n], the checked unit of each word.
        last_visit: units -> how long ago they were visited, as a share of the window.
        key: of the hash that gives arrivals.
        groups: what arrives at one time, as `arriving_together`: a row is a unit.
    """
    limit = last_visit(unit)
    if groups != "bit":
        place = unit if groups == "row" else errors.index
        return np.where(_age(place, 0, key) >= limit, errors.mask, np.uint64(0))
    old = np.zeros_like(errors.mask)
    for bit in range(int(np.bitwise_or.reduce(errors.mask)).bit_length() if len(old) else 0):
        hit = np.flatnonzero(errors.mask & np.uint64(1 << bit))
        hit = hit[_age(errors.index[hit], bit, key) >= limit[hit]]
        old[hit] |= np.uint64(1 << bit)
    return old


def _age(place: np.ndarray, bit: int, key: int) -> np.ndarray:
    """How long ago errors arrived, as a share of the window: SplitMix64 of key and place."""
    return uniform(splitmix64((place.astype(np.uint64) * np.uint64(64) + np.uint64(bit)) ^ np.uint64(key)))


def _folded(words: np.ndarray, protected: ProtectedWords) -> np.ndarray:
    """What words add to a sum modulo 2^32: of 64-bit words the sum of their halves."""
    if protected.width <= _BITS:
        return words
    return (words & ones(_BITS)) + (words >> np.uint64(_BITS))


def _sum_change(errors: Errors, protected: ProtectedWords, size: int, unit: np.ndarray) -> np.ndarray:
    """By how much errors change the sums of units (ascending), modulo 2^32."""
    words = protected.read(errors.index)
    change = np.zeros(len(unit), np.uint64)
    by_word = _folded(words ^ errors.mask, protected) - _folded(words, protected)
    np.add.at(change, np.searchsorted(unit, errors.index // size), by_word)
    return change & ones(_BITS)
