"""Address spaces: which bits of what a model stores may be hit, the eligible ones of targeted tensors numbered as one range.

Targeted tensors are in plain string order of their names; words of a tensor in row-major order; eligible bits of a word from
the lowest. In this order bits have the positions 0 .. bits - 1. Words that have an eligible bit are numbered in the same way,
and so are rows of storage: fixed numbers of bytes that a tensor's words fill (if only some rows are targeted, the ones that
hold a word of them)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.injection.error_clock import scaled
from drsrobust.injection.number_formats import Format, bit_set, plain
from drsrobust.injection.stored import Memory, Stored


@dataclass(frozen=True)
class TargetTensor:
    """One targeted tensor.

    Attributes:
        name: in the model.
        component: that it belongs to.
        shape: in words.
        format: of its words.
        rows: int64 ascending, which rows (of the first dimension, or of `width` words) are targeted; None: all.
        stored: the tensor in its model's memory; None in a space made without a model.
        width: words of a row that is a part of one of the tensor, as where columns are spread over ranks; None: the tensor's.
        rank: whose replica of the tensor is hit; None: every one.
        size, row_words, targeted: words of the whole tensor, of one row and in the targeted rows.
    """

    name: str
    component: str
    shape: tuple[int, ...]
    format: Format
    rows: np.ndarray | None = field(default=None, compare=False)
    stored: Stored | None = field(default=None, compare=False, repr=False)
    width: int | None = field(default=None, compare=False)
    rank: int | None = field(default=None, compare=False)
    size: int = field(init=False, compare=False, repr=False)
    row_words: int = field(init=False, compare=False, repr=False)
    targeted: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        size = prod(self.shape)
        row_words = prod(self.shape[1:]) if self.width is None else self.width
        targeted = size if self.rows is None else len(self.rows) * row_words
        # Not as properties: protections read them for every tensor of every trial.
        vars(self).update(size=size, row_words=row_words, targeted=targeted)

    @classmethod
    def of(cls, name: str, component: str, dtype: torch.dtype, shape: tuple[int, ...]) -> "TargetTensor":
        """A tensor of plain numbers, all rows of it."""
        return cls(name, component, tuple(shape), plain(dtype))

    @property
    def memory(self) -> torch.Tensor | None:
        """The tensor itself."""
        return None if self.stored is None else self.stored.tensor


class EligibleBits:
    """The eligible bits of one tensor. Its words form units of the format's period: one word, or a quantized row.

    Attributes:
        masks: uint64 [period], the eligible bits of the words of one unit.
        bits: how many eligible bits there are.
        words: how many words have one.

    Args:
        tensor: which.
        bits: eligible bits by number or field; None: all but padding.

    Raises:
        ValueError: a bit number that the format does not have.
    """

    def __init__(self, tensor: TargetTensor, bits: tuple[int | str, ...] | None) -> None:
        self.tensor = tensor
        self._period = tensor.format.period
        self.masks, self._word, self._bit, self._live, self._counts = _layout(tensor.format, bits)
        self._units = tensor.targeted // self._period
        self._whole = self._period == 1 and len(self._bit) == tensor.format.width and tensor.rows is None
        self.bits = self._units * len(self._bit)
        self.words = self._units * len(self._live)

    @property
    def everything(self) -> bool:
        """Whether all bits but padding are eligible."""
        return self._whole or self.masks is _layout(self.tensor.format, None)[0]

    @property
    def unit(self) -> tuple[np.ndarray, np.ndarray]:
        """The word in a unit, and the bit number, of each of its eligible bits: int64 [n]."""
        return self._word, self._bit

    @property
    def fewest(self) -> int:
        """Eligible bits of the word that has the fewest (of those that have any)."""
        return int(self._counts[self._live].min(initial=self.tensor.format.width))

    def locate(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Flat word index and bit number of eligible bits, given by their number in this tensor (int64 [n])."""
        if self._whole:
            # All bits of a word: a power of two, by which shifting is several times faster than dividing.
            width = len(self._bit)
            return position >> (width.bit_length() - 1), position & (width - 1)
        unit = position // len(self._bit)
        remainder = position - unit * len(self._bit)
        return self._first_word(unit) + self._word[remainder], self._bit[remainder]

    def locate_word(self, position: np.ndarray) -> np.ndarray:
        """Flat word index of the n-th words that have an eligible bit."""
        if self._period == 1:
            return self._first_word(position)
        unit = position // len(self._live)
        return self._first_word(unit) + self._live[position - unit * len(self._live)]

    def _first_word(self, unit: np.ndarray) -> np.ndarray:
        rows = self.tensor.rows
        if rows is None:
            return unit * self._period if self._period > 1 else unit
        per_row = self.tensor.row_words // self._period
        row = unit // per_row
        return rows[row] * self.tensor.row_words + (unit - row * per_row) * self._period

    @cached_property
    def _run_ends(self) -> np.ndarray:
        """Where each run of neighbouring targeted rows ends, counted in eligible bits."""
        rows = self.tensor.rows
        if rows is None:
            return np.array([self.bits])
        return np.append(np.flatnonzero(np.diff(rows) != 1) + 1, len(rows)) * (self.bits // len(rows))

    def run_end(self, position: np.ndarray) -> np.ndarray:
        """The end of the run of neighbouring rows (of the tensor, if all are targeted) that each eligible bit lies in."""
        return self._run_ends[np.searchsorted(self._run_ends, position, side="right")]

    def runs(self) -> np.ndarray:
        """Eligible bits in each run of neighbouring rows."""
        return np.diff(self._run_ends, prepend=0)

    def mask_of(self, word: np.ndarray) -> np.ndarray:
        """Masks uint64 [n] of the eligible bits of words given by flat index; 0 for words that are not targeted."""
        masks = self.masks[word % self._period] if self._period > 1 else np.full(len(word), self.masks[0])
        rows = self.tensor.rows
        if rows is not None:
            row = word // self.tensor.row_words
            index = np.minimum(np.searchsorted(rows, row), len(rows) - 1)
            masks = np.where(rows[index] == row, masks, np.uint64(0))
        return masks

    def count(self, word: np.ndarray) -> np.ndarray:
        """How many eligible bits words have (int64 [n]), as if all rows were targeted."""
        return self._counts[word % self._period]

    def subset(self, word: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """For each word a uniform set of its eligible bits, as masks uint64 [n], by Floyd's algorithm (Bentley and Floyd, CACM
        30, 1987): of b eligible bits, numbered from the lowest, step j = 0 .. k - 1 takes number
        floor(raw_j * (b - k + j + 1) / 2**64), or number b - k + j if that was taken.

        Args:
            word: int64 [n], flat indices; each has at least k eligible bits.
            raw: uint64 [n, k], a raw word for each bit to draw.
        """
        unit_word = word % self._period
        count = self._counts[unit_word]
        first = (np.cumsum(self._counts) - self._counts)[unit_word]  # of its bits among those of the unit
        chosen = np.zeros(len(word), np.uint64)  # by number among the eligible bits
        mask = np.zeros(len(word), np.uint64)
        for step in range(raw.shape[1]):
            last = count - raw.shape[1] + step
            number = scaled(raw[:, step], last + 1)
            taken = (chosen >> number) & np.uint64(1) != 0
            number = np.where(taken, last.astype(np.uint64), number)
            chosen |= np.uint64(1) << number
            mask |= np.uint64(1) << self._bit[first + number.astype(np.int64)].astype(np.uint64)
        return mask

    def storage_rows(self, row_bytes: int) -> np.ndarray | range:
        """Numbers of the rows of `row_bytes` in the tensor that hold targeted words, ascending."""
        itemsize = self.tensor.format.dtype.itemsize
        if self.tensor.rows is None:
            return range(-(-self.tensor.size * itemsize // row_bytes))
        length = self.tensor.row_words * itemsize
        first, end = self.tensor.rows * length // row_bytes, -(-(self.tensor.rows + 1) * length // row_bytes)
        return np.unique(_ranges(first, end - first))


@lru_cache(maxsize=256)
def _layout(
    number_format: Format, bits: tuple[int | str, ...] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of one unit: masks uint64 [period] of the eligible bits; the word and the bit number of each eligible bit; the words
    that have one; how many each word has."""
    masks = number_format.eligible(bits)
    bit_values = (masks[:, None] >> np.arange(number_format.width, dtype=np.uint64)) & np.uint64(1)
    word, bit = np.nonzero(bit_values)
    return masks, word, bit, np.flatnonzero(masks), bit_values.sum(axis=1).astype(np.int64)


class AddressSpace:
    """The eligible bits of some tensors as one range.

    Attributes:
        tensors: the targeted ones, in plain string order of their names.
        chosen_bits: the argument `bits` without duplicates; None: all but padding.
        eligible: the eligible bits of each.
        bits: how many eligible bits there are.
        words: how many words have one.

    Args:
        tensors: in any order.
        bits: eligible bits, by number (0 the lowest) or by field of the format (`sign`, `exponent`, `mantissa`, `value`,
            `scale`, `bias`, `padding`); None: all but padding. Numbers must exist in every targeted format, fields in one.

    Raises:
        ValueError: a bit number that a tensor's words do not have, or fields that none of the tensors has.
    """

    in_memory = True

    def __init__(self, tensors: Iterable[TargetTensor], bits: Iterable[int | str] | None = None) -> None:
        self.tensors = tuple(sorted((t for t in tensors if t.targeted), key=lambda tensor: tensor.name))
        chosen = None if bits is None else bit_set(bits)
        self.chosen_bits, self.eligible = chosen, eligible_bits(self.tensors, chosen)
        self._ends = np.cumsum([eligible.bits for eligible in self.eligible], dtype=np.int64)
        self._word_ends = np.cumsum([eligible.words for eligible in self.eligible], dtype=np.int64)
        self.bits, self.words = (int(ends[-1]) if len(ends) else 0 for ends in (self._ends, self._word_ends))
        widths = {tensor.format.width if e._whole else 0 for tensor, e in zip(self.tensors, self.eligible, strict=True)}
        self._width = widths.pop() if len(widths) == 1 else 0  # of words whose bits are all eligible
        self._of_model: tuple[nn.Module, Memory] | None = None
        self._once: dict[Any, Any] = {}
        if self.tensors and not self.bits:
            formats = sorted({tensor.format.name for tensor in self.tensors})
            raise ValueError(f"bits {list(chosen or ())} exist in none of the targeted formats: {', '.join(formats)}")

    def __repr__(self) -> str:
        names = ", ".join(tensor.name for tensor in self.tensors[:3]) + (", ..." if len(self.tensors) > 3 else "")
        return f"<AddressSpace: {self.bits:,} bits in {self.words:,} words of {len(self.tensors)} tensors: {names}>"

    @cached_property
    def by_name(self) -> dict[str, TargetTensor]:
        """The targeted tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    def in_model(self, model: nn.Module, memory: Memory) -> "AddressSpace":
        """This space, with the model that its tensors are listed from."""
        self._of_model = model, memory
        return self

    def like(self, other: "AddressSpace") -> "AddressSpace":
        """This space, with the model of another one."""
        self._of_model = other._of_model
        return self

    def once(self, owner: Any, make: Callable[[], Any]) -> Any:
        """What `make` returns, made once for this space and `owner`. So protections resolve their targets once, not in every
        trial, and a model whose tensors move gets new spaces."""
        if owner not in self._once:
            self._once[owner] = make()
        return self._once[owner]

    def targeted_by(self, target: Any) -> list[TargetTensor]:
        """The tensors of this space that another target (of type `Target`) holds too, with the rows of that target.

        Raises:
            ValueError: the space was made without a model, or the target matches nothing in the model.
        """
        if self._of_model is None:
            raise ValueError(f"an address space without a model has no target {str(target)!r}; use drsrobust.resolve")
        chosen = target.chosen(*self._of_model)
        return [replace(tensor, rows=chosen[tensor.name]) for tensor in self.tensors if tensor.name in chosen]

    @cached_property
    def device(self) -> torch.device | None:
        """That holds all of its words; None: several, or not known."""
        devices = {None if t.stored is None else t.stored.tensor.device for t in self.tensors}
        return devices.pop() if len(devices) == 1 else None

    @property
    def rank(self) -> int | None:
        """The rank whose replicas are hit; None: every one."""
        return next((tensor.rank for tensor in self.tensors if tensor.rank is not None), None)

    def rows(self, row_bytes: int) -> int:
        """How many storage rows of `row_bytes` there are; each tensor begins with a new row.

        Raises:
            ValueError: fewer than 1 byte.
        """
        if row_bytes < 1:
            raise ValueError(f"row_bytes is {row_bytes!r}; it must be 1 or more")
        return sum(len(eligible.storage_rows(row_bytes)) for eligible in self.eligible)

    def only(self, bits: Iterable[int | str] | None) -> "AddressSpace":
        """The same words with these bits eligible (None: all but padding)."""
        if bits is None and all(eligible.everything for eligible in self.eligible):
            return self
        chosen = None if bits is None else bit_set(bits)
        return self.once(("only", chosen), lambda: AddressSpace(self.tensors, chosen))

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tensor index (int32), flat word index (int64) and bit number (int64) of ascending positions [n] of bits."""
        if self._width:  # all tensors at once
            counts = np.searchsorted(positions, self._ends)
            counts[1:] -= counts[:-1].copy()
            word = positions >> (self._width.bit_length() - 1)
            word -= np.repeat(self._word_ends - [eligible.words for eligible in self.eligible], counts)
            return np.repeat(np.arange(len(counts), dtype=np.int32), counts), word, positions & (self._width - 1)
        tensor, word, bit = np.empty(len(positions), np.int32), np.empty_like(positions), np.empty_like(positions)
        for index, entries, local in _parts(positions, self._ends):
            tensor[entries] = index
            word[entries], bit[entries] = self.eligible[index].locate(local)
        return tensor, word, bit

    def locate_masks(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tensor index (int32), flat word index (int64) and mask (uint64) of the distinct words that ascending positions of
        bits lie in."""
        tensor, word, bit = self.locate(positions)
        mask = np.left_shift(np.uint64(1), bit.view(np.uint64))
        # The bits of one word are neighbours, and few words have several: join those.
        repeats = np.flatnonzero((word[1:] == word[:-1]) & (tensor[1:] == tensor[:-1])) + 1
        if len(repeats):
            is_second = np.append(True, np.diff(repeats) > 1)  # the entry before it is the word's first
            first = repeats[is_second][np.cumsum(is_second) - 1] - 1
            np.bitwise_or.at(mask, first, mask[repeats])
            is_first = np.ones(len(word), bool)
            is_first[repeats] = False
            tensor, word, mask = tensor[is_first], word[is_first], mask[is_first]
        return tensor, word, mask

    def locate_words(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tensor index (int32) and flat word index (int64) of ascending positions [n] of words."""
        tensor, word = np.empty(len(positions), np.int32), np.empty_like(positions)
        for index, entries, local in _parts(positions, self._word_ends):
            tensor[entries], word[entries] = index, self.eligible[index].locate_word(local)
        return tensor, word

    def extend(self, positions: np.ndarray, length: int) -> np.ndarray:
        """Positions of bits and of the `length` - 1 bits after each (ascending, distinct), cut where their tensor, or their
        run of neighbouring rows, ends."""
        parts = [positions[:0]]
        for index, _, start in _parts(positions, self._ends):
            eligible = self.eligible[index]
            end = eligible.run_end(start)
            end = np.where(end - start > length, start + length, end)
            end[:-1] = np.minimum(end[:-1], start[1:])  # the next one continues there
            parts.append(_ranges(start, end - start) + (self._ends[index] - eligible.bits))
        return np.concatenate(parts)

    def read(self, tensor: np.ndarray, word: np.ndarray) -> np.ndarray:
        """The present words, uint64 [n], at tensor indices and flat word indices [n].

        Raises:
            ValueError: the space was made without a model.
        """
        words = np.empty(len(word), np.uint64)
        for eligible, entries in self.by_tensor(tensor):
            if eligible.tensor.stored is None:
                raise ValueError(f"{eligible.tensor.name}: an address space without a model has no words to read")
            words[entries] = eligible.tensor.stored.words().read_uint64(word[entries])
        return words

    def by_tensor(self, tensor: np.ndarray) -> Iterator[tuple[EligibleBits, np.ndarray]]:
        """For each tensor index in an array [n]: the tensor's eligible bits, and its entries (boolean [n])."""
        for index in np.unique(tensor):
            yield self.eligible[index], tensor == index


def eligible_bits(tensors: Iterable[TargetTensor], bits: tuple[int | str, ...] | None) -> list[EligibleBits]:
    """The eligible bits of each tensor.

    Raises:
        ValueError: a bit number that a tensor's words do not have.
    """
    eligible = []
    for tensor in tensors:
        try:
            eligible.append(EligibleBits(tensor, bits))
        except ValueError as error:
            raise ValueError(f"{tensor.name}: {error}") from None
    return eligible


def union_bits(spaces: Iterable[AddressSpace]) -> int:
    """How many bits are eligible in one or more of some spaces of one model; each counts once."""
    by_name: dict[str, list[EligibleBits]] = {}
    for eligible in (eligible for space in spaces for eligible in space.eligible):
        by_name.setdefault(eligible.tensor.name, []).append(eligible)
    total = 0
    for group in by_name.values():
        tensor = group[0].tensor
        if all(eligible.tensor.rows is None for eligible in group):
            row_counts: Iterable[tuple[np.ndarray, int]] = [(np.ones(len(group), bool), tensor.size)]
        else:  # which of the group target a row, and how many words such rows have
            is_member = np.zeros((tensor.size // tensor.row_words, len(group)), bool)
            for number, eligible in enumerate(group):
                is_member[slice(None) if eligible.tensor.rows is None else eligible.tensor.rows, number] = True
            combinations, rows = np.unique(is_member, axis=0, return_counts=True)
            row_counts = zip(combinations, rows * tensor.row_words, strict=True)
        for combination, words in row_counts:
            if combination.any():
                chosen = [eligible.masks for eligible, targeted in zip(group, combination, strict=True) if targeted]
                masks = np.bitwise_or.reduce(chosen)
                total += int(np.bitwise_count(masks).sum()) * (int(words) // len(masks))
    return total


def _ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The numbers of some ranges, given by their first numbers and sizes, int64 [n]: one range after the other."""
    return np.arange(sizes.sum()) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)


def _parts(positions: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, slice, np.ndarray]]:
    """Ascending positions by tensor: tensor index, which of the positions, and these counted from the tensor's first one."""
    bounds = np.searchsorted(positions, ends, side="left")
    start, first = 0, 0
    for index, (bound, end) in enumerate(zip(bounds.tolist(), ends.tolist(), strict=True)):
        if bound > start:
            entries = slice(start, bound)
            yield index, entries, positions[entries] - first
        start, first = bound, end
