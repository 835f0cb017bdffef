"""Columns of ids as people have them (whole numbers, text, categories, lists of these) as row numbers of a table, and users."""

from collections.abc import Hashable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from drsrobust.data import Ids

MISSING = ("refuse", "category")
LARGEST = 2**31 - 1  # ids are int32
_RIGHT = "ids are whole numbers, text, categories, or lists of these; vocabulary= takes other values"
_DIGITS = {"halffloat": 11, "float": 24, "double": 53}  # floats hold every whole number below two to the power of these


class Encoded(NamedTuple):
    """The ids of a column, the number of rows of a table that they need, and how values were numbered (None: as they are)."""

    ids: Ids
    size: int
    note: str | None


def encode_own_column(
    column: pa.Array,
    what: str,
    *,
    vocabulary: Sequence[Hashable] | None = None,
    cardinality: int | None = None,
    missing: str | None = "refuse",
) -> Encoded:
    """The ids of a column of n rows.

    Values of a vocabulary have their positions in it. Without it, categories have their codes, text is numbered from 1 in
    alphabetical order, and whole numbers (whole floats and booleans, too) are ids as they are. A dictionary that is not ordered
    is a way of storing: its values count as they would without it, since the order in which they first appear is another in
    another frame.

    Args:
        column: one value per row, or a list of values.
        what: names the column in messages, as `column 'item'`.
        vocabulary: all values, each once.
        cardinality: rows of the table; None: as many as the ids need.
        missing: `category` gives missing values an id of their own: 0 where text is numbered, the last one of the cardinality
            where numbers are ids as they are, else the one after all others. `refuse` refuses them; so does None, which does
            not offer the option.

    Raises:
        TypeError: values of another type, or a vocabulary that is no sequence.
        ValueError: missing values, values that are not in the vocabulary, numbers that are no ids.
    """
    values, lengths, gaps = _flat(column)
    if vocabulary is None and pa.types.is_dictionary(values.type) and not values.type.ordered:
        values = values.dictionary_decode()
    absent = _absent(values)
    n_missing = len(gaps) + (0 if absent is None else int(absent.sum()))
    if n_missing and missing != "category":
        rows = [*gaps[:1], *(() if absent is None else [row_of(int(np.argmax(absent)), lengths)])]
        option = "" if missing is None else ", or take missing='category'"
        raise ValueError(f"{what}: {n_missing} values are missing, the first in row {min(rows)}; fill them{option}")
    reserved = missing == "category"  # a row of the table, even if no value is missing
    numbered = None
    if vocabulary is not None:
        positions = _checked(vocabulary, what)
        if pa.types.is_floating(values.type):
            _check_digits(values.to_numpy(zero_copy_only=False), str(values.type), what, lengths)
        codes, size = _positions(values, positions, what, lengths), len(positions)
        gap = size
    elif pa.types.is_dictionary(values.type):
        codes, size = values.indices.fill_null(0).to_numpy(zero_copy_only=False), len(values.dictionary)
        order = "sorted order" if _in_order(values.dictionary) else "order"
        numbered, gap = f"0 to {size - 1} in the {order} of its categories", size
    elif is_text(values.type):
        codes = alphabetical(values) + 1
        size, gap = int(codes.max(initial=0)) + 1, 0
        numbered = f"1 to {size - 1} in alphabetical order"
    else:
        codes = whole_numbers(values, what, _RIGHT, lengths)
        right = f"ids are 0 to {LARGEST}; vocabulary= numbers any values"
        _check(codes, LARGEST + (not n_missing), what, lengths, right)
        size, reserved = int(codes.max(initial=0)) + 1, n_missing > 0
        gap = size if cardinality is None else cardinality - 1
        if n_missing:
            _check(codes, gap, what, lengths, f"id {gap}, the last of its cardinality, is for missing values")
    if absent is not None:
        codes = np.where(absent, gap, codes)
    if len(gaps):  # a missing list is one missing value
        codes = np.insert(codes, (np.cumsum(lengths) - lengths)[gaps], gap)
        lengths[gaps] = 1
    if cardinality is not None:
        reason = f"its cardinality is {cardinality}" + f"; id {gap} is for missing values" * bool(n_missing)
        _check(codes, cardinality, what, lengths, reason)
        size = cardinality
    elif reserved:
        size = max(size, gap + 1)
    notes = [f"numbered {numbered}; vocabulary= takes yours"] if numbered else []
    notes += [f"{n_missing} missing values have id {gap}"] if n_missing else []
    return Encoded(Ids(codes.astype(np.int32), lengths), size, f"{what}: {'; '.join(notes)}" if notes else None)


def id_column(values: Any, what: str, lengths: np.ndarray | None = None) -> pa.Array:
    """Ids or users of a tensor, an array or a sequence [n] as a column, of lists if `lengths` says their number per row.

    Raises:
        TypeError: values of several types, or numbers of over 64 bits.
        ValueError: a float so large that a whole number may have been rounded to it.
    """
    array = as_array(values)
    if isinstance(values, torch.Tensor) and values.is_floating_point():  # the array may have a wider type
        _check_digits(array.astype(np.float64), str(values.dtype).removeprefix("torch."), what, lengths)
    column = arrow_column(array, what)
    if lengths is None:
        return column
    return pa.LargeListArray.from_arrays(pa.array(np.append(0, np.cumsum(lengths, dtype=np.int64))), column)


def user_column(column: pa.Array, what: str) -> pa.Array:
    """Users [n]: whole numbers as int64, or text.

    Raises:
        TypeError: a column of another type.
        ValueError: users that are missing, no whole numbers, 2**63 or more, or not exact in their type.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    refuse_missing(column, what)
    if is_text(column.type):
        return column.cast(pa.large_string())
    users = whole_numbers(column, what, "users are whole numbers or text")
    if users.dtype == np.uint64 and len(users) and users.max() >= 2**63:
        row = int(np.argmax(users >= 2**63))
        raise ValueError(f"{what} holds {users[row]} in row {row}; users are less than {2**63}, or text")
    return pa.array(users.astype(np.int64))


def user_numbers(users: pa.Array) -> np.ndarray:
    """The users of `user_column` as int64 [n]; text is numbered from 0 in alphabetical order."""
    return alphabetical(users) if is_text(users.type) else np.array(users)


def as_array(value: Any) -> np.ndarray:
    """A tensor, also a sparse one, or anything else as an array. Floats of under 32 bits are float32: NumPy has no bfloat16."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    value = value.detach().cpu()
    value = value if value.layout is torch.strided else value.to_dense()
    return (value.float() if value.is_floating_point() and value.itemsize < 4 else value).numpy()


def arrow_column(values: Any, what: str) -> pa.Array:
    """Values as a column; NaN is a missing value. Raises TypeError for several types and for numbers of over 64 bits."""
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise TypeError(f"{what} holds values of several types, or numbers of over 64 bits: {error}") from error


def own_categories(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """A column of pandas' categories as an ordered dictionary: in the order that the user gave, or pandas by sorting. An order
    that is that of the values' first appearance in these rows, as of dictionaries read from a file, is another in another
    frame: the categories are sorted then."""
    codes, dictionary, ordered = column.indices, column.dictionary, column.type.ordered
    if not ordered and not _in_order(dictionary):
        appeared = codes.drop_null().unique().to_numpy(zero_copy_only=False)
        if np.array_equal(appeared, np.arange(len(dictionary))):
            order = pc.sort_indices(dictionary)
            codes, dictionary = pc.index_in(codes, value_set=order.cast(codes.type)), dictionary.take(order)
    return pa.DictionaryArray.from_arrays(codes, dictionary, ordered=True)


def _in_order(categories: pa.Array) -> bool:
    """Whether categories are sorted, or have no order, as intervals."""
    try:
        order = pc.sort_indices(_plain(categories)).to_numpy(zero_copy_only=False)
    except pa.ArrowNotImplementedError:
        return True
    return bool((np.diff(order.astype(np.int64)) > 0).all())


def refuse_missing(column: pa.Array, what: str) -> None:
    """Raises ValueError for a column with missing values or NaN."""
    absent = column.is_null(nan_is_null=True)
    if number := absent.true_count:
        row = pc.index(absent, True).as_py()
        raise ValueError(f"{what}: {number} values are missing, the first in row {row}; fill them")


def is_text(kind: pa.DataType) -> bool:
    """Whether a column is of text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def row_of(place: int, lengths: np.ndarray | None) -> int:
    """The row of a value, given the number of values of each row (None: one)."""
    return place if lengths is None else int(np.searchsorted(np.cumsum(lengths), place, side="right"))


def _flat(column: pa.Array) -> tuple[pa.Array, np.ndarray | None, np.ndarray]:
    """The values, their number per row (None: one), and the rows whose list is missing."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return column, None, np.empty(0, np.int64)
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32)
    return column.flatten(), lengths, np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))


def _absent(values: pa.Array) -> np.ndarray | None:
    """Where values are missing or NaN, bool [n]; None: nowhere."""
    if pa.types.is_dictionary(values.type):
        absent = values.is_null() if not values.dictionary.null_count else values.dictionary_decode().is_null()
    elif values.null_count or pa.types.is_floating(values.type):
        absent = values.is_null(nan_is_null=True)
    else:
        return None
    absent = absent.to_numpy(zero_copy_only=False)
    return absent if absent.any() else None


def _checked(vocabulary: Any, what: str) -> dict[Hashable, int]:
    """Value -> position."""
    if isinstance(vocabulary, str | bytes | Mapping | Set) or not hasattr(vocabulary, "__iter__"):
        kind = type(vocabulary).__name__
        raise TypeError(f"vocabulary of {what} is a {kind}; it must be a sequence of values, in the order of their ids")
    values = vocabulary.tolist() if hasattr(vocabulary, "tolist") else list(vocabulary)
    positions: dict[Hashable, int] = {}
    for position, value in enumerate(values):
        if not isinstance(value, Hashable):
            raise TypeError(f"vocabulary of {what} holds {value!r} at position {position}; it must hold single values")
        if value is None or value != value:
            raise ValueError(f"vocabulary of {what} holds {value} at position {position}; missing= is for such values")
        if value in positions:
            raise ValueError(f"vocabulary of {what} holds {value!r} at the positions {positions[value]} and {position}")
        positions[value] = position
    return positions


def _positions(
    values: pa.Array, vocabulary: Mapping[Hashable, int], what: str, lengths: np.ndarray | None
) -> np.ndarray:
    """The positions of values in a vocabulary, 0 where they are missing."""
    if not pa.types.is_dictionary(values.type):
        values = _plain(values).dictionary_encode()
    distinct = values.dictionary.to_pylist()
    places = np.array([vocabulary.get(value, -1) for value in distinct] or [0], np.int64)
    codes = places[values.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    absent = _absent(values)
    if absent is not None:
        codes[absent] = 0
    if len(wrong := np.flatnonzero(codes < 0)):
        place, some = int(wrong[0]), ", ".join(map(repr, list(vocabulary)[:3])) or "none"
        value, row = distinct[values.indices[place].as_py()], row_of(place, lengths)
        size = f"{len(vocabulary)} values: {some}{', ...' * (len(vocabulary) > 3)}"
        raise ValueError(f"{what} holds {value!r} in row {row}, which is not in its vocabulary of {size}")
    return codes


def _plain(values: pa.Array) -> pa.Array:
    """Without views, which Arrow does not sort or number; NaN as a missing value."""
    if pa.types.is_string_view(values.type):
        return values.cast(pa.large_string())
    if pa.types.is_floating(values.type):
        return pc.if_else(values.is_null(nan_is_null=True), pa.scalar(None, values.type), values)
    return values


def alphabetical(column: pa.Array) -> np.ndarray:
    """The position of each text among the sorted different ones, int64 [n]; -1 where it is missing."""
    encoded = _plain(column).dictionary_encode()
    places = np.empty(len(encoded.dictionary) + 1, np.int64)
    places[pc.sort_indices(encoded.dictionary).to_numpy(zero_copy_only=False)] = np.arange(len(encoded.dictionary))
    places[-1] = -1
    return places[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]


def whole_numbers(values: pa.Array, what: str, right: str, lengths: np.ndarray | None = None) -> np.ndarray:
    """Whole numbers [n], int64 if they were no integers; 0 where they are missing.

    Args:
        right: what the column may hold, for messages.

    Raises:
        TypeError: a column that holds no numbers.
        ValueError: a number that is not whole, or a float so large that a whole number may have been rounded to it.
    """
    kind = values.type
    if pa.types.is_integer(kind):
        return values.fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return values.cast(pa.int8()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not pa.types.is_floating(kind):
        raise TypeError(f"{what} is {kind}; {right}")
    floats = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    floats = np.where(np.isnan(floats), 0.0, floats)
    _check_digits(floats, str(kind), what, lengths)
    if len(wrong := np.flatnonzero(~np.isfinite(floats) | (floats != np.trunc(floats)))):
        raise ValueError(f"{what} holds {floats[wrong[0]]:g} in row {row_of(int(wrong[0]), lengths)}; {right}")
    return floats.astype(np.int64)


def _check_digits(floats: np.ndarray, kind: str, what: str, lengths: np.ndarray | None) -> None:
    """Raises ValueError for floats so large that whole numbers were rounded to them."""
    limit = 2 ** _DIGITS[kind] if kind in _DIGITS else round(2 / torch.finfo(getattr(torch, kind)).eps)
    if len(wrong := np.flatnonzero(np.isfinite(floats) & (np.abs(floats) >= limit))):
        value, row = floats[wrong[0]], row_of(int(wrong[0]), lengths)
        reason = f"{kind} does not hold all whole numbers from {limit}: read integers or text"
        raise ValueError(f"{what} holds {value:.17g} in row {row}; {reason}")


def _check(codes: np.ndarray, end: int, what: str, lengths: np.ndarray | None, reason: str) -> None:
    """Raises ValueError for ids that are not from 0 to end - 1."""
    if len(codes) and (codes.min() < 0 or codes.max() >= end):
        wrong = int(np.flatnonzero((codes < 0) | (codes >= end))[0])
        raise ValueError(f"{what} holds id {codes[wrong]} in row {row_of(wrong, lengths)}; {reason}")
