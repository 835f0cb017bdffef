"""The continuation of training from a snapshot: without errors, with one, and with what an action makes of it."""

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.campaign import Condition
from drsrobust.data import Split
from drsrobust.extend import resolve_target, threads
from drsrobust.injection import AddressSpace, ErrorMap, ErrorModel, Injection, as_target
from drsrobust.models import model_name
from drsrobust.training import Settings
from drsrobust_extras.experiments.training_errors.actions import Action
from drsrobust_extras.experiments.training_errors.steps import Detector, Run, StepBatches


def random_of(seed: int, use: int) -> np.random.Generator:
    """Random numbers of a trial's seed, one stream for each use."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(use,))))


@contextmanager
def alone(seed: int = 0) -> Iterator[None]:
    """One thread, and random numbers of PyTorch that the block does not take from others."""
    with threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class TrainingError:
    """One error of training, drawn for a condition: in memory before a step, or while the model runs in this step. It strikes
    once, but for a target that lasts, whose errors are there from then on, in steps that are computed again too. Their log is
    of the first step."""

    def __init__(self, run: Run, condition: Condition, seed: int) -> None:
        self.struck = False
        self.lasts = getattr(condition.space, "lasts", False)  # the core's targets have no such attribute
        self._run, self._condition, self._injection = run, condition, None
        if isinstance(condition.space, AddressSpace):
            self.error_map: ErrorMap = condition.error_model.sample(condition.space, seed=seed)
            return
        parts, sizes = zip(*condition.space.tensors(run.model), strict=True)
        drawn = random_of(seed, 0).integers(sum(sizes))
        target = parts[int(np.searchsorted(np.cumsum(sizes), drawn, side="right"))]
        self._seeds = random_of(seed, 2) if self.lasts else None
        self._make = partial(Injection, run.model, [(condition.error_model, target)])
        self._injection = self._make(seed=seed)
        self.error_map = self._injection.error_map

    def strike(self) -> None:
        """Writes it to memory, if it is there."""
        self.struck = True
        if self._injection is None:
            self.error_map.apply(self._run.model, optimizer=self._condition.target.optimizer)

    @contextmanager
    def during(self) -> Iterator[None]:
        """Inside the block it strikes in the running model, if it does there; ValueError if the model has no such place."""
        if self._injection is None:
            yield
            return
        try:
            self._injection.apply()
            yield
        finally:
            self._injection.undo()
            if self._seeds is not None:  # the next pass has draws of its own
                self._injection = self._make(seed=int(self._seeds.integers(2**63)))


def condition_of(run: Run, error_model: ErrorModel, target: Any) -> Condition:
    """A condition in the memory of a run. A target that is the state of no optimizer in particular is of the run's one that has
    it.

    Raises:
        ValueError: a target that matches nothing, or a bit that its words do not have.
    """
    target, failed = as_target(target) if isinstance(target, str) else target, None
    for optimizer in run.optimizers:
        of_run = target.with_optimizer(optimizer)
        try:
            condition = Condition(error_model, of_run, resolve_target(run.model, of_run))
            with TrainingError(run, condition, seed=0).during():
                return condition
        except ValueError as error:
            failed = failed or error
    raise failed


@dataclass
class Outcome:
    """What became of a continuation.

    Attributes:
        auc: after the steps at which it is measured: AUC, rows with a NaN, rows with an infinite score.
        first_alarm: of each detector that alarmed: 1 in the very step of the error, 2 in the next one.
        error: text of the exception that ended it.
        digests: of the state before each step, in the run without errors.
    """

    auc: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    first_alarm: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    digests: dict[int, str] = field(default_factory=dict)


class Continuation:
    """A snapshot of training on the CPU, and what follows it; arguments as of `TrainingCampaign`. It can be pickled. `model` is
    as before training, and each run has a copy of it."""

    def __init__(
        self,
        model: nn.Module,
        train: Split,
        rows: Split,
        settings: Settings,
        warm_up: int,
        evaluate_at: Sequence[int],
        detectors: Sequence[Detector],
        watch: int,
    ) -> None:
        self.name, self.rows, self.settings = model_name(model), rows, settings
        self.warm_up, self.evaluate_at, self.watch = warm_up, tuple(evaluate_at), watch
        self.detectors, self.model = tuple(detectors), copy.deepcopy(model).cpu()
        with alone(settings.seed):
            run = Run(copy.deepcopy(self.model), settings, StepBatches(train, settings, 0, warm_up), self.detectors)
            run.advance(warm_up)
            self._start = run.state()
        self._batches = StepBatches(train, settings, warm_up, self.evaluate_at[-1])

    def run(self, batches: StepBatches | None = None, detectors: Sequence[Detector] | None = None) -> Run:
        """A training run in the state of the snapshot, of a model of its own."""
        chosen = self.detectors if detectors is None else detectors
        run = Run(copy.deepcopy(self.model), self.settings, batches or self._batches, chosen)
        self.restart(run)
        return run

    def restart(self, run: Run) -> None:
        """Puts a run back to the snapshot."""
        run.load(self._start)
        run.defect = None

    def clean(self, run: Run) -> Outcome:
        """The continuation without errors."""
        outcome = Outcome()
        self.restart(run)
        for number in range(self.evaluate_at[-1] + 1):
            outcome.digests[number] = run.digest()
            if number in self.evaluate_at:
                outcome.auc[number] = run.evaluate(self.rows)
            if number < self.evaluate_at[-1]:
                run.advance(1)
        return outcome

    def faulty(
        self,
        run: Run,
        error: TrainingError,
        at: int,
        clean: Outcome,
        action: Action | None = None,
        triggers: Collection[str] = (),
    ) -> Outcome:
        """The continuation with an error in step `at`, from 0. With an action only its detectors watch; without one those named
        in `triggers` watch to the end.

        A state that an action leaves and that is that of the clean run, bit for bit, ends it: the rest is the clean run, unless
        the error lasts. AUC is measured without it: what training made of the weights.
        """
        outcome, kept, last = Outcome(), [], self.evaluate_at[-1]
        self.restart(run)
        while True:
            number = run.number - self.warm_up
            if number in self.evaluate_at:
                outcome.auc[number] = run.evaluate(self.rows)
            if number == last:
                return outcome
            if action:
                action.before(run, kept)
            strikes = number == at and not error.struck
            if strikes:
                error.strike()
                run.defect = error.during if error.lasts else None
            since = max(number - at, 0) if run.defect else number - at  # an action may go back to a step before it
            watching = self._watching(since, action, triggers)
            step = run.compute(watching, error.during() if strikes and not error.lasts else None)
            readings = {} if step.error else run.read(step, watching)
            alarms = {one.name for one in watching if readings and one.alarm(readings[one.name], run.past[one.name])}
            for name in alarms:
                outcome.first_alarm.setdefault(name, number - at + 1)
            responds = action is not None and bool(step.error or alarms)
            if responds:
                step = action.respond(run, step, kept)
                readings = {} if step is None or step.error else run.read(step, ())
            if step is not None and step.error:
                outcome.error = step.error
                return outcome
            if step is not None:
                run.update(readings)
            if responds and not error.lasts and run.digest() == clean.digests[run.number - self.warm_up]:
                outcome.auc = clean.auc | outcome.auc
                return outcome

    def _watching(self, since: int, action: Action | None, triggers: Collection[str]) -> list[Detector]:
        """The detectors that watch so many steps after an error."""
        names = triggers if action is None else action.on
        everyone = action is None and since < self.watch
        return [one for one in self.detectors if since >= 0 and (everyone or one.name in names)]
