"""Votes of several copies: by bit, and the middle number."""

from collections.abc import Sequence

import numpy as np

from drsrobust.injection.formats import Format
from drsrobust.mitigation.errors import ones


def majority(masks: Sequence[np.ndarray]) -> np.ndarray:
    """The bits (uint64 [n]) that are set in more than half of an odd number of masks uint64 [n]."""
    need = len(masks) // 2 + 1
    planes = need.bit_length()
    # A counter per bit, its digits in planes. It starts so far below 2^planes that the needed number of ones overflows it.
    start = (1 << planes) - need
    counter = [np.full_like(masks[0], ones(64) if start >> digit & 1 else 0) for digit in range(planes)]
    over = np.zeros_like(masks[0])
    for mask in masks:
        carry = mask
        for digit in range(planes):
            counter[digit], carry = counter[digit] ^ carry, counter[digit] & carry
        over |= carry
    return over


def median(words: Sequence[np.ndarray], form: Format) -> np.ndarray:
    """The middle one (uint64 [n]) of an odd number of words uint64 [n] each, as numbers of their format. Of floating formats
    all bit patterns are in order (IEEE 754's totalOrder): a NaN is beyond infinity, on the side of its sign."""
    keys = np.stack([_key(one, form) for one in words])
    middle = np.partition(keys, len(words) // 2, axis=0)[len(words) // 2]
    return _word(middle, form)


def _key(word: np.ndarray, form: Format) -> np.ndarray:
    """Words as unsigned integers in the order of their numbers."""
    top = np.uint64(1 << (form.width - 1))
    if form.dtype.is_floating_point:
        return np.where(word & top, ~word & ones(form.width), word | top)
    return word ^ top if form.dtype.is_signed else word


def _word(key: np.ndarray, form: Format) -> np.ndarray:
    """The reverse of `_key`."""
    top = np.uint64(1 << (form.width - 1))
    if form.dtype.is_floating_point:
        return np.where(key & top, key ^ top, ~key & ones(form.width))
    return key ^ top if form.dtype.is_signed else key
