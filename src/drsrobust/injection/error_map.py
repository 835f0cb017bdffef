"""The sampled errors of one trial: sparse, ordered, saved without pickle, applied and undone exactly."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from drsrobust._storage import new_file
from drsrobust.injection.application import Application, ErrorMapMismatch, words_of

if TYPE_CHECKING:
    import pandas as pd

_FORMAT = 1  # of saved files


@dataclass(frozen=True)
class Fingerprint:
    """What a targeted tensor must be for a map to fit: name, shape, dtype; and its component, for reports."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    component: str


@dataclass(frozen=True, eq=False)
class ErrorMap:
    """Which bits of which words are wrong.

    Attributes:
        tensor: int32 [n], index into `targets`.
        word: int64 [n], flat index of the word in its tensor.
        mask: uint64 [n], XOR mask of the word. Entries are sorted by (tensor, word), one per word.
        fingerprint: the targeted tensors, in the order of `targets`.
        seed: what it was drawn with.
        error_model: what it was drawn from, as text.
        eligible_bits: how many bits could have been hit.
        requested_rate: expected share of them; None for error models of a fixed count.
    """

    tensor: np.ndarray
    word: np.ndarray
    mask: np.ndarray
    fingerprint: tuple[Fingerprint, ...]
    seed: int
    error_model: str
    eligible_bits: int
    requested_rate: float | None

    def __len__(self) -> int:
        """How many words are hit."""
        return len(self.word)

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targeted tensors."""
        return tuple(entry.name for entry in self.fingerprint)

    @property
    def bits(self) -> int:
        """How many bits are flipped."""
        return int(np.bitwise_count(self.mask).sum())

    @property
    def realised_rate(self) -> float:
        """Flipped bits over eligible bits."""
        return self.bits / self.eligible_bits

    def __repr__(self) -> str:
        return (
            f"<ErrorMap {self.error_model}, seed {self.seed}: {self.bits:,} bits in {len(self):,} words of "
            f"{len(self.targets)} tensors, rate {self.realised_rate:.3g}>"
        )

    def frame(self) -> "pd.DataFrame":
        """One row per word: tensor, component, word, mask, bits (how many are flipped in it)."""
        import pandas as pd

        return pd.DataFrame(
            {
                "tensor": np.array(self.targets, object)[self.tensor],
                "component": np.array([entry.component for entry in self.fingerprint], object)[self.tensor],
                "word": self.word,
                "mask": self.mask,
                "bits": np.bitwise_count(self.mask).astype(np.int64),
            }
        )

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator["ErrorMap"]:
        """The errors are in the model inside the block; afterwards every word is what it was.

        Raises:
            ErrorMapMismatch: a targeted tensor is missing in the model or has another shape or dtype.
        """
        application = Application(self, model)
        try:
            application.apply()
            yield self
        finally:
            application.undo()

    def apply(self, model: nn.Module) -> None:
        """Puts the errors into the model, for good (`applied` takes them out again, also after an interrupt)."""
        for _, words, index, mask in words_of(self, model):
            words.write(index, words.read(index) ^ mask)

    def save(self, path: str | Path) -> None:
        """Writes an .npz file (arrays and JSON, no pickle), complete or not at all."""
        about = {"format": _FORMAT, "seed": self.seed, "error_model": self.error_model}
        about |= {"eligible_bits": self.eligible_bits, "requested_rate": self.requested_rate}
        about["fingerprint"] = [[e.name, list(e.shape), e.dtype, e.component] for e in self.fingerprint]
        with new_file(Path(path)) as part, open(part, "wb") as handle:
            about_bytes = np.frombuffer(json.dumps(about).encode(), np.uint8)
            np.savez_compressed(handle, about=about_bytes, tensor=self.tensor, word=self.word, mask=self.mask)

    @classmethod
    def load(cls, path: str | Path) -> "ErrorMap":
        """Reads what `save` wrote.

        Raises:
            ValueError: not a file of an error map, or a damaged one.
        """
        try:
            with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
                about = json.loads(file["about"].tobytes())
                if about["format"] != _FORMAT:
                    raise ValueError(f"format {about['format']}")
                fingerprint = tuple(Fingerprint(n, tuple(s), d, c) for n, s, d, c in about["fingerprint"])
                arrays = [file[name] for name in ("tensor", "word", "mask")]
                about = [about[name] for name in ("seed", "error_model", "eligible_bits", "requested_rate")]
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{path} is not an error map of this version, or is damaged: {error}") from error
        return cls(*arrays, fingerprint, *about)


__all__ = ["ErrorMap", "ErrorMapMismatch", "Fingerprint"]
