"""One file over HTTP: resumed where it broke off, checked against its MD5, complete or absent.

What has come so far lies in `<name>.part`; beside it `<name>.part.json` says of which file on the server it is the start. A
later call goes on from there, in the same process or, after a kill, in another.

The MovieLens archives of GroupLens: what there is, and from the server to a folder of files.

Source: https://grouplens.org/datasets/movielens/. Checksums as published there, in `<name>.zip.md5`.

Command line of the data sets: `python -m drsrobust.data --root DIR ml-1m`, or `make data DATA=DIR SETS=ml-1m`."""

import argparse
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tqdm import tqdm

from drsrobust._environment import unknown
from drsrobust._files import exclusive, new_file, new_folder
from drsrobust.data.registry import BY_HAND

T = TypeVar("T")
PIECE = 1 << 16  # bytes


class DownloadError(RuntimeError):
    """A file that could not be had. The message names it, what happened, and what may be done."""


class _Interrupted(Exception):
    """What may be better at the next attempt."""


class _Changed(_Interrupted):
    """The server's file is not the one of which a part is here."""


@dataclass(frozen=True)
class Patience:
    """How long a silent server is waited for (seconds), how often it is asked, and the first pause between (seconds;
    each pause is twice the one before)."""

    timeout: float = 30.0
    attempts: int = 5
    pause: float = 1.0


PATIENCE = Patience()


def fetch(url: str, path: Path, md5: str, patience: Patience = PATIENCE) -> None:
    """Downloads a file, with a bar where a terminal watches. Call it in one process at a time.

    Args:
        url: where it is.
        path: where it goes. Nothing is there before it is whole and its checksum right.
        md5: of its contents, 32 hexadecimal digits.
        patience: with the network.

    Raises:
        DownloadError: the server refuses, stays silent or breaks off too often (what has come is kept for the next call);
            the contents are not those of `md5`, or cannot be written (nothing is kept).
    """
    part, note = path.with_name(path.name + ".part"), path.with_name(path.name + ".part.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            _tried(url, patience, lambda: _go_on(url, part, note, patience.timeout))
        except DownloadError as error:
            if not _known(url, part, note):
                raise _forget(part, note, str(error)) from error
            message = f"{error}; {part} keeps what has come, and the same call goes on from there"
            raise DownloadError(message) from error
        found = file_md5(part)
        if found != md5:
            raise _forget(part, note, f"{url}: what came has the MD5 {found}, not {md5}; it was removed")
        with open(part, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(part, path)
        note.unlink(missing_ok=True)
    except OSError as error:  # those of the network are told apart below
        raise _forget(part, note, f"{path} cannot be written: {error}; nothing of it was kept") from error


def fetch_text(url: str, patience: Patience = PATIENCE) -> str:
    """A small text (4 kB at most) from a server.

    Raises:
        DownloadError: as `fetch`.
    """

    def read() -> str:
        with _answer(url, {}, patience.timeout) as response:
            return _read(response, 4096).decode("utf-8", "replace")

    return _tried(url, patience, read)


def file_md5(path: Path) -> str:
    """MD5 (hex) of a file's bytes: the checksum that GroupLens publishes. It tells damage, not forgery; HTTPS does that."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _tried(url: str, patience: Patience, action: Callable[[], T]) -> T:
    for attempt in range(patience.attempts):
        if attempt:
            time.sleep(patience.pause * 2 ** (attempt - 1))
        try:
            return action()
        except _Interrupted as error:
            last = error
    raise DownloadError(f"{url}: {last} ({patience.attempts} attempts)") from last


def _go_on(url: str, part: Path, note: Path, timeout: float) -> None:
    """Adds to the part what is missing; begins anew where the server's file is not the one it is a part of."""
    known = _known(url, part, note)
    have = part.stat().st_size if known else 0
    if have and have == known["size"]:
        return
    headers = {"Range": f"bytes={have}-", "If-Range": known["version"]} if have else {}
    try:
        _receive(url, headers, have, known, part, note, timeout)
    except _Changed:
        part.unlink(missing_ok=True)
        raise


def _receive(url: str, headers: dict, have: int, known: dict, part: Path, note: Path, timeout: float) -> None:
    with _answer(url, headers, timeout) as response:
        size = _size(response, have)
        if response.status == 206 and (_version(response), size) != (known.get("version"), known.get("size")):
            raise _Changed("the file on the server changed")  # and the server does not mind If-Range
        if response.status != 206:
            have = 0
            part.unlink(missing_ok=True)  # first: a note of one file beside the start of another must never be
            with new_file(note) as aside:
                aside.write_text(json.dumps({"url": url, "version": _version(response), "size": size}))
        with (
            open(part, "ab") as handle,
            tqdm(total=size, initial=have, desc=part.stem, unit="B", unit_scale=True, disable=None, ncols=84) as bar,
        ):
            while piece := _read(response, PIECE):
                handle.write(piece)
                bar.update(len(piece))
            have = handle.tell()
    if size is not None and have != size:
        raise _Interrupted(f"the connection ended after {have} of {size} bytes")


def _known(url: str, part: Path, note: Path) -> dict:
    """What the note says of the file that `part` is the start of; empty where that cannot be known."""
    try:
        known = json.loads(note.read_text())
        return known if part.exists() and known["url"] == url and known["version"] and known["size"] else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _version(response: HTTPResponse) -> str | None:
    """What tells this file from a later one of the same name: a strong ETag, else its date."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _size(response: HTTPResponse, have: int) -> int | None:
    """The size of the whole file in bytes, None where the server does not tell (or sends another range than asked)."""
    if response.status == 206:
        found = re.fullmatch(rf"bytes {have}-\d+/(\d+)", response.headers.get("Content-Range", ""))
        return int(found[1]) if found else None
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _answer(url: str, headers: dict[str, str], timeout: float) -> HTTPResponse:
    try:
        response = urlopen(Request(url, headers={"User-Agent": "drsrobust"} | headers), timeout=timeout)
    except HTTPError as error:
        error.close()
        answer = f"the server answered {error.code} {error.reason}"
        if error.code == 416:  # there is nothing beyond what is here
            raise _Changed(answer) from error
        if error.code in (408, 429) or error.code >= 500:
            raise _Interrupted(answer) from error
        raise DownloadError(f"{url}: {answer}") from error
    except (OSError, HTTPException) as error:  # URLError and TimeoutError are OSErrors
        raise _Interrupted(_plain(error)) from error
    if url.startswith("https:") and not response.url.startswith("https:"):
        response.close()
        raise DownloadError(f"{url}: the server sends one to {response.url}, which is not encrypted")
    return response


def _read(response: HTTPResponse, size: int) -> bytes:
    try:
        return response.read1(size)
    except (OSError, HTTPException) as error:
        raise _Interrupted(_plain(error)) from error


def _plain(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return "the server does not answer" if isinstance(reason, TimeoutError) else str(reason) or type(reason).__name__


def _forget(part: Path, note: Path, message: str) -> DownloadError:
    part.unlink(missing_ok=True)
    note.unlink(missing_ok=True)
    return DownloadError(message)


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


DEFAULT = ("ml-1m", "ml-latest-small")


def main(arguments: list[str] | None = None, patience: Patience = PATIENCE) -> int:
    """Downloads the sets that may be, says what to do for the others.

    Returns:
        exit status: 0 when all that was asked for is there, 1 when not, 2 for a wrong call, 130 when interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m drsrobust.data",
        description="Downloads MovieLens from GroupLens (research use; its README holds the terms), and says what to do for "
        "data sets whose terms a person must accept. What is there already is left as it is.",
    )
    known = [*ARCHIVES, *BY_HAND]
    parser.add_argument("sets", nargs="*", help=f"{', '.join(known)} (default: {' '.join(DEFAULT)})")
    parser.add_argument("--root", metavar="DIR", help="where to (default: $DRSROBUST_DATA, else build/data)")
    parser.add_argument("--mirror", metavar="URL", default=BASE, help=f"where from (default: {BASE})")
    options = parser.parse_args(arguments)
    root = Path(options.root or os.environ.get("DRSROBUST_DATA") or "build/data").expanduser()
    for name in options.sets:
        if name not in known:
            print(f"data: {unknown('data set', name, known)}", file=sys.stderr)
            return 2
    if not options.mirror.startswith(("https://", "http://")):
        print(f"data: --mirror {options.mirror!r} is not an address that begins with https://", file=sys.stderr)
        return 2
    missing = []
    try:
        for name in dict.fromkeys(options.sets or DEFAULT):
            if not _see_to(name, root, options.mirror.rstrip("/"), patience):
                missing.append(name)
    except KeyboardInterrupt:
        print("\ndata: stopped; the same call goes on from here", file=sys.stderr)
        return 130
    if not options.sets:
        for by_hand in BY_HAND.values():
            if not by_hand.there(root):
                print(f"\n{by_hand.advice(root)}")
    if not missing:
        print(
            f"\nTo use it: make reproduce DATA={quote(str(root))}, or in Python: load_dataset(name, root={str(root)!r})"
        )
    else:
        print(f"data: not there: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


def _see_to(name: str, root: Path, mirror: str, patience: Patience) -> bool:
    """Whether the data set is there, now."""
    if name in BY_HAND:
        there = BY_HAND[name].there(root)
        print(f"{name}: {root / BY_HAND[name].file} is there" if there else BY_HAND[name].advice(root))
        return there
    try:
        new = get(name, root, mirror, patience)
    except DownloadError as error:
        print(f"data: {error}", file=sys.stderr)
        return False
    print(
        f"{name}: {root / name} " + (f"is new, from {mirror}/{name}.zip, checksum as published" if new else "is there")
    )
    return True


if __name__ == "__main__":
    sys.exit(main())
