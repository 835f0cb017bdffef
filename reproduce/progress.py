"""How far a run is, in one line: the notebooks that run, their trials of all, and the time left."""

import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

from drsrobust._environment import end_with_parent
from reproduce.notebooks import FIGURES
from reproduce.plan import COUNTED, _span, untrained

EVERY = 60.0  # seconds between plain lines, where the output is not a terminal
WIDTH = 20  # of the bar
Counts = dict[str, Counter]  # notebook -> `trials` and `models`


def progress_file(folder: Path, notebook: str) -> Path:
    """The file in which the kernel of a notebook counts (`drsrobust._environment.count_done`); it is there while it runs."""
    return folder / "notebooks" / f".{notebook}.progress"


def read_counts(path: Path) -> Counter:
    """What was counted so far; nothing where there is no file."""
    counts: Counter = Counter()
    with suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            what, _, number = line.partition(" ")
            counts[what] += int(number)
    return counts


def planned_counts(chosen: dict[str, dict[str, Any]], data: Path | None) -> Counts:
    """Trials and models of each notebook by the plan; building models takes seconds."""
    planned = {}
    for name, parameters in chosen.items():
        counts = planned[name] = Counter()
        for work in COUNTED[name](parameters):
            groups = untrained(work.model, work.dataset, work.sizes, data).groups[work.per] if work.per else 1
            counts["models" if work.kind == "training" else work.kind] += work.count * groups
    return planned


class Progress:
    """Prints how far a run is inside a `with` block: a terminal draws one bar each second, other output gets a line each
    minute. `line` prints a text that stays.

    The share that is done weighs notebooks by their seconds in the published run; the time left follows from it.

    Args:
        chosen: notebook name -> parameters.
        folder: of the run.
        data: folder with the real data sets.
        stream: None: standard output.
        every: seconds between plain lines.
    """

    def __init__(
        self,
        chosen: dict[str, dict[str, Any]],
        folder: Path,
        data: Path | None,
        stream: TextIO | None = None,
        every: float = EVERY,
    ) -> None:
        self.stream = stream or sys.stdout
        self.planned: Counts = {}
        self._chosen, self._folder, self._data, self._every = chosen, folder, data, every
        self._finished: set[str] = set()
        self._weights = _published_seconds(chosen)
        self._start, self._end, self._lock = time.monotonic(), threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Progress":
        for name in self._chosen:  # of a run that was killed
            progress_file(self._folder, name).unlink(missing_ok=True)
        # Not in this process: PyTorch takes 4 s to import, and memory.
        context = multiprocessing.get_context("spawn")
        self._plan, child = context.Pipe(duplex=False)
        self._planner = context.Process(target=_plan_in_child, args=(child, self._chosen, self._data), daemon=True)
        self._planner.start()
        child.close()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._planner.terminate()
        self._planner.join()
        self._erase()

    def line(self, text: str, finished: str = "") -> None:
        """Prints a line; `finished` is the notebook that has ended."""
        with self._lock:
            self._finished.add(finished)
            self._erase()
            print(text, file=self.stream, flush=True)

    def text(self, elapsed: float) -> str:
        """The line, as `[####....] 03_ber_sweep: 1,240 of 11,520 trials; about 12 min left`."""
        running, done = [], 0.0
        for name in self._chosen:
            share = float(name in self._finished)
            path = progress_file(self._folder, name)
            if not share and path.exists():
                words, share = _state(read_counts(path), self.planned.get(name, Counter()))
                running.append(f"{name}: {words}" if words else name)
            done += share * self._weights[name]
        done /= sum(self._weights.values())
        parts = [f"[{'#' * round(WIDTH * done):.<{WIDTH}}] {'; '.join(running) or 'a notebook starts'}"]
        if done > 0.03:  # earlier it is a guess
            parts.append(f"about {_span(elapsed * (1 - done) / done)} left")
        return "; ".join(parts)

    def _watch(self) -> None:
        interactive = self.stream.isatty()
        while not self._end.wait(1 if interactive else self._every):
            with suppress(EOFError, OSError):  # a plan that failed has no counts
                if not self.planned and self._plan.poll():
                    self.planned = self._plan.recv()
            text = self.text(time.monotonic() - self._start)
            with self._lock:
                if interactive:
                    columns = shutil.get_terminal_size().columns - 1
                    self.stream.write(f"\r\x1b[K{text[:columns]}")
                    self.stream.flush()
                else:
                    print(text, file=self.stream, flush=True)

    def _erase(self) -> None:
        if self.stream.isatty():
            self.stream.write("\r\x1b[K")
            self.stream.flush()


def _state(counts: Counter, planned: Counter) -> tuple[str, float]:
    """What a running notebook has done, in words, and its share of the plan."""
    what = "trials" if counts["trials"] or planned["trials"] else "models"
    if not planned[what]:
        return (f"{counts[what]:,} {what}" if counts[what] else ""), 0.0
    total = max(planned[what], counts[what])
    return f"{counts[what]:,} of {total:,} {what}", counts[what] / total


def _published_seconds(chosen: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Of each notebook; their mean of one that was not published."""
    record = FIGURES / "run.json"
    outcomes = json.loads(record.read_text())["notebooks"] if record.is_file() else []
    seconds = {outcome["notebook"]: outcome["seconds"] for outcome in outcomes}
    mean = sum(seconds.values()) / len(seconds) if seconds else 1.0
    return {name: seconds.get(name, mean) for name in chosen}


def _plan_in_child(connection: Connection, chosen: dict[str, dict[str, Any]], data: Path | None) -> None:
    os.nice(10)  # notebooks go first
    end_with_parent()
    connection.send(planned_counts(chosen, data))
