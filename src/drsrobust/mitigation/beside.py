"""The memory that a protection's check bits and copies lie in."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from drsrobust.injection.formats import Format
from drsrobust.injection.region import TargetTensor
from drsrobust.mitigation.errors import NOTHING, Area, Errors, distinct, flips, joined, ones


class CheckBits(NamedTuple):
    """Check bits of an area: `bits` for each of `units` (code words, words, rows). They lie densely, one unit behind the other,
    in words as wide as the area's; the last word's unused bits mean nothing. So a model whose rate is per word hits as large a
    share of them as of the data."""

    units: int
    bits: int

    def tensor(self, area: Area, units: np.ndarray | None) -> TargetTensor:
        """The tensor that they lie in, under the area's name. Of some units alone (ascending; None: all) it is the words with
        any of their check bits."""
        width = area.width
        form = Format("check bits", getattr(torch, f"uint{width}"), {"value": np.array([ones(width)])})
        rows = None
        if units is not None:
            first, last = units * self.bits // width, ((units + 1) * self.bits - 1) // width
            spread = np.arange(int((last - first).max(initial=0)) + 1)
            rows = distinct(np.sort(np.minimum(first[:, None] + spread, last[:, None]).ravel()))
        return TargetTensor(area.name, area.tensor.component, (-(-self.units * self.bits // width),), form, rows)

    def unpacked(self, area: Area, errors: Errors) -> Errors:
        """Errors in words of that tensor as errors in the check bits of units."""
        word, bit = flips(errors)
        place = word * area.width + bit
        unit = place // self.bits
        return joined(
            *(
                one[unit < self.units]
                for one in (unit, np.left_shift(np.uint64(1), (place % self.bits).astype(np.uint64)))
            )
        )

    def packed(self, area: Area, word: np.ndarray, content: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """What words of that tensor hold (uint64 [n]), from what units do."""
        place = word[:, None] * area.width + np.arange(area.width)
        unit = np.minimum(place // self.bits, self.units - 1)
        every = distinct(np.sort(unit.ravel()))
        held = content(every)[np.searchsorted(every, unit)] >> (place % self.bits).astype(np.uint64)
        held = np.where(place < self.units * self.bits, held & np.uint64(1), np.uint64(0))
        return np.bitwise_or.reduce(held << np.arange(area.width, dtype=np.uint64), axis=1)


def copy_name(area: Area, number: int) -> str:
    """The name of a further copy of an area's words."""
    return f"{area.name} (copy {number})"


def copy_tensor(area: Area, number: int, rows: np.ndarray | None, masks: np.ndarray | None = None) -> TargetTensor:
    """A further copy of an area's words: it holds what the model does, and its errors are its own.

    Args:
        area: whose.
        number: of the copy.
        rows: only of these rows of the tensor; None: all.
        masks: uint64 [period], only these bits of each word; None: all but padding.
    """
    form = area.format if masks is None else Format(f"some of {area.format.name}", area.format.dtype, {"value": masks})
    tensor = area.tensor
    if rows is None:
        rows = tensor.rows
    elif tensor.rows is not None:
        rows = np.intersect1d(tensor.rows, rows, assume_unique=True)
    return TargetTensor(copy_name(area, number), tensor.component, tensor.shape, form, rows, tensor.stored)


def copy_errors(area: Area, number: int, beside: Mapping[str, Errors]) -> Errors:
    """The errors in a further copy, by the area's word numbers."""
    errors = beside.get(copy_name(area, number), NOTHING)
    local, _ = area.local(errors.index)
    return Errors(local, errors.mask)
