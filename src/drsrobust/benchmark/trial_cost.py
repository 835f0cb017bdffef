"""What a trial of a campaign costs, end to end, beside what its parts cost by themselves, in turns.

All times are CPU times of this process on one thread: other programs disturb them little (`measure`). Parts and campaign take
turns, so that what is left of that meets both alike.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from drsrobust.benchmark.measure import cpu_seconds
from drsrobust.campaign import Campaign
from drsrobust.campaign.trials import trial_seed
from drsrobust.evaluation import Evaluator
from drsrobust.injection import ErrorModel, Injection
from drsrobust.metrics import auc
from drsrobust.models import evaluating, padded_batches, score

LEAST, MOST, TURNS = 10, 20_000, 2  # trials of a point at least and at most; turns of them
_SEEDS = 200  # error maps of a turn that are drawn, applied and undone by themselves
_CALLS, _LONG = 5, 0.25  # of the other parts: calls in a turn, and seconds after which there are no more


@dataclass
class Times:
    """Seconds of several calls of each of some parts."""

    found: dict[str, list[float]] = field(default_factory=dict)

    def add(self, part: str, seconds: float) -> None:
        self.found.setdefault(part, []).append(seconds)

    def mean_ms(self, part: str) -> float | None:
        """Mean time of a call; None of a part that was not measured."""
        times = self.found.get(part)
        return 1e3 * sum(times) / len(times) if times else None


class TrialCost:
    """Measures points (error model, target) of one model.

    Args:
        judge: evaluator of the model.
        late: target -> the modules that have to be computed anew when errors are there alone.
    """

    def __init__(self, judge: Evaluator, late: dict[str, tuple[str, ...]] | None = None) -> None:
        self.judge = judge
        self._batches = padded_batches(judge.split)
        self._late = dict(late or {})

    def point(self, error: ErrorModel, target: str, seconds: float) -> dict[str, Any]:
        """One row of numbers.

        Args:
            error: the error model.
            target: as in `inject`.
            seconds: CPU time that the trials may take altogether; at least 10 are run.

        Returns:
            `trials`, `ms_per_trial` and `wall_ms_per_trial` (of `Campaign(...).run()`, all included: sampling, injecting, undo,
            rerun, metrics, storing, the start of the campaign and its table), `rows_reached` (mean), and by themselves
            `inject_undo_ms` (mean over the maps of the campaign's first trials), `forward_ms` (a plain pass over all rows,
            batch 2048), `late_ms` (a pass of the modules that errors there reach; None where it is not asked for), `auc_ms`.
        """
        with one_thread(), self._late_pass(target) as late:
            trials = self._trials(error, target, seconds)
            times, rows = Times(), 0.0
            for turn in range(TURNS):
                self._parts(times, error, target, late, turn, trials)
                table = self._campaign(times, error, target, trials, turn)
                rows += float(table["rows_reached"].mean()) / TURNS
            self._parts(times, error, target, late, 0, trials)
        means = {part: times.mean_ms(part) for part in ("inject_undo", "forward", "late", "auc")}
        per_trial = {name: times.mean_ms(name) / trials for name in ("campaign", "wall")}
        return {
            "trials": TURNS * trials,
            "ms_per_trial": per_trial["campaign"],
            "wall_ms_per_trial": per_trial["wall"],
            "rows_reached": rows,
            **{f"{part}_ms": mean for part, mean in means.items()},
        }

    def _trials(self, error: ErrorModel, target: str, seconds: float) -> int:
        """How many trials a turn may have, by what trials took of a campaign that is run for that, and lets what is made at a
        first use (an inverted index) be made."""
        least, most, trials = -(-LEAST // TURNS), MOST // TURNS, 1
        while True:
            with tempfile.TemporaryDirectory() as folder:
                campaign = campaign_of(self.judge, error, target, trials, TURNS, f"{folder}/store")
                campaign.run(workers=1, show=False)
                took = float(campaign.timings()["seconds"].sum())
            if took > seconds / 3 or trials >= most:
                return max(least, min(most, int(trials * seconds / TURNS / took)))
            trials *= 10

    def _campaign(self, times: Times, error: ErrorModel, target: str, trials: int, turn: int):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            table, took = cpu_seconds(
                lambda: campaign_of(self.judge, error, target, trials, turn, f"{folder}/store").run(
                    workers=1, show=False
                )
            )
            times.add("wall", time.perf_counter() - start)
        times.add("campaign", took)
        return table

    def _parts(
        self, times: Times, error: ErrorModel, target: str, late: Callable[[], None] | None, turn: int, trials: int
    ) -> None:
        judge = self.judge
        with tempfile.TemporaryDirectory() as folder:
            campaign = campaign_of(judge, error, target, trials, turn, f"{folder}/store")
        (condition,) = campaign.conditions
        for trial in range(min(trials, _SEEDS)):
            seed = trial_seed(judge, condition, trial, seed=turn, coupled=True)
            times.add("inject_undo", cpu_seconds(lambda seed=seed: _inject_undo(judge.model, condition, seed))[1])
        calls = {
            "auc": lambda: auc(judge.split.labels, judge.golden.scores),
            "forward": lambda: score(judge.model, self._batches, len(judge.split)),
        }
        for part, call in (calls | ({} if late is None else {"late": late})).items():
            took = 0.0
            for _ in range(_CALLS):
                _, seconds = cpu_seconds(call)
                times.add(part, seconds)
                took += seconds
                if took > _LONG:
                    break

    @contextmanager
    def _late_pass(self, target: str) -> Iterator[Callable[[], None] | None]:
        """A call that computes, of all rows, the modules alone that errors in a target reach, on the inputs that they have
        without errors; None where there are no such modules."""
        if target not in self._late:
            yield None
            return
        modules = [self.judge.model.get_submodule(name) for name in self._late[target]]
        calls: list[tuple[nn.Module, tuple, dict]] = []
        hooks = [
            module.register_forward_pre_hook(
                lambda module, args, kwargs: calls.append((module, args, kwargs)), with_kwargs=True
            )
            for module in modules
        ]
        try:
            score(self.judge.model, self._batches, len(self.judge.split))
        finally:
            for hook in hooks:
                hook.remove()

        def late_pass() -> None:
            with evaluating(self.judge.model):
                for module, args, kwargs in calls:
                    module(*args, **kwargs)

        yield late_pass
        calls.clear()


def campaign_of(judge: Evaluator, error: ErrorModel, target: str, trials: int, seed: int, folder: str) -> Campaign:
    """The campaign of one point."""
    return Campaign(judge, errors=[error], targets=[target], trials=trials, seed=seed, store=folder)


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch uses one thread while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _inject_undo(model: nn.Module, condition, seed: int) -> None:
    injection = Injection(model, [(condition.error_model, condition.hits)], seed=seed)
    try:
        injection.apply()
    finally:
        injection.undo()
