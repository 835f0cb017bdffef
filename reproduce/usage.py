"""The most memory, and the CPU time, of the processes that run a notebook."""

import threading
from contextlib import suppress

import psutil


class Usage:
    """Memory and CPU time of the processes that start below this one inside a `with` block: a kernel and its workers.

    Sampled twice a second, so shorter peaks of several processes together may be missed, and up to half a second of the CPU
    time of each process; the peak of a single one is the kernel's own count (`VmHWM`) where there is one. Memory that processes
    share counts in each of them.

    Args:
        forked: a process that was started before and counts all the same.
    """

    def __init__(self, forked: int | None = None) -> None:
        self.mib = 0  # the most so far
        self._forked, self._cpu = forked, {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def cpu_seconds(self) -> float:
        """User and system time of all processes together."""
        return sum(self._cpu.values())

    def __enter__(self) -> "Usage":
        self._before = {process.pid for process in psutil.Process().children(recursive=True)} - {self._forked}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.5):
            own = [process for process in psutil.Process().children(recursive=True) if process.pid not in self._before]
            sizes = [_memory(process) for process in own]
            together, highest = sum(now for now, _ in sizes), max((peak for _, peak in sizes), default=0)
            self.mib = max(self.mib, round(max(together, highest) / 2**20))
            for process in own:
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    self._cpu[process.pid, process.create_time()] = times.user + times.system


def _memory(process: psutil.Process) -> tuple[int, int]:
    """Bytes in RAM now, and the most so far; zeros once it has ended."""
    with suppress(psutil.Error, OSError, TypeError):
        now = process.memory_info().rss
        with open(f"/proc/{process.pid}/status") as handle:
            lines = [line.split() for line in handle if line.startswith("VmHWM:")]
        return now, max(now, *(int(line[1]) * 1024 for line in lines))
    return 0, 0
