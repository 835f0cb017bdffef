"""Errors during training as a campaign: from one snapshot the continuation without errors, and one with an error per trial."""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
from torch import nn

from drsrobust.campaign import NotPicklable
from drsrobust.data import Dataset, Split
from drsrobust.extend import (
    Shard,
    StoredTrials,
    cache_folder,
    check_instance,
    check_items,
    check_run,
    check_script,
    check_seed,
    check_text,
    check_whole,
    condition_triples,
    digest,
    expanded,
    new_key,
    numerics,
    worker,
    wrong,
)
from drsrobust.injection import VERSION, ErrorModel, Target, Transient, as_target, restore_leftovers
from drsrobust.introspection import component_of
from drsrobust.models import build_model, default_sizes, model_name, state_digest
from drsrobust.statistics import wilson
from drsrobust.training import Settings, default_settings
from drsrobust_extras.experiments.training_errors.actions import Action
from drsrobust_extras.experiments.training_errors.continuation import Continuation, alone, condition_of
from drsrobust_extras.experiments.training_errors.detectors import GradientNorm, LossSpike, NonFinite
from drsrobust_extras.experiments.training_errors.steps import Detector, Run, StepBatches
from drsrobust_extras.experiments.training_errors.trial import (
    TrainingRunner,
    TrainingSpec,
    Trials,
    columns,
    training_code,
)

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1  # of what a trial computes and stores: raise it when that changes
HARMFUL = 0.005  # AUC lost at the end, over which an error is harmful
TIMED_STEPS = 5  # of a turn of `overhead`
SPIKE = 3  # steps in which an alarm makes an error a spike


class TrainingCampaign(StoredTrials):
    """Errors that strike while a model is trained: what they cost, which detector notices them, what an action repairs.

    Training runs `warm_up` steps, and its state is kept. From this snapshot one continuation runs without errors, and each
    trial runs one with an error. Training is bit-identical on one thread, so any difference is the error. It is stored, goes on
    after an interruption, and runs on executors and in shards, as a `Campaign`.

    Args:
        model: from whose present weights training starts (it does not change), or a name: a new one, from `settings.seed`.
        data: trains on `data.train`.
        targets: where errors strike. In memory, between two steps: targets as of `inject`, and `OptimizerState(glob=...)`.
            While a step is computed: `Inputs`, `Activations`, `Gradients` (of one tensor or module, drawn in each trial).
        errors: error models, or one; each in each target.
        when: steps after the snapshot, from 0, in one of which the error strikes, drawn uniformly; or one step.
        detectors: that watch from the step of the error on; None: `GradientNorm`, `LossSpike`, `NonFinite`.
        actions: that are tried, each in a continuation of its own, where one of its detectors alarms or a step raises.
        trials: of each target and error model.
        settings: of training; None: `default_settings` of model and data set.
        warm_up: steps before the snapshot.
        evaluate_at: steps after the snapshot at which AUC is measured; the last one ends the continuation.
        rows: on which AUC is measured; None: `data.test`.
        watch: steps, from that of the error on, in which detectors watch that start no action.
        seed: of the errors.
        label: in the column `protocol` of the table.
        store: folder of the results; None: one in the cache, as of `Campaign`.

    Raises:
        TypeError, ValueError: a target that matches nothing, an action on a detector that does not watch, one name twice, steps
            that are none, or an optimizer of tables that hides their gradients.

    Example:
        >>> import drsrobust as dr
        >>> data = dr.load_dataset("synthetic-movielens", rows=20_000)
        >>> short = {"warm_up": 20, "evaluate_at": (5, 10), "when": 0, "settings": dr.training.Settings(batch_size=256)}
        >>> campaign = TrainingCampaign("dlrm", data, targets=["over_mlp"], errors=dr.SingleBit(30), trials=2, **short)
        >>> table = campaign.run(workers=1, progress=False)
        >>> table[["step", "bit", "bits_flipped"]].values.tolist()
        [[0, 30, 1], [0, 30, 1]]
    """

    def __init__(
        self,
        model: nn.Module | str,
        data: Dataset,
        *,
        targets: Iterable[Any],
        errors: Iterable[ErrorModel] | ErrorModel,
        when: Iterable[int] | int = range(10),
        detectors: Iterable[Detector] | None = None,
        actions: Iterable[Action] | Action = (),
        trials: int = 20,
        settings: Settings | None = None,
        warm_up: int = 150,
        evaluate_at: Iterable[int] | int = (20, 110),
        rows: Split | None = None,
        watch: int = 10,
        seed: int = 0,
        label: str = "training",
        store: str | PathLike | None = None,
    ) -> None:
        self.trials, warm_up, watch = (
            check_whole(name, value, 1) for name, value in (("trials", trials), ("warm_up", warm_up), ("watch", watch))
        )
        if not isinstance(model, str):
            check_instance("model", model, nn.Module, "a torch.nn.Module, or the name of one of dr.models.MODELS")
        check_instance("data", data, Dataset, "a Dataset, as of load_dataset")
        if settings is not None:
            check_instance("settings", settings, Settings, "a Settings, as Settings(epochs=2)")
        if rows is not None:
            check_instance("rows", rows, Split, "a Split, as data.test")
        check_text("label", label)
        targets = check_items("targets", targets, "a list of targets, as ['over_mlp']", Target | Transient)
        for target in targets:
            if not isinstance(target, Transient):
                as_target(target)  # raises
        self._pairs = [(error, target) for error, target, _ in condition_triples(errors, targets, None, None)]
        self._detectors = (GradientNorm(), LossSpike(), NonFinite())
        if detectors is not None:
            self._detectors = tuple(check_items("detectors", detectors, "a list of detectors"))
        self._actions = tuple(check_items("actions", actions, "a list of actions, or one", Action))
        self._when, evaluate_at = _steps("when", when, 0), _steps("evaluate_at", evaluate_at, 1)
        if self._when[-1] >= evaluate_at[-1]:
            raise ValueError(
                f"when goes to step {self._when[-1]}, and the continuation ends at {evaluate_at[-1]} (evaluate_at)"
            )
        _check_names(self._detectors, self._actions)
        settings = settings or default_settings(model if isinstance(model, str) else model_name(model), data.name)
        if isinstance(model, str):
            with alone(settings.seed):
                model = build_model(model, data.schema, **default_sizes(model, data.name))
        restore_leftovers(model)
        self._train, self._seed, self._label = data.train, check_seed(seed), label
        start = state_digest(model)
        self._continuation = Continuation(
            model,
            data.train,
            data.test if rows is None else rows,
            settings,
            warm_up,
            evaluate_at,
            self._detectors,
            watch,
        )
        self.metrics = columns(self._detectors, self._actions)
        self._run = self._continuation.run()
        self._components = component_of(self._run.model)
        self.conditions = [condition_of(self._run, *pair) for pair in self._pairs]
        missing: list[str] = []
        self._what = self._present(missing) | {
            "format": FORMAT,
            "kind": "errors during training",
            "model": self._continuation.name,
            "start": start,
            "train": data.train.fingerprint,
            "dataset": data.name,
            "steps": [warm_up, list(evaluate_at), list(self._when), watch],
            "error clock": VERSION,
        }
        self._note_code()
        self._checked = False
        self._is_temporary = store is None and bool(missing)
        if store is None:
            folder = f"training-{self._continuation.name}-{data.name.replace('/', '-')}-{digest(self._what)[:16]}"
            store = self._temporary(folder, missing[0]) if missing else cache_folder("campaigns", folder)
        self.store = self._store(expanded("store", store).resolve())

    def _present(self, missing: list[str] | None = None) -> dict[str, Any]:
        follow = self._continuation
        error_models = [condition.error_model for condition in self.conditions]
        code = training_code(follow, error_models, self._actions, missing)
        conditions = zip(self.conditions, code["conditions"], strict=True)
        return code | {
            "data": follow.rows.fingerprint,
            "settings": asdict(follow.settings),
            "conditions": [[*c.key, c.definition, part] for c, part in conditions],
            "seed": self._seed,
            "protocol": self._label,
        }

    @property
    def name(self) -> str:
        return f"training {self._continuation.name} on {self._continuation.rows.dataset}"

    def __repr__(self) -> str:
        sizes = f"{len(self.conditions)} conditions, {self.trials} trials"
        return f"<TrainingCampaign {self.name}: {sizes}, in {self.store.folder}>"

    @cached_property
    def _trials(self) -> Trials:
        with alone():
            clean = self._continuation.clean(self._run)
        return Trials(self._continuation, clean, self._pairs, self._when, self._actions, self._seed, self._label)

    def run(
        self,
        *,
        workers: int | None = None,
        executor: Executor | None = None,
        shard: tuple[int, int] | str | None = None,
        progress: bool = True,
    ) -> "pd.DataFrame":
        """Computes the trials that are not in the store yet, and returns the table of all. Arguments, checks of stored trials
        and errors are those of `Campaign.run`; `drsrobust.campaign.merge` joins shards."""
        workers = check_run(workers, executor, progress)
        if executor is None and (workers or 1) > 1:
            check_script()
        if shard is not None:
            part = self._of_shard(Shard.read(shard))
            return part.run(workers=workers, executor=executor, progress=progress)
        self._check_code()
        if executor is not None or (workers or 1) > 1:
            self._check_workers()
        try:
            with self.store.writing(self._narrow):
                self._compute(TrainingRunner(self._trials), workers, executor, progress)
                return self.table()
        finally:
            self._note_code()

    def _check_workers(self) -> None:
        self._worker_content()

    def _worker_content(self) -> bytes:
        try:
            return cloudpickle.dumps(self._trials)
        except Exception as error:
            raise NotPicklable(
                f"workers cannot make this training run ({error}); run(workers=1) computes here"
            ) from None

    def _worker_spec(self, workers: int) -> AbstractContextManager[TrainingSpec]:
        trials = self._trials
        return nullcontext(TrainingSpec(self._worker_content(), new_key(), numerics(), trials.code(), worker()))

    def table(self) -> "pd.DataFrame":
        """One row per finished trial, as of `Campaign.table`: `auc` after the last step, `auc_golden` without the error, and
        `auc_drop`. Further columns: `component`, `tensor` and `bit` (of a single flip), `step` (of the error, after the
        snapshot), `auc_drop_first` (at the first evaluation), `alarm_<detector>` (steps with the error until
        its first alarm, 1 in the very step of the error; null without one), `auc_<action>`, and `mode` (see `modes`)."""
        table, errors = super().table(), self.errors()
        keys = ["error_model", "target", "trial"]
        single = errors[~errors.duplicated(keys, keep=False) & (errors["count"] == 1)][
            [*keys, "component", "tensor", "bit"]
        ]
        table = table.merge(single, on=keys, how="left", validate="one_to_one")
        gradient = "gradient of "
        of = table["tensor"].str.removeprefix(gradient).map(self._components)
        table["component"] = of.where(table["tensor"].str.startswith(gradient, na=False), table["component"])
        integers = {name: "Int64" for name in table if name.startswith("alarm_") or name in ("step", "bit")}
        table = table.astype(integers)
        return table.assign(mode=modes(table, [f"alarm_{one.name}" for one in self._detectors if one.is_spike]))

    def false_alarms(self, steps: int = 1000) -> "pd.DataFrame":
        """Alarms of each detector in training without errors, from the snapshot on.

        Args:
            steps: of training.

        Returns:
            a row for each detector: `detector`, `steps`, `alarms` (steps with one), `per_10000`, `per_10000_low`,
            `per_10000_high` (Wilson's interval; steps of one run are not independent).
        """
        import pandas as pd

        steps = check_whole("steps", steps, 1)
        counts = dict.fromkeys((one.name for one in self._detectors), 0)
        batches = StepBatches(self._train, self._continuation.settings, self._continuation.warm_up, steps)
        with alone():
            run = self._continuation.run(batches)
            for _ in range(steps):
                step = run.compute(self._detectors)
                readings = run.read(step, self._detectors)
                for one in self._detectors:
                    counts[one.name] += one.alarm(readings[one.name], run.past[one.name])
                run.update(readings)
        ends = ("per_10000", "per_10000_low", "per_10000_high")
        rows = [
            {"detector": name, "steps": steps, "alarms": count}
            | dict(zip(ends, (1e4 * share for share in wilson(count, steps)), strict=True))
            for name, count in counts.items()
        ]
        return pd.DataFrame(rows)

    def overhead(self, turns: int = 10) -> "pd.DataFrame":
        """CPU time of a step on one thread, without detectors and with each, in turns; it differs from run to run.

        Args:
            turns: of some steps each; the median over them counts.

        Returns:
            `detector`, `plain_ms`, `step_ms` (of a step with it), `overhead_percent`.
        """
        import pandas as pd

        turns = check_whole("turns", turns, 1)
        rows = []
        with alone():
            plain = self._continuation.run(detectors=())
            for one in self._detectors:
                run = self._continuation.run(detectors=(one,))
                pairs = np.array([[self._seconds(plain), self._seconds(run)] for _ in range(turns + 1)])[1:]
                before, during = 1e3 * np.median(pairs, axis=0)  # without the first turn, which includes initialisation
                percent = 100 * float(np.median(pairs[:, 1] / pairs[:, 0]) - 1)
                rows.append({"detector": one.name, "plain_ms": before, "step_ms": during, "overhead_percent": percent})
        return pd.DataFrame(rows)

    def _seconds(self, run: Run) -> float:
        """CPU time of a step, by some steps from the snapshot on."""
        self._continuation.restart(run)
        steps = min(TIMED_STEPS, self._continuation.evaluate_at[-1])
        began = time.process_time()
        for _ in range(steps):
            run.update(run.read(run.compute(run.detectors), run.detectors))
        return (time.process_time() - began) / steps


def modes(table: "pd.DataFrame", alarms: Sequence[str], harmful: float = HARMFUL) -> "pd.Series":
    """How each error shows (names of arXiv:2604.10390, rules ours). With an alarm of one of some detectors in the first 3
    steps: `spike and degrade` if it costs over `harmful` AUC at the end, else `spike and recover`. Without one: `silent
    degradation` if it costs that at the end and at the first evaluation, `gradual drift` if only at the end, else `harmless`.
    `raised`: a step raised.

    Args:
        table: with the columns `outcome`, `auc_drop`, `auc_drop_first` and those of the alarms.
        alarms: columns of first alarms.
        harmful: AUC.

    Example:
        >>> import pandas as pd
        >>> curves = {"outcome": "ok", "auc_drop": [0.1, 0, 0.1, 0.1], "auc_drop_first": [0.1, 0.1, 0.1, 0]}
        >>> modes(pd.DataFrame(curves | {"alarm": [1, 3, 4, None]}), ["alarm"]).tolist()
        ['spike and degrade', 'spike and recover', 'silent degradation', 'gradual drift']
    """
    import pandas as pd

    late, early = (~(table[name].astype(float) <= harmful) for name in ("auc_drop", "auc_drop_first"))
    spike = (table[list(alarms)].astype("Float64") <= SPIKE).fillna(False).astype(bool).any(axis=1)
    conditions = [table["outcome"] == "raised", spike & late, spike, late & early, late]
    names = ["raised", "spike and degrade", "spike and recover", "silent degradation", "gradual drift"]
    return pd.Series(np.select(conditions, names, "harmless"), index=table.index, name="mode")


def _steps(name: str, steps: Iterable[int] | int, least: int) -> tuple[int, ...]:
    """Steps in ascending order. Raises ValueError for none, or one under `least`."""
    right = f"one or more steps, each at least {least}"
    listed = check_items(name, steps, right) if isinstance(steps, Iterable) else [steps]
    if not listed:
        raise wrong(name, right, steps)
    return tuple(sorted({check_whole(f"each step of {name}", step, least) for step in listed}))


def _check_names(detectors: Sequence[Detector], actions: Sequence[Action]) -> None:
    """Raises TypeError for what is neither, ValueError for a name twice and an action on a detector that does not watch."""
    for kind, chosen, right in (("detectors", detectors, Detector), ("actions", actions, Action)):
        for one in chosen:
            check_instance(f"each of {kind}", one, right, f"of class {right.__name__}")
        names = [one.name for one in chosen]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{kind} has {twice[0]!r} twice; give each once")
    watching = [one.name for one in detectors]
    for action in actions:
        if missing := [name for name in action.on if name not in watching]:
            raise ValueError(
                f"action {action.name!r} starts on {missing[0]!r}; there are: {', '.join(watching) or 'none'}"
            )
