"""Selective bit protection: some bits of each word are protected, by ideal cells or by a code."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, reduce
from operator import or_
from typing import Any

import numpy as np

from drsrobust.extend import (
    CheckBits,
    Errors,
    ProtectedWords,
    TargetTensor,
    bit_mask,
    bit_set,
    check_choice,
    decode_errors,
    distinct,
    wrong,
)
from drsrobust.injection import AddressSpace, Target, as_target
from drsrobust.mitigation import NO_ERRORS, SECDED, DrawContext, Screened, StorageProtection, secded
from drsrobust_extras.protection.copies import copy_errors, copy_tensor
from drsrobust_extras.protection.replication import majority

CODES = ("ideal", "tmr", "secded")
ChosenBits = Iterable[int | str] | str


class BitProtection(StorageProtection):
    """Chosen bits of every word are stored in cells without errors (`"ideal"`), or with a code:

    - `"tmr"`: two more copies of them, which take errors too; a read takes the majority, wrong with probability
      3 p^2 - 2 p^3. Stored bits: 2 b for b protected bits, +56 % for 9 of 32.
    - `"secded"`: the protected bits of several words in one code word of at most 64 data bits (7 words' 9 bits in one of 63
      data and 8 check bits: 8 / (7 x 32) = +3.6 %). A code word holds bits of whole words where each word has the same number
      of them, and 64 consecutive bits in quantized rows. Uncorrectable code words are left as they are.

    Source: the selective bit protection of arXiv:2307.10244, which is ideal and free there.

    Args:
        bits: numbers (0 the lowest) and fields of the format, as in `BitFlip`: `"sign"`, `"exponent"`, `{30}`,
            `range(23, 32)`, `("sign", "exponent", 22)`; `"scale"` and `"bias"` of quantized rows. Or a dictionary from targets
            (component, group, glob) to such sets.
        target: protected tensors, unless `bits` names them.
        code: `"ideal"`, `"tmr"` or `"secded"`.

    `counts` of `screen`: with TMR of `corrected` and `outvoted` bits, with SECDED as of `ECC`.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> layer = nn.Linear(64, 64)
        >>> for protection in (None, BitProtection(("sign", "exponent"))):
        ...     with dr.inject(layer, dr.BitFlip(1e-3), seed=1, mitigation=protection) as remaining:
        ...         print(remaining.counts("field").to_dict())
        {'exponent': 32, 'mantissa': 107, 'sign': 9}
        {'mantissa': 107}
        >>> [round(BitProtection(range(23, 32), code=code).cost(layer).stored_bits / 4160 / 32, 4) for code in CODES]
        [0.0, 0.5625, 0.0358]
    """

    def __init__(
        self,
        bits: ChosenBits | Mapping[str, ChosenBits],
        target: str | Target = "all",
        code: str = "ideal",
    ) -> None:
        parts = list(bits.items()) if isinstance(bits, Mapping) else [(target, bits)]
        if isinstance(bits, Mapping) and target != "all":
            raise ValueError(f"pass target={str(target)!r} or targets in bits ({', '.join(bits)}), not both")
        check_choice("code of bit protection", code, CODES)
        if not parts:
            raise ValueError("bits is empty; it must name one or more targets with the bits to protect")
        if any(part_bits is None for _, part_bits in parts):
            raise wrong("bits", "numbers and fields of the format, as ('sign', 'exponent')", bits)
        self._parts = [(as_target(part), bit_set(part_bits)) for part, part_bits in parts]
        super().__init__(reduce(or_, (part for part, _ in self._parts)))
        self.code = code
        self.detects = code != "ideal"
        self.name = "bits " + "; ".join(map(_label, self._parts))
        self.name += "" if code == "ideal" else f", {code.upper()}"

    @property
    def label(self) -> str:
        return f"BitProtection {self.code}"

    def settings(self) -> Any:
        parts = [[str(target), list(bits)] for target, bits in self._parts]
        return {"bits": parts, "code": self.code}

    def words_of(self, tensors_of: Callable[[Target], Iterable[TargetTensor]]) -> Iterator["ProtectedBits"]:
        """The protected words of the tensors that its targets hold.

        Raises:
            ValueError: bits that no tensor of their target has, or a tensor of two targets.
        """
        target_of: dict[str, Target] = {}
        for target, bits in self._parts:
            if tensors := list(tensors_of(target)):
                AddressSpace(tensors).only(bits)
            for tensor in tensors:
                if tensor.name in target_of:
                    raise ValueError(f"{tensor.name} is protected twice: as {target_of[tensor.name]} and as {target}")
                target_of[tensor.name] = target
                yield ProtectedBits(tensor, bits)

    def decode(
        self, protected: "ProtectedBits", errors: Errors, stored: Mapping[str, Errors], trial: DrawContext
    ) -> Screened:
        masks = protected.subset.masks
        chosen = masks[errors.index % len(masks)]
        covered, uncovered = (
            Errors.merged(errors.index, errors.mask & chosen),
            Errors.merged(errors.index, errors.mask & ~chosen),
        )
        if self.code == "ideal":
            return Screened(uncovered)
        result = (_vote if self.code == "tmr" else _decode_secded)(protected, covered, stored)
        return replace(result, remaining=Errors.merged(*map(np.append, result.remaining, uncovered)))

    def together(self, protected: "ProtectedBits") -> Any:
        masks = protected.subset.masks
        return (protected.format, int(masks[0])) if len(masks) == 1 else None  # else words differ in their chosen bits

    def check_bits(self, protected: "ProtectedBits") -> CheckBits | None:
        if self.code != "secded":
            return None
        code = protected.code
        return CheckBits(-(-protected.subset.bits // code.data_bits), code.check_bits)

    def units(self, protected: "ProtectedBits", words: np.ndarray) -> np.ndarray:
        return distinct(protected.subset.ends(words).ravel() // protected.code.data_bits)

    def stored_tensors(self, protected: "ProtectedBits", rows: np.ndarray | None) -> Iterator[TargetTensor]:
        copies = (1, 2) if self.code == "tmr" else ()
        yield from (copy_tensor(protected, number, rows, protected.subset.masks) for number in copies)
        yield from super().stored_tensors(protected, rows)

    def extra_bits(self, protected: "ProtectedBits") -> int:
        if self.code == "tmr":
            return 2 * protected.subset.bits
        return super().extra_bits(protected)


class ProtectedBits(ProtectedWords):
    """Protected words of which some bits are protected, with the SECDED code over these bits."""

    def __init__(self, tensor: TargetTensor, bits: tuple[int | str, ...]) -> None:
        super().__init__(tensor)
        self.subset = BitSubset(self, bits)

    @cached_property
    def code(self) -> SECDED:
        """Whole words per code word, as many as 64 data bits hold; in quantized rows 64 consecutive bits."""
        masks = self.subset.masks
        per_word = int(np.bitwise_count(masks[0])) if len(masks) == 1 else 1
        return secded(64 // per_word * per_word)


def _vote(protected: ProtectedBits, errors: Errors, stored: Mapping[str, Errors]) -> Screened:
    word, *masks = Errors.aligned(errors, copy_errors(protected, 1, stored), copy_errors(protected, 2, stored))
    remaining = majority(masks)
    differ = (masks[0] ^ masks[1]) | (masks[0] ^ masks[2])
    corrected, outvoted = int(np.bitwise_count(differ & ~remaining).sum()), int(np.bitwise_count(remaining).sum())
    counts = {"corrected": corrected, "outvoted": outvoted}
    return Screened(Errors.merged(word, remaining), bool(differ.any()), not (differ & remaining).any(), counts=counts)


def _decode_secded(protected: ProtectedBits, errors: Errors, stored: Mapping[str, Errors]) -> Screened:
    subset, size = protected.subset, protected.code.data_bits
    position = subset.positions(errors)
    data = Errors.merged(position // size, bit_mask(position % size))
    check = stored.get(protected.name, NO_ERRORS)
    blocks = decode_errors(protected.code, data, check, subset.before(protected.ends))
    block, bit = Errors.merged(blocks.index, blocks.mask).wrong_bits()
    word, word_bit = subset.locate(block * size + bit)
    return blocks.result(Errors.merged(word, bit_mask(word_bit)))


def _label(part: tuple[Target, tuple[int | str, ...]]) -> str:
    """A set of bits and its target for the name, with runs of numbers as `23-31`."""
    target, bits = part
    runs: list[list[int]] = []
    for bit in (bit for bit in bits if isinstance(bit, int)):
        if runs and runs[-1][-1] == bit - 1:
            runs[-1].append(bit)
        else:
            runs.append([bit])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    texts += [bit for bit in bits if isinstance(bit, str)]
    return "+".join(texts) + ("" if str(target) == "all" else f" of {target}")


class BitSubset:
    """Some bits of each protected word, numbered from 0: words ascending, in a word from the lowest bit.

    Args:
        protected: the words.
        bits: numbers and fields, as in `BitFlip`.
    """

    def __init__(self, protected: ProtectedWords, bits: tuple[int | str, ...]) -> None:
        self._protected, self._region = protected, AddressSpace([protected.tensor], bits).eligible[0]
        self.masks, self.bits = self._region.masks, self._region.bits
        self._counts = np.bitwise_count(self.masks).astype(np.int64)
        self._first = np.cumsum(self._counts) - self._counts
        self._per_unit = int(self._counts.sum())

    def positions(self, errors: Errors) -> np.ndarray:
        """Numbers (ascending) of wrong bits, all of which must be in the subset."""
        local, bit = errors.wrong_bits()
        place = local % len(self.masks)
        below = self.masks[place] & (bit_mask(bit) - np.uint64(1))
        return local // len(self.masks) * self._per_unit + self._first[place] + np.bitwise_count(below)

    def before(self, words: np.ndarray) -> np.ndarray:
        """How many bits the first so many words have (int64 [n]), whole units of the format."""
        return words // len(self.masks) * self._per_unit

    def ends(self, local: np.ndarray) -> np.ndarray:
        """Numbers of the first and last bit of each word that has any: int64 [n, 2]."""
        place = local % len(self.masks)
        first = local // len(self.masks) * self._per_unit + self._first[place]
        count = self._counts[place]
        return np.stack((first, first + count - 1), axis=1)[count > 0]

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Word and bit number of bits by their numbers; the reverse of `positions`."""
        word, bit = self._region.locate(positions)
        return self._protected.local(word)[0], bit
