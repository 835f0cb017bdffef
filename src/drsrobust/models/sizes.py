"""Checks of the sizes that a model is asked to have; each failure is one ValueError with the name and the value."""

from collections.abc import Sequence
from math import isfinite
from numbers import Integral, Real

import numpy as np


def check_sizes(**sizes: object) -> None:
    """Checks sizes by what their names say: `*_mlp` is one or more widths, `dropout` a share below 1, `std` over 0, all others
    are whole numbers from 1."""
    for name, value in sizes.items():
        if name.endswith("_mlp"):
            good = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) and len(value)
            good, right = good and all(map(_counts, value)), "one or more layer widths, each a whole number from 1"
        elif name == "dropout":
            good, right = _real(value) and 0 <= value < 1, "in [0, 1)"
        elif name == "std":
            good, right = _real(value) and value > 0, "over 0"
        else:
            good, right = _counts(value), "a whole number from 1"
        if not good:
            raise ValueError(f"{name} is {value!r}; it must be {right}")


def check_dlrm_sizes(embedding_dim: int, dense_mlp: Sequence[int], over_mlp: Sequence[int]) -> None:
    """What DLRM's MLPs must fit to: the embeddings, and one logit."""
    check_sizes(embedding_dim=embedding_dim, dense_mlp=dense_mlp, over_mlp=over_mlp)
    if dense_mlp[-1] != embedding_dim:
        raise ValueError(
            f"dense_mlp is {list(dense_mlp)}; its last width must be embedding_dim, {embedding_dim}: its output stands "
            "beside the embeddings"
        )
    if len(over_mlp) < 2 or over_mlp[-1] != 1:
        raise ValueError(f"over_mlp is {list(over_mlp)}; it must have at least two widths, the last one 1 (the logit)")


def _counts(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= 1


def _real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
