"""A trial of a training campaign: a row of its table."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle
import pyarrow as pa

from drsrobust.campaign import SCHEMA, SHORTEST_CHUNK, Chunk, Condition
from drsrobust.extend import (
    audit,
    check_worker_code,
    model_code,
    run_trials,
    short_digest,
    stored_schema,
    surrounding_code,
    trial_seed,
    worker,
)
from drsrobust.injection import ErrorModel
from drsrobust_extras.experiments.training_errors.actions import Action
from drsrobust_extras.experiments.training_errors.continuation import (
    Continuation,
    Outcome,
    TrainingError,
    alone,
    condition_of,
    random_of,
)
from drsrobust_extras.experiments.training_errors.steps import Detector, Run


def columns(detectors: Sequence[Detector], actions: Sequence[Action]) -> tuple[str, ...]:
    """Names of the columns that a training campaign's table has beyond those of every campaign."""
    alarms = (f"alarm_{one.name}" for one in detectors)
    return ("step", "auc_drop_first", *alarms, *(f"auc_{action.name}" for action in actions))


def training_code(
    continuation: Continuation,
    error_models: Sequence[ErrorModel],
    actions: Sequence[Action],
    missing: list[str] | None = None,
) -> dict[str, Any]:
    """The digests of the model, and by error model, detector and action of theirs; with `surrounding_code`."""
    code = partial(short_digest, missing=[] if missing is None else missing)
    return {
        "model code": model_code(continuation.model, missing),
        "conditions": [code(one) for one in error_models],
        "detectors": [[one.name, code(one)] for one in continuation.detectors],
        "actions": [[one.name, code(one)] for one in actions],
    } | surrounding_code(missing)


@dataclass
class Trials:
    """All that trials depend on except their condition and number. It can be pickled."""

    continuation: Continuation
    clean: Outcome
    pairs: Sequence[tuple[ErrorModel, Any]]  # error model and target of each condition
    when: tuple[int, ...]  # steps after the snapshot
    actions: tuple[Action, ...]
    seed: int
    label: str

    def code(self) -> dict[str, Any]:
        """As `training_code`."""
        return training_code(self.continuation, [error for error, _ in self.pairs], self.actions)

    def row(self, run: Run, condition: Condition, trial: int) -> dict[str, Any]:
        """One trial: a row of the table, with the values that only the store has."""
        began, follow, actions = time.perf_counter(), self.continuation, self.actions
        seed = trial_seed(follow, condition, trial, seed=self.seed, coupled=True)
        at = self.when[int(random_of(seed, 1).integers(len(self.when)))]
        error = TrainingError(run, condition, seed)
        faulty = follow.faulty(run, error, at, self.clean, triggers={name for action in actions for name in action.on})
        hits = error.error_map if error.error_map.log is None else error.error_map.log
        first, last = follow.evaluate_at[0], follow.evaluate_at[-1]
        auc, nan_rows, inf_rows = faulty.auc.get(last, (None, None, None))
        golden = self.clean.auc[last][0]
        row = dict.fromkeys((*SCHEMA.names, *columns(follow.detectors, actions))) | condition.columns
        row |= {
            "model": follow.name,
            "dataset": follow.rows.dataset,
            "protocol": self.label,
            "trial": trial,
            "seed": seed,
        }
        row |= {"outcome": "raised" if faulty.error else "nonfinite" if nan_rows or inf_rows else "ok"}
        row |= {"bits_flipped": hits.bits, "words_hit": hits.words, "bits_left": hits.bits, "step": at}
        row |= {"realised_rate": hits.realised_rate, "n_sites": hits.n_sites, "n_events": hits.n_events}
        row |= {"auc": auc, "auc_golden": golden, "nan_rows": nan_rows, "inf_rows": inf_rows}
        row |= {"auc_drop": None if auc is None else golden - auc, "detected": bool(faulty.first_alarm)}
        row |= {"data": follow.rows.fingerprint, "checkpoint": self.clean.digests[0]}
        row |= {"auc_drop_first": self.clean.auc[first][0] - faulty.auc[first][0]} if first in faulty.auc else {}
        row |= {f"alarm_{name}": after for name, after in faulty.first_alarm.items()}
        for action in actions:
            row[f"auc_{action.name}"] = auc
            if faulty.error or faulty.first_alarm.keys() & set(action.on):  # else the run would be the same
                again = follow.faulty(run, TrainingError(run, condition, seed), at, self.clean, action)
                row[f"auc_{action.name}"] = again.auc.get(last, (None,))[0]
        row |= {"error": faulty.error, "errors": audit(error.error_map), "worker": worker()}
        return row | {"seconds": time.perf_counter() - began}


class TrainingRunner:
    """Computes chunks of trials in this process, on one run."""

    def __init__(self, trials: Trials) -> None:
        self._trials = trials
        self._schema = stored_schema(columns(trials.continuation.detectors, trials.actions))
        with alone():
            self._run = trials.continuation.run()
            self._conditions = [condition_of(self._run, *pair) for pair in trials.pairs]

    def __call__(self, work: Chunk, seconds: float = SHORTEST_CHUNK) -> tuple[pa.Table, BaseException | None]:
        """As `drsrobust.campaign.trial.run_trials`."""
        condition = self._conditions[work.condition]
        with alone():
            return run_trials(partial(self._trials.row, self._run, condition), work, seconds, self._schema)


@dataclass(frozen=True)
class TrainingSpec:
    """What a worker gets with each chunk: pickled `Trials` (snapshot, batches of the continuation, evaluation rows)."""

    content: bytes
    key: str
    numerics: dict[str, Any]
    code: dict[str, Any]
    process: str  # that made it

    def runner(self) -> TrainingRunner:
        """Computes chunks in this process.

        Raises:
            RuntimeError: it would run other code than the campaign's.
        """
        trials: Trials = cloudpickle.loads(self.content)
        check_worker_code(self.code, trials.code(), same_process=self.process == worker())
        return TrainingRunner(trials)
