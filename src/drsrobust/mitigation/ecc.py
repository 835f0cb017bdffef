"""Error-correcting memory: SECDED over the words as they lie in memory."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from drsrobust._names import unknown
from drsrobust.injection import Target
from drsrobust.mitigation.beside import CheckBits
from drsrobust.mitigation.errors import NOTHING, Area, Errors, aligned, distinct, joined, ones, to_blocks, to_words
from drsrobust.mitigation.secded import CORRECTED, SECDED, UNCORRECTABLE, secded
from drsrobust.mitigation.storage import StorageProtection, Trial, Verdict

ACTIONS = ("keep", "zero", "restore")


class ECC(StorageProtection):
    """Memory with SECDED: (39,32) or (72,64), a Hsiao code (see `SECDED`), over the words of each tensor in memory order.

    A (72,64) word holds two float32, four bfloat16, eight bytes of a quantized row; a float64 fills two (39,32) words. The last
    code word of a tensor may be short: a correction that points behind its end is known to be wrong. Check bits take errors
    themselves (`check_bits`). A code word with 2 errors, and some with more, is detected as uncorrectable; others with 3 and
    more come out with a fourth error (miscorrected), or as they are (when the errors are a code word).

    P(2 and more of n bits wrong) = 1 - (1 - p)^n - n p (1 - p)^(n - 1): of (72,64) 2.6e-7, 2.5e-5, 2.4e-3, 0.16 at p = 1e-5 to
    1e-2. Stored bits: +12.5 % for (72,64), +21.9 % for (39,32).

    Args:
        data_bits: 64 or 32.
        uncorrectable: what is done with code words that are detected as uncorrectable: `"keep"` them as they are, `"zero"`
            their data bits, `"restore"` them from a golden copy (into sound memory, where bits are stuck).
        target: what is protected.

    `report` counts code words: `corrected`, `uncorrectable`, `miscorrected` (the decoder made a fourth error and thinks that
    all is well), `unnoticed` (errors that are a code word).

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> layer = nn.Linear(1000, 100)
        >>> drawn = dr.BitFlip(1e-3).sample(dr.resolve(layer), seed=1)
        >>> left, counts = ECC().report(drawn, layer, seed=1)
        >>> drawn.bits, left.bits, counts["uncorrectable"]
        (3160, 215, 122)
    """

    def __init__(self, data_bits: int = 64, uncorrectable: str = "keep", target: str | Target = "all") -> None:
        super().__init__(target)
        if data_bits not in (32, 64):
            raise ValueError(f"data_bits is {data_bits!r}; 32 makes (39,32), 64 makes (72,64)")
        if uncorrectable not in ACTIONS:
            raise unknown("action on uncorrectable errors", uncorrectable, ACTIONS)
        self.code, self.uncorrectable = secded(data_bits), uncorrectable
        then = "" if uncorrectable == "keep" else f", {uncorrectable}"
        self.name = f"SECDED ({self.code.bits},{data_bits}){then}{self.of_target()}"

    @property
    def label(self) -> str:
        return f"SECDED ({self.code.bits},{self.code.data_bits})"

    def settings(self) -> Any:
        return {**super().settings(), "data_bits": self.code.data_bits, "uncorrectable": self.uncorrectable}

    def words(self, area: Area, errors: Errors, beside: Mapping[str, Errors], trial: Trial) -> Verdict:
        size = self.code.data_bits
        blocks = to_blocks(errors, area.width, size)
        left, counts = decoded(self.code, blocks, beside.get(area.name, NOTHING), area.words * area.width)
        given_up = left.index[left.given_up]
        mask = left.mask
        if self.uncorrectable != "keep":
            mask = mask.copy()
            mask[left.given_up] = area.read_blocks(given_up, size) if self.uncorrectable == "zero" else 0
        noticed = counts["corrected"] + counts["uncorrectable"] + counts["miscorrected"] > 0
        unrepaired = counts["miscorrected"] > 0 or (counts["uncorrectable"] > 0 and self.uncorrectable != "restore")
        return Verdict(to_words(joined(left.index, mask), area.width, size), noticed, unrepaired, counts)

    def checks(self, area: Area) -> CheckBits:
        return CheckBits(-(-area.words * area.width // self.code.data_bits), self.code.check_bits)

    def units(self, area: Area, words: np.ndarray) -> np.ndarray:
        return blocks_of(words, area.width, self.code.data_bits)

    def content(self, area: Area, unit: np.ndarray) -> np.ndarray:
        return self.code.encode(area.read_blocks(unit, self.code.data_bits))


class Left(NamedTuple):
    """What a decoder left: masks uint64 [n] of the data bits of code words int64 [n], and which of these it gave up (bool)."""

    index: np.ndarray
    mask: np.ndarray
    given_up: np.ndarray


def decoded(code: SECDED, data: Errors, check: Errors, size: int) -> tuple[Left, dict[str, int]]:
    """Decodes the code words that errors hit.

    Args:
        code: the code.
        data, check: errors in their data and in their check bits, by code word.
        size: data bits of all code words; the last one may be short.
    """
    index, wrong, own = aligned(data, check)
    result = code.decode(wrong, own)
    last = np.flatnonzero(index == size // code.data_bits)  # there is one, if the last code word is short
    behind = last[(result.words[last] & ~ones(size % code.data_bits)) != 0]
    result.status[behind] = UNCORRECTABLE
    result.words[behind] = wrong[behind]
    given_up = result.status == UNCORRECTABLE
    corrected = result.status == CORRECTED
    # Check bits that are wrong by themselves do no harm; a decoder that was misled shows in the data or in them.
    misled = corrected & ((result.words | result.check) != 0)
    counts = {
        "corrected": int(corrected.sum() - misled.sum()),
        "uncorrectable": int(given_up.sum()),
        "miscorrected": int(misled.sum()),
        "unnoticed": int((result.status == 0).sum()),
    }
    return Left(index, result.words, given_up), counts


def blocks_of(words: np.ndarray, width: int, block: int) -> np.ndarray:
    """Which blocks of `block` bits some words of `width` bits (ascending numbers) lie in."""
    if width <= block:
        return distinct(words // (block // width))
    return (words[:, None] * (width // block) + np.arange(width // block)).ravel()
