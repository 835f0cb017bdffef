"""Where the time of a campaign goes."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from drsrobust.benchmark.trial_cost import campaign_of, one_thread
from drsrobust.campaign import Campaign, Store, work
from drsrobust.evaluation import Evaluator, reach
from drsrobust.injection import ErrorModel, Injection, resolve
from drsrobust.models import padded_batches, score

PARTS = {
    "sampling": [(Injection, "__init__")],
    "inject and undo": [(Injection, "apply"), (Injection, "undo")],
    "what is reached": [(reach.Reach, "of")],
    "forward": [(reach.Reach, "score")],
    "batches of reached rows": [(reach, "padded_batches")],
    "metrics": [(Evaluator, "_judged")],
    "seed, audit, row": [(work, "run_trial")],
    "storing": [(work, "chunk"), (Store, "write")],
    "table": [(Campaign, "table")],
}
REST = "start"  # of the campaign: hashing the model, resolving targets, opening the store


class Clock:
    """CPU time by part. What a part calls that belongs to another part counts there alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def _turn(self) -> None:
        now = time.process_time()
        if self._open:
            part = self._open[-1]
            self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """The time of the block belongs to a part."""
        self._turn()
        self._open.append(part)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def timed(self, function, part: str):
        """The function, its time taken."""

        @wraps(function)
        def call(*args, **kwargs):
            with self.on(part):
                return function(*args, **kwargs)

        return call


def price_of_checks(judge: Evaluator, error: ErrorModel, target: str, trials: int) -> float:
    """CPU time of reruns that look for coupled rows over that of reruns that do not, on the same error maps in turns."""
    quick = Evaluator(judge.model, judge.split, **judge.options)
    unchecked = {
        "_by_themselves": lambda rows, _: score(judge.model, padded_batches(judge.split, rows=rows), len(rows)),
        "_audit": lambda *_: None,
    }
    space, seconds = resolve(judge.model, target), {judge: 0.0, quick: 0.0}
    with one_thread(), patch.multiple(quick._reach, **unchecked):
        for seed in range(trials):
            injection = Injection(judge.model, [(error, space)], seed=seed)
            injection.apply()
            try:
                for evaluator in (judge, quick) if seed % 2 else (quick, judge):
                    start = time.process_time()
                    evaluator.rerun(injection.error_map)
                    seconds[evaluator] += time.process_time() - start
            finally:
                injection.undo()
    return seconds[judge] / seconds[quick]


def profile(judge: Evaluator, error: ErrorModel, target: str, trials: int) -> list[dict[str, Any]]:
    """Runs a campaign of one condition, and gives of each of `PARTS` and of the rest `part`, `ms_per_trial` (CPU time) and its
    `share` of all."""
    clock = Clock()
    with one_thread(), tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        campaign_of(judge, error, target, 1, 1, f"{folder}/first").run(workers=1, show=False)
        for part, places in PARTS.items():
            for owner, name in places:
                stack.enter_context(patch.object(owner, name, clock.timed(getattr(owner, name), part)))
        with clock.on(REST):
            campaign_of(judge, error, target, trials, 0, f"{folder}/second").run(workers=1, show=False)
    seconds = {part: clock.seconds.get(part, 0.0) for part in (*PARTS, REST)}
    whole = sum(seconds.values())
    return [
        {"part": part, "ms_per_trial": 1e3 * took / trials, "share": took / whole} for part, took in seconds.items()
    ]
