"""Selective bit protection: some bits of each word are kept better than the others."""

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
from torch import nn

from drsrobust._environment import unknown
from drsrobust.injection import Target, as_target
from drsrobust.injection.address_space import TargetTensor
from drsrobust.injection.number_formats import bit_set
from drsrobust.mitigation.memory.check_memory import CheckBits, copy_errors, copy_tensor
from drsrobust.mitigation.memory.ecc import SECDED, decoded, secded
from drsrobust.mitigation.memory.protected_words import NOTHING, Area, Errors, Packed, aligned, distinct, flips, joined
from drsrobust.mitigation.memory.replication import majority
from drsrobust.mitigation.memory.storage import StorageProtection, Trial, Verdict

CODES = ("ideal", "tmr", "secded")
Bits = Iterable[int | str] | str


class BitProtection(StorageProtection):
    """Chosen bits of every protected word are kept by cells that do not err (`"ideal"`), or by a code:

    - `"tmr"`: two more copies of them, which take errors themselves; a bit is what two of three say, so wrong with probability
      3 p^2 - 2 p^3. Stored bits: 2 of b protected bits each, +56 % for 9 of 32.
    - `"secded"`: the protected bits of several words in one code word of at most 64 data bits (7 words' 9 bits in one of 63
      data and 8 check bits: 8 / (7 x 32) = +3.6 %). Code words hold whole words' bits where each word has the same number of
      them, and 64 bits in a row in quantized rows. Uncorrectable ones stay as they are.

    Source: the selective bit protection of arXiv:2307.10244, which is ideal and has no cost there.

    Args:
        bits: which: numbers (0 the lowest) and fields of the format, as in `BitFlip`: `"sign"`, `"exponent"`, `{30}`,
            `range(23, 32)`, `("sign", "exponent", 22)`; `"scale"` and `"bias"` of quantized rows. Or a dictionary with such a
            set for each of several targets (component, group, glob).
        target: what is protected, unless `bits` says so.
        code: `"ideal"`, `"tmr"` or `"secded"`.

    `report` counts, with TMR: `corrected` and `outvoted` bits; with SECDED what `ECC` counts.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> layer = nn.Linear(64, 64)
        >>> with dr.inject(layer, dr.BitFlip(1e-3), seed=1, mitigation=BitProtection(("sign", "exponent"))) as left:
        ...     print(left.counts("field").to_dict(), left.drawn.counts("field").to_dict())
        {'mantissa': 91} {'exponent': 37, 'mantissa': 91, 'sign': 9}
        >>> [round(BitProtection(range(23, 32), code=code).cost(layer).stored_bits / 4160 / 32, 4) for code in CODES]
        [0.0, 0.5625, 0.0358]
    """

    def __init__(
        self,
        bits: Bits | Mapping[str, Bits],
        target: str | Target = "all",
        code: str = "ideal",
        *,
        released: bool = False,
    ) -> None:
        if isinstance(bits, Mapping) and target != "all":
            raise ValueError(
                f"bits names its targets, {', '.join(bits)}, and target= {str(target)!r} has no meaning beside"
            )
        if code not in CODES:
            raise unknown("code of bit protection", code, CODES)
        if isinstance(bits, Mapping) and not bits:
            raise ValueError("bits names no target; name one or more, with the bits to protect")
        given = list(bits.items()) if isinstance(bits, Mapping) else [(target, bits)]
        self._parts = [(as_target(where), bit_set(some)) for where, some in given]
        super().__init__(reduce(or_, (where for where, _ in self._parts)))
        self.code, self.released = code, released
        self.tells_errors = code != "ideal" and not released
        self.name = "bits " + "; ".join(map(_shown, self._parts))
        self.name += "" if code == "ideal" else f", {code.upper()}"
        self.name += ", as released" if released else ""

    @classmethod
    def as_released(cls, bits: Bits, target: str | Target = "all") -> "BitProtection":
        """What the published scripts did until April 2023: the protection was applied before the error map was drawn, and
        protected nothing."""
        return cls(bits, target, released=True)

    @property
    def label(self) -> str:
        return f"BitProtection {self.code}"

    def settings(self) -> Any:
        parts = [[str(where), list(bits)] for where, bits in self._parts]
        return {"bits": parts, "code": self.code, "released": self.released}

    def areas(self, model: nn.Module) -> Iterator["ChosenBits"]:
        """What it protects in a model.

        Raises:
            ValueError: bits that no tensor of their target has; a tensor that two targets name.
        """
        seen: dict[str, Target] = {}
        for where, bits in self._parts:
            for tensor in where.resolve(model).only(bits).tensors:
                if tensor.name in seen:
                    raise ValueError(f"{tensor.name} is protected twice: as {seen[tensor.name]} and as {where}")
                seen[tensor.name] = where
                yield ChosenBits(tensor, bits)

    def words(self, area: "ChosenBits", errors: Errors, beside: Mapping[str, Errors], trial: Trial) -> Verdict:
        if self.released:
            return Verdict(errors)
        chosen = area.packed.masks[errors.index % len(area.packed.masks)]
        inside, outside = joined(errors.index, errors.mask & chosen), joined(errors.index, errors.mask & ~chosen)
        if self.code == "ideal":
            return Verdict(outside)
        verdict = _voted(area, inside, beside) if self.code == "tmr" else _decoded(area, inside, beside)
        left = verdict.errors
        both = joined(np.append(left.index, outside.index), np.append(left.mask, outside.mask))
        return verdict._replace(errors=both)

    def checks(self, area: "ChosenBits") -> CheckBits | None:
        if self.released or self.code != "secded":
            return None
        return CheckBits(area.code_words, area.code.check_bits)

    def units(self, area: "ChosenBits", words: np.ndarray) -> np.ndarray:
        return distinct(area.packed.ends(words).ravel() // area.code.data_bits)

    def content(self, area: "ChosenBits", unit: np.ndarray) -> np.ndarray:
        return area.code.encode(area.read_chosen(unit))

    def beside(self, area: "ChosenBits", rows: np.ndarray | None) -> Iterator[TargetTensor]:
        copies = (1, 2) if self.code == "tmr" and not self.released else ()
        yield from (copy_tensor(area, number, rows, area.packed.masks) for number in copies)
        yield from super().beside(area, rows)

    def extra_bits(self, area: "ChosenBits") -> int:
        if self.code == "tmr" and not self.released:
            return 2 * area.packed.bits
        return super().extra_bits(area)


class ChosenBits(Area):
    """Some bits of each word of an area, and the code words that they would fill."""

    def __init__(self, tensor: TargetTensor, bits: tuple[int | str, ...]) -> None:
        super().__init__(tensor)
        self.packed = Packed(self, bits)

    @property
    def code(self) -> SECDED:
        """Over bits of whole words, as many as 64 data bits hold; in quantized rows over 64 in a row."""
        each = int(np.bitwise_count(self.packed.masks[0])) if len(self.packed.masks) == 1 else 1
        return secded(64 // each * each)

    @property
    def code_words(self) -> int:
        """How many there are."""
        return -(-self.packed.bits // self.code.data_bits)

    def read_chosen(self, code_word: np.ndarray) -> np.ndarray:
        """The data bits (uint64 [n]) of code words."""
        size = self.code.data_bits
        position = code_word[:, None] * size + np.arange(size)
        there = position < self.packed.bits
        word, bit = self.packed.region.locate(position[there])
        local, _ = self.local(word)
        found = np.zeros(position.shape, np.uint64)
        found[there] = (self.read(local) >> bit.astype(np.uint64)) & np.uint64(1)
        return np.bitwise_or.reduce(found << np.arange(size, dtype=np.uint64), axis=1)


def _voted(area: ChosenBits, errors: Errors, beside: Mapping[str, Errors]) -> Verdict:
    """What two of three copies say."""
    word, *masks = aligned(errors, copy_errors(area, 1, beside), copy_errors(area, 2, beside))
    left = majority(masks)
    differ = (masks[0] ^ masks[1]) | (masks[0] ^ masks[2])
    counts = {"corrected": int(np.bitwise_count(differ & ~left).sum()), "outvoted": int(np.bitwise_count(left).sum())}
    return Verdict(joined(word, left), bool(differ.any()), bool((differ & left).any()), counts)


def _decoded(area: ChosenBits, errors: Errors, beside: Mapping[str, Errors]) -> Verdict:
    """What the decoder leaves."""
    size = area.code.data_bits
    position = area.packed.positions(errors)
    data = joined(position // size, np.left_shift(np.uint64(1), (position % size).astype(np.uint64)))
    left, counts = decoded(area.code, data, beside.get(area.name, NOTHING), area.packed.bits)
    block, bit = flips(joined(left.index, left.mask))
    noticed = counts["corrected"] + counts["uncorrectable"] + counts["miscorrected"] > 0
    unrepaired = counts["uncorrectable"] + counts["miscorrected"] > 0
    return Verdict(area.packed.errors(block * size + bit), noticed, unrepaired, counts)


def _shown(part: tuple[Target, tuple[int | str, ...]]) -> str:
    """A set of bits with what it is protected in, for legends: runs of numbers as `23-31`."""
    where, bits = part
    runs: list[list[int]] = []
    for bit in (bit for bit in bits if isinstance(bit, int)):
        if runs and runs[-1][-1] == bit - 1:
            runs[-1].append(bit)
        else:
            runs.append([bit])
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    shown += [bit for bit in bits if isinstance(bit, str)]
    return "+".join(shown) + ("" if str(where) == "all" else f" of {where}")
