"""How far a run is, in one line: the notebooks that run, their trials of all, and the time left."""

import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

from drsrobust._environment import cores, end_with_parent
from reproduce.notebooks import progress_file
from reproduce.plan import START, _span, costed
from reproduce.runner import ALONE, MODELS
from reproduce.time_left import Step, Work, seconds_left, together, work_of

EVERY = 60.0  # seconds between plain lines, where the output is not a terminal
WIDTH = 20  # of the bar
KIND = {"training": "models", "trials": "trials"}  # of the plan's work; passes and seconds are not counted


def read_counts(path: Path) -> Counter:
    """What was counted so far; nothing where there is no file."""
    counts: Counter = Counter()
    with suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            what, _, number = line.partition(" ")
            counts[what] += int(number)
    return counts


def planned_steps(chosen: dict[str, dict[str, Any]], data: Path | None, jobs: int) -> dict[str, list[Step]]:
    """The plan of each notebook in seconds of wall-clock time, with each condition's cost measured on this machine.

    Args:
        chosen: notebook name -> parameters.
        data: folder with the real data sets.
        jobs: notebooks that run at a time. Together they have all cores, but for work on one core that runs alone.
    """
    steps = {}
    for name, costs in costed(chosen, data):
        own = 1 if name == MODELS or name in ALONE else jobs
        steps[name] = [Step("other", 1, START / own)]
        for work, line in costs:
            seconds = line.alone / own + (line.seconds - line.alone) / cores()
            steps[name].append(Step(KIND.get(work.kind, "other"), line.models or line.trials or 1, seconds))
    return steps


class Progress:
    """Prints how far a run is inside a `with` block: a terminal draws one bar each second, other output gets a line each
    minute. `line` prints a text that stays.

    The share that is done and the time left are by the plan (`reproduce.time_left`), which another process measures first.

    Args:
        chosen: notebook name -> parameters.
        folder: of the run.
        data: folder with the real data sets.
        jobs: notebooks that run at a time.
        stream: None: standard output.
        every: seconds between plain lines.
    """

    def __init__(
        self,
        chosen: dict[str, dict[str, Any]],
        folder: Path,
        data: Path | None,
        jobs: int = 1,
        stream: TextIO | None = None,
        every: float = EVERY,
    ) -> None:
        self.stream = stream or sys.stdout
        self.planned: dict[str, list[Step]] = {}
        self._chosen, self._folder, self._data, self._jobs, self._every = chosen, folder, data, jobs, every
        self._finished: set[str] = set()
        self._models: float | None = None  # seconds until the models were there, on which all others wait
        self._start, self._end, self._lock = time.monotonic(), threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Progress":
        self._forget()  # the counts of a run that was killed
        # Not in this process: PyTorch takes 4 s to import, and memory.
        context = multiprocessing.get_context("spawn")
        self._plan, child = context.Pipe(duplex=False)
        self._planner = context.Process(
            target=_plan_in_child, args=(child, self._chosen, self._data, self._jobs), daemon=True
        )
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
        self._forget()

    def _forget(self) -> None:
        for name in self._chosen:
            progress_file(self._folder, name).unlink(missing_ok=True)

    def line(self, text: str, finished: str = "") -> None:
        """Prints a line; `finished` is the notebook that has ended, even if its process was killed."""
        with self._lock:
            self._finished.add(finished)
            self._erase()
            print(text, file=self.stream, flush=True)

    def text(self, elapsed: float) -> str:
        """The line, as `[####....] 03_ber_sweep: 1,240 of 11,520 trials; about 12 min left`."""
        words: list[str] = []
        works: dict[str, Work] = {}
        over: dict[str, bool] = {}
        for name in self._chosen:
            path = progress_file(self._folder, name)
            counts = read_counts(path)
            over[name] = name in self._finished or counts["ended"] > 0
            works[name] = work_of(self.planned.get(name, ()), counts, ended=over[name])
            if path.exists() and not over[name]:
                state = _state(counts, self.planned.get(name, ()))
                words.append(f"{name}: {state}" if state else name)
        if over.get(MODELS) and self._models is None:
            self._models = elapsed
        done = together(list(works.values())).share
        parts = [f"[{'#' * round(WIDTH * done):.<{WIDTH}}] {'; '.join(words) or 'a notebook starts'}"]
        first = 0.0 if MODELS not in works else elapsed if self._models is None else self._models
        models = together([work for name, work in works.items() if name == MODELS])
        others = together([work for name, work in works.items() if name != MODELS])
        ended, running = ([work for name, work in works.items() if over[name] is there] for there in (True, False))
        left = seconds_left([(models, first), (others, elapsed - first)], ended, running)
        if done > 0.03 and left is not None:  # earlier it is a guess
            parts.append(f"about {_span(left)} left")
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


def _state(counts: Counter, steps: Sequence[Step]) -> str:
    """What a running notebook has done, in words."""
    planned = {kind: sum(step.count for step in steps if step.kind == kind) for kind in ("trials", "models")}
    what = "trials" if counts["trials"] or planned["trials"] else "models"
    if not planned[what]:
        return f"{counts[what]:,} {what}" if counts[what] else ""
    return f"{counts[what]:,} of {max(planned[what], counts[what]):,} {what}"


def _plan_in_child(connection: Connection, chosen: dict[str, dict[str, Any]], data: Path | None, jobs: int) -> None:
    os.nice(10)  # notebooks go first
    end_with_parent()
    connection.send(planned_steps(chosen, data, jobs))
