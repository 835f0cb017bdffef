"""Bad lines of a raw file that were skipped, and their list in a folder of the cache."""

import csv
from collections.abc import Iterable
from pathlib import Path

from drsrobust._files import new_file

SKIPPED = "skipped.csv"

Skipped = tuple[str, int, str]  # file name, line number from 1, fault


class DataError(ValueError):
    """A malformed data file. The message names the file, the line, its text, and the expected form."""


def check_share(first: Skipped, n_bad: int, n_lines: int) -> None:
    """Raises DataError, with the first bad line, if more than half of the lines are bad: it is another file or format."""
    if 2 * n_bad > n_lines:
        file, line, fault = first
        raise DataError(
            f"{n_bad:,} of {n_lines:,} lines are bad, too many for bad_lines='skip'; the first: {file}, line {line}: {fault}"
        )


def write_skipped(path: Path, skipped: Iterable[Skipped]) -> int:
    """Writes the list, complete or absent, and returns its length; an empty one gets no file."""
    count = 0
    with new_file(path) as part, open(part, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["file", "line", "reason"])
        for count, row in enumerate(skipped, 1):  # noqa: B007 - the last value is the length
            writer.writerow(row)
    if not count:
        path.unlink()
    return count


def read_skipped(path: Path) -> tuple[Skipped, ...]:
    """The list, in the order of the lines."""
    with open(path, newline="", encoding="utf-8") as handle:
        return tuple((file, int(line), reason) for file, line, reason in list(csv.reader(handle))[1:])
