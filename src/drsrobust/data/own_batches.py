"""A user's own batches, as they are: of a DataLoader, a list or a generator."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drsrobust._environment import check_choice
from drsrobust.data.dataset import TASKS, Ids

FILE = "batches.pt"


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """Batches and the labels of their n rows.

    Attributes:
        batches: as they were given.
        sizes: rows of each, int64.
        labels: float32 [n] or [n, T], or Ids: the relevant items of each row.
        users: int64 [n], or None.
        prior: click rate.
        tasks: names of the T tasks; none for one.
        dataset: name, in tables and figures.
    """

    batches: list[Any]
    sizes: np.ndarray
    labels: np.ndarray | Ids
    users: np.ndarray | None
    prior: float
    tasks: tuple[str, ...] = ()
    dataset: str = "batches"

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def __repr__(self) -> str:
        return f"<Batches {self.dataset}: {len(self):,} rows in {len(self.batches)} batches>"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the contents of all batches, labels and users."""
        total = hashlib.sha256()
        for part in (self.batches, self.labels, self.users, self.tasks):
            _add(total, part)
        return total.hexdigest()


def from_batches(
    batches: Iterable[Any],
    *,
    label: Callable[[Any], Any] | None = None,
    user: Callable[[Any], Any] | None = None,
    task: str | None = None,
    prior: float | None = None,
    tasks: Sequence[str] = (),
    name: str = "batches",
) -> Batches:
    """Batches for an evaluator, kept as they are in memory. `forward` is called on each several times, and must not change it.

    Args:
        batches: any iterable: of TorchRec's `Batch`, of (dense, KeyedJaggedTensor, label), or of anything that the evaluator's
            `forward` takes.
        label: batch -> labels [B] or [B, 1] of 0 and 1, [B, T] of several tasks; for ranking the relevant item, int64 [B], or
            lists of them. None: `batch.labels`, the last element of a tuple or list, or the key `label` or `labels`.
        user: batch -> ids of users [B].
        task: `click` or `rank`; None: by the labels, which may be all 0 and 1 for `click` alone.
        prior: click rate of training rows; None: of these rows.
        tasks: names of several tasks; else `task_0`, `task_1`, ...
        name: in tables and figures.

    Raises:
        TypeError: no iterable, or labels that are not found.
        ValueError: no batch, labels of another form, or labels of several batches in the same memory.
    """
    if task is not None:
        check_choice("task", task, TASKS)
    if not isinstance(batches, Iterable):
        raise TypeError(f"batches is a {type(batches).__name__}; it must be a DataLoader, a list or another iterable")
    kept = list(batches)
    if not kept:
        raise ValueError("there are no batches; a generator can be read only once")
    for what, given in (("label", label), ("user", user)):
        if given is not None and not callable(given):
            raise TypeError(f"{what} is {given!r}; it must be a function of a batch, as lambda batch: batch[{given!r}]")
    found = [(label or _label_of)(batch) for batch in kept]
    places = [one.data_ptr() for one in found if isinstance(one, torch.Tensor) and one.numel()]
    if len(set(places)) < len(places):
        raise ValueError(
            "several batches have their labels in the same memory; a loader that reuses it must give copies"
        )
    labels, sizes = _joined(found, task)
    users = None
    if user is not None:
        users = np.concatenate([_array(user(batch)).reshape(-1) for batch in kept]).astype(np.int64)
        if len(users) != sizes.sum():
            raise ValueError(f"user gives {len(users)} users for {sizes.sum()} rows")
    width = 1 if isinstance(labels, Ids) or labels.ndim == 1 else labels.shape[1]
    tasks = tuple(tasks) or (tuple(f"task_{number}" for number in range(width)) if width > 1 else ())
    if len(tasks) not in (width, width - 1):
        raise ValueError(f"tasks has {len(tasks)} names, and there are labels of {width}")
    if prior is None:
        prior = 0.5 if isinstance(labels, Ids) else float(labels.mean())
    return Batches(kept, sizes, labels, users, prior, tasks, name)


def _label_of(batch: Any) -> Any:
    if hasattr(batch, "labels"):
        return batch.labels
    if isinstance(batch, Mapping):
        found = next((batch[key] for key in ("label", "labels") if key in batch), None)
        if found is not None:
            return found
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return batch[-1]
    keys = f" with the keys {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else ""
    raise TypeError(f"this {type(batch).__name__}{keys} has no labels that can be found; pass label=lambda batch: ...")


def _joined(found: list[Any], task: str | None) -> tuple[np.ndarray | Ids, np.ndarray]:
    """Labels of all batches, and their sizes."""
    if any(isinstance(one, list | tuple) and any(isinstance(row, list | tuple) for row in one) for one in found):
        rows = [np.asarray(row, np.int64).reshape(-1) for one in found for row in one]
        lengths = np.array([len(row) for row in rows], np.int32)
        return Ids(np.concatenate(rows), lengths), np.array([len(one) for one in found], np.int64)
    arrays = [_array(one) for one in found]
    arrays = [array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array for array in arrays]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1 or any(array.ndim not in (1, 2) for array in arrays):
        seen = [list(array.shape) for array in arrays][:3]
        raise ValueError(f"labels of batches have the shapes {seen}; they must be [B] or [B, T]")
    labels, sizes = np.concatenate(arrays), np.array([len(array) for array in arrays], np.int64)
    if task != "rank" and ((labels == 0) | (labels == 1)).all():
        return labels.astype(np.float32), sizes
    if task != "click" and labels.ndim == 1 and labels.dtype.kind in "iu":
        some = labels >= 0
        return Ids(labels[some].astype(np.int64), some.astype(np.int32)), sizes
    wrong = labels[(labels != 0) & (labels != 1)].reshape(-1)[0]
    raise ValueError(f"labels hold {wrong:g}; they must be 0 or 1, or for ranking whole numbers of items")


def _array(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _add(total: Any, value: Any) -> None:
    """Adds the content of nested tensors, arrays and plain values to a hash."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous()
        total.update(f"{flat.dtype} {list(flat.shape)}\n".encode())
        total.update(flat.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray):
        total.update(f"{value.dtype} {value.shape}\n".encode())
        total.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for key, one in value.items():
            _add(total, (key, one))
    elif isinstance(value, tuple | list):
        total.update(f"{len(value)}\n".encode())
        for one in value:
            _add(total, one)
    elif dataclasses.is_dataclass(value):
        _add(total, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    elif all(callable(getattr(value, name, None)) for name in ("keys", "values", "lengths")):
        _add(total, (list(value.keys()), value.values(), value.lengths()))  # a KeyedJaggedTensor
    elif value is None or isinstance(value, str | bytes | int | float | complex):
        total.update(f"{value!r}\n".encode())
    else:
        _add(total, vars(value))


def write_batches(rows: Batches, folder: Path) -> None:
    """Writes batches into a new folder, for other processes."""
    folder.mkdir(parents=True)
    torch.save({field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}, folder / FILE)


def read_batches(folder: Path) -> Batches:
    """The batches that `write_batches` wrote."""
    return Batches(**torch.load(folder / FILE, weights_only=False, mmap=True))
