"""A user's own rows as a data set: from a DataFrame, or from arrays and tensors."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drsrobust._environment import check_choice, unknown
from drsrobust._hashing import digest
from drsrobust.data.dataset import TASKS, Dataset, Feature, Ids, Schema, Split

PARTS = ("train", "valid", "test")


def from_frame(
    frame: Any,
    *,
    label: str | Sequence[str],
    dense: Sequence[str] = (),
    sparse: Sequence[str] = (),
    user: str | None = None,
    task: str = "click",
    cardinalities: Mapping[str, int] | None = None,
    split: tuple[float, float, float] | None = None,
    seed: int = 0,
    name: str = "rows",
) -> Dataset:
    """A data set of the rows of a frame.

    Args:
        frame: of pandas, polars or Arrow, or anything with `__arrow_c_stream__`.
        label: a column of 0 and 1, or several, of as many tasks; with `task="rank"` a column of the relevant item, or of lists.
        dense: columns of numbers.
        sparse: columns of ids. Whole numbers are ids as they are, lists of them several ids per row. Text becomes the ids
            1, 2, ... of its sorted values, 0 where it is missing, which fits only models that are trained on this data set.
        user: a column of whole numbers or text, for metrics by user.
        task: `click`, also for several tasks; or `rank`.
        cardinalities: sizes of features' tables; else the largest id and 1.
        split: shares of training, validation and test rows, drawn at random; None: all are test rows, in their order.
        seed: of `split`.
        name: of the data set, in tables and figures.

    Raises:
        TypeError: a frame or a column of another type.
        ValueError: an unknown column, one that is named twice, missing or infinite values, labels other than 0 and 1, ids that
            are negative or too large, shares that do not sum to 1.
    """
    check_choice("task", task, TASKS)
    for what, given in (("dense", dense), ("sparse", sparse)):
        if isinstance(given, str):
            raise TypeError(f"{what} is {given!r}; it must be a list of columns, as [{given!r}]")
    labels = [label] if isinstance(label, str) else list(label)
    named = [*labels, *dense, *sparse]
    columns = _columns(frame)
    for column in (*named, *([user] if user is not None else ())):
        if column not in columns:
            raise unknown("column", column, columns)
    if twice := [column for column in named if named.count(column) > 1]:
        raise ValueError(f"column {twice[0]!r} is named twice; each is a label, dense or sparse")
    get = {column: _column(frame, column) for column in (*named, *([user] if user is not None else ()))}
    if not (n := len(get[labels[0]])):
        raise ValueError("there are no rows")
    return _dataset(
        _matrix({column: get[column] for column in dense}, n),
        tuple(dense),
        {column: _ids(get[column], column) for column in sparse},
        _labels({column: get[column] for column in labels}, task),
        tuple(labels) if not isinstance(label, str) else (),
        None if user is None else _users(get[user], user),
        cardinalities or {},
        split=split,
        seed=seed,
        name=name,
    )


def from_tensors(
    *,
    label: Any,
    dense: Any = None,
    sparse: Mapping[str, Any] | None = None,
    user: Any = None,
    task: str = "click",
    tasks: Sequence[str] = (),
    cardinalities: Mapping[str, int] | None = None,
    split: tuple[float, float, float] | None = None,
    seed: int = 0,
    name: str = "rows",
) -> Dataset:
    """A data set of n rows from tensors or arrays.

    Args:
        label: [n] of 0 and 1, or [n, T]; with `task="rank"` [n] the relevant item, or (values, lengths [n]).
        dense: [n, D] or [n].
        sparse: feature -> ids [n], or (values, lengths [n]) of several ids per row.
        user: whole numbers [n].
        tasks: names of the T tasks; else `task_0`, `task_1`, ...
        task, cardinalities, split, seed, name: as of `from_frame`.

    Raises:
        TypeError, ValueError: as `from_frame`; arrays of different numbers of rows.
    """
    check_choice("task", task, TASKS)
    values = label[0] if isinstance(label, tuple) else label
    values = _array(values)
    n = len(label[1]) if isinstance(label, tuple) else len(values)
    if task == "rank":
        lengths = _whole(_array(label[1]), "label") if isinstance(label, tuple) else np.ones(n, np.int32)
        _check_lengths(values, lengths, "label")
        _small(_whole(values, "label"), "label")
        labels: np.ndarray | Ids = Ids(_whole(values, "label").astype(np.int64), lengths.astype(np.int32))
        tasks = ()
    else:
        by_task = values.reshape(n, -1).T
        tasks = tuple(tasks) or tuple(f"task_{number}" for number in range(len(by_task)))
        if len(tasks) != len(by_task):
            raise ValueError(f"tasks has {len(tasks)} names for labels of shape {values.shape}")
        labels = _labels(dict(zip(tasks, map(pa.array, by_task), strict=True)), task)
        tasks = tasks if values.ndim == 2 and values.shape[1] > 1 else ()
    numbers = np.empty((n, 0), np.float32) if dense is None else _array(dense).reshape(len(dense), -1)
    names = tuple(f"dense_{number}" for number in range(numbers.shape[1]))
    matrix = _matrix(dict(zip(names, map(pa.array, numbers.T), strict=True)), len(numbers))
    features = {}
    for feature, ids in (sparse or {}).items():
        parts = ids if isinstance(ids, tuple) else (ids,)
        parts = [_whole(_array(part), feature) for part in parts]
        if len(parts) > 1:
            _check_lengths(*parts, feature)
        features[feature] = Ids(_small(parts[0], feature), *(part.astype(np.int32) for part in parts[1:]))
    users = None if user is None else _whole(_array(user), "user").astype(np.int64)
    for what, array in (("dense", matrix), ("user", users), *((name, _rows(ids)) for name, ids in features.items())):
        if array is not None and len(array) != n:
            raise ValueError(f"{what} has {len(array)} rows, and the label {n}")
    return _dataset(
        matrix,
        names,
        features,
        labels,
        tasks,
        users,
        cardinalities or {},
        split=split,
        seed=seed,
        name=name,
    )


def _dataset(
    dense: np.ndarray,
    names: tuple[str, ...],
    sparse: dict[str, Ids],
    labels: np.ndarray | Ids,
    tasks: tuple[str, ...],
    users: np.ndarray | None,
    cardinalities: Mapping[str, int],
    *,
    split: tuple[float, float, float] | None,
    seed: int,
    name: str,
) -> Dataset:
    n = len(_rows(labels) if isinstance(labels, Ids) else labels)
    if not n:
        raise ValueError("there are no rows")
    if wrong := [feature for feature in cardinalities if feature not in sparse]:
        raise unknown("feature in cardinalities", wrong[0], sparse)
    features = tuple(_feature(feature, ids, cardinalities.get(feature)) for feature, ids in sparse.items())
    schema = Schema(names, features)
    sizes = _sizes(n, split)
    rows = np.arange(n) if split is None else np.random.default_rng(seed).permutation(n)
    fingerprint = _fingerprint(schema, dense, sparse, labels, users)
    clicks = 0.5 if isinstance(labels, Ids) else float(np.mean(labels[rows[: sizes[0]]] if sizes[0] else labels))
    whole = Split(dense, sparse, labels, users, np.arange(n), name, "test", clicks, fingerprint, n, tasks)
    ends = np.cumsum((0, *sizes)).tolist()
    parts = {}
    for part, start, end in zip(PARTS, ends, ends[1:], strict=False):
        taken = whole if end - start == n and split is None else whole.take(rows[start:end])
        parts[part] = replace(taken, part=part, whole=end - start)
    return Dataset(name, schema, **parts, fingerprint=fingerprint)


def _sizes(n: int, split: tuple[float, float, float] | None) -> tuple[int, int, int]:
    """Rows of each part."""
    if split is None:
        return 0, 0, n
    if len(split) != 3 or min(split) < 0 or abs(sum(split) - 1) > 1e-9:
        raise ValueError(f"split is {split!r}; it must be three shares that sum to 1, as (0.8, 0.1, 0.1)")
    train, valid = round(split[0] * n), round(split[1] * n)
    return train, valid, n - train - valid


def _columns(frame: Any) -> list[str]:
    """Names of a frame's columns."""
    for attribute in ("column_names", "columns"):
        names = getattr(frame, attribute, None)
        if names is not None and not callable(names) and all(isinstance(one, str) for one in names):
            return list(names)
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.table(frame).column_names
    raise TypeError(
        f"frame is a {type(frame).__name__}; it must be a frame of pandas, polars or Arrow with named columns"
    )


def _column(frame: Any, name: str) -> pa.Array:
    """A column as one Arrow array."""
    if hasattr(frame, "column_names"):  # Arrow
        found = frame.column(name)
    elif not hasattr(frame, "__getitem__"):
        found = pa.table(frame).column(name)
    else:
        found = frame[name]
        try:
            found = found.to_arrow() if hasattr(found, "to_arrow") else pa.array(found, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise TypeError(f"column {name!r} holds values of several types: {error}") from error
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _refuse_missing(column: pa.Array, name: str) -> None:
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise ValueError(f"column {name!r}: {column.null_count} values are missing, the first in row {row}; fill them")


def _numbers(column: pa.Array, name: str) -> np.ndarray:
    """A dense column, float32 [n]."""
    _refuse_missing(column, name)
    kind = column.type
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    ):
        raise TypeError(f"column {name!r} is {kind}; dense columns are numbers (text belongs in sparse=)")
    values = column.cast(pa.float64()) if pa.types.is_decimal(kind) else column
    found = values.to_numpy(zero_copy_only=False).astype(np.float32)
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found))[0])
        raise ValueError(f"column {name!r} holds {found[row]} in row {row}; dense values must be finite in float32")
    return found


def _matrix(columns: Mapping[str, pa.Array], n: int) -> np.ndarray:
    """Dense columns of n rows as float32 [n, D]."""
    found = np.empty((n, len(columns)), np.float32)
    for place, (name, column) in enumerate(columns.items()):
        found[:, place] = _numbers(column, name)
    return found


def _labels(columns: Mapping[str, pa.Array], task: str) -> np.ndarray | Ids:
    """Labels float32 [n], [n, T] or, for ranking, items."""
    if task == "rank":
        ((name, column),) = columns.items() if len(columns) == 1 else [("", None)]
        if column is None:
            raise ValueError(f"label is {list(columns)}; task='rank' takes one column, of items or of lists of items")
        ids = _ids(column, name)
        lengths = np.ones(len(ids.values), np.int32) if ids.lengths is None else ids.lengths
        return Ids(ids.values.astype(np.int64), lengths)
    found = []
    for name, column in columns.items():
        values = _numbers(column, name)
        if wrong := np.flatnonzero((values != 0) & (values != 1)).tolist():
            raise ValueError(f"label {name!r} holds {values[wrong[0]]:g} in row {wrong[0]}; labels must be 0 or 1")
        found.append(values)
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def _ids(column: pa.Array, name: str) -> Ids:
    """Ids of a sparse column."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return Ids(_codes(column) + np.int32(1))
    _refuse_missing(column, name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values, lengths = column.flatten(), pc.list_value_length(column)
        _refuse_missing(values, f"{name} (inside of a list)")
        if len(values) and not pa.types.is_integer(values.type):
            raise TypeError(f"column {name!r} holds lists of {values.type}; ids are whole numbers")
        return Ids(
            _small(values.to_numpy(zero_copy_only=False), name), lengths.to_numpy(zero_copy_only=False).astype(np.int32)
        )
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise TypeError(f"column {name!r} is {kind}; ids are whole numbers, lists of them, or text")
    return Ids(_small(column.to_numpy(zero_copy_only=False), name))


def _codes(column: pa.Array) -> np.ndarray:
    """The place of each text among the sorted different ones, int32; -1 where it is missing."""
    encoded = column.dictionary_encode()
    order = np.argsort(encoded.dictionary.to_numpy(zero_copy_only=False).astype(str), kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.where(codes < 0, -1, np.append(place, 0)[codes]).astype(np.int32)


def _users(column: pa.Array, name: str) -> np.ndarray:
    _refuse_missing(column, name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        return column.to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        return _codes(column).astype(np.int64)
    raise TypeError(f"column {name!r} is {column.type}; users are whole numbers or text")


def _array(value: Any) -> np.ndarray:
    """A tensor or array as an array."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    value = value.detach().cpu()
    return (value.float() if value.is_floating_point() else value).numpy()  # NumPy has no bfloat16


def _whole(values: np.ndarray, name: str) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "iub":
        raise TypeError(f"{name} is {values.dtype} of shape {values.shape}; it must be whole numbers [n]")
    return values


def _check_lengths(values: np.ndarray, lengths: np.ndarray, name: str) -> None:
    if lengths.min(initial=0) < 0 or lengths.sum() != len(values):
        raise ValueError(
            f"{name} has {len(values)} values, and lengths that sum to {lengths.sum()} (least {lengths.min()})"
        )


def _small(values: np.ndarray, name: str) -> np.ndarray:
    """Ids as int32."""
    if len(values) and (values.min() < 0 or values.max() >= 2**31):
        wrong = int(np.flatnonzero((values < 0) | (values >= 2**31))[0])
        raise ValueError(f"{name!r} holds id {values[wrong]} at place {wrong}; ids are 0 to {2**31 - 1}")
    return values.astype(np.int32)


def _rows(ids: Ids) -> np.ndarray:
    return ids.values if ids.lengths is None else ids.lengths


def _feature(name: str, ids: Ids, cardinality: int | None) -> Feature:
    largest = int(ids.values.max()) if len(ids.values) else 0
    if cardinality is not None and largest >= cardinality:
        place = int(np.flatnonzero(ids.values >= cardinality)[0])
        raise ValueError(
            f"{name!r} holds id {ids.values[place]} at place {place}, and its cardinality is {cardinality}"
        )
    return Feature(name, largest + 1 if cardinality is None else cardinality, ids.lengths is not None)


def _fingerprint(
    schema: Schema, dense: np.ndarray, sparse: Mapping[str, Ids], labels: np.ndarray | Ids, users: np.ndarray | None
) -> str:
    """SHA-256 (hex) of all values."""
    arrays = {"dense": dense, "labels": labels, "users": users, **sparse}
    parts = []
    for name, array in arrays.items():
        for part in array if isinstance(array, Ids) else (array,):
            found = None if part is None else hashlib.sha256(np.ascontiguousarray(part)).hexdigest()
            parts.append([name, found, None if part is None else list(part.shape)])
    return digest(["own rows", asdict(schema), parts])
