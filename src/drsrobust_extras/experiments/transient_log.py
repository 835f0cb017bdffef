"""The log of what transient errors hit, call by call."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Hit:
    """The transient errors of one call (of one sample of it).

    Attributes:
        site: name of the place, as `dense`, `ids`, `over_arch.model.0` or `gradient of 0.weight`.
        call: number of the call, from 0.
        sample: number of the sample over all calls, from 0; None where errors are drawn per call.
        word: int64 [n], flat index of the word in the tensor of that call (or in the sample's words).
        mask: uint64 [n], XOR mask of the word.
    """

    site: str
    call: int
    sample: int | None
    word: np.ndarray
    mask: np.ndarray


@dataclass(eq=False)
class Log:
    """All calls of all transient targets of one injection. It grows while the model is used.

    Attributes:
        pairs: number of transient (error model, target) pairs.
        hits: calls (or samples) with at least one error, in their order.
        calls: site -> number of calls.
        eligible_bits: over all calls.
        n_sites, n_events: over all calls, as in `ErrorMap`; None for sums of error models and for several pairs.
    """

    pairs: int = 1
    hits: list[Hit] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    eligible_bits: int = 0
    n_sites: int | None = 0
    n_events: int | None = 0

    def __post_init__(self) -> None:
        if self.pairs > 1:
            self.n_sites = self.n_events = None

    def count(self, error_map: Any) -> None:
        """Adds the bits, sites and events of one call's error map."""
        self.eligible_bits += error_map.eligible_bits
        for name in ("n_sites", "n_events"):
            total, value = getattr(self, name), getattr(error_map, name)
            setattr(self, name, None if total is None or value is None else total + value)

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
        """One row per word: site, call, sample (null where errors are drawn per call), word, mask."""
        import pandas as pd

        sizes = np.array([len(hit.word) for hit in self.hits], np.int64)
        columns = {
            name: np.repeat(np.array([getattr(hit, name) for hit in self.hits], object), sizes)
            for name in ("site", "call", "sample")
        }
        columns["word"] = np.concatenate([np.empty(0, np.int64), *(hit.word for hit in self.hits)])
        columns["mask"] = np.concatenate([np.empty(0, np.uint64), *(hit.mask for hit in self.hits)])
        return pd.DataFrame(columns).astype({"call": np.int64, "sample": pd.Int64Dtype()})
