"""How `drsrobust assess` reads the columns of a file: as numbers or as ids, and the words that say so."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

# Text that reads as a number, with an optional sign, currency, percent and separators of thousands; or as a date or time.
_AROUND = re.compile(r"[$€£¥₹₩₽₺%‰]|\b(?:USD|EUR|GBP|CHF|JPY|CNY|INR)\b")
_NUMBER = re.compile(r"[-+(]? *(?:\d{1,3}(?:[.,' ]\d{3})+|\d+)?(?:[.,]\d+)?(?:[eE][-+]?\d+)?\)?")
_TIME = re.compile(r"(?:\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(?:[ T]+\d.*)?|\d{1,2}:\d{2}(?::\d{2}.*)?)")
MOST = 0.5  # of the different values of a column of text: over this share that reads as numbers or dates is no text


@dataclass(frozen=True)
class ColumnKind:
    """A column as it is read.

    Attributes:
        kind: `dense` (numbers) or `ids`.
        how: what it holds and what is made of it, in words.
    """

    kind: str
    how: str


def column_kind(column: "pd.Series", name: str, dense: Sequence[str] = (), ids: Sequence[str] = ()) -> ColumnKind:
    """How a column is read: floats as numbers, anything else as ids, unless it is named.

    Args:
        column: of a pandas frame.
        name: of it.
        dense, ids: columns that are taken as numbers, or as ids, whatever they hold.

    Raises:
        ValueError: a column in both lists, text in `dense`, or text that reads as numbers or dates and is not in `ids`.

    Example:
        >>> import pandas as pd
        >>> column_kind(pd.Series([3.0, 7.0]), "age")
        ColumnKind(kind='dense', how='floats, all whole: numbers; ids with --ids age')
    """
    if name in dense and name in ids:
        raise ValueError(f"column {name!r} is in --dense and in --ids; it is one of them")
    values = column.dropna()
    is_category = getattr(column.dtype, "categories", None) is not None
    is_text = not is_category and len(values) > 0 and isinstance(values.iloc[0], str)
    if name in dense and (is_text or is_category):
        some = f", as {values.iloc[0]!r}" if len(values) else ""
        raise ValueError(f"--dense: column {name!r} holds text or categories{some}; write it to the file as numbers")
    if is_text and name not in ids and (example := _dressed(values)) is not None:
        raise ValueError(
            f"column {name!r} is text that reads as numbers or dates, as {example!r}; write it to the file as numbers, or pass "
            f"--ids {name} if its values are ids or the model takes no such column"
        )
    kind = column.dtype.kind
    if name in dense or (kind == "f" and name not in ids):
        return ColumnKind("dense", _numbers(values, name, kind))
    return ColumnKind("ids", _ids(values, name, kind, is_text, is_category))


def _dressed(values: "pd.Series") -> str | None:
    """The first value that reads as a number or a date, if most of the different ones do; else None."""
    different = values.unique()
    found = [value for value in different if _reads_as_number(str(value))]
    return found[0] if len(found) > MOST * len(different) else None


def _reads_as_number(text: str) -> bool:
    bare = _AROUND.sub("", text).strip()
    return bool(re.search(r"\d", bare)) and bool(_NUMBER.fullmatch(bare) or _TIME.fullmatch(bare))


def _numbers(values: "pd.Series", name: str, kind: str) -> str:
    if kind == "f":
        is_whole = len(values) > 0 and bool((values % 1 == 0).all())
        return f"floats, all whole: numbers; ids with --ids {name}" if is_whole else "floats: numbers"
    return "whole numbers, as numbers" if kind in "iu" else "as numbers"


def _ids(values: "pd.Series", name: str, kind: str, is_text: bool, is_category: bool) -> str:
    if is_category:
        return f"{len(values.cat.categories):,} categories: ids by their order"
    if is_text:
        return f"text, {values.nunique():,} different: ids from 1 in alphabetical order"
    if kind in "iuf" and len(values):
        ends = f"whole numbers {values.min():.0f} to {values.max():.0f}: ids as they are"
        return ends if kind == "f" else f"{ends}; numbers with --dense {name}"
    return "ids"
