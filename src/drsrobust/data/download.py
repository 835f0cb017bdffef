"""One file over HTTP: resumed where it broke off, checked against its MD5, complete or absent.

What has come so far lies in `<name>.part`; beside it `<name>.part.json` says of which file on the server it is the start. A
later call goes on from there, in the same process or, after a kill, in another.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tqdm import tqdm

from drsrobust._storage import new_file

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
