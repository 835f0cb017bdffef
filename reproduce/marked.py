"""Parts of a page that are made from a run's tables, between two marks."""

import csv
from pathlib import Path


def replaced(text: str, begin: str, end: str, table: str, thing: str) -> str:
    """A text with `table` between its two marks, and nothing of what stood there.

    Args:
        begin, end: the marks.
        thing: what the table is of, for the message.

    Raises:
        ValueError: the marks are not there.

    Example:
        >>> replaced("a <1> old <2> b", "<1>", "<2>", "new", "news")
        'a <1>\\nnew\\n<2> b'
    """
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"there is no place for the table of {thing}: {begin!r} and {end!r} mark it")
    return f"{before}{begin}\n{table}\n{end}{after}"


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV as text, without the lines before them that begin with `#`."""
    with open(path, newline="") as handle:
        return list(csv.DictReader(line for line in handle if not line.startswith("#")))


def line(*cells: str) -> str:
    """A row of a Markdown table.

    Example:
        >>> print(line("|w|", "1e37"))
        | \\|w\\| | 1e37 |
    """
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
