"""What transient errors hit, call by call."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Hit:
    """The errors of one call (of one sample of it).

    Attributes:
        where: what was hit, as `dense`, `ids`, `over_arch.model.0` or `gradient of 0.weight`.
        call: number of the call, from 0.
        sample: number of the sample over all calls, from 0; None where errors are drawn per call.
        word: int64 [n], flat index of the word in the tensor of that call (or in the sample's words).
        mask: uint64 [n], XOR mask of the word.
    """

    where: str
    call: int
    sample: int | None
    word: np.ndarray
    mask: np.ndarray


@dataclass(eq=False)
class Log:
    """All calls of all transient targets of one injection. It grows while the model is used.

    Attributes:
        pairs: how many transient (error model, target) pairs it is of.
        hits: calls (or samples) with at least one error, in the order in which they came.
        calls: how many calls there were, by what could be hit.
        eligible_bits: over all calls.
        places, events: over all calls, as in `ErrorMap`; None for sums of error models, and where several pairs are drawn.
    """

    pairs: int = 1
    hits: list[Hit] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    eligible_bits: int = 0
    places: int | None = 0
    events: int | None = 0

    def __post_init__(self) -> None:
        if self.pairs > 1:
            self.places = self.events = None

    @property
    def words(self) -> int:
        """How many words were hit."""
        return sum(len(hit.word) for hit in self.hits)

    @property
    def bits(self) -> int:
        """How many bits were flipped."""
        return sum(int(np.bitwise_count(hit.mask).sum()) for hit in self.hits)

    @property
    def realised_rate(self) -> float:
        """Flipped bits over eligible bits."""
        return self.bits / self.eligible_bits if self.eligible_bits else 0.0

    def __str__(self) -> str:
        return f"{self.bits:,} bits in {self.words:,} words in {sum(self.calls.values()):,} calls"

    def frame(self) -> "pd.DataFrame":
        """One row per word: where, call, sample (absent where errors are drawn per call), word, mask."""
        import pandas as pd

        sizes = [len(hit.word) for hit in self.hits]
        columns = {
            "where": np.repeat(np.array([hit.where for hit in self.hits], object), sizes),
            "call": np.repeat(np.array([hit.call for hit in self.hits], np.int64), sizes),
            "sample": pd.array(
                [h.sample for h, n in zip(self.hits, sizes, strict=True) for _ in range(n)], pd.Int64Dtype()
            ),
            "word": np.concatenate([np.empty(0, np.int64), *(hit.word for hit in self.hits)]),
            "mask": np.concatenate([np.empty(0, np.uint64), *(hit.mask for hit in self.hits)]),
        }
        return pd.DataFrame(columns)
