"""Several copies of the same words, read by a vote: of bits (majority) or of numbers (median)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from drsrobust.extend import (
    Errors,
    Format,
    ProtectedWords,
    TargetTensor,
    check_choice,
    check_whole,
    ones,
    wrong,
)
from drsrobust.injection import Target
from drsrobust.mitigation import DrawContext, Screened, StorageProtection
from drsrobust_extras.protection.copies import copy_errors, copy_tensor

VOTES = ("median", "majority")


class Replication(StorageProtection):
    """Each word is stored `copies` times (for example by shards that serve the same table); a read takes a vote.

    Every copy takes errors of its own (see `check_bits`). A vote by bit is wrong where more than half of the copies are: of
    three with probability 3 p^2 - 2 p^3. The median of numbers is one of the copies; with one wrong copy of three it is the
    right number, with two it may be a wrong one (it is right if one is too large and one too small). Stored bits: +100 % for
    each further copy.

    The median compares words as numbers of their format; of quantized rows of integers as bytes. NaN counts as beyond infinity.

    `counts` of `screen`, of words: `hit` (in any copy) and `outvoted` (wrong after the vote).

    Args:
        copies: 3, 5, ...
        vote: `"median"` of numbers or `"majority"` of bits.
        target: protected tensors.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> layer = nn.Linear(1000, 100)
        >>> space = dr.resolve(layer)
        >>> drawn = dr.BitFlip(1e-3).sample(space, seed=1)
        >>> remaining = Replication(vote="majority").screen(drawn, space, seed=1).remaining
        >>> drawn.realised_rate, remaining.realised_rate
        (0.0010133..., 4.6828...e-06)
    """

    def __init__(self, copies: int = 3, vote: str = "median", target: str | Target = "all") -> None:
        super().__init__(target)
        check_choice("vote", vote, VOTES)
        self.copies, self.vote = check_whole("copies", copies, 3), vote
        if self.copies % 2 == 0:
            raise wrong("copies", "an odd number, 3 or more", copies)
        self.name = f"{self.copies} copies, {vote}{self.target_suffix()}"

    def settings(self) -> Any:
        return {**super().settings(), "copies": self.copies, "vote": self.vote}

    def decode(
        self, protected: ProtectedWords, errors: Errors, stored: Mapping[str, Errors], trial: DrawContext
    ) -> Screened:
        copies = [copy_errors(protected, number, stored) for number in range(1, self.copies)]
        word, *masks = Errors.aligned(errors, *copies)
        remaining = np.zeros(len(word), np.uint64)
        wrong = np.zeros(len(word), np.int64)  # copies of each word
        for mask in masks:
            wrong += mask != 0
        lost = np.flatnonzero(wrong > self.copies // 2)  # elsewhere more than half of the copies are right
        lost_masks = [mask[lost] for mask in masks]
        if self.vote == "majority":
            remaining[lost] = majority(lost_masks)
        else:
            right = protected.read(word[lost])
            remaining[lost] = right ^ median([right ^ mask for mask in lost_masks], protected.format)
        # A vote does not detect copies that are all wrong in the same way.
        alike = np.logical_and.reduce([mask == masks[0] for mask in masks])
        counts = {"hit": len(word), "outvoted": int((remaining != 0).sum())}
        return Screened(
            Errors.merged(word, remaining), bool((~alike).any()), not remaining[~alike].any(), counts=counts
        )

    def together(self, protected: ProtectedWords) -> Any:
        return protected.format

    def stored_tensors(self, protected: ProtectedWords, rows: np.ndarray | None) -> Iterator[TargetTensor]:
        for number in range(1, self.copies):
            yield copy_tensor(protected, number, rows)

    def extra_bits(self, protected: ProtectedWords) -> int:
        return (self.copies - 1) * protected.words * protected.width


def majority(masks: Sequence[np.ndarray]) -> np.ndarray:
    """The bits (uint64 [n]) that are set in more than half of an odd number of masks uint64 [n]."""
    need = len(masks) // 2 + 1
    planes = need.bit_length()
    # A counter per bit, its digits in planes. It starts so far below 2^planes that the needed number of ones overflows it.
    start = (1 << planes) - need
    counter = [np.full_like(masks[0], ones(64) if start >> digit & 1 else 0) for digit in range(planes)]
    overflow = np.zeros_like(masks[0])
    for mask in masks:
        carry = mask
        for digit in range(planes):
            counter[digit], carry = counter[digit] ^ carry, counter[digit] & carry
        overflow |= carry
    return overflow


def median(words: Sequence[np.ndarray], number_format: Format) -> np.ndarray:
    """The median (uint64 [n]) of an odd number of words uint64 [n] each, as numbers of their format. Floats are in the total
    order of IEEE 754: NaN is beyond infinity, on the side of its sign."""
    width, is_float = number_format.width, number_format.dtype.is_floating_point
    sign = np.uint64(1 << (width - 1))
    if not is_float and not number_format.dtype.is_signed:
        sign = np.uint64(0)
    # Keys are unsigned integers in the order of the numbers; negative floats are in reverse order.
    keys = np.stack(words) ^ sign
    if is_float:
        keys = np.where(keys & sign, keys, keys ^ ones(width - 1))
    middle = np.partition(keys, len(words) // 2, axis=0)[len(words) // 2]
    if is_float:
        middle = np.where(middle & sign, middle, middle ^ ones(width - 1))
    return middle ^ sign
