"""Labels as people have them (0 and 1, booleans, text such as yes and no) as float32; those that were not observed are NaN."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drsrobust_extras.data.id_columns import arrow_column, is_text, refuse_missing

# Text of two values: the booleans of YAML 1.1 (yaml.org/type/bool.html), and the digits.
WORDS = {"1": 1, "true": 1, "yes": 1, "y": 1, "on": 1, "0": 0, "false": 0, "no": 0, "n": 0, "off": 0}


def clicks(column: pa.Array, what: str, *, gaps: bool = False, unobserved: Any = None) -> np.ndarray:
    """Labels float32 [n].

    Args:
        column: numbers of 0 and 1, booleans, text of `WORDS`, or categories of these.
        what: names the column in messages, as `label 'bought'`.
        gaps: whether labels may be missing: NaN.
        unobserved: a value that means the same.

    Raises:
        TypeError: a column of another type.
        ValueError: another value; missing labels without `gaps`.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if unobserved is not None:
        column = _without(column, unobserved, what)
    if not gaps:
        refuse_missing(column, what)
    if is_text(column.type):
        return _of_text(column.cast(pa.large_string()), what, unobserved is None and gaps)
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan, np.float32)
    if not any(is_kind(kind) for is_kind in _NUMBERS):
        raise TypeError(f"{what} is {kind}; labels are 0 or 1, booleans, or text such as 'yes' and 'no'")
    values = column.cast(pa.int8() if pa.types.is_boolean(kind) else kind).cast(pa.float64(), safe=False)
    numbers = values.to_numpy(zero_copy_only=False)
    if (wrong := np.flatnonzero((numbers != 0) & (numbers != 1) & ~np.isnan(numbers))).size:
        value = f"{numbers[wrong[0]]:g}"
        raise ValueError(
            f"{what} holds {value} in row {wrong[0]}; labels must be 0 or 1{_left_out(value, gaps, unobserved)}"
        )
    return numbers.astype(np.float32)


_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)


def labels_of_text(values: np.ndarray, what: str) -> np.ndarray:
    """Labels float32 in the shape of an array of text or of objects."""
    column = arrow_column(values.reshape(-1), what)
    return clicks(column, what, gaps=True).reshape(values.shape)


def _without(column: pa.Array, unobserved: Any, what: str) -> pa.Array:
    """The column, without the values that mean that a label was not observed."""
    try:
        value = pa.scalar(unobserved).cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TypeError(
            f"unobserved is {unobserved!r}, and {what} is {column.type}; it must be a value of it"
        ) from error
    return pc.if_else(pc.fill_null(pc.equal(column, value), False), pa.scalar(None, column.type), column)


def _of_text(column: pa.Array, what: str, hint: bool) -> np.ndarray:
    encoded = column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    for number, text in enumerate(texts):
        if text.strip().lower() not in WORDS:
            row = int(np.flatnonzero(codes == number)[0])
            raise ValueError(
                f"{what} holds {text!r} in row {row}; labels are 0 or 1, booleans, or text such as 'yes' and 'no': say which "
                f"value is the click, as column == {text!r}{_left_out(repr(text), hint, None)}"
            )
    numbers = [float(WORDS[text.strip().lower()]) for text in texts]
    return np.array([*numbers, np.nan], np.float32)[codes]


def _left_out(value: str, gaps: bool, unobserved: Any) -> str:
    return f"; unobserved={value} leaves such rows out of their task" if gaps and unobserved is None else ""
