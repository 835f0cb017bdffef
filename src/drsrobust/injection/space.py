"""What a target resolves to: the address space of all bits that errors may hit.

The targeted tensors stand in plain string order of their names; in a tensor, words in row-major order; in a word, its
eligible bits from the lowest (0) to the highest. Numbered on in this order, they are positions 0 .. bits - 1. Words that have
an eligible bit are numbered on in the same way; so are rows of storage, those that a tensor's words fill (of a tensor of which
some rows are targeted: those that hold a word of them).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from drsrobust.injection.formats import bit_set
from drsrobust.injection.region import Region, TargetTensor
from drsrobust.injection.words import Words

if TYPE_CHECKING:
    from drsrobust.injection.targets import Target


class AddressSpace:
    """The eligible bits of some tensors.

    Args:
        tensors: in any order.
        bits: eligible bits, by number (0 the lowest) or by field of the format (`sign`, `exponent`, `mantissa`, `value`,
            `scale`, `bias`, `padding`); None: all but padding. Numbers must exist in every targeted format, fields in one.

    Raises:
        ValueError: a bit number that a tensor's words do not have, or fields that none of the tensors has.
    """

    def __init__(self, tensors: Iterable[TargetTensor], bits: Iterable[int | str] | None = None) -> None:
        self.tensors = tuple(sorted((t for t in tensors if t.targeted), key=lambda tensor: tensor.name))
        chosen = bit_set(bits)
        self.regions = regions(self.tensors, chosen)
        self._ends = np.cumsum([region.bits for region in self.regions], dtype=np.int64)
        self._word_ends = np.cumsum([region.words for region in self.regions], dtype=np.int64)
        if self.tensors and not self.bits:
            formats = sorted({tensor.format.name for tensor in self.tensors})
            raise ValueError(f"bits {list(chosen or ())} exist in none of the targeted formats: {', '.join(formats)}")

    def __repr__(self) -> str:
        names = ", ".join(tensor.name for tensor in self.tensors[:3]) + (", ..." if len(self.tensors) > 3 else "")
        return f"<AddressSpace: {self.bits:,} bits in {self.words:,} words of {len(self.tensors)} tensors: {names}>"

    @property
    def bits(self) -> int:
        """How many eligible bits there are."""
        return int(self._ends[-1]) if self.regions else 0

    @property
    def words(self) -> int:
        """How many words have an eligible bit."""
        return int(self._word_ends[-1]) if self.regions else 0

    def rows(self, row_bytes: int) -> int:
        """How many storage rows of `row_bytes` there are; each tensor begins with a row of its own.

        Raises:
            ValueError: fewer than 1 byte.
        """
        if row_bytes < 1:
            raise ValueError(f"row_bytes is {row_bytes!r}; it must be 1 or more")
        return sum(region.storage_rows(row_bytes) for region in self.regions)

    def only(self, bits: Iterable[int | str] | None) -> "AddressSpace":
        """The same words with these bits eligible (None: all but padding)."""
        if bits is None and all(region.everything for region in self.regions):
            return self
        return AddressSpace(self.tensors, bits)

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tensor index (int32), flat word index (int64) and bit number (int64) of ascending positions [n] of bits."""
        tensor, word, bit = np.empty(len(positions), np.int32), np.empty_like(positions), np.empty_like(positions)
        for index, here, local in _parts(positions, self._ends):
            tensor[here] = index
            word[here], bit[here] = self.regions[index].locate(local)
        return tensor, word, bit

    def locate_words(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tensor index (int32) and flat word index (int64) of ascending positions [n] of words."""
        tensor, word = np.empty(len(positions), np.int32), np.empty_like(positions)
        for index, here, local in _parts(positions, self._word_ends):
            tensor[here], word[here] = index, self.regions[index].locate_word(local)
        return tensor, word

    def locate_rows(self, positions: np.ndarray, row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Tensor index (int32) and storage row in that tensor (int64) of ascending positions [n] of storage rows."""
        ends = np.cumsum([region.storage_rows(row_bytes) for region in self.regions], dtype=np.int64)
        tensor, row = np.empty(len(positions), np.int32), np.empty_like(positions)
        for index, here, local in _parts(positions, ends):
            tensor[here], row[here] = index, self.regions[index].locate_storage_row(local, row_bytes)
        return tensor, row

    def extend(self, positions: np.ndarray, length: int) -> np.ndarray:
        """Positions of bits and of the `length` - 1 behind each (ascending, distinct), cut where their tensor, or their run
        of neighbouring rows, ends."""
        parts = [positions[:0]]
        for index, _, start in _parts(positions, self._ends):
            region = self.regions[index]
            end = region.run_end(start)
            end = np.where(end - start > length, start + length, end)
            end[:-1] = np.minimum(end[:-1], start[1:])  # where the next one begins, it goes on
            sizes = end - start
            within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            parts.append(np.repeat(start, sizes) + within + (self._ends[index] - region.bits))
        return np.concatenate(parts)

    def read(self, tensor: np.ndarray, word: np.ndarray) -> np.ndarray:
        """The present words, uint64 [n], at tensor indices and flat word indices [n].

        Raises:
            ValueError: the space was made without a model.
        """
        found = np.empty(len(word), np.uint64)
        for index in np.unique(tensor):
            memory = self.tensors[index].memory
            if memory is None:
                raise ValueError(f"{self.tensors[index].name}: an address space without a model has no words to read")
            here = tensor == index
            found[here] = Words(memory).read_uint64(word[here])
        return found

    def by_tensor(self, tensor: np.ndarray) -> Iterator[tuple[Region, np.ndarray]]:
        """For each tensor index in an array [n]: its region, and where it stands (boolean [n])."""
        for index in np.unique(tensor):
            yield self.regions[index], tensor == index


def regions(tensors: Iterable[TargetTensor], bits: tuple[int | str, ...] | None) -> list[Region]:
    """The eligible bits of each tensor.

    Raises:
        ValueError: a bit number that a tensor's words do not have.
    """
    found = []
    for tensor in tensors:
        try:
            found.append(Region(tensor, bits))
        except ValueError as error:
            raise ValueError(f"{tensor.name}: {error}") from None
    return found


def union_bits(spaces: Iterable[AddressSpace]) -> int:
    """How many bits are eligible in one or more of some spaces of one model; each counts once."""
    by_name: dict[str, list[Region]] = {}
    for region in (region for space in spaces for region in space.regions):
        by_name.setdefault(region.tensor.name, []).append(region)
    total = 0
    for found in by_name.values():
        tensor = found[0].tensor
        if len(found) == 1 or all(region.tensor.rows is None for region in found):  # all have the same rows
            masks = np.bitwise_or.reduce([region.masks for region in found])
            total += int(np.bitwise_count(masks).sum()) * (tensor.targeted // len(masks))
            continue
        inside = np.zeros((tensor.shape[0], len(found)), bool)
        for number, region in enumerate(found):
            inside[slice(None) if region.tensor.rows is None else region.tensor.rows, number] = True
        for combination, rows in zip(*np.unique(inside, axis=0, return_counts=True), strict=True):
            if chosen := [region.masks for region, there in zip(found, combination, strict=True) if there]:
                masks = np.bitwise_or.reduce(chosen)
                total += int(np.bitwise_count(masks).sum()) * (tensor.row_words // len(masks)) * int(rows)
    return total


def _parts(positions: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, slice, np.ndarray]]:
    """Ascending positions cut by tensor: tensor index, which of the positions, and these counted from its first one."""
    bounds = np.searchsorted(positions, ends, side="left")
    start, first = 0, 0
    for index, (bound, end) in enumerate(zip(bounds.tolist(), ends.tolist(), strict=True)):
        if bound > start:
            here = slice(start, bound)
            yield index, here, positions[here] - first
        start, first = bound, end


def resolve(
    model: nn.Module, target: "str | Target" = "all", components: Mapping[str, str] | None = None
) -> AddressSpace:
    """The address space of a target in a model.

    Args:
        model: any module.
        target: `"all"` (parameters), `"everything"` (and buffers), a component (its parameters; its buffers when it has
            no others), a group (`mlp`: the components whose names end in `_mlp`), else a glob on names of parameters
            and buffers; or a `Target`, as `Rows`.
        components: overrides of which tensor belongs to which component, as in `components()`.

    Raises:
        ValueError: a target that matches nothing (with the names there are); a tensor that cannot be hit (complex, bool,
            quantized, sparse, uninitialised, on the meta device, a wrapper); words that lie in the same memory.
    """
    from drsrobust.injection.targets import as_target

    return as_target(target).resolve(model, components)
