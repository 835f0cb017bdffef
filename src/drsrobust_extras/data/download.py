"""Download of MovieLens: `python -m drsrobust_extras.data.download --root DIR ml-1m`, or `make data DATA=DIR SETS=ml-1m`.

Source: https://grouplens.org/datasets/movielens/. Checksums as published there, in `<name>.zip.md5`.
"""

import argparse
import os
import re
import shutil
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from urllib.request import urlopen

import pooch

from drsrobust.extend import exclusive, expanded, new_folder, unknown
from drsrobust_extras.data.registry import BY_HAND

BASE = "https://files.grouplens.org/datasets/movielens"
DEFAULT = ("ml-1m", "ml-latest-small")
TIMEOUT = 30  # seconds without a byte from the server
_DOWNLOAD_RETRIES = 3


class DownloadError(RuntimeError):
    """A data set that could not be downloaded. The message names the file, what failed, and what to do."""


@dataclass(frozen=True)
class Archive:
    """A zip file: the files that it must hold, its MD5 (None: GroupLens changes it, so its server is asked), and the folder of
    the files (empty: named as the zip file)."""

    files: tuple[str, ...]
    md5: str | None
    folder: str = ""

    def missing(self, folder: Path) -> list[str]:
        """The files that `folder` lacks, plain and as .gz."""
        return [file for file in self.files if not any((folder / f"{file}{end}").is_file() for end in ("", ".gz"))]


ARCHIVES = {
    "ml-1m": Archive(("ratings.dat", "users.dat", "movies.dat"), "c4d9eecfca2ab87c1945afe126590906"),
    "ml-100k": Archive(("u.data", "u.user", "u.item"), "0e33842e24a9c977be4e0107933c0723"),
    "ml-10m": Archive(("ratings.dat", "movies.dat"), "ce571fd55effeba0271552578f2648bd", "ml-10M100K"),
    "ml-20m": Archive(("ratings.csv", "movies.csv"), "cd245b17a1ae2cc31bb14903e1204af3"),
    "ml-25m": Archive(("ratings.csv", "movies.csv"), "6b51fb2759a8657d3bfcbfc42b592ada"),
    "ml-32m": Archive(("ratings.csv", "movies.csv"), None),
    "ml-latest-small": Archive(("ratings.csv", "movies.csv"), None),
}


def download(name: str, root: Path, base: str = BASE) -> bool:
    """Makes the folder `root/name` (`root/ml-10M100K` of ml-10m), complete or not at all. If `root/<name>.zip` exists, it is
    checked, unpacked and deleted instead of downloaded.

    Args:
        name: one of `ARCHIVES`.
        root: the folder of the data folders.
        base: the address below which the archives lie.

    Returns:
        False if the folder was complete before.

    Raises:
        DownloadError: the server does not deliver the archive, its MD5 or contents are wrong, another process is downloading
            it, or the folder holds other files or cannot be written.
    """
    folder, archive = _folder(name, root), ARCHIVES[name]
    missing = archive.missing(folder)
    if not missing:
        return False
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise DownloadError(f"{folder} exists without {', '.join(missing)}; add these files, or move the folder away")
    work = root / f".{name}.download"
    try:
        with exclusive(root / f".{name}", wait=False):
            path = _fetch(name, root, work, base)
            _unpack(path, folder, archive)
            path.unlink()
            shutil.rmtree(work, ignore_errors=True)
    except BlockingIOError as error:
        raise DownloadError(f"{name}: another process is downloading it into {root}") from error
    except OSError as error:
        raise DownloadError(f"{name}: {root} cannot be written to: {error}") from error
    return True


def _folder(name: str, root: Path) -> Path:
    return root / (ARCHIVES[name].folder or name)


def _fetch(name: str, root: Path, work: Path, base: str) -> Path:
    """The archive with the right MD5: in `root`, in `work` (downloaded by an earlier call), or downloaded into `work`."""
    file, md5 = f"{name}.zip", ARCHIVES[name].md5
    url = f"{base}/{file}"
    try:
        if md5 is None:
            with urlopen(f"{url}.md5", timeout=TIMEOUT) as response:
                text = response.read(4096).decode("utf-8", "replace")
            sums = re.findall(r"\b[0-9a-fA-F]{32}\b", text)
            if len(sums) != 1:
                raise DownloadError(f"{url}.md5: the answer holds no MD5: {text[:80]!r}")
            md5 = sums[0].lower()
        pooch.get_logger().setLevel("ERROR")
        folder = root if (root / file).exists() else work
        server = pooch.create(folder, f"{base}/", registry={file: f"md5:{md5}"}, retry_if_failed=_DOWNLOAD_RETRIES)
        web = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 16, timeout=TIMEOUT)
        return Path(server.fetch(file, downloader=web))
    except (OSError, ValueError) as error:  # of urllib and requests, or a wrong MD5
        shutil.rmtree(work, ignore_errors=True)
        raise DownloadError(f"{url}: {error}") from error


def _unpack(path: Path, folder: Path, archive: Archive) -> None:
    """Unpacks the entries below `folder.name`; `extract` keeps every name inside the folder and makes no links."""
    with new_folder(folder) as part:
        try:
            with zipfile.ZipFile(path) as content:
                for entry in content.infolist():
                    top, _, entry.filename = entry.filename.partition("/")
                    if top == folder.name and entry.filename and not entry.is_dir():
                        content.extract(entry, part)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise DownloadError(f"{path} cannot be unpacked: {error}") from error
        if missing := archive.missing(part):
            raise DownloadError(f"{path} holds no {', '.join(f'{folder.name}/{file}' for file in missing)}")


def main(arguments: list[str] | None = None) -> int:
    """Downloads the sets of `ARCHIVES` and prints what to do for those of `BY_HAND`.

    Returns:
        exit status: 0 if all requested sets exist, 1 if not, 2 for a wrong call, 130 when interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m drsrobust_extras.data.download",
        description="Downloads MovieLens from GroupLens (research use; its README holds the terms), and prints how to get "
        "data sets whose terms a person must accept. Existing folders do not change.",
    )
    accepted = [*ARCHIVES, *BY_HAND]
    parser.add_argument("sets", nargs="*", help=f"{', '.join(accepted)} (default: {' '.join(DEFAULT)})")
    parser.add_argument("--root", metavar="DIR", help="target folder (default: $DRSROBUST_DATA, else build/data)")
    parser.add_argument("--mirror", metavar="URL", default=BASE, help=f"address of the archives (default: {BASE})")
    options = parser.parse_args(arguments)
    try:
        root = expanded(
            "--root", (os.environ.get("DRSROBUST_DATA") or "build/data") if options.root is None else options.root
        )
    except ValueError as error:
        print(f"data: {error}", file=sys.stderr)
        return 2
    for name in options.sets:
        if name not in accepted:
            print(f"data: {unknown('data set', name, accepted)}", file=sys.stderr)
            return 2
    if not options.mirror.startswith(("https://", "http://")):
        print(f"data: --mirror must begin with https:// or http://, got {options.mirror!r}", file=sys.stderr)
        return 2
    try:
        names = dict.fromkeys(options.sets or DEFAULT)
        missing = [name for name in names if not _provide(name, root, options.mirror.rstrip("/"))]
    except KeyboardInterrupt:
        print("\ndata: interrupted", file=sys.stderr)
        return 130
    for by_hand in BY_HAND.values() if not options.sets else ():
        if not by_hand.exists(root):
            print(f"\n{by_hand.advice(root)}")
    if missing:
        print(f"data: missing: {', '.join(missing)}", file=sys.stderr)
        return 1
    print(f"\nTo use it: make reproduce DATA={quote(str(root))}, or in Python: load_dataset(name, root={str(root)!r})")
    return 0


def _provide(name: str, root: Path, mirror: str) -> bool:
    """Downloads a set or prints how to get it; returns whether it exists now."""
    if name in BY_HAND:
        exists = BY_HAND[name].exists(root)
        print(f"{name}: {BY_HAND[name].file(root)} exists" if exists else BY_HAND[name].advice(root))
        return exists
    try:
        new = download(name, root, mirror)
    except DownloadError as error:
        print(f"data: {error}", file=sys.stderr)
        return False
    print(
        f"{name}: {_folder(name, root)} "
        + (f"is new, from {mirror}/{name}.zip, checksum as published" if new else "exists")
    )
    return True


if __name__ == "__main__":
    sys.exit(main())
