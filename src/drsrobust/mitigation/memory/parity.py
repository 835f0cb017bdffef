"""Parity: a bit per word says that an odd number of its bits is wrong; the word is set to 0."""

from collections.abc import Mapping

import numpy as np

from drsrobust.injection import Target
from drsrobust.mitigation.memory.check_memory import CheckBits
from drsrobust.mitigation.memory.protected_words import NOTHING, Area, Errors, aligned, joined
from drsrobust.mitigation.memory.storage import StorageProtection, Trial, Verdict


class ParityZero(StorageProtection):
    """One parity bit per word; where it does not fit, the word is read as 0.

    A word that is 0 does little harm in an embedding or a layer ("weight nulling"). Odd numbers of errors in a word and its
    parity bit are seen, an error in the parity bit alone among them (it costs a sound word); even ones pass. Of a word of w
    bits the share ((1 - (1 - 2p)^(w + 1)) / 2 is set to 0. Stored bits: +3.1 % for 32-bit words, +12.5 % for bytes.

    In quantized rows of integers a word is a byte, and a code of 0 means the row's bias; scale and bias are set to 0 byte by
    byte.

    `report` counts words: `zeroed` (`sound` of them had no error), `unnoticed`.

    Args:
        target: what is protected.

    Example:
        >>> import torch, drsrobust as dr
        >>> layer = torch.nn.Linear(1000, 100)
        >>> with dr.inject(layer, dr.FixedCount(3), seed=1, mitigation=ParityZero()) as left:
        ...     print((layer.weight == 0).sum().item(), left.detected, left.repaired)
        3 True False
    """

    def __init__(self, target: str | Target = "all") -> None:
        super().__init__(target)
        self.name = f"parity, zero{self.of_target()}"

    def words(self, area: Area, errors: Errors, beside: Mapping[str, Errors], trial: Trial) -> Verdict:
        word, mask, parity = aligned(errors, beside.get(area.name, NOTHING))
        odd = (np.bitwise_count(mask) ^ parity) & 1 == 1
        zeroed = word[odd]
        counts = {"zeroed": len(zeroed), "sound": int((mask[odd] == 0).sum()), "unnoticed": int((~odd).sum())}
        mask = mask.copy()
        mask[odd] = area.read(zeroed)
        return Verdict(joined(word, mask), bool(len(zeroed)), bool(mask[odd].any()), counts)

    def checks(self, area: Area) -> CheckBits:
        return CheckBits(area.words, 1)

    def units(self, area: Area, words: np.ndarray) -> np.ndarray:
        return words

    def content(self, area: Area, unit: np.ndarray) -> np.ndarray:
        return (np.bitwise_count(area.read(unit)) & 1).astype(np.uint64)
