"""How far a run is, in one line: the notebooks that run, their trials of all, and the time left."""

import shutil
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from reproduce.plan import duration
from reproduce.runner import ALONE, total_seconds
from reproduce.time_left import Event, Step, Work, read_events, seconds_left, totals, work_of

EVERY = 60.0  # seconds between plain lines, where the output is not a terminal
WIDTH = 20  # of the bar


class Progress:
    """Prints how far a run is inside a `with` block: a terminal draws one bar each second, other output gets a line each
    minute. `line` prints a text that stays.

    The share that is done and the time left are by the record of an earlier run (`reproduce.time_left`); without one of each
    notebook the share is that of notebooks, and no time is said.

    Args:
        files: of each notebook, by its name in the line, the one in which it counts (`progress_file`).
        steps: of the record of notebooks by name; more may come while they run.
        jobs: notebooks that run at a time.
        stream: None: standard output.
        every: seconds between plain lines.
        alone: names of notebooks during which no other runs.
    """

    def __init__(
        self,
        files: Mapping[str, Path],
        steps: Mapping[str, Sequence[Step]],
        jobs: int = 1,
        stream: TextIO | None = None,
        every: float = EVERY,
        alone: Collection[str] = ALONE,
    ) -> None:
        self.stream = stream or sys.stdout
        self._files, self._steps, self._jobs, self._every, self._alone = files, steps, jobs, every, alone
        self._finished: set[str] = set()
        self._end, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Progress":
        self._forget()  # the counts of a run that was killed
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._erase()
        self._forget()

    def _forget(self) -> None:
        for path in self._files.values():
            path.unlink(missing_ok=True)

    def line(self, text: str, finished: str = "") -> None:
        """Prints a line; `finished` is the notebook that has ended, even if its process was killed."""
        with self._lock:
            self._finished.add(finished)
            self._erase()
            print(text, file=self.stream, flush=True)

    def text(self, now: float) -> str:
        """The line at a time in seconds since 1970, as `[####....] 03_ber_sweep: 1,240 of 11,520 trials; about 12 min left`."""
        running: list[str] = []
        works: dict[str, Work] = {}
        for name, path in self._files.items():
            events, steps = read_events(path), self._steps.get(name, ())
            ended = name in self._finished or any(event.what == "ended" for event in events)
            works[name] = work_of(steps, events, now, ended=ended)
            if events and not ended:
                state = _state(events, steps)
                running.append(f"{name}: {state}" if state else name)
        known = all(name in self._steps for name in works)
        share = sum(work.ended for work in works.values()) / len(works)
        if known:
            share = sum(w.done.total() for w in works.values()) / sum(w.planned.total() for w in works.values())
        line = f"[{'#' * round(WIDTH * share):.<{WIDTH}}] {'; '.join(running) or 'a notebook starts'}"
        left = seconds_left(works) if known else None
        return line if left is None else f"{line}; about {duration(total_seconds(left, self._jobs, self._alone))} left"

    def _watch(self) -> None:
        interactive = self.stream.isatty()
        while not self._end.wait(1 if interactive else self._every):
            text = self.text(time.time())
            with self._lock:
                if interactive:
                    columns = shutil.get_terminal_size().columns - 1
                    self._erase()
                    print(text[:columns], end="", file=self.stream, flush=True)
                else:
                    print(text, file=self.stream, flush=True)

    def _erase(self) -> None:
        if self.stream.isatty():
            self.stream.write("\r\x1b[K")
            self.stream.flush()


def _state(events: Sequence[Event], steps: Sequence[Step]) -> str:
    """What a running notebook has done, in words."""
    counts, recorded = totals(events), {"trials": 0, "models": 0, "other": 0}
    for step in steps:
        recorded[step.kind] += step.count
    what = "trials" if counts["trials"] or recorded["trials"] else "models"
    if not recorded[what]:
        return f"{counts[what]:,} {what}" if counts[what] else ""
    return f"{counts[what]:,} of {max(recorded[what], counts[what]):,} {what}"
