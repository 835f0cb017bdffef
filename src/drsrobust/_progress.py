"""Progress bars on stderr: lively for a person, one line every half minute in a batch run."""

import os
import sys

from tqdm import tqdm


def progress(total: int, description: str, *, show: bool = True) -> tqdm:
    """A tqdm bar. `$DRSROBUST_BATCH` (set by `python -m reproduce`) and a stderr that is a file make it quiet."""
    in_notebook = "ipykernel" in sys.modules
    quiet = bool(os.environ.get("DRSROBUST_BATCH")) or not (in_notebook or sys.stderr.isatty())
    return tqdm(
        total=total, desc=description, disable=not show, mininterval=30 if quiet else 0.5, file=sys.stderr, ncols=84
    )
