"""A campaign: all trials of a grid of error models, targets and mitigations on one evaluator, stored as they finish."""

import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from drsrobust._arguments import check_items, check_seed, check_text, check_truth, check_whole
from drsrobust._choices import check_choice
from drsrobust._files import cache_folder, expanded
from drsrobust._hashing import digest
from drsrobust._html import facts
from drsrobust._processes import check_script
from drsrobust.campaign.conditions import (
    Condition,
    check_distinct,
    check_mitigations,
    condition_triples,
    grid,
    sharing_maps,
)
from drsrobust.campaign.model_file import model_file
from drsrobust.campaign.sampling import (
    StratifiedSchedule,
    StratifiedTable,
    bounded,
    families,
    raised_to_least,
    stratified,
)
from drsrobust.campaign.schedule import Schedule
from drsrobust.campaign.shards import Shard, full_run_of, shard_folders
from drsrobust.campaign.stored_probes import StoredProbes
from drsrobust.campaign.stored_trials import StoredTrials, check_run
from drsrobust.campaign.table import SCHEMA
from drsrobust.campaign.trial import LocalRunner, runner_of
from drsrobust.campaign.trial_code import trial_code
from drsrobust.campaign.workers import TrialSpec, worker_files
from drsrobust.evaluation import CoupledRowsError, Evaluator
from drsrobust.evaluation.evaluator import check_evaluator
from drsrobust.injection import (
    ErrorModel,
    Target,
    Transient,
    restore_leftovers,
)
from drsrobust.injection.critical_bits import CriticalBits
from drsrobust.injection.error_clock import VERSION
from drsrobust.injection.targets import TargetLike
from drsrobust.introspection.spread import process_group
from drsrobust.metrics.own import own_metrics
from drsrobust.mitigation import Mitigation
from drsrobust.statistics.columns import with_nan_rules
from drsrobust.statistics.headline import Headline
from drsrobust.statistics.strata import LOSS_IS_BOUNDED, STRATUM, WEIGHT

if TYPE_CHECKING:
    import pandas as pd

PLAIN, STRATIFIED = SAMPLING = ("plain", "stratified")
STORE_FORMAT = 11  # of what a trial computes and stores: raise it when that changes


class Campaign(StoredTrials):
    """All trials of errors x targets x mitigations, or of a list of conditions.

    A trial depends only on the model's state and code, the rows, its condition and its number. So a campaign may be stopped at
    any time and continues from there, one with more trials continues one with fewer, and the table is the same, bit for bit,
    with any number of processes. A campaign with changed code is another campaign.

    Args:
        evaluator: the evaluator.
        errors: error models, as `[BitFlip(b) for b in decades(1e-9, 1e-2)]`, or one.
        targets: a list of targets as in `inject`, or one `Target`; a list in the list is the union of its targets.
        mitigations: a list or one; None: no mitigation. All meet the same error maps.
        conditions: replaces these axes: a list of (error model, target), (error model, target, mitigation), or mappings
            with the keys error, target, mitigation.
        trials: how many for each condition; stratified, each stratum has two at least, and a line of the log says where that
            makes more of them.
        metrics: further columns of the table: names as of `Evaluation.metric`, as `["ndcg@10", "decision_changed"]`; or a
            mapping of names to functions `fn(labels, scores, golden_scores, users) -> float` or torchmetrics objects, and of
            built-in names to None. `decision_changed` comes with `decision_changed_no_click` and `nan_share`. Scores are what
            the evaluator's `scores` says. A function that workers cannot import runs in this process alone, with a warning.
        seed: all error maps follow from it.
        label: of the campaign, in the column `protocol` of the table.
        coupled: trials of one number at different rates share nested error maps; False: all are independent.
        sampling: None: stratified where an error model has strata in its target, and the rows an AUC or `metrics` a metric of
            lists by which losses are measured; else plain. `plain`: each trial's error map is drawn by the error model alone.
            `stratified`: trials are drawn by what does harm, and the table has columns `stratum`, `weight` and
            `loss_is_bounded`; **its plain means are wrong**: use `summary()`, `summarise`, `recovery` or `pvf`. Of `BitFlip`
            and `FixedCount` by the number of critical flips, which narrows intervals at low rates; rates at which plain maps
            hold many critical flips, and mitigations that remove these from memory, have plain maps. Of `MemoryFault` by the
            chip that fails, in modes `bit` and `word` by critical bits too. Or `CriticalBits`: by these.
        store: folder of the results; None: one in the cache, named by the definition, code included; where part of the code
            cannot be compared with that of a later run, one that is deleted with the campaign, with a warning.

    Raises:
        TypeError: something else in place of an error model or a mitigation.
        ValueError: an empty axis, a number of trials under 1, a target that matches nothing, a bit that its words do not
            have, a duplicate condition (mitigations differ by `identity()`, not by label), an unknown metric or sampling,
            stratified sampling of a target without critical bits, or a process group of over one rank.
        StoreError: `store` holds another campaign.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        errors: Iterable[ErrorModel] | ErrorModel | None = None,
        targets: Iterable[TargetLike | Transient] | Target | Transient = ("all",),
        mitigations: Iterable[Mitigation | None] | Mitigation | None = (None,),
        conditions: Iterable[Any] | None = None,
        trials: int = 100,
        metrics: Sequence[str] | Mapping[str, Any] = (),
        seed: int = 0,
        label: str = "corrected",
        coupled: bool = True,
        sampling: str | CriticalBits | None = None,
        store: str | PathLike | None = None,
    ) -> None:
        check_evaluator(evaluator)
        self._runner, group = runner_of(evaluator), process_group()
        if self._runner is LocalRunner and group is not None and group.world > 1:
            raise ValueError(
                f"this process is one of {group.world} ranks, and each would compute and store the whole campaign; run it in a "
                "process group of one rank, and with workers= or executor= in several processes"
            )
        self._triples = condition_triples(errors, targets, mitigations, conditions)
        self.trials = check_whole("trials", trials, 1)
        self.seed, self.coupled = check_seed(seed), check_truth("coupled", coupled)
        self.label = check_text("label", label)
        if isinstance(metrics, str):
            metrics = [metrics]
        elif not isinstance(metrics, Mapping):
            metrics = check_items("metrics", metrics, "a list of names, or {name: function}")
        self.metrics = tuple(with_nan_rules(metrics))
        functions = (
            {name: function for name, function in metrics.items() if function is not None}
            if isinstance(metrics, Mapping)
            else {}
        )
        self.own_metrics = own_metrics(functions)
        golden = evaluator.golden.metrics([name for name in self.metrics if name not in self.own_metrics])
        without = [name for name, value in golden.items() if value is None]
        if without and not self._runner.follows(evaluator):
            warnings.warn(
                f"{', '.join(without)}: no value on these rows, so the columns will be empty; metrics of lists need users "
                "(user= of dr.data.from_frame and the others)",
                stacklevel=3,  # past the decorator
            )
        for metric in self.own_metrics.values():
            evaluator.check_own_metric(metric)
        restore_leftovers(evaluator.model)
        evaluator.check_numerics()
        self.evaluator = evaluator
        self.headlines = Headline.without_errors(evaluator.golden, [*golden])
        self._headline = next(iter(self.headlines), None)
        self._scheduled = ("condition", "trial", *(each.name for each in self.headlines[:1]), "seconds")
        self._where_possible = sampling is None
        if sampling is None:  # without a headline no loss is known, by which strata get their trials
            sampling = STRATIFIED if evaluator.on_first(lambda: self._headline is not None) else PLAIN
        self._critical_bits = _critical_bits(sampling)
        conditions = grid(evaluator.model, self._triples)
        check_distinct(conditions)
        for condition in conditions:
            condition.check(evaluator.model)
        check_mitigations(conditions, evaluator.model)
        self.conditions = self._stratified(conditions)
        if self._where_possible and self.conditions[0].stratum is None:
            self._critical_bits = None  # the same campaign as with plain maps
        if self._critical_bits is not None and (text := raised_to_least(self.conditions, self.trials)):
            logging.getLogger(__name__).warning(text)
        self._what, missing = self._definition()
        self._note_code()
        self._runner.check_same(evaluator, {**self._what, "trials": self.trials})
        self._is_temporary = store is None and missing is not None
        self._checked = False
        self.store: Any = None  # a process that follows has none
        if self._runner.follows(evaluator):
            return
        if store is None:
            name = f"{evaluator.name}-{evaluator.rows.dataset.replace('/', '-')}-{digest(self._what)[:16]}"
            store = cache_folder("campaigns", name) if missing is None else self._temporary(name, missing)
        self.store = self._store(expanded("store", store).resolve())

    def _definition(self) -> tuple[dict[str, Any], str | None]:
        """All that decides the results, which the number of trials does not; and what of it has no digest."""
        missing: list[str] = []
        evaluator, present = self.evaluator, self._present(missing)
        stratified = {} if self._critical_bits is None else {"critical_bits": asdict(self._critical_bits)}
        task = {"ranking": "rank"}.get(evaluator.scoring.task, evaluator.scoring.task)  # as in stores of version 0.10
        scoring = {"output": evaluator.scoring.output, "task": task}
        defaults = {"output": "logit", "task": "click"}
        golden = evaluator.golden.auc, evaluator.golden.logloss
        if None in golden:
            golden = evaluator.on_first(lambda: tuple(evaluator.golden.metrics(["ndcg", "hit_rate"]).values()))
        golden = [round(value, 6) for value in golden]
        options = {name: value for name, value in evaluator.options.items() if name not in ("memory", "scores")}
        functions = {}
        for name, metric in self.own_metrics.items():
            golden_value = evaluator.on_first(lambda metric=metric: evaluator.own_metric(metric, evaluator.golden))
            functions[name] = [metric.code.text[:16], round(golden_value, 6)]
        definition = (
            stratified
            | ({} if scoring == defaults else scoring)
            | present
            | {
                "format": STORE_FORMAT,
                "model": evaluator.name,
                "checkpoint": evaluator.checkpoint,
                "dataset": evaluator.rows.dataset,
                "golden": golden,
                "scores": evaluator.options["scores"],
                "metrics": {name: functions.get(name, options) for name in self.metrics},
                "error clock": VERSION,
            }
        )
        return definition, missing[0] if missing else None

    def _present(self, missing: list[str] | None = None) -> dict[str, Any]:
        evaluator, targets = self.evaluator, {}
        for condition in self.conditions:
            targets.setdefault(str(condition.target), condition.definition)
        code = trial_code(evaluator.model, evaluator.scoring.forward, self.conditions, self.own_metrics, missing)
        conditions = zip(self.conditions, code["conditions"], strict=True)
        return code | {
            "data": evaluator.rows.fingerprint,
            "conditions": [[*condition.key, part] for condition, part in conditions],
            "targets": targets,
            "mitigations": {
                c.identity: [c.protection, code["mitigations"][c.identity]] for c in self.conditions if c.mitigation
            },
            "seed": self.seed,
            "coupled": self.coupled,
            "protocol": self.label,
        }

    def __repr__(self) -> str:
        where = "of rank 0" if self.store is None else f"in {self.store.folder}"
        n_conditions = len({condition.key[:4] for condition in self.conditions})  # without their strata
        return f"<Campaign {self.name}: {n_conditions} conditions, {self.trials} trials, {where}>"

    def _repr_html_(self) -> str:
        schedule = None if self.store is None else self._schedule()
        kinds = list(dict.fromkeys(str(condition.target) for condition in self.conditions))
        return facts(
            "Campaign",
            {
                "model": self.name,
                "errors": ", ".join(dict.fromkeys(str(condition.error_model) for condition in self.conditions)),
                "targets": ", ".join(kinds),
                "mitigations": ", ".join(dict.fromkeys(condition.protection for condition in self.conditions)),
                "sampling": PLAIN if self._critical_bits is None else f"{STRATIFIED} by {self._critical_bits}",
                "trials": None if schedule is None else f"{schedule.computed:,} of {schedule.total:,} finished",
                "stored in": "rank 0" if self.store is None else self.store.folder,
            },
        )

    @property
    def _options(self) -> dict[str, Any]:
        """Options of `run_trial`."""
        options = {"seed": self.seed, "coupled": self.coupled, "label": self.label, "metrics": self.metrics}
        return options | {"own_metrics": self.own_metrics}

    def run(
        self,
        *,
        workers: int | None = None,
        executor: Executor | None = None,
        shard: tuple[int, int] | str | None = None,
        progress: bool = True,
    ) -> "pd.DataFrame":
        """Computes the trials that are not in the store yet, and returns the table of all trials.

        Stored trials are computed again, once for this object: at the start the most harmed one of each kind of error, target
        and protection (at most 5 % of the stored trials), and between the trials of this run that of each condition and its
        first one, as far as 5 % of the run's time goes. The store is refused if code, data or machine now give another result
        (bit for bit on the processor and with the versions that made it, else within 1e-6 in AUC, with a warning). Code and
        settings must be those of when this object was made. Errors of an interrupted `with dr.inject(...)` are undone first,
        with a warning.

        Args:
            workers: processes of one thread each; 1: this process. None: this process, and as soon as more than a minute of
                work is left, one process per core, if they can make the model (see `factory` of `Evaluator`). Of an executor:
                how many it has; None: what it says, of Dask as its workers come and go.
            executor: computes in its place: any of `concurrent.futures`, as a `ProcessPoolExecutor`, dask's
                `Client(...).get_executor()` or `mpi4py.futures.MPIPoolExecutor()`. Its workers must see the store's folder.
            shard: `(i, n)` or `"i/n"`: computes the i-th of n shards of the campaign, from 0, into `<store>.shard-i-of-n`, and
                returns the table of its trials; `merge` joins all n.
            progress: shows a progress bar.

        Warns:
            UserWarning: trials in which the model raised; they have no scores (`raised()`).

        Of a model that is sharded over ranks every rank calls `run`: rank 0 measures, stores and returns the table, the others
        compute with it and return None.

        Raises:
            RuntimeError: something other than errors changed the model.
            RankFailedError: a trial of a sharded model raised, on this rank or another.
            NotPicklable: the workers cannot make the model.
            StoreError: another process is writing to the store, a stored chunk is damaged, a stored trial has another result
                than now, or the disk is full.
            ValueError: the model is not the one that the evaluator was made for, code or a setting changed since this object
                was made (the message names the part, and the store stays as it was), no such shard, or other processes for a
                model that is sharded over ranks.
            WorkersDied: worker processes ended again and again.
            UnguardedScript: `workers` of a script that does not call this under `if __name__ == "__main__":`. Without `workers`
                it goes on in this process, with a warning.
        """
        workers = check_run(workers, executor, progress)
        if executor is None and (workers or 1) > 1:
            check_script()
        if self._runner.alone and (executor is not None or (workers or 1) > 1 or shard is not None):
            raise ValueError(f"{self._runner.alone}: leave out workers=, executor= and shard=")
        if shard is not None:
            part = self._of_shard(Shard.read(shard))
            return part.run(workers=workers, executor=executor, progress=progress)
        restore_leftovers(self.evaluator.model)
        if not self.evaluator.unchanged():
            raise ValueError("the model has changed since its Evaluator was made; make a new Evaluator for it")
        self.conditions = self._stratified(grid(self.evaluator.model, self._triples))  # its tensors may have moved
        self._check_code(any_of=partial(self._runner.any_of, self.evaluator))
        runner = self._runner(self.evaluator, self.conditions, self._options)
        if self._runner.follows(self.evaluator):
            runner.follow()
            return self._note_code()
        workers = 1 if self._runner.alone else workers
        if private := [name for name, metric in self.own_metrics.items() if not metric.importable]:
            if executor is not None or (workers or 1) > 1:
                warnings.warn(
                    f"trials run in this process alone, since no other can import {', '.join(private)}: define them in a "
                    "module",
                    stacklevel=2,
                )
            workers, executor = 1, None
        if executor is not None or (workers or 1) > 1:
            self._check_workers()  # before any work
        try:
            text, table = self._run(runner, workers, executor, progress)
        finally:
            runner.end()
            self._note_code()
        if text:
            warnings.warn(text, stacklevel=2)
        return table

    def _run(
        self, runner: LocalRunner, workers: int | None, executor: Executor | None, progress: bool
    ) -> "tuple[str, pd.DataFrame]":
        """What is to be said of trials that raised, and the table."""
        with self.store.writing(self._narrow):
            if self._shard and not self.store.full_run and (why := full_run_of(shard_folders(self._whole.folder))):
                self.store.restart(why)  # trials of shards must be alike
            probes = StoredProbes(self.store, self.conditions)
            found = self.evaluator.probe(probes.tensors)
            if text := probes.unread_targets(found.unread):
                warnings.warn(f"{self.evaluator.name}: {text}", stacklevel=3)
            if self.store.full_run and not self.evaluator.full_run:
                warnings.warn(f"{self.evaluator.name}: reruns are full runs: {self.store.full_run}", stacklevel=3)
                runner.use_full_runs(self.store.full_run)
            if not self._checked:
                probes.check(runner.probe_target)
            try:
                self._compute(runner, workers, executor, progress)
            except CoupledRowsError as coupled:
                warnings.warn(f"all trials of this campaign are computed again, as full runs: {coupled}", stacklevel=3)
                runner.use_full_runs(str(coupled))
                self.store.restart(str(coupled))
                self._compute(runner, workers, executor, progress)
            probes.keep(found, runner.probe_target)
            table = self.table()
            return self.raised_text() if (table["outcome"] == "raised").any() else "", table

    def _described(self, stored: pa.Table) -> "pd.DataFrame":
        """As of all campaigns; of rankings also the headlines without errors, and what each trial lost of them."""
        table = super()._described(stored)
        for headline in self.headlines:
            if headline.drop not in table:
                table[f"{headline.name}_golden"] = headline.golden
                table[headline.drop] = headline.loss(table[headline.name])
        return table

    @property
    def name(self) -> str:
        return f"{self.evaluator.name} on {self.evaluator.rows.dataset}"

    def _check_workers(self) -> None:
        model_file(self.evaluator)

    def _worker_spec(self, workers: int) -> AbstractContextManager[TrialSpec]:
        return worker_files(self.evaluator, self.conditions, self.store.folder, self._options, workers)

    def _stratified(self, conditions: list[Condition]) -> list[Condition]:
        if self._critical_bits is None:
            return conditions
        return stratified(conditions, self._critical_bits, where_possible=self._where_possible)

    def _new_schedule(self) -> Schedule:
        if self._critical_bits is None:
            return super()._new_schedule()
        groups = sharing_maps(self.conditions)
        strata = [self.conditions[group[0]].stratum for group in groups]
        parts = list(families(self.conditions, groups))
        return StratifiedSchedule(groups, strata, parts, self.trials, self._shard, self._headline)

    def table(self) -> "pd.DataFrame":
        """One row per finished trial, in the order of the grid; the same bit for bit however it was run. It may be read while
        another process computes."""
        if self._critical_bits is None:
            return super().table()
        stored = self._stored([*SCHEMA.names, "condition", *self.metrics])
        condition = stored["condition"].to_numpy()
        probabilities = np.array([condition.stratum.probability for condition in self.conditions])
        weights = probabilities / np.maximum(1, np.bincount(condition, minlength=len(probabilities)))
        is_bounded = bounded(self.conditions, stored, self._headline)
        columns = {STRATUM: stored[STRATUM].to_pandas(), WEIGHT: weights[condition]}
        table = self._described(stored).assign(**columns, **{LOSS_IS_BOUNDED: is_bounded[condition]})
        return StratifiedTable(table.copy())

    def _stored(self, columns: list[str]) -> pa.Table:
        """As of all campaigns; of a stratified one also `stratum`."""
        if self._critical_bits is None:
            return super()._stored(columns)
        table = super()._stored([*columns, *(name for name in ("condition",) if name not in columns)])
        names = pa.array([condition.stratum.name for condition in self.conditions])
        return table.select(columns).append_column(STRATUM, names.take(table["condition"].combine_chunks()))


def _critical_bits(sampling: str | CriticalBits) -> CriticalBits | None:
    """The bits by which trials are stratified; None: plain maps."""
    if not isinstance(sampling, CriticalBits):
        check_choice("sampling", sampling, SAMPLING)
        if sampling == PLAIN:
            return None
        sampling = CriticalBits()
    return sampling
