"""A tensor's memory as integers of the width of its words, read and written by flat index."""

import numpy as np
import torch

from drsrobust.tensors import span

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a word


class Words:
    """A tensor's words as integers; its memory, not a copy."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device, self.type, self.span = tensor.device, INTEGERS[tensor.element_size()], span(tensor)
        self._inference = tensor.is_inference()
        # Not .detach(): its writes would count as changes that autograd knows of. Hardware does not tell autograd.
        view = tensor.data.view(self.type)
        if view.is_inference() and not self._inference:  # made in inference mode, it could not be written to after it
            with torch.inference_mode(False):
                view = tensor.data.view(self.type)
        self._shape = view.shape
        self._flat = view.view(-1) if view.is_contiguous() else None
        self._view = view

    def read(self, index: torch.Tensor) -> torch.Tensor:
        """The words [n] at int64 indices [n]."""
        if self._flat is not None:
            return self._flat.index_select(0, index)
        return self._view[torch.unravel_index(index, self._shape)]

    def write(self, index: torch.Tensor, words: torch.Tensor) -> None:
        """Puts words [n] at distinct int64 indices [n]."""
        if self._inference and not torch.is_inference_mode_enabled():
            with torch.inference_mode():  # PyTorch allows writes to inference tensors nowhere else
                return self.write(index, words)
        if self._flat is not None:
            self._flat.scatter_(0, index, words)
        else:
            self._view[torch.unravel_index(index, self._shape)] = words

    def read_uint64(self, index: np.ndarray) -> np.ndarray:
        """The words [n] at int64 indices [n] as uint64."""
        found = self.read(torch.from_numpy(np.ascontiguousarray(index)).to(self.device)).cpu().numpy()
        return found.view(f"uint{8 * found.dtype.itemsize}").astype(np.uint64)

    def masks(self, mask: np.ndarray) -> torch.Tensor:
        """XOR masks uint64 [n] as integers of the words' type, where the words are."""
        width = 8 * self.type.itemsize
        narrow = mask.astype(f"uint{width}")
        return torch.from_numpy(narrow if width == 8 else narrow.view(f"int{width}")).to(self.device)
