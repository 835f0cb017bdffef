"""The lines that were left out of a data set: kept beside it in `skipped.csv`, and told of whenever it is opened."""

import csv
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from drsrobust._storage import new_file
from drsrobust.data.text import DataError

NAME = "skipped.csv"
Skipped = tuple[str, int, str]  # file name, line number from 1, what is wrong


def write_skipped(path: Path, skipped: Iterable[Skipped]) -> int:
    """Writes the list, complete or absent; no file when it is empty. Gives its length."""
    count = 0
    with new_file(path) as part, open(part, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["file", "line", "reason"])
        for row in skipped:
            writer.writerow(row)
            count += 1
    if not count:
        path.unlink()
    return count


def read_skipped(path: Path) -> Iterator[Skipped]:
    """The list, in the order of the lines."""
    with open(path, newline="", encoding="utf-8") as handle:
        rows = csv.reader(handle)
        next(rows)
        for file, line, reason in rows:
            yield file, int(line), reason


def check_share(first: Skipped, skipped: int, kept: int) -> None:
    """Refuses a file of which more than half of the lines are bad: it is another file, or of another form.

    Raises:
        DataError: with the first bad line.
    """
    if skipped > kept:
        raise DataError(
            f"{skipped:,} of {skipped + kept:,} lines are bad, more than bad_lines='skip' is for; "
            "the first: {}, line {}: {}".format(*first)
        )


def tell(path: Path, files: list[str], kept: int | None, stacklevel: int) -> None:
    """Warns that lines were left out: how many of how many, the first, and where all are listed.

    Args:
        path: the list, not empty.
        files: names of the files that were read.
        kept: their good lines; None: not known.
        stacklevel: of the warning, from the caller of this function on.
    """
    skipped = list(read_skipped(path))
    name, line, reason = skipped[0]
    count = f"{len(skipped):,}" + ("" if kept is None else f" of {len(skipped) + kept:,}")
    others = len(files) - 1
    of = files[0] + (f" and {others} other file{'s' * (others > 1)}" if others else "")
    first = f"{name}, line {line}" if others else f"line {line}"
    were = f"line{'s' * (kept is not None or len(skipped) > 1)} of {of} {'was' if len(skipped) == 1 else 'were'}"
    warnings.warn(f"{count} {were} skipped; the first: {first}: {reason}; all in {path}", stacklevel=stacklevel + 1)
