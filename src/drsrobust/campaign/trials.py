"""A trial: a pure function of (checkpoint, data, condition, trial number)."""

import hashlib
import time
from collections.abc import Sequence
from typing import Any

from drsrobust._storage import canonical_json
from drsrobust.campaign.audit import audit
from drsrobust.campaign.conditions import Condition
from drsrobust.campaign.schema import SCHEMA
from drsrobust.evaluation import CoupledRowsError, Evaluation, Evaluator
from drsrobust.injection import ErrorMap, Injection
from drsrobust.mitigation.composed import Together


def trial_seed(judge: Evaluator, condition: Condition, trial: int, *, seed: int, coupled: bool) -> int:
    """The uint64 that a trial's errors are drawn from: the first 8 bytes (big-endian) of SHA-256 over the sorted JSON of
    campaign seed, error model without rate or count, resolved target, model name, data set name and trial number.

    So trials at different rates share nested error maps, and trials under different mitigations the same. With
    `coupled=False` the rate goes in, and they are independent.
    """
    parts = {
        "seed": seed,
        "error_model": condition.error_model.canonical(),
        "target": condition.resolved,
        "model": judge.name,
        "dataset": judge.split.dataset,
        "trial": trial,
    }
    if not coupled:
        parts["rate"] = condition.error_model.rate
    return int.from_bytes(hashlib.sha256(canonical_json(parts).encode()).digest()[:8], "big")


def run_trial(
    judge: Evaluator,
    condition: Condition,
    trial: int,
    *,
    seed: int,
    coupled: bool,
    protocol: str,
    metrics: Sequence[str] = (),
    guarded: Evaluator | None = None,
) -> dict[str, Any]:
    """One trial.

    Args:
        judge: of the model without mitigation.
        condition: one of the campaign's.
        trial: its number, from 0.
        seed, coupled, protocol, metrics: of the campaign.
        guarded: the evaluator of the model under the condition's mitigation, while it is attached; None where there is none.

    Returns:
        a row of the campaign's table (every column of SCHEMA and of `metrics`), with the `seconds` it took, the text of its
        `error` when the model raised, and the `errors` as counts by bit (see `audit`).
    """
    start = time.perf_counter()
    drawn_from = trial_seed(judge, condition, trial, seed=seed, coupled=coupled)
    injection = Injection(judge.model, [(condition.error_model, condition.hits)], seed=drawn_from)
    drawn, detected, repaired = injection.error_map, None, None
    if guarded is None:
        result, left = _judged(judge, condition, injection), drawn
    else:
        left = condition.mitigation.screen(drawn, judge.model, seed=drawn_from)
        if left is not drawn:
            injection = injection.replaced(left)
        with condition.mitigation.attach(judge.model) as watch:
            result = _judged(guarded, condition, injection)
        noticed = Together([left, watch])  # in memory, and while the model computed
        detected, repaired = noticed.detected, noticed.repaired
    found = drawn if drawn.log is None else drawn.log
    golden = judge.golden.auc
    row = dict.fromkeys(SCHEMA.names)
    row |= {
        "model": judge.name,
        "dataset": judge.split.dataset,
        "protocol": protocol,
        "error_model": condition.error_model.label,
        "rate": condition.error_model.rate,
        "ber": condition.ber,
        "target": str(condition.target),
        "mitigation": condition.protection,
        "trial": trial,
        "seed": drawn_from,
        "outcome": result.outcome,
        "bits_flipped": found.bits,
        "words_hit": found.words,
        "realised_rate": found.realised_rate,
        "bits_left": found.bits if left is drawn else left.bits,
        "auc": result.auc,
        "auc_golden": golden,
        "auc_drop": None if result.auc is None else golden - result.auc,
        "logloss": result.logloss,
        "ne": result.ne,
        "nan_rows": result.nan_rows,
        "inf_rows": result.inf_rows,
        "rows_reached": result.rows_reached,
        "detected": detected,
        "repaired": repaired,
        "checkpoint": judge.checkpoint,
        "data": judge.split.fingerprint,
        "places": found.places,
        "events": found.events,
        "mitigation_id": condition.mitigation_id,
    }
    row |= result.metrics(metrics)
    return row | {"error": result.error, "errors": audit(drawn), "seconds": time.perf_counter() - start}


def _judged(judge: Evaluator, condition: Condition, injection: Injection) -> Evaluation:
    """The model with these errors. Without any the golden run is the answer, and costs nothing.

    Raises:
        CoupledRowsError: the evaluator found out just now that its earlier reruns may be wrong.
    """
    error_map: ErrorMap = injection.error_map
    if not len(error_map) and error_map.log is None:
        return judge.golden.unreached()
    # Not `with inject(...)`: between its entry and the first statement an interrupt would slip through.
    try:
        injection.apply()
        full_run, result = judge.full_run, judge.rerun(error_map)
        if judge.full_run != full_run:
            raise CoupledRowsError(judge.full_run)
        if (places := injection.unreached()) and result.outcome != "raised":
            raise ValueError(f"{condition.target}: the model never calls {', '.join(places)}, so nothing is hit there")
    finally:
        injection.undo()
    return result
