"""The words of a tensor in memory as integers, read and written by flat index."""

import numpy as np
import torch

from drsrobust.introspection.numerics import forget_casts

INTEGER_OF_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a word


class WordView:
    """The words of a tensor as integers of the same width: its own memory, read and written by flat index."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device, self.type = tensor.device, INTEGER_OF_BYTES[tensor.element_size()]
        self._inference = tensor.is_inference()
        # Autograd counts writes through .detach(), but not through .data: hardware errors are not known to it.
        view = tensor.data.view(self.type)
        if view.is_inference() and not self._inference:  # a view made in inference mode is read-only outside of it
            with torch.inference_mode(False):
                view = tensor.data.view(self.type)
        self._view = view
        self._flat = view.view(-1) if view.is_contiguous() else None

    def read(self, index: torch.Tensor) -> torch.Tensor:
        """The words [n] at int64 indices [n]."""
        if self._flat is not None:
            return self._flat.index_select(0, index)
        return self._view[torch.unravel_index(index, self._view.shape)]

    def write(self, index: torch.Tensor, words: torch.Tensor) -> None:
        """Writes words [n] at distinct int64 indices [n]; PyTorch forgets what it had computed of the old ones."""
        if self._inference and not torch.is_inference_mode_enabled():
            with torch.inference_mode():  # PyTorch allows writes to inference tensors nowhere else
                return self.write(index, words)
        if self._flat is not None:
            self._flat.scatter_(0, index, words)
        else:
            self._view[torch.unravel_index(index, self._view.shape)] = words
        forget_casts()

    def read_uint64(self, index: np.ndarray) -> np.ndarray:
        """The words [n] at int64 indices [n] as uint64."""
        words = self.read(torch.from_numpy(np.ascontiguousarray(index)).to(self.device)).cpu().numpy()
        return words.view(f"uint{8 * words.dtype.itemsize}").astype(np.uint64)

    def masks(self, mask: np.ndarray) -> torch.Tensor:
        """XOR masks uint64 [n] as integers of the words' type, on the words' device."""
        return torch.from_numpy(as_integers(mask, self.type)).to(self.device)


def as_integers(mask: np.ndarray, integers: torch.dtype) -> np.ndarray:
    """Masks uint64 [n] as integers [n] of a type; their higher bits are dropped."""
    width = 8 * integers.itemsize
    narrow = mask.astype(f"uint{width}")
    return narrow if width == 8 else narrow.view(f"int{width}")
