"""The MovieLens archives of GroupLens: what there is, and from the server to a folder of files.

Source: https://grouplens.org/datasets/movielens/. Checksums as published there, in `<name>.zip.md5`.
"""

import os
import re
import shutil
import stat
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from drsrobust._storage import exclusive, new_folder
from drsrobust.data.download import PATIENCE, DownloadError, Patience, fetch, fetch_text, file_md5

BASE = "https://files.grouplens.org/datasets/movielens"


@dataclass(frozen=True)
class Archive:
    """A zip file: the files that must be in it, and its MD5. None: it changes from time to time, ask the server."""

    files: tuple[str, ...]
    md5: str | None


ARCHIVES = {
    "ml-1m": Archive(("ratings.dat", "users.dat", "movies.dat"), "c4d9eecfca2ab87c1945afe126590906"),
    "ml-20m": Archive(("ratings.csv", "movies.csv"), "cd245b17a1ae2cc31bb14903e1204af3"),
    "ml-latest-small": Archive(("ratings.csv", "movies.csv"), None),
}


def get(name: str, root: Path, base: str = BASE, patience: Patience = PATIENCE) -> bool:
    """Sees to it that the folder `root/name` is there, complete.

    An archive `root/<name>.zip` of the right checksum is used, whoever put it there.

    Args:
        name: one of `ARCHIVES`.
        root: the folder of the data folders.
        base: the address below which the archives lie.
        patience: with the network.

    Returns:
        Whether anything had to be done.

    Raises:
        DownloadError: it is not to be had, or something else is in the way.
    """
    folder, archive = root / name, ARCHIVES[name]
    if _complete(folder, archive.files):
        return False
    try:
        with exclusive(root / f".{name}", wait=False):
            _get(folder, archive, f"{base}/{name}.zip", patience)
    except BlockingIOError as error:
        raise DownloadError(f"{name}: another process is downloading it into {root}") from error
    except OSError as error:
        raise DownloadError(f"{name}: {root} cannot be written to: {error}") from error
    return True


def _complete(folder: Path, files: tuple[str, ...]) -> bool:
    """Whether all files are there; raises where something else is."""
    missing = _missing(folder, files)
    if missing and (folder.is_file() or (folder.is_dir() and any(folder.iterdir()))):
        raise DownloadError(f"{folder} is there, but has no {', '.join(missing)}; put that there, or move it away")
    return not missing


def _missing(folder: Path, files: tuple[str, ...]) -> list[str]:
    """Which files are there neither as they are nor as .gz."""
    return [file for file in files if not ((folder / file).is_file() or (folder / f"{file}.gz").is_file())]


def _get(folder: Path, archive: Archive, url: str, patience: Patience) -> None:
    path = folder.with_name(f"{folder.name}.zip")
    md5 = archive.md5 or _published_md5(f"{url}.md5", patience)
    if not path.exists():
        fetch(url, path, md5, patience)
    elif file_md5(path) != md5:
        raise DownloadError(f"{path} has the MD5 {file_md5(path)}, not {md5}; remove it, and it is downloaded anew")
    with new_folder(folder) as part:
        unpack(path, folder.name, part)
        if missing := _missing(part, archive.files):
            raise DownloadError(f"{path} holds no {', '.join(f'{folder.name}/{file}' for file in missing)}")
    path.unlink()


def _published_md5(url: str, patience: Patience) -> str:
    text = fetch_text(url, patience)
    found = re.findall(r"\b[0-9a-fA-F]{32}\b", text)
    if len(found) != 1:
        raise DownloadError(f"{url}: no MD5 in what came: {text[:80]!r}")
    return found[0].lower()


def unpack(path: Path, name: str, into: Path) -> None:
    """Unpacks what lies below the folder `name` of a zip file.

    Raises:
        DownloadError: no whole zip file, a file that would land elsewhere, a link, or nothing below `name`.
        OSError: it cannot be written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [(entry, _place(path, entry)) for entry in archive.infolist() if not entry.is_dir()]
            ours = [(entry, place) for entry, place in entries if place.parts[0] == name and len(place.parts) > 1]
            for entry, place in ours:
                target = into.joinpath(*place.parts[1:])
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, open(target, "xb") as handle:
                    shutil.copyfileobj(source, handle)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, FileExistsError) as error:
        raise DownloadError(f"{path} cannot be unpacked: {error}") from error
    if not ours:
        raise DownloadError(f"{path} holds no {name}/")


def _place(path: Path, entry: zipfile.ZipInfo) -> PurePosixPath:
    """Where an entry belongs, below the folder it is unpacked into."""
    place = PurePosixPath(entry.filename)
    odd = not place.parts or place.is_absolute() or ".." in place.parts or "\\" in entry.filename or os.sep != "/"
    if odd or stat.S_ISLNK(entry.external_attr >> 16):
        raise DownloadError(f"{path} cannot be unpacked: {entry.filename!r} would lead out of the folder")
    return place
