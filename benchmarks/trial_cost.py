"""What a trial of a campaign costs end to end, and what its parts cost by themselves, in turns.

All times are CPU times of this process on one thread: other programs disturb them little. Parts and campaign take turns, so
that a slow spell of the machine meets both alike.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from drsrobust._processes import threads
from drsrobust.campaign import Campaign
from drsrobust.campaign.trial import trial_seed
from drsrobust.evaluation import Evaluator
from drsrobust.injection import ErrorModel, Injection
from drsrobust.introspection.wrappers import evaluating
from drsrobust.metrics import auc
from drsrobust.models import padded_batches, score
from drsrobust_extras.risk.timing import cpu_seconds

if TYPE_CHECKING:
    import pandas as pd

LEAST, MOST, TURNS = 15, 20_000, 5  # trials of a point at least and at most; turns of them
FIRST = 8  # trials of a point before
_SEEDS = 100  # error maps of a turn that are drawn, applied and undone by themselves
_CALLS, _LONG = 5, 0.25  # of the other parts: calls in a turn, and seconds after which there are no more


class TrialCost:
    """Measures points (error model, target) of one model.

    Args:
        evaluator: of the model.
        late: target -> modules that must be recomputed for errors in that target.
    """

    def __init__(self, evaluator: Evaluator, late: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self.evaluator = evaluator
        self._batches = padded_batches(evaluator.rows)
        self._late = dict(late or {})

    def point(self, error: ErrorModel, target: str, seconds: float) -> dict[str, Any]:
        """Costs of trials with one error model in one target.

        Args:
            error: the error model.
            target: as in `inject`.
            seconds: CPU time of all trials; at least 15 are run.

        Returns:
            `first_ms_per_trial` (of the first 8 trials or more, which fill caches and are not counted below); `trials`,
            `ms_per_trial` and `wall_ms_per_trial` of `Campaign(...).run()`, everything included; `rows_reached` (mean); and
            by themselves `inject_undo_ms` (mean over the maps of the campaign's first trials), `forward_ms` (a pass over all
            rows), `late_ms` (a pass of the modules that the errors reach, for targets in `late`), `auc_ms`. `over_sum` and
            `over_late` are medians over the turns: a trial over inject and undo, AUC, and the forward pass (of all modules, of
            the late ones) just before and after it.
        """
        with threads(1), self._late_pass(target) as late:
            trials, first = self._first(error, target, seconds)
            around, maps, campaigns, walls, rows = [self._parts(late)], [], [], [], []
            for turn in range(TURNS):
                maps.append(self._inject_undo(error, target, turn, trials))
                took, wall, table = self._campaign(error, target, trials, turn)
                campaigns.append(took / trials)
                walls.append(wall / trials)
                rows.append(float(table["rows_reached"].mean()))
                around.append(self._parts(late))
        nearby = {part: np.array([(one[part] + two[part]) / 2 for one, two in pairwise(around)]) for part in around[0]}
        trial, least = np.array(campaigns), np.array(maps) + nearby["auc"]
        return {
            "trials": TURNS * trials,
            "first_ms_per_trial": 1e3 * first,
            "ms_per_trial": 1e3 * float(trial.mean()),
            "wall_ms_per_trial": 1e3 * float(np.mean(walls)),
            "rows_reached": float(np.mean(rows)),
            "inject_undo_ms": 1e3 * float(np.mean(maps)),
            **{f"{part}_ms": 1e3 * float(np.mean([one[part] for one in around])) for part in around[0]},
            **{
                name: float(np.median(trial / (least + nearby[part])))
                for name, part in (("over_sum", "forward"), ("over_late", "late"))
                if part in nearby
            },
        }

    def _first(self, error: ErrorModel, target: str, seconds: float) -> tuple[int, float]:
        """Runs trials that fill caches; returns the number of trials of a turn, and CPU seconds of one of the first trials."""
        least, most, trials, first = -(-LEAST // TURNS), MOST // TURNS, FIRST, None
        while True:
            took, _, _ = self._campaign(error, target, trials, TURNS)
            first = took / trials if first is None else first
            if took > seconds / 3 or trials >= most:
                return max(least, min(most, int(trials * seconds / TURNS / took))), first
            trials *= 10

    def _campaign(self, error: ErrorModel, target: str, trials: int, turn: int) -> tuple[float, float, "pd.DataFrame"]:
        """CPU and wall seconds of a campaign, and its table."""
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            table, took = cpu_seconds(
                lambda: campaign_of(self.evaluator, error, target, trials, turn, f"{folder}/store").run(
                    workers=1, progress=False
                )
            )
            return took, time.perf_counter() - start, table

    def _inject_undo(self, error: ErrorModel, target: str, turn: int, trials: int) -> float:
        """Mean seconds of drawing, applying and undoing an error map of the turn's campaign."""
        evaluator = self.evaluator
        with tempfile.TemporaryDirectory() as folder:
            campaign = campaign_of(evaluator, error, target, trials, turn, f"{folder}/store")
        (condition,) = campaign.conditions
        maps = range(min(trials, _SEEDS))
        seeds = [trial_seed(evaluator, condition, trial, seed=turn, coupled=True) for trial in maps]
        return mean(cpu_seconds(lambda seed=seed: _inject_undo(evaluator.model, condition, seed))[1] for seed in seeds)

    def _parts(self, late: Callable[[], None] | None) -> dict[str, float]:
        """Mean seconds of an AUC, a forward pass and a late one."""
        evaluator = self.evaluator
        calls = {
            "auc": lambda: auc(evaluator.rows.labels, evaluator.golden.scores),
            "forward": lambda: score(evaluator.model, self._batches, len(evaluator.rows)),
        } | ({} if late is None else {"late": late})
        found = {}
        for part, call in calls.items():
            times: list[float] = []
            while len(times) < _CALLS and sum(times) < _LONG:
                times.append(cpu_seconds(call)[1])
            found[part] = mean(times)
        return found

    @contextmanager
    def _late_pass(self, target: str) -> Iterator[Callable[[], None] | None]:
        """A call that runs the late modules of a target over all rows, on their inputs without errors; None without any."""
        if target not in self._late:
            yield None
            return
        modules = [self.evaluator.model.get_submodule(name) for name in self._late[target]]
        calls: list[tuple[nn.Module, tuple, dict]] = []
        hooks = [
            module.register_forward_pre_hook(
                lambda module, args, kwargs: calls.append((module, args, kwargs)), with_kwargs=True
            )
            for module in modules
        ]
        try:
            score(self.evaluator.model, self._batches, len(self.evaluator.rows))
        finally:
            for hook in hooks:
                hook.remove()

        def late_pass() -> None:
            with evaluating(self.evaluator.model):
                for module, args, kwargs in calls:
                    module(*args, **kwargs)

        yield late_pass
        calls.clear()


def campaign_of(evaluator: Evaluator, error: ErrorModel, target: str, trials: int, seed: int, folder: str) -> Campaign:
    """The campaign of one point."""
    options = {"trials": trials, "seed": seed, "sampling": "plain", "store": folder}
    return Campaign(evaluator, errors=[error], targets=[target], **options)


def _inject_undo(model: nn.Module, condition, seed: int) -> None:
    injection = Injection(model, [(condition.error_model, condition.space)], seed=seed)
    try:
        injection.apply()
    finally:
        injection.undo()
