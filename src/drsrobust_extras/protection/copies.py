"""Further copies of protected words, which take errors of their own."""

from collections.abc import Mapping

import numpy as np

from drsrobust.extend import Errors, Format, ProtectedWords, TargetTensor
from drsrobust.mitigation import NO_ERRORS


def copy_name(protected: ProtectedWords, number: int) -> str:
    """The tensor name of a further copy, 1 and up."""
    return f"{protected.name} (copy {number})"


def copy_tensor(
    protected: ProtectedWords, number: int, rows: np.ndarray | None, masks: np.ndarray | None = None
) -> TargetTensor:
    """A further copy of protected words, which takes errors of its own.

    Args:
        protected: the words.
        number: of the copy.
        rows: only these rows of the tensor; None: all.
        masks: uint64 [period], only these bits of each word; None: all but padding.
    """
    tensor, word_format = protected.tensor, protected.format
    if masks is not None:
        word_format = Format(f"some of {word_format.name}", word_format.dtype, {"value": masks})
    if rows is None:
        rows = tensor.rows
    elif tensor.rows is not None:
        rows = np.intersect1d(tensor.rows, rows, assume_unique=True)
    name = copy_name(protected, number)
    return TargetTensor(name, tensor.component, tensor.shape, word_format, rows, tensor.stored)


def copy_errors(protected: ProtectedWords, number: int, stored: Mapping[str, Errors]) -> Errors:
    """The errors in a further copy, by word number."""
    errors = stored.get(copy_name(protected, number), NO_ERRORS)
    return Errors(protected.local(errors.index)[0], errors.mask)
