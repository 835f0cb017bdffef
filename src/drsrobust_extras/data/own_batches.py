"""A user's own batches, as they are: of a DataLoader, a list or a generator."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from drsrobust.data import Ids, checked_task
from drsrobust.evaluation import OtherRows
from drsrobust.extend import (
    check_names,
    check_number,
    check_text,
    check_whole,
    click_rate,
    machine,
    wrong,
)
from drsrobust_extras.data.batch_parts import PartCopies, batch_digest, shared_rows
from drsrobust_extras.data.click_labels import labels_of_text
from drsrobust_extras.data.id_columns import as_array, id_column, user_column, user_numbers

MAX_BATCHES = 100_000  # batches of an iterable that may be endless


@dataclasses.dataclass(frozen=True, eq=False)
class Batches(OtherRows):
    """Batches and the labels of their n rows.

    Attributes:
        batches: as they were given, or copies.
        sizes: rows of each, int64.
        labels: float32 [n], or [n, T] with NaN where a label was not observed; or Ids: the relevant items of each row.
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
    in_batches = True

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def __repr__(self) -> str:
        return f"<Batches {self.dataset}: {len(self):,} rows in {len(self.batches)} batches>"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the contents of all batches, labels, users, names of tasks and prior."""
        names = ("batches", "labels", "users", "tasks", "prior")
        return batch_digest({name: getattr(self, name) for name in names}, "rows")

    def of_task(self, task: str) -> "Batches":
        """Labels that are all 0 hold no click, and for ranking say that the first candidate is the relevant one."""
        if task != "ranking" or isinstance(self.labels, Ids) or self.labels.ndim != 1 or self.labels.any():
            return self
        first = Ids(np.zeros(len(self), np.int64), np.ones(len(self), np.int32))
        return dataclasses.replace(self, labels=first, prior=0.5)  # as from_batches(..., task="ranking") makes them


def from_batches(
    batches: Iterable[Any],
    *,
    label: Callable[[Any], Any] | None = None,
    user: Callable[[Any], Any] | None = None,
    task: str | None = None,
    prior: float | None = None,
    tasks: Sequence[str] = (),
    unobserved: Any = None,
    name: str = "batches",
    rows: int | None = None,
) -> Batches:
    """Batches for an evaluator. `forward` is called on each several times, and must not change it.

    Batches of a list or tuple are kept as they are. Those of any other iterable are copied as they come, since a loader may use
    their memory again.

    Args:
        batches: any iterable: of TorchRec's `Batch`, of (dense, KeyedJaggedTensor, label), or of anything that the evaluator's
            `forward` takes.
        label: batch -> labels [B] or [B, 1] of 0 and 1 (also booleans, or text such as `yes` and `no`), [B, T] of several
            tasks, NaN where a label was not observed; for ranking the relevant item [B], lists of items, or flags 0 and 1 of
            all items [B, items]. None: `batch.labels`, the last element of a tuple or list, or the key `label` or `labels`.
        user: batch -> ids of users [B]: whole numbers, or text, which is numbered in alphabetical order.
        task: `click` or `ranking`; None: by the labels: `click` where all are 0 and 1, as are the numbers of the relevant items
            where that is always the first of some candidates.
        prior: click rate of training rows; None: of these rows.
        tasks: names of several tasks; else `task_0`, `task_1`, ...
        unobserved: a value of labels of several tasks that means the same as NaN, as -1.
        name: in tables and figures.
        rows: how many rows to take, in whole batches: the last one may go over. None: all; an iterable that is no list may
            then give 100,000 batches and half of the machine's memory at most.

    Raises:
        TypeError: no iterable, labels that are not found, labels or users of another type, or a part that cannot be copied.
        ValueError: no batch, labels of another form, users that are missing or no whole numbers below 2**63, a list whose
            batches have rows in the same memory, or an iterable that does not end.
    """
    if task is not None:
        task = checked_task(task)
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes | Mapping | type):
        raise wrong("batches", "a DataLoader, a list or another iterable", batches)
    for what, column in (("label", label), ("user", user)):
        if column is not None and not callable(column):
            raise TypeError(
                f"{what} is {column!r}; it must be a function of a batch, as lambda batch: batch[{column!r}]"
            )
    if rows is not None:
        rows = check_whole("rows", rows, 1)
    if prior is not None:
        prior = check_number("prior", prior, "a click rate over 0 and under 1", lambda prior: 0 < prior < 1)
    name, tasks = check_text("name", name), check_names("tasks", tasks)
    taken, labels_of, users, counted = [], [], [], 0
    for batch in _drawn(batches, limited=rows is None):
        taken.append(batch)
        labels_of.append(_labels(batch, label))
        if user is not None:
            users.append(_users(user(batch), len(taken) - 1, len(labels_of[-1])))
        counted += len(labels_of[-1])
        if rows is not None and counted >= rows:
            break
    if not taken:
        raise ValueError("there are no batches; a generator can be read only once")
    labels, sizes = _joined(labels_of, task, unobserved)
    if isinstance(batches, list | tuple) and (shared := shared_rows(taken, sizes.tolist())):
        first, second, path = shared
        raise ValueError(
            f"batches {first} and {second} have batch{path} in the same memory, which holds the rows of only one of them; pass "
            "the loader itself, whose batches are copied as they come, or iter(batches) if that part is the same in all"
        )
    width = 1 if isinstance(labels, Ids) or labels.ndim == 1 else labels.shape[1]
    tasks = tuple(tasks) or (tuple(f"task_{number}" for number in range(width)) if width > 1 else ())
    if len(tasks) not in (width, width - 1):
        raise ValueError(f"tasks has {len(tasks)} names, and there are labels of {width}")
    if prior is None:
        prior = 0.5 if isinstance(labels, Ids) else click_rate(labels)
    return Batches(taken, sizes, labels, _joined_users(users) if users else None, prior, tasks, name)


def _drawn(batches: Iterable[Any], limited: bool) -> Iterator[Any]:
    """The batches; copies of them, unless they are in a list or tuple."""
    if isinstance(batches, list | tuple):
        yield from batches
        return
    copies, memory = PartCopies(), machine()["memory_gib"] * 2**29
    for number, batch in enumerate(batches):
        if limited and (number >= MAX_BATCHES or copies.nbytes > memory):
            raise ValueError(
                f"batches has given {number:,} batches ({copies.nbytes / 2**30:.1f} GiB) and has not ended; "
                "rows= takes so many rows of a loader that is endless or that large"
            )
        try:
            copied = copies.of(batch)
        except Exception as error:
            raise TypeError(
                f"batch {number} cannot be copied ({type(error).__name__}: {error}), and its loader may use the memory again; "
                "pass list(loader) if each batch has memory of its own"
            ) from error
        yield copied


def _label_of(batch: Any) -> Any:
    if hasattr(batch, "labels"):
        return batch.labels
    if isinstance(batch, Mapping):
        labels = next((batch[key] for key in ("label", "labels") if key in batch), None)
        if labels is not None:
            return labels
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return batch[-1]
    keys = f" with the keys {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else ""
    raise TypeError(f"this {type(batch).__name__}{keys} has no labels that can be found; pass label=lambda batch: ...")


def _labels(batch: Any, label: Callable[[Any], Any] | None) -> Any:
    """Labels of a batch: an array [B] or [B, T], or B arrays of items."""
    labels = (label or _label_of)(batch)
    if isinstance(labels, list | tuple) and any(isinstance(row, list | tuple) for row in labels):
        return [_items(row) for row in labels]
    array = as_array(labels)
    if array.ndim not in (1, 2):
        raise ValueError(f"labels of a batch have the shape {list(array.shape)}; they must be [B] or [B, T]")
    if array.dtype.kind in "OU" and array.size:
        return labels_of_text(array, "label")
    if array.dtype.kind not in "biuf":
        wrong = f", as {array.reshape(-1)[:1].tolist()[0]!r}" if array.size else ""
        raise TypeError(f"labels of a batch are {array.dtype}{wrong}; they must be numbers")
    return np.array(array)


def _items(row: Any) -> np.ndarray:
    items = np.asarray(row).reshape(-1)
    if len(items) and (items.dtype.kind not in "iu" or items.max() >= 2**63):
        raise ValueError(f"labels hold the list {row!r}; relevant items are whole numbers below 2**63")
    return items.astype(np.int64)


def _joined(arrays_given: list[Any], task: str | None, unobserved: Any) -> tuple[np.ndarray | Ids, np.ndarray]:
    """Labels of all batches, and their sizes."""
    sizes = np.array([len(labels) for labels in arrays_given], np.int64)
    if any(isinstance(labels, list) for labels in arrays_given):
        rows = [_items(row) for labels in arrays_given for row in labels]
        return Ids(np.concatenate(rows), np.array([len(row) for row in rows], np.int32)), sizes
    arrays = [array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array for array in arrays_given]
    if len({array.shape[1:] for array in arrays}) > 1:
        shapes = [list(array.shape) for array in arrays][:3]
        raise ValueError(f"labels of batches have the shapes {shapes}; they must be [B] or [B, T]")
    labels = np.concatenate(arrays)
    several = labels.ndim == 2 and task != "ranking"
    if unobserved is not None:
        if not several:
            raise ValueError(
                f"unobserved is {unobserved!r}; it is for labels [B, T] of several tasks, not {labels.shape[1:]}"
            )
        labels = np.where(labels == unobserved, np.nan, labels)
    zero_or_one = (labels == 0) | (labels == 1)
    if task != "ranking" and (zero_or_one | (np.isnan(labels) & several)).all():
        return labels.astype(np.float32), sizes
    if task == "ranking" and labels.ndim == 2 and zero_or_one.all():
        return Ids(np.nonzero(labels)[1].astype(np.int64), np.count_nonzero(labels, axis=1).astype(np.int32)), sizes
    if task != "click" and labels.ndim == 1 and _are_items(labels, task):
        some = labels >= 0
        return Ids(labels[some].astype(np.int64), some.astype(np.int32)), sizes
    if task == "ranking" and labels.ndim == 2:
        raise ValueError(
            f"labels have the shape [B, {labels.shape[1]}]; for ranking they are items [B], lists of items, or flags 0 and 1 "
            "of all items [B, items]"
        )
    wrong = labels[~zero_or_one].reshape(-1)[0] if not zero_or_one.all() else labels.reshape(-1)[0]
    left_out = f"; unobserved={wrong:g} leaves such labels of a task out" if several and unobserved is None else ""
    raise ValueError(f"labels hold {wrong:g}; they must be 0 or 1, or for ranking whole numbers of items{left_out}")


def _are_items(labels: np.ndarray, task: str | None) -> bool:
    """Whether labels [n] are numbers of items; whole floats are where they are said to be."""
    if labels.dtype.kind in "iu":
        return labels.max() < 2**63
    return (
        task == "ranking"
        and labels.dtype.kind == "f"
        and bool((labels == np.trunc(labels)).all())
        and labels.max() < 2**53
    )


def _users(users: Any, batch: int, rows: int) -> pa.Array:
    """Users [B] of one batch."""
    what = f"user of batch {batch}"
    values = users if isinstance(users, torch.Tensor) else np.asarray(users)
    column = id_column(values.reshape(-1), what)
    if len(column) != rows:
        raise ValueError(f"user gives {len(column)} users for {rows} rows of batch {batch}")
    return user_column(column, what)


def _joined_users(parts: list[pa.Array]) -> np.ndarray:
    """Users of all batches, int64 [n]."""
    if len({part.type for part in parts}) > 1:
        raise TypeError("user gives whole numbers for some batches and text for others")
    return user_numbers(pa.concat_arrays(parts))
