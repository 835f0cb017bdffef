"""Progress bars, and the progress of a batch run."""

import os
import sys
import time

from tqdm import tqdm


def progress_bar(total: int, description: str, *, progress: bool = True) -> tqdm:
    """A tqdm bar on stderr; a line every 30 seconds under `$DRSROBUST_BATCH` (set by `python -m reproduce`) or into a file."""
    interactive = "ipykernel" in sys.modules or sys.stderr.isatty()
    interval = 0.5 if interactive and not os.environ.get("DRSROBUST_BATCH") else 30
    return tqdm(total=total, desc=description, disable=not progress, mininterval=interval, file=sys.stderr, ncols=84)


def count_done(what: str, number: int = 1) -> None:
    """Adds to the finished `trials` (of these `stored`, by earlier runs) or trained `models` of a batch run, in the file
    `$DRSROBUST_PROGRESS`: a line per call, with its time."""
    if number and (path := os.environ.get("DRSROBUST_PROGRESS")):
        with open(path, "a") as handle:
            handle.write(f"{what} {number} {time.time():.2f}\n")
