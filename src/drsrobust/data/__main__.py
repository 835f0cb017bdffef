"""Command line of the data sets: `python -m drsrobust.data --root DIR ml-1m`, or `make data DATA=DIR SETS=ml-1m`."""

import argparse
import os
import sys
from pathlib import Path
from shlex import quote

from drsrobust._names import unknown
from drsrobust.data.by_hand import BY_HAND
from drsrobust.data.download import PATIENCE, DownloadError, Patience
from drsrobust.data.grouplens import ARCHIVES, BASE, get

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
