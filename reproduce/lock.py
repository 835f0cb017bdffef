"""One run at a time in a folder, and none that outlives the `make` that started it."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from drsrobust._files import exclusive

_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent ends


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a run's folder, the file `<folder>.lock`, which names this process. The system drops the lock when
    the process ends, even by `kill -9`.

    Raises:
        BlockingIOError: another process holds it; the message has its pid.
    """
    lock = folder.with_name(f"{folder.name}.lock")
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(folder, wait=False))
        except BlockingIOError:
            holder = lock.read_text().strip() or "unknown"
            raise BlockingIOError(
                f"another run is writing to {folder} (process {holder}); wait for its end, or choose another --out"
            ) from None
        lock.write_text(f"{os.getpid()}\n")
        yield


def end_with_make() -> bool:
    """Makes this process end when the `make` that started it does, even by `kill -9`, which leaves make no time to end its
    children. The Makefile passes make's pid as `DRSROBUST_MAKE`; without it nothing is done, since a shell that started a run
    in the background may end before it.

    Returns:
        whether to go on: make has not ended yet.
    """
    make = os.environ.pop("DRSROBUST_MAKE", None)
    if make is None:
        return True
    # Not SIGTERM: while a notebook runs in this process, nbclient answers that by ending the kernel alone.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == int(make)  # where make ended before the call, no signal comes
