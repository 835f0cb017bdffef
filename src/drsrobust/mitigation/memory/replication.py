"""Votes of several copies: by bit, and the middle number.

Several copies of the same words, and a vote."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from drsrobust._environment import unknown
from drsrobust.injection import Target
from drsrobust.injection.address_space import TargetTensor
from drsrobust.injection.number_formats import Format
from drsrobust.mitigation.memory.check_memory import copy_errors, copy_tensor
from drsrobust.mitigation.memory.protected_words import Area, Errors, aligned, joined, ones
from drsrobust.mitigation.memory.storage import StorageProtection, Trial, Verdict


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


VOTES = ("median", "majority")


def check_copies(copies: int) -> int:
    """Raises ValueError unless this is an odd number of 3 or more copies."""
    if isinstance(copies, bool) or not isinstance(copies, int | np.integer) or copies < 3 or copies % 2 == 0:
        raise ValueError(f"copies is {copies!r}; a vote needs an odd number, 3 or more")
    return int(copies)


class Replication(StorageProtection):
    """Each word is stored `copies` times (as by shards that serve the same table), and read as what the copies vote.

    Every copy takes errors of its own (see `check_bits`). A vote by bit is wrong where more than half of the copies are: of
    three with probability 3 p^2 - 2 p^3. The median of numbers is an element of the copies; with one wrong copy of three it
    is the right number, with two it may be a wrong one between (its two neighbours vote one up, one down: it is right again).
    Stored bits: +100 % for each further copy.

    The median takes words as numbers of their format; of quantized rows of integers as bytes. A NaN counts as beyond infinity.

    `report` counts words: `hit` (in any copy) and `outvoted` (wrong after the vote).

    Args:
        copies: 3, 5, ...
        vote: `"median"` of numbers or `"majority"` of bits.
        target: what is protected.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> layer = nn.Linear(1000, 100)
        >>> drawn = dr.BitFlip(1e-3).sample(dr.resolve(layer), seed=1)
        >>> left = Replication(vote="majority").screen(drawn, layer, seed=1)
        >>> drawn.realised_rate, left.bits / drawn.eligible_bits
        (0.0009865..., 2.4975...e-06)
    """

    def __init__(self, copies: int = 3, vote: str = "median", target: str | Target = "all") -> None:
        super().__init__(target)
        if vote not in VOTES:
            raise unknown("vote", vote, VOTES)
        self.copies, self.vote = check_copies(copies), vote
        self.name = f"{self.copies} copies, {vote}{self.of_target()}"

    def settings(self) -> Any:
        return {**super().settings(), "copies": self.copies, "vote": self.vote}

    def words(self, area: Area, errors: Errors, beside: Mapping[str, Errors], trial: Trial) -> Verdict:
        copies = [copy_errors(area, number, beside) for number in range(1, self.copies)]
        word, *masks = aligned(errors, *copies)
        left = np.zeros(len(word), np.uint64)
        wrong = sum(((mask != 0).astype(np.int64) for mask in masks), np.zeros(len(word), np.int64))
        lost = np.flatnonzero(wrong > self.copies // 2)  # elsewhere more than half of the copies are right
        some = [mask[lost] for mask in masks]
        if self.vote == "majority":
            left[lost] = majority(some)
        else:
            right = area.read(word[lost])
            left[lost] = right ^ median([right ^ mask for mask in some], area.format)
        # Copies that are all wrong in the same way differ in nothing.
        alike = np.logical_and.reduce([mask == masks[0] for mask in masks])
        counts = {"hit": len(word), "outvoted": int((left != 0).sum())}
        return Verdict(joined(word, left), bool((~alike).any()), bool((left[~alike] != 0).any()), counts)

    def beside(self, area: Area, rows: np.ndarray | None) -> Iterator[TargetTensor]:
        for number in range(1, self.copies):
            yield copy_tensor(area, number, rows)

    def extra_bits(self, area: Area) -> int:
        return (self.copies - 1) * area.words * area.width
