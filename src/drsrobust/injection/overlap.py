"""Words that lie in the same memory: they would be hit twice, and put back wrongly."""

from collections.abc import Mapping

import numpy as np
import torch

from drsrobust.tensors import span


def refuse_overlaps(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError when words of one tensor, or of two, lie in the same memory."""
    spans = sorted((*span(tensor), name) for name, tensor in tensors.items())
    open_spans: list[tuple[int, str]] = []
    for start, end, name in spans:
        if not _apart(tensors[name]):
            raise ValueError(f"{name} repeats words of its memory (it was expanded); it cannot be hit word by word")
        open_spans = [(reach, other) for reach, other in open_spans if reach > start]
        for _, other in open_spans:
            if len(np.intersect1d(_places(tensors[other]), _places(tensors[name]))):
                raise ValueError(f"{other} and {name} share a part of their memory; target one of them by its name")
        open_spans.append((end, name))


def _apart(tensor: torch.Tensor) -> bool:
    """Whether each word of a tensor has a place of its own."""
    if tensor.is_contiguous() or not tensor.numel():
        return True
    reach = 1  # words that the smaller dimensions span
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ):
        if stride < reach:  # not one dimension inside the next: look at each word
            return len(np.unique(_places(tensor))) == tensor.numel()
        reach += stride * (size - 1)
    return True


def _places(tensor: torch.Tensor) -> np.ndarray:
    """The address of each word, int64."""
    place = np.full(1, tensor.data_ptr(), np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        place = (place[:, None] + tensor.element_size() * stride * np.arange(size)).ravel()
    return place
