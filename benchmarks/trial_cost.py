"""The models and rows on which the cost of campaigns is measured.

What a trial of a campaign costs, end to end, beside what its parts cost by themselves, in turns.

All times are CPU times of this process on one thread: other programs disturb them little (`measure`). Parts and campaign take
turns, so that what is left of that meets both alike."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from drsrobust.campaign import Campaign
from drsrobust.campaign.trial import trial_seed
from drsrobust.data import Split, load_dataset
from drsrobust.data.dataset import Schema
from drsrobust.data.synthetic import planted
from drsrobust.evaluation import Evaluator
from drsrobust.injection import ErrorModel, Injection
from drsrobust.introspection.wrappers import evaluating
from drsrobust.metrics import auc
from drsrobust.models import build_model, padded_batches, score
from drsrobust.study.mitigations import SIZES, TABLE_ROWS
from drsrobust.timing import cpu_seconds, one_thread

if TYPE_CHECKING:
    import pandas as pd

ROWS = 100_000
LAST = "over_arch.model.1.*"  # the last layer of TorchRec's top MLP
# Modules through which what errors in a target change must go: with dense errors alone, nothing else has to be computed.
_DLRM_FROM = {
    "dense_mlp": ("dense_arch", "inter_arch", "over_arch"),
    "over_mlp": ("over_arch",),
    LAST: ("over_arch.model.1",),
}


@dataclass(frozen=True)
class Case:
    """A model with the rows that it is judged on.

    Attributes:
        name: in the tables.
        model: of seeded first weights: what a trial costs does not depend on training.
        factory: makes the same module again, in any state.
        split: the rows.
        targets: of errors; `all` and components, a glob for one layer.
        late: of some targets: the modules that have to be computed anew when errors are there alone.
        remark: for a reader.
    """

    name: str
    model: nn.Module
    factory: partial
    split: Split
    targets: tuple[str, ...]
    late: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remark: str = ""

    @property
    def parameters(self) -> int:
        """How many the model has."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def small_cases(dataset: str | None = None, rows: int | None = None) -> list[Case]:
    """DeepFM and DLRM of their default sizes.

    Args:
        dataset: its test rows; None: MovieLens-1M (`full`) where DRSROBUST_DATA is set, else generated ratings.
        rows: how many of the test rows; None: all (of generated ratings 100,000).
    """
    real = bool(os.environ.get("DRSROBUST_DATA"))
    name = dataset or ("movielens-1m/full" if real else "synthetic-movielens/full")
    data = load_dataset(name, rows=10 * (rows or ROWS)) if name.startswith("synthetic-") else load_dataset(name)
    split = data.test if rows is None else data.test.head(rows)
    remark = "DRSROBUST_DATA is not set: generated ratings" if dataset is None and not real else ""
    deepfm = _built_case(
        "deepfm", data.schema, split, ("all", "embedding", "deep_mlp", "linear"), {"deep_mlp": ("deep",)}
    )
    dlrm = _built_case("dlrm", data.schema, split, ("all", "embedding", *_DLRM_FROM), _DLRM_FROM)
    return [replace(case, remark=remark) for case in (deepfm, dlrm)]


def large_case(rows: int = ROWS, table_rows: int = TABLE_ROWS, sizes: dict[str, Any] | None = None) -> Case:
    """The DLRM of 26 tables of dimension 16 with planted rows (`planted`).

    Args:
        rows: to judge on.
        table_rows: of all tables together; 1,000,000 give 16.46 million parameters.
        sizes: of the model; None: MLPs 512-256-16 and 512-256-1.
    """
    schema, _, split, _ = planted(table_rows, 64, rows)
    sizes = SIZES if sizes is None else sizes
    targets = ("all", "embedding", *_DLRM_FROM)
    return _built_case("dlrm", schema, split, targets, _DLRM_FROM, name="dlrm, 26 tables", sizes=sizes)


def _built_case(
    kind: str,
    schema: Schema,
    split: Split,
    targets: Sequence[str],
    late: Mapping[str, tuple[str, ...]],
    *,
    name: str | None = None,
    sizes: dict[str, Any] | None = None,
) -> Case:
    factory = partial(build_model, kind, schema, **(sizes or {}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = factory().eval()
    return Case(name or kind, model, factory, split, tuple(targets), late)


LEAST, MOST, TURNS = 15, 20_000, 5  # trials of a point at least and at most; turns of them
FIRST = 8  # trials of a point before
_SEEDS = 100  # error maps of a turn that are drawn, applied and undone by themselves
_CALLS, _LONG = 5, 0.25  # of the other parts: calls in a turn, and seconds after which there are no more


class TrialCost:
    """Measures points (error model, target) of one model.

    Args:
        evaluator: evaluator of the model.
        late: target -> the modules that have to be computed anew when errors are there alone.
    """

    def __init__(self, evaluator: Evaluator, late: dict[str, tuple[str, ...]] | None = None) -> None:
        self.evaluator = evaluator
        self._batches = padded_batches(evaluator.rows)
        self._late = dict(late or {})

    def point(self, error: ErrorModel, target: str, seconds: float) -> dict[str, Any]:
        """One row of numbers.

        Args:
            error: the error model.
            target: as in `inject`.
            seconds: CPU time that the trials may take altogether; at least 15 are run.

        Returns:
            `first_ms_per_trial` (of the first 8 trials or more at this point, in which what later ones use again is made; they
            are not counted below), `trials`, `ms_per_trial` and `wall_ms_per_trial` (of `Campaign(...).run()`, all included:
            sampling, injecting, undo, rerun, metrics, storing, the start of the campaign and its table), `rows_reached` (mean),
            and by themselves `inject_undo_ms` (mean over the maps of the campaign's first trials), `forward_ms` (a plain pass
            over all rows, batch 2048), `late_ms` (a pass of the modules that errors there reach, where that is asked for),
            `auc_ms`; all of them means over the turns. `over_sum` and `over_late` are medians of the turns' own ratios: of a
            turn's trial over its inject and undo, and the forward (of all, of those modules) and AUC just before and after it.
        """
        with one_thread(), self._late_pass(target) as late:
            trials, first = self._first(error, target, seconds)
            around, maps, campaigns, walls, rows = [self._parts(late)], [], [], [], []
            for turn in range(TURNS):
                maps.append(self._inject_undo(error, target, turn, trials))
                took, wall, table = self._campaign(error, target, trials, turn)
                campaigns.append(took / trials)
                walls.append(wall / trials)
                rows.append(float(table["rows_reached"].mean()))
                around.append(self._parts(late))
        beside = {part: np.array([(one[part] + two[part]) / 2 for one, two in pairwise(around)]) for part in around[0]}
        trial, least = np.array(campaigns), np.array(maps) + beside["auc"]
        return {
            "trials": TURNS * trials,
            "first_ms_per_trial": 1e3 * first,
            "ms_per_trial": 1e3 * float(trial.mean()),
            "wall_ms_per_trial": 1e3 * float(np.mean(walls)),
            "rows_reached": float(np.mean(rows)),
            "inject_undo_ms": 1e3 * float(np.mean(maps)),
            **{f"{part}_ms": 1e3 * float(np.mean([one[part] for one in around])) for part in around[0]},
            **{
                name: float(np.median(trial / (least + beside[part])))
                for name, part in (("over_sum", "forward"), ("over_late", "late"))
                if part in beside
            },
        }

    def _first(self, error: ErrorModel, target: str, seconds: float) -> tuple[int, float]:
        """Runs trials in which what later ones use is made, as an inverted index.

        Returns:
            how many trials a turn may have, by what the last of them took, and CPU seconds of one of the first.
        """
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
        """A call that computes, of all rows, the modules alone that errors in a target reach, on the inputs that they have
        without errors; None where there are no such modules."""
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
    return Campaign(evaluator, errors=[error], targets=[target], trials=trials, seed=seed, store=folder)


def _inject_undo(model: nn.Module, condition, seed: int) -> None:
    injection = Injection(model, [(condition.error_model, condition.hits)], seed=seed)
    try:
        injection.apply()
    finally:
        injection.undo()
