"""The files of a report in a folder that may hold others. A marker lists them with their SHA-256: a later report replaces these
and nothing else."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import replace as move
from pathlib import Path

from drsrobust.extend import file_digest, folder_digests, make_folder, new_file, private_folder

MARKER, PAGE = ".drsrobust-report.json", "index.html"


@contextmanager
def report_files(folder: Path) -> Iterator[Path]:
    """A new folder to write a report to. Its files are moved to `folder` when the block ends without an exception. Files of an
    earlier report there are replaced or deleted, except those that were changed since.

    Raises:
        FileExistsError: a file to be written is there and is not of a report; then nothing was written.
        OSError: the folder cannot be written to.
        ValueError: the marker is damaged.
    """
    with private_folder(folder / MARKER.removesuffix(".json")) as part:
        _read_marker(folder)  # a damaged one is refused before the report is made
        yield part
        _publish(part, folder, folder_digests(part))


def check_free(folder: Path, names: Sequence[str]) -> None:
    """Raises FileExistsError, as `report_files` does at its end, for a file that is there and not as a report left it."""
    former = _read_marker(folder)
    for name in names:
        if os.path.lexists(folder / name) and not _is_of_report(folder, name, former):
            raise FileExistsError(
                f"{folder / name} exists, and is not as a report of drsrobust left it; move it away, or pass another folder"
            )


def _publish(part: Path, folder: Path, written: dict[str, str]) -> None:
    former = _read_marker(folder)
    check_free(folder, [*written])
    for name in written:
        if not _is_inside(folder, name):
            raise FileExistsError(f"{(folder / name).parent} is a link; remove it, or pass another folder")
    # A process that is killed before the end leaves files of both reports: the next report may replace all of them.
    hashes = former | {name: [*former.get(name, ()), sha256] for name, sha256 in written.items()}
    _write_marker(folder, hashes)
    for name in sorted(written, key=PAGE.__eq__):  # the page is the last
        make_folder((folder / name).parent)
        move(part / name, folder / name)
    for name in former.keys() - written.keys():
        if _is_of_report(folder, name, former):
            (folder / name).unlink()
    _write_marker(folder, {name: [sha256] for name, sha256 in written.items()})


def _is_of_report(folder: Path, name: str, former: dict[str, list[str]]) -> bool:
    """Whether a file is there as a report left it."""
    path = folder / name
    return name in former and _is_inside(folder, name) and path.is_file() and file_digest(path) in former[name]


def _is_inside(folder: Path, name: str) -> bool:
    """Whether a file lies in the folder: a marker may come from others, and a folder below may be a link."""
    below = not {"..", "/"} & {*Path(name).parts}
    return below and (folder / name).parent.resolve() == folder.resolve() / Path(name).parent


def _read_marker(folder: Path) -> dict[str, list[str]]:
    """SHA-256 (hex) that each file of a report may have, by its path in the folder."""
    path = folder / MARKER
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        if not all(isinstance(name, str) and isinstance(hashes, list) for name, hashes in files.items()):
            raise TypeError("files is no object of lists")
    except FileNotFoundError:
        return {}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({error!r}); delete it and the report's files, or pass another folder"
        ) from None
    return files


def _write_marker(folder: Path, files: dict[str, list[str]]) -> None:
    with new_file(folder / MARKER) as part:
        part.write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
