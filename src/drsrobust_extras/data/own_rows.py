"""A user's own rows as a data set: from a DataFrame, or from arrays and tensors."""

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa

from drsrobust.data import Dataset, Feature, Ids, Schema, Split, checked_task
from drsrobust.extend import (
    check_choice,
    check_instance,
    check_items,
    check_names,
    check_rate,
    check_seed,
    check_text,
    check_whole,
    click_rate,
    digest,
    unknown,
    wrong,
)
from drsrobust_extras.data.click_labels import clicks
from drsrobust_extras.data.id_columns import (
    MISSING,
    arrow_column,
    as_array,
    encode_own_column,
    id_column,
    own_categories,
    refuse_missing,
    user_column,
    user_numbers,
)

PARTS = ("train", "valid", "test")


def from_frame(
    frame: Any,
    *,
    label: str | int | Sequence[str | int],
    dense: Sequence[str | int] = (),
    sparse: Sequence[str | int] = (),
    user: str | int | None = None,
    task: str = "click",
    vocabulary: Mapping[str | int, Sequence[Any]] | None = None,
    missing: str = "refuse",
    cardinalities: Mapping[str | int, int] | None = None,
    unobserved: Any = None,
    split: tuple[float, float, float] | None = None,
    seed: int = 0,
    name: str = "rows",
) -> Dataset:
    """A data set of the rows of a frame. Columns are named by text or by whole numbers, which are text in the data set.

    Args:
        frame: of pandas, polars or Arrow, or anything with `__arrow_c_stream__`.
        label: a column of 0 and 1 (also booleans, or text such as `yes` and `no`), or several, of as many tasks; with
            `task="ranking"` a column of the relevant item, or of lists. Of several tasks a missing label was not observed: the
            metrics of the task leave the row out.
        dense: columns of numbers.
        sparse: columns of ids, or of lists of several ids per row. Whole numbers, also as floats or booleans, are ids as they
            are. Text is numbered from 1 in alphabetical order, categories from 0 in the order that they were given (pandas'
            categories, polars' Enum, an ordered dictionary); other dictionaries, as polars' Categorical, count as the values
            that they hold. A warning says which.
        user: a column of whole numbers or text, for metrics by user.
        task: `click`, also for several tasks; or `ranking`.
        vocabulary: sparse column (or, with `task="ranking"`, label) -> its values, whose positions, from 0, are the ids.
        missing: of sparse columns. `refuse` refuses missing values. `category` gives them an id that no other value has: 0
            where text is numbered from 1; the one after the vocabulary or the categories; where whole numbers are ids, the last
            one of `cardinalities`, else the one after the largest. A warning says which.
        cardinalities: sizes of features' tables; else as many as the ids need.
        unobserved: a value of labels of several tasks that means the same as a missing one, as -1.
        split: shares of training, validation and test rows, drawn at random; None: all are test rows, in their order.
        seed: of `split`.
        name: of the data set, in tables and figures.

    Raises:
        TypeError: a frame or a column of another type, or a vocabulary that is no sequence.
        ValueError: an unknown column, one that is named twice or that the frame has twice, missing or infinite values, labels
            other than 0 and 1, values that are not in the vocabulary, ids that are negative, not whole or too large, shares
            that do not sum to 1.
    """
    task = checked_task(task)
    name, seed = check_text("name", name), check_seed(seed)
    one_label = isinstance(label, str | Integral)
    labels = _names("label", [label] if one_label else label)
    if not labels:
        raise wrong("label", "a column, or a list of one or more", label)
    dense, sparse = _names("dense", dense), _names("sparse", sparse)
    if user is not None:
        (user,) = _names("user", [user])
    named = [*labels, *dense, *sparse]
    frame = _in_memory(frame)
    columns = _columns(frame)
    get = {}
    for column in (*named, *([] if user is None else [user])):
        same = [candidate for candidate in columns if str(candidate) == column]
        if not same:
            raise unknown("column", column, map(str, columns))
        if len(same) > 1:
            raise ValueError(f"the frame has {len(same)} columns of the name {column!r}; rename all but one")
        get[column] = _column(frame, same[0])
    if twice := [column for column in named if named.count(column) > 1]:
        raise ValueError(f"column {twice[0]!r} is named twice; each is a label, dense or sparse")
    if not (n := len(get[labels[0]])):
        raise ValueError("there are no rows")
    names = _by_text(vocabulary, "vocabulary", [*sparse, *(labels if task == "ranking" else ())])
    features, ids, notes = _encoded({column: get[column] for column in sparse}, "column", names, cardinalities, missing)
    if task == "ranking":
        if not one_label and len(labels) > 1:
            raise ValueError(f"label is {labels}; task='ranking' takes one column, of items or of lists of items")
        targets = _items(get[labels[0]], f"column {labels[0]!r}", names.get(labels[0]), notes)
    else:
        targets = _labels({column: get[column] for column in labels}, unobserved)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return _dataset(
        _matrix({column: get[column] for column in dense}, n),
        Schema(tuple(dense), features),
        ids,
        targets,
        () if one_label else tuple(labels),
        None if user is None else user_numbers(user_column(get[user], f"column {user!r}")),
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
    vocabulary: Mapping[str, Sequence[Any]] | None = None,
    missing: str = "refuse",
    cardinalities: Mapping[str, int] | None = None,
    unobserved: Any = None,
    split: tuple[float, float, float] | None = None,
    seed: int = 0,
    name: str = "rows",
) -> Dataset:
    """A data set of n rows from tensors or arrays.

    Args:
        label: [n] of 0 and 1, or [n, T]; with `task="ranking"` [n] the relevant item, or (values, lengths [n]).
        dense: [n, D] or [n].
        sparse: feature -> ids [n], or (values, lengths [n]) of several ids per row.
        user: whole numbers or text [n].
        tasks: names of the T tasks; else `task_0`, `task_1`, ...
        vocabulary, missing, cardinalities: as of `from_frame`, by feature; `label` in place of a label's column.
        task, unobserved, split, seed, name: as of `from_frame`.

    Raises:
        TypeError, ValueError: as `from_frame`; arrays of different numbers of rows.
    """
    task = checked_task(task)
    name, seed, tasks = check_text("name", name), check_seed(seed), check_names("tasks", tasks)
    values = _rows_of("label", label[0] if isinstance(label, tuple) and len(label) == 2 else label)
    if not (n := len(label[1]) if isinstance(label, tuple) else len(values)):
        raise ValueError("there are no rows")
    arrays = {name: _id_array(ids, name) for name, ids in _by_text(sparse, "sparse").items()}
    texts = _by_text(vocabulary, "vocabulary", [*arrays, *(["label"] if task == "ranking" else [])])
    features, ids, notes = _encoded(arrays, "feature", texts, cardinalities, missing)
    if task == "ranking":
        labels, tasks = _items(_id_array(label, "label"), "label", texts.get("label"), notes), ()
    else:
        by_task = values.reshape(n, -1).T
        tasks = tasks or tuple(f"task_{number}" for number in range(len(by_task)))
        if len(tasks) != len(by_task):
            raise ValueError(f"tasks has {len(tasks)} names for labels of shape {values.shape}")
        labels = _labels(
            dict(zip(tasks, (arrow_column(column, "label") for column in by_task), strict=True)), unobserved
        )
        tasks = tasks if values.ndim == 2 and values.shape[1] > 1 else ()
    numbers = np.empty((n, 0), np.float32) if dense is None else _matrix_of("dense", dense, n)
    names = tuple(f"dense_{number}" for number in range(numbers.shape[1]))
    matrix = _matrix(dict(zip(names, map(pa.array, numbers.T), strict=True)), len(numbers))
    users = None if user is None else user_numbers(user_column(_id_array(user, "user"), "user"))
    for what, array in (("dense", matrix), ("user", users), *arrays.items()):
        if array is not None and len(array) != n:
            raise ValueError(f"{what} has {len(array)} rows, and the label {n}")
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return _dataset(matrix, Schema(names, features), ids, labels, tasks, users, split=split, seed=seed, name=name)


def _rows_of(what: str, values: Any) -> np.ndarray:
    """An array [n] or [n, ...]."""
    array = as_array(values)
    if not array.ndim:
        raise wrong(what, "an array or a tensor, [n] or [n, columns]", values)
    return array


def _matrix_of(what: str, values: Any, n: int) -> np.ndarray:
    """An array [n, columns] of one [n] or [n, columns]."""
    array = _rows_of(what, values)
    if len(array) != n:
        raise ValueError(f"{what} has {len(array)} rows, and the label {n}")
    return array.reshape(n, -1)


def _names(what: str, columns: Any) -> list[str]:
    """Names of columns as text."""
    if isinstance(columns, str):
        raise wrong(what, f"a list of columns, as [{columns!r}]", columns)
    columns = check_items(what, columns, "a list of columns")
    kinds = str, Integral
    return [str(check_instance(f"each column of {what}", one, kinds, "a name, or a whole number")) for one in columns]


def _by_text(mapping: Mapping[Any, Any] | None, what: str, allowed: Iterable[str] | None = None) -> dict[str, Any]:
    """An argument by columns, with their names as text."""
    mapping = {} if mapping is None else mapping
    if not isinstance(mapping, Mapping):
        raise TypeError(f"{what} is a {type(mapping).__name__}; it must be a dictionary by column")
    by_text: dict[str, Any] = {}
    for column, value in mapping.items():
        if str(column) in by_text:
            raise ValueError(f"{what} has {str(column)!r} twice, as text and as a number")
        by_text[str(column)] = value
    if allowed is not None and (wrong := [column for column in by_text if column not in allowed]):
        raise unknown(f"feature in {what}", wrong[0], allowed)
    return by_text


def _encoded(
    columns: Mapping[str, pa.Array],
    kind: str,
    vocabulary: Mapping[str, Sequence[Any]],
    cardinalities: Mapping[Any, int] | None,
    missing: str,
) -> tuple[tuple[Feature, ...], dict[str, Ids], list[str]]:
    """The sparse features of a schema, their ids, and how values were numbered."""
    check_choice("missing", missing, MISSING)
    sizes = _by_text(cardinalities, "cardinalities", columns)
    sizes = {name: check_whole(f"cardinality of {name!r}", size, 1) for name, size in sizes.items()}
    features, ids, notes = [], {}, []
    for name, column in columns.items():
        options = {"vocabulary": vocabulary.get(name), "cardinality": sizes.get(name), "missing": missing}
        ids[name], size, note = encode_own_column(column, f"{kind} {name!r}", **options)
        features.append(Feature(name, size, ids[name].lengths is not None))
        notes += [note] if note else []
    return tuple(features), ids, notes


def _dataset(
    dense: np.ndarray,
    schema: Schema,
    sparse: dict[str, Ids],
    labels: np.ndarray | Ids,
    tasks: tuple[str, ...],
    users: np.ndarray | None,
    *,
    split: tuple[float, float, float] | None,
    seed: int,
    name: str,
) -> Dataset:
    n = len(labels.lengths if isinstance(labels, Ids) else labels)
    if not n:
        raise ValueError("there are no rows")
    sizes = _sizes(n, split)
    rows = np.arange(n) if split is None else np.random.default_rng(seed).permutation(n)
    fingerprint = _fingerprint(schema, dense, sparse, labels, users)
    prior = 0.5 if isinstance(labels, Ids) else click_rate(labels[rows[: sizes[0]]] if sizes[0] else labels)
    source = digest(
        [fingerprint, prior, tasks]
    )  # NaN scores count as clicks; a dictionary of outputs is read by the tasks
    every_row = Split(dense, sparse, labels, users, np.arange(n), name, "test", prior, source, n, tasks)
    ends = np.cumsum((0, *sizes)).tolist()
    parts = {}
    for part, start, end in zip(PARTS, ends, ends[1:], strict=False):
        taken = every_row if end - start == n and split is None else every_row.take(rows[start:end])
        parts[part] = replace(taken, part=part, whole=end - start)
    return Dataset(name, schema, **parts, fingerprint=fingerprint)


def _sizes(n: int, split: tuple[float, float, float] | None) -> tuple[int, int, int]:
    """Rows of each part."""
    if split is None:
        return 0, 0, n
    right = "three shares that sum to 1, as (0.8, 0.1, 0.1)"
    split = [check_rate("each share of split", share) for share in check_items("split", split, right)]
    if len(split) != 3 or abs(sum(split) - 1) > 1e-9:
        raise wrong("split", right, split)
    train, valid = round(split[0] * n), round(split[1] * n)
    return train, valid, n - train - valid


# Methods of frames without rows of their own that give these: of Spark, Dask, DuckDB, polars' LazyFrame, Ibis, Arrow.
_READ_BY = ("toPandas", "compute", "df", "collect", "execute", "to_table")


def _in_memory(frame: Any) -> Any:
    """The frame; a stream of Arrow without named columns, which can be read once, as a table.

    Raises:
        TypeError: a frame that is a query or a plan; the message names the method that reads it.
    """
    if method := next((name for name in _READ_BY if callable(getattr(type(frame), name, None))), None):
        raise TypeError(f"frame is a {type(frame).__name__}, which holds no rows yet; pass frame.{method}()")
    has_columns = not all(callable(getattr(type(frame), name, len)) for name in ("columns", "column_names"))
    return pa.table(frame) if hasattr(frame, "__arrow_c_stream__") and not has_columns else frame


def _columns(frame: Any) -> list[Any]:
    """Names of a frame's columns."""
    for attribute in ("column_names", "columns"):
        names = getattr(frame, attribute, None)
        if names is not None and not callable(names):
            return list(names)
    raise TypeError(
        f"frame is a {type(frame).__name__}; it must be a frame of pandas, polars or Arrow with named columns"
    )


def _column(frame: Any, name: Any) -> pa.Array:
    """A column as one Arrow array."""
    if hasattr(frame, "column_names"):  # Arrow
        column = frame.column(name)
    else:
        column = frame[name]
        if hasattr(column, "to_arrow"):
            column = column.to_arrow()
        else:
            is_category = getattr(column.dtype, "categories", None) is not None
            column = arrow_column(column, f"column {name!r}")
            column = own_categories(column) if is_category else column
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _numbers(column: pa.Array, name: str) -> tuple[np.ndarray, int | None]:
    """A dense column, float32 [n], and the first row whose number has lost digits before the point; None if none has."""
    refuse_missing(column, f"column {name!r}")
    kind = column.type
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    ):
        raise TypeError(f"column {name!r} is {kind}; dense columns are numbers (text belongs in sparse=)")
    values = column.cast(pa.float64()) if pa.types.is_decimal(kind) else column
    numbers = values.to_numpy(zero_copy_only=False).astype(np.float32)
    if not np.isfinite(numbers).all():
        row = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ValueError(f"column {name!r} holds {numbers[row]} in row {row}; dense values must be finite in float32")
    if not len(numbers) or np.abs(numbers).max() < 2**24:
        return numbers, None
    wide = values.to_numpy(zero_copy_only=False)
    if pa.types.is_integer(kind):  # those with over 24 bits from the first that is set to the last
        with np.errstate(divide="ignore"):
            lost = np.flatnonzero(np.abs(wide // (wide & -wide)) >= 2**24)
    else:  # of float64 over 2**53 nobody knows the digits
        wide = wide.astype(np.float64)
        lost = np.flatnonzero((np.abs(numbers.astype(np.float64) - wide) >= 0.5) & (np.abs(wide) < 2**53))
    return numbers, int(lost[0]) if len(lost) else None


def _matrix(columns: Mapping[str, pa.Array], n: int) -> np.ndarray:
    """Dense columns of n rows as float32 [n, D]."""
    matrix, lost = np.empty((n, len(columns)), np.float32), []
    for place, (name, column) in enumerate(columns.items()):
        matrix[:, place], row = _numbers(column, name)
        if row is not None:
            lost.append(f"{name!r} ({column[row].as_py()} in row {row} is {matrix[row, place]:.0f})")
    if lost:
        warnings.warn(
            f"dense columns lose digits as float32, which holds all whole numbers to {2**24}: {', '.join(lost)}; as of "
            "timestamps, subtract the first one or take larger units",
            stacklevel=3,
        )
    return matrix


def _labels(columns: Mapping[str, pa.Array], unobserved: Any) -> np.ndarray:
    """Labels float32 [n] or [n, T]."""
    several = len(columns) > 1
    if unobserved is not None and not several:
        raise ValueError(
            f"unobserved is {unobserved!r}, and there is one label; it is for several tasks: leave such rows out"
        )
    labels = [
        clicks(column, f"label {name!r}", gaps=several, unobserved=unobserved) for name, column in columns.items()
    ]
    return np.stack(labels, axis=1) if several else labels[0]


def _items(column: pa.Array, what: str, vocabulary: Sequence[Any] | None, notes: list[str]) -> Ids:
    """The relevant items of each row; appends to `notes` how they were numbered."""
    ids, _, note = encode_own_column(column, what, vocabulary=vocabulary, missing=None)
    notes += [note] if note else []
    lengths = np.ones(len(ids.values), np.int32) if ids.lengths is None else ids.lengths
    return Ids(ids.values.astype(np.int64), lengths)


def _id_array(ids: Any, name: str) -> pa.Array:
    """Ids [n], or (values, lengths [n]) as lists."""
    ids, lengths = ids if isinstance(ids, tuple) else (ids, None)
    values = as_array(ids)
    if values.ndim != 1:
        raise TypeError(
            f"{name} is {values.dtype} of shape {values.shape}; it must be ids [n], or (values, lengths [n])"
        )
    if lengths is None:
        return id_column(ids, name)
    lengths = as_array(lengths)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise TypeError(
            f"lengths of {name} are {lengths.dtype} of shape {lengths.shape}; they must be whole numbers [n]"
        )
    if lengths.min(initial=0) < 0 or lengths.sum() != len(values):
        raise ValueError(
            f"{name} has {len(values)} values, and lengths that sum to {lengths.sum()} (least {lengths.min()})"
        )
    return id_column(ids, name, lengths)


def _fingerprint(
    schema: Schema, dense: np.ndarray, sparse: Mapping[str, Ids], labels: np.ndarray | Ids, users: np.ndarray | None
) -> str:
    """SHA-256 (hex) of all values."""
    arrays = {"dense": dense, "labels": labels, "users": users, **sparse}
    parts = []
    for name, array in arrays.items():
        for part in array if isinstance(array, Ids) else (array,):
            sha256 = None if part is None else hashlib.sha256(np.ascontiguousarray(part)).hexdigest()
            parts.append([name, sha256, None if part is None else list(part.shape)])
    return digest(["own rows", asdict(schema), parts])
