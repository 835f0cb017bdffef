"""Which flips an attacker may choose: of which words and bits, past which protection, and how many in each block of memory."""

from dataclasses import dataclass

import numpy as np
import torch

from drsrobust.extend import bit_set, check_instance, check_whole
from drsrobust.injection import AddressSpace, Bits, TargetLike, as_target
from drsrobust.mitigation import Mitigation


@dataclass(frozen=True)
class Allowed:
    """Which flips may be chosen.

    Args:
        target: that holds them, as in `inject`.
        bits: numbers and fields of the format, as in `BitFlip`; None: all.
        passes: a protection of memory; chosen flips are such that it leaves all of them in the model.
        one_per: at most one flip in each block of so many bytes of a tensor (8192: a row of DRAM; 8: a word of a code, which
            SECDED corrects).
        pairs_in: flips come in pairs, each in a block of so many bytes (8: what SECDED detects, and cannot correct).

    Raises:
        ValueError: blocks of no bytes, or both kinds of blocks.

    Example:
        >>> import drsrobust as dr
        >>> str(dr.Allowed("over_mlp", one_per=8192))
        'over_mlp, one per 8192 bytes'
    """

    target: TargetLike = "all"
    bits: Bits = None
    passes: Mitigation | None = None
    one_per: int | None = None
    pairs_in: int | None = None

    def __post_init__(self) -> None:
        for name in ("one_per", "pairs_in"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_whole(name, value, 1))
        as_target(self.target)  # raises
        if self.passes is not None:
            check_instance("passes", self.passes, Mitigation, "a protection of memory, as ECC()")
        if self.one_per is not None and self.pairs_in is not None:
            raise ValueError("one_per allows one flip in a block, pairs_in two; give one of them")
        object.__setattr__(self, "bits", bit_set(self.bits))

    def space(self, model: torch.nn.Module) -> AddressSpace:
        """The target's eligible bits in a model.

        Raises:
            ValueError: the target matches nothing, or has none of the bits.
        """
        space = as_target(self.target).resolve(model)
        return space.only(self.bits).like(space)

    def __str__(self) -> str:
        parts = [str(as_target(self.target))]
        parts += [] if self.bits is None else [f"bits {', '.join(map(str, self.bits))}"]
        parts += [] if self.passes is None else [f"passing {self.passes.name}"]
        parts += [] if self.one_per is None else [f"one per {self.one_per} bytes"]
        parts += [] if self.pairs_in is None else [f"pairs in {self.pairs_in} bytes"]
        return ", ".join(parts)


def blocks(space: AddressSpace, tensor: np.ndarray, word: np.ndarray, size: int) -> np.ndarray:
    """A number, int64 [n], of the block of `size` bytes that each word lies in; each tensor begins with a new block.

    Args:
        space: that holds the words.
        tensor: index in the space [n].
        word: flat index in the tensor [n].
        size: bytes of a block.

    Example:
        >>> import drsrobust as dr
        >>> space = dr.Allowed().space(torch.nn.Linear(2, 4, bias=False))
        >>> blocks(space, np.array([0, 0, 0]), np.array([0, 1, 2]), 8)
        array([0, 0, 1])
    """
    sizes = np.array([entry.format.dtype.itemsize for entry in space.tensors])
    return tensor.astype(np.int64) << 40 | word * sizes[tensor] // size
