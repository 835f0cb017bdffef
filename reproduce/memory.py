"""The most memory that a notebook's processes had."""

import threading

import psutil

_EVERY = 0.5  # seconds


class PeakMemory:
    """Watches the processes that start below this one inside a `with` block: a kernel, and the workers it starts.

    Looked at twice a second, so shorter peaks of several processes together may be missed; the highest that a single one
    ever had is the kernel's own count (`VmHWM`) where there is one. Memory that processes share counts in each of them.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._before = {process.pid for process in _below()}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def mib(self) -> int:
        """The most so far, in MiB."""
        return round(self.bytes / 2**20)

    def _watch(self) -> None:
        while not self._end.wait(_EVERY):
            sizes = [_memory(process) for process in _below() if process.pid not in self._before]
            together, highest = sum(now for now, _ in sizes), max((most for _, most in sizes), default=0)
            self.bytes = max(self.bytes, together, highest)


def _below() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _memory(process: psutil.Process) -> tuple[int, int]:
    """Bytes in RAM now, and the most so far; zeros once it has ended."""
    try:
        now = process.memory_info().rss
        with open(f"/proc/{process.pid}/status") as handle:
            lines = [line.split() for line in handle if line.startswith("VmHWM:")]
        return now, max(now, *(int(line[1]) * 1024 for line in lines))
    except (psutil.Error, OSError, TypeError):
        return 0, 0
