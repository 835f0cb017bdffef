"""Chipkill: symbol codes that correct whatever one chip of a memory returns, over all chips or over those of exponents."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.extend import (
    CheckBits,
    DecodedBlocks,
    Errors,
    ProtectedWords,
    TargetTensor,
    check_choice,
    check_whole,
    distinct,
    units_of,
)
from drsrobust.injection import ErrorMapMismatch, Target
from drsrobust.mitigation import ACTIONS, CORRECTED, NO_ERRORS, UNCORRECTABLE, DrawContext, Screened, StorageProtection
from drsrobust_extras.protection.block_codes import BlockCode, SymbolBlocks
from drsrobust_extras.protection.memories import Memory, memory
from drsrobust_extras.protection.memory_map import CHECK_BITS, CHIP_BITS, CHIPS, DATA_CHIPS, WORD
from drsrobust_extras.protection.symbol_code import symbol_code

_NIBBLE = np.uint64(15)
CODE = symbol_code(CHIPS, 2 * CHIP_BITS)
_OLD, _kind = "ddr2-2012", memory


class Chipkill(StorageProtection):
    """Memory with the Reed-Solomon code RS(18,16) over GF(256), over chips of 4 bits (`injection.memory_map`).

    A code word is two neighbouring 64-bit words; a symbol is the 8 bits that one of the 18 chips holds of them. One wrong
    symbol is corrected; of two 16 of 255 pairs are "corrected" into a third, and the others detected (`SymbolCode`). Stored
    bits: +12.5 %. The last code word of a tensor may be short: a correction beyond its end counts as uncorrectable.

    With `memory="ddr5"` a code word is one 64-bit word, and a symbol the 8 bits that one of 10 devices holds of it: RS(10,8).
    That corrects one device, as such memories do; their own codes are not published. Of two wrong symbols 8 of 255 pairs are
    miscorrected. Stored bits: +25 %. Memory with one device for each channel has no chipkill, neither here nor under faults of
    `MemoryFault(memory="hbm4")`.

    Args:
        uncorrectable, target: as of `ECC`.
        memory: None or `"ddr2-2012"`: 18 chips; `"ddr5"`: 10 devices.

    Raises:
        ValueError: another action, a memory with one device for each channel; on `screen` faults of another memory.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> layer = nn.Linear(1000, 100)
        >>> drawn = dr.MemoryFault("bank").sample(dr.resolve(layer), seed=3)
        >>> drawn.bits > 10_000, Chipkill().screen(drawn, dr.resolve(layer), seed=3).remaining.bits
        (True, 0)
    """

    label = "chipkill RS(18,16)"
    corrects_mode, spread = "any", "chip"

    def __init__(
        self,
        uncorrectable: str = "keep",
        target: str | Target = "all",
        memory: str | Memory | None = None,  # the function of this name is `_kind` here
    ) -> None:
        super().__init__(target)
        check_choice("action on uncorrectable errors", uncorrectable, ACTIONS)
        self.uncorrectable, self.memory, self._devices = uncorrectable, None, None
        if memory is not None and (kind := _kind(memory)).name != _OLD:
            kind.check_chipkill()
            per = range(0, DATA_CHIPS, kind.data_devices)  # a device's parts of 4 bits
            symbols = [[(0, CHIP_BITS * (device + part)) for part in per] for device in range(kind.data_devices)]
            code = SymbolBlocks(symbols, CHIP_BITS, CHIP_BITS * len(per), "chipkill RS")
            self.memory, self._devices, self.label = kind.name, BlockCode(code, uncorrectable, target), code.name
        self.name = f"{self.label}{'' if uncorrectable == 'keep' else f', {uncorrectable}'}{self.target_suffix()}"

    def settings(self) -> Any:
        own = {} if self.memory is None else {"memory": self.memory}
        return {**super().settings(), "uncorrectable": self.uncorrectable, **own}

    def decode(
        self, protected: ProtectedWords, errors: Errors, stored: Mapping[str, Errors], trial: DrawContext
    ) -> Screened:
        _check_memory(trial, self.memory or _OLD)
        if self._devices is not None:
            return self._devices.decode(protected, errors, stored, trial)
        words, wrong, check_errors = Errors.aligned(
            errors.regrouped(protected.width, WORD), stored.get(protected.name, NO_ERRORS)
        )
        pairs = distinct(words // 2)
        data, check = np.zeros((2, len(pairs), 2), np.uint64)
        place = np.searchsorted(pairs, words // 2)
        data[place, words % 2], check[place, words % 2] = wrong, check_errors
        remaining, left_check, status = decode_pairs(data, check)
        index = 2 * pairs[:, None] + np.arange(2)
        changed = _beyond(protected, index, remaining).any(axis=1) & (status == CORRECTED)
        status[changed], remaining[changed] = UNCORRECTABLE, data[changed]
        counts = DecodedBlocks.counted(status, ((remaining | left_check) != 0).any(axis=1))
        index, remaining = index.ravel(), remaining.ravel()
        exists = index * WORD < protected.words * protected.width  # of the last code word
        given_up = np.repeat(status == UNCORRECTABLE, 2) & exists
        if self.uncorrectable != "keep":
            zero = self.uncorrectable == "zero"
            remaining[given_up] = protected.read_blocks(index[given_up], WORD) if zero else 0
        return _result(protected, DecodedBlocks(index, remaining, given_up, counts), self.uncorrectable)

    def check_bits(self, protected: ProtectedWords) -> CheckBits:
        bits = CHECK_BITS if self._devices is None else self._devices.code.check_bits
        return CheckBits(-(-protected.words * protected.width // WORD), bits)

    def units(self, protected: ProtectedWords, words: np.ndarray) -> np.ndarray:
        return units_of(words, protected.width, WORD)


def _check_memory(trial: DrawContext, own: str | None = None) -> None:
    """Raises ValueError for faults of a memory that has no chipkill, or of another one than its own."""
    for source in trial.sources:
        if not hasattr(source.error_model, "memory"):  # single bits, in any memory
            continue
        if (of_faults := source.error_model.memory or _OLD) == own:
            continue
        _kind(of_faults).check_chipkill()
        if own is not None:
            raise ValueError(
                f"these faults are of {of_faults}, and this chipkill is of {own}; give Chipkill(memory={of_faults!r})"
            )


class SelectiveChipkill(StorageProtection):
    """A symbol code over the chips that hold signs and exponents of float32, with no extra memory.

    Of each 64-bit word chips 5 to 7 and 13 to 15 hold bits 20 to 31 of its two floats. RS(8,6) over GF(16) protects these six
    symbols of 4 bits. Its check symbols replace bits 0 to 3 of both floats, in chips 0 and 8, so weights change by up to 2^-19
    of themselves. Faults of one of these eight chips are corrected; other chips are not protected. Of two wrong symbols 6 of 15
    pairs are miscorrected, and the others detected and kept. Formats other than float32 are not protected.

    Args:
        nibbles: the protected symbols of a float, by their lowest bit divided by 4. (7,) protects bits 28 to 31 alone.
        target: protected tensors, which must hold the check symbols: see `store`.

    Raises:
        ValueError: nibbles other than one to six of 1 to 7; on `screen` faults of a memory with one device for each channel.
            ErrorMapMismatch: on `screen`, a word without its check symbols.
    """

    label = "selective chipkill"
    spread = "chip"

    def __init__(self, nibbles: Sequence[int] = (5, 6, 7), target: str | Target = "all") -> None:
        super().__init__(target)
        chosen = list(nibbles) if isinstance(nibbles, Iterable) else [nibbles]
        self.nibbles = tuple(sorted({check_whole("each of nibbles", nibble, 1, 7) for nibble in chosen}))
        if not 0 < len(self.nibbles) < 7:  # a code over GF(16) has 15 symbols
            raise ValueError(f"nibbles is {nibbles!r}; it must be one to six of 1 to 7")
        of_data = [CHIP_BITS * nibble + half for half in (0, 32) for nibble in self.nibbles]
        self._shifts = np.array(
            [*of_data, 0, 32], np.uint64
        )  # of the symbols in a word; the last two are check symbols
        self._code = symbol_code(len(self._shifts), CHIP_BITS)
        self.name = f"{self.label}{'' if self.nibbles == (5, 6, 7) else f' {[*self.nibbles]}'}{self.target_suffix()}"

    def settings(self) -> Any:
        return {**super().settings(), "nibbles": list(self.nibbles)}

    @classmethod
    def store(
        cls, model: nn.Module, nibbles: Sequence[int] = (5, 6, 7), target: str | Target = "all"
    ) -> "SelectiveChipkill":
        """Writes the check symbols into a model's weights, in place, and returns the protection. A weight of 0 becomes a
        denormal number.

        Raises:
            ValueError: no tensor of float32, or weights that are not finite.

        Example:
            >>> layer = nn.Linear(64, 64)
            >>> before, protection = layer.weight.detach().clone(), SelectiveChipkill.store(layer)
            >>> bool((layer.weight / before - 1).abs().max() < 2**-18)
            True
        """
        protection = cls(nibbles, target)
        covered = protection.protected(model)
        if not covered:
            raise ValueError(
                f"target {str(target)!r} has no tensor of float32, whose mantissas could hold check symbols"
            )
        for protected in covered:
            if not bool(protected.tensor.stored.values().isfinite().all()):
                raise ValueError(f"{protected.name} holds weights that are not finite")
        for protected in covered:
            words = np.arange(-(-protected.words // 2))
            values = protected.read_blocks(words, WORD) & ~(_NIBBLE | _NIBBLE << np.uint64(32))
            for check, shift in zip(
                protection._code.check_symbols(*protection._syndromes(values)), (0, 32), strict=True
            ):
                values |= check.astype(np.uint64) << np.uint64(shift)
            halves = values.view(np.uint32)[: protected.words].astype(np.uint64)
            view = protected.tensor.stored.words()
            view.write(torch.from_numpy(protected.flat(np.arange(protected.words))).to(view.device), view.masks(halves))
        return protection

    def words_of(self, tensors_of: Callable[[Target], Iterable[TargetTensor]]) -> Iterator[ProtectedWords]:
        return (words for words in super().words_of(tensors_of) if words.format.dtype == torch.float32)

    def decode(
        self, protected: ProtectedWords, errors: Errors, stored: Mapping[str, Errors], trial: DrawContext
    ) -> Screened:
        _check_memory(trial)
        words, wrong = errors.regrouped(protected.width, WORD)
        for syndrome in self._syndromes(protected.read_blocks(words, WORD)):
            bad = (syndrome != 0) & (words < protected.words // 2)
            if bad.any():
                raise ErrorMapMismatch(
                    f"{protected.name} does not hold the check symbols of {self.name}: word {2 * words[bad][0]}; call "
                    "SelectiveChipkill.store(model) after each change of its weights"
                )
        first, second = self._syndromes(wrong)
        place, status = self._code.locate(first, second)
        fixed = status == CORRECTED
        remaining = wrong.copy()
        remaining[fixed] ^= first[fixed].astype(np.uint64) << self._shifts[place[fixed]]
        changed = fixed & _beyond(protected, words, remaining)
        status[changed], remaining[changed] = UNCORRECTABLE, wrong[changed]
        counts = DecodedBlocks.counted(status, (remaining & np.bitwise_or.reduce(_NIBBLE << self._shifts)) != 0)
        return _result(protected, DecodedBlocks(words, remaining, status == UNCORRECTABLE, counts))

    def _syndromes(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._code.syndromes(((words >> shift) & _NIBBLE).astype(np.uint8) for shift in self._shifts)


def decode_pairs(data: np.ndarray, check: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What remains of wrong bits after decoding with RS(18,16), and the status of each code word.

    Args:
        data, check: uint64 [n, 2], the 64 data bits and 8 check bits of both words; XOR masks, since the code is linear.

    Returns:
        data and check masks that remain, and uint8 [n]: CLEAN, CORRECTED or UNCORRECTABLE (unchanged).
    """
    first, second = CODE.syndromes(_symbols(data, check))
    chip, status = CODE.locate(first, second)
    data, check = data.copy(), check.copy()
    fixed = np.flatnonzero(status == CORRECTED)
    halves = np.stack((first[fixed] & 15, first[fixed] >> 4), axis=1).astype(np.uint64)
    halves <<= (CHIP_BITS * (chip[fixed] % DATA_CHIPS)).astype(np.uint64)[:, None]
    for part, in_part in ((data, chip[fixed] < DATA_CHIPS), (check, chip[fixed] >= DATA_CHIPS)):
        part[fixed[in_part]] ^= halves[in_part]
    return data, check, status


def _symbols(data: np.ndarray, check: np.ndarray) -> Iterator[np.ndarray]:
    """The 8 bits (uint8 [n]) of each chip in code words."""
    for chip in range(CHIPS):
        words = data if chip < DATA_CHIPS else check
        nibbles = (words >> np.uint64(CHIP_BITS * (chip % DATA_CHIPS))) & _NIBBLE
        yield (nibbles[:, 0] | nibbles[:, 1] << np.uint64(CHIP_BITS)).astype(np.uint8)


def _beyond(protected: ProtectedWords, index: np.ndarray, remaining: np.ndarray) -> np.ndarray:
    """Which 64-bit words have wrong bits after the last protected word."""
    last, bits = divmod(protected.words * protected.width, WORD)
    return ((index > last) & (remaining != 0)) | ((index == last) & (remaining >> np.uint64(bits) != 0))


def _result(protected: ProtectedWords, blocks: DecodedBlocks, uncorrectable: str = "keep") -> Screened:
    errors = Errors.merged(blocks.index, blocks.mask).regrouped(WORD, protected.width)
    return blocks.result(errors, uncorrectable)
