"""Errors in the memory of a protection itself: check bits, checksums and copies.

The trial's error model is drawn over that memory too, by the same clock from a stream of its own: its seed there is the first
raw word of `PCG64(SeedSequence(seed, spawn_key=(s, 4)))`, s the first 4 bytes (big-endian) of SHA-256 over the protection's
label. So these errors are nested over rates as well, and settings that are not in the label see the same errors.

Only memory of targeted tensors and rows is hit, and check bits in the same word. How an error model draws there, or that it
leaves this memory clean, is said by its `sample_check_bits`. It stays clean under a loaded map, which has no error model.
"""

import hashlib
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from drsrobust.injection.address_space import TargetTensor
from drsrobust.injection.first_arrivals import SCREEN
from drsrobust.injection.number_formats import Format
from drsrobust.mitigation.memory.protected_words import Errors, ProtectedWords, bit_mask, distinct, ones


@cache
def _word_format(width: int) -> Format:
    """Words of check bits, as wide as the protected ones."""
    return Format("check bits", getattr(torch, f"uint{width}"), {"value": np.array([ones(width)])})


class CheckBits(NamedTuple):
    """Check bits of a tensor's protected words: `bits` for each of `units` (code words, words, rows).

    They are stored back to back in words as wide as the protected ones; unused bits of the last word mean nothing. So a model
    with a rate per word hits as large a share of them as of the data."""

    units: int
    bits: int

    def tensor(self, protected: ProtectedWords, units: np.ndarray | None) -> TargetTensor:
        """The tensor that holds them, under the name of the protected one; of some units (ascending; None: all), the words with
        any of their check bits."""
        width = protected.width
        words = None
        if units is not None:
            first, last = units * self.bits // width, ((units + 1) * self.bits - 1) // width
            spread = np.arange(int((last - first).max(initial=0)) + 1)
            words = distinct(np.sort(np.minimum(first[:, None] + spread, last[:, None]).ravel()))
        shape = (-(-self.units * self.bits // width),)
        return TargetTensor(protected.name, protected.tensor.component, shape, _word_format(width), words)

    def unpacked(self, protected: ProtectedWords, errors: Errors, starts: np.ndarray, ends: np.ndarray) -> Errors:
        """Errors in words of that tensor (or of several, back to back) as errors in the check bits of units.

        Args:
            protected: the words.
            errors: in words of check bits.
            starts, ends: int64 [parts], the first unit of each part of `protected`, and after its last one.
        """
        word, bit = errors.wrong_bits()
        unit, bit = np.divmod(word * protected.width + bit, self.bits)
        errors = Errors.merged(unit, bit_mask(bit))
        used = errors.index < ends[np.searchsorted(starts, errors.index, side="right") - 1]
        return errors if used.all() else Errors(errors.index[used], errors.mask[used])


def label_stream(seed: int, label: str) -> np.random.PCG64:
    """The stream of raw words that belongs to a label in a trial."""
    summand = int.from_bytes(hashlib.sha256(label.encode()).digest()[:4], "big")
    return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(summand, SCREEN)))
