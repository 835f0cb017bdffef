"""Checks of the inputs of metrics: labels, scores, users and settings."""

import numpy as np

from drsrobust._arguments import check_number, check_whole

BLOCK = 1 << 18  # rows that are computed at once, so that memory holds few copies of all


def checked(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Clicks (bool [n]) and scores [n]; both may be [n, 1].

    Raises:
        ValueError: labels and scores of different lengths or not a column, or a label other than 0 and 1.
    """
    labels, scores = columns(labels=labels, scores=scores)
    clicked = labels == 1
    if not (clicked | (labels == 0)).all():
        raise ValueError(f"labels hold {labels[~clicked & (labels != 0)][0]}; they must be 0 or 1")
    return clicked, scores


def columns(**arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays as [n]; they may be [n, 1].

    Raises:
        ValueError: arrays of different lengths, or of another shape.
    """
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    size = next(iter(arrays.values())).size
    if any(array.size != size or max(array.shape, default=0) != size for array in arrays.values()):
        shapes = " and ".join(f"{name} of shape {array.shape}" for name, array in arrays.items())
        raise ValueError(f"{shapes}; both must be [n]" if len(arrays) == 2 else f"{shapes}; all must be [n]")
    return [array.ravel() for array in arrays.values()]


def checked_users(users: np.ndarray) -> np.ndarray:
    """Ids of users, int64 [n].

    Raises:
        ValueError: other types than integers, or another shape.
    """
    (users,) = columns(users=users)
    if users.dtype.kind not in "iu":
        raise ValueError(f"users are {users.dtype}; they must be whole numbers, as the ids in Split.users")
    return users.astype(np.int64, copy=False)


def checked_k(k: int) -> int:
    """The length of a list; raises ArgumentError unless it is a whole number of at least 1."""
    return check_whole("k", k, 1)


def checked_prior(prior: float) -> float:
    """A click rate; raises ValueError outside [0, 1]."""
    return check_number("prior", prior, "a click rate, in [0, 1]", lambda prior: 0 <= prior <= 1)


def checked_rows(changed: np.ndarray) -> np.ndarray:
    """Row numbers [m] as an array.

    Raises:
        ValueError: another shape, or no whole numbers.
    """
    changed = np.asarray(changed)
    if changed.ndim != 1 or (changed.dtype.kind not in "iu" and len(changed)):
        raise ValueError(f"changed is {changed.dtype} of shape {changed.shape}; it must be row numbers, int64 [rows]")
    return changed


def distinct_rows(changed: np.ndarray, n: int) -> np.ndarray:
    """Row numbers int64 [m], sorted.

    Raises:
        ValueError: a number that is not among 0 .. n - 1, or one twice.
    """
    rows = np.sort(changed.astype(np.int64))
    if len(rows) and (rows[0] < 0 or rows[-1] >= n):
        raise ValueError(f"changed holds {rows[0] if rows[0] < 0 else rows[-1]}; rows are numbered 0 to {n - 1}")
    twice = np.flatnonzero(rows[1:] == rows[:-1])
    if len(twice):
        raise ValueError(f"changed holds row {rows[twice[0]]} twice; rows must be distinct")
    return rows


def check_finite(golden: np.ndarray, *, masked: bool = False) -> None:
    """Raises ValueError unless all golden scores, [n] or [n, items], are finite; `masked` ones may be -inf."""
    wrong = ~(np.isfinite(golden) | (np.isneginf(golden) if masked else False))
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        raise ValueError(f"golden score {golden[place]} of row {place[0]}; scores without errors must be finite")


def check_same(arrays: dict[str, np.ndarray], fresh: dict[str, np.ndarray]) -> None:
    """Raises RuntimeError unless the arrays, by name, are the fresh ones bit for bit."""
    for name, array in arrays.items():
        bits = [part.view(f"u{part.itemsize}") for part in (array, fresh[name])]
        if array.dtype != fresh[name].dtype or not np.array_equal(*bits):
            raise RuntimeError(f"{name} is not what it was made of the golden scores; something wrote to it")
