"""Several copies of the same words, and a vote."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from drsrobust._names import unknown
from drsrobust.injection import Target
from drsrobust.injection.region import TargetTensor
from drsrobust.mitigation.beside import copy_errors, copy_tensor
from drsrobust.mitigation.errors import Area, Errors, aligned, joined
from drsrobust.mitigation.storage import StorageProtection, Trial, Verdict
from drsrobust.mitigation.voting import majority, median

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
