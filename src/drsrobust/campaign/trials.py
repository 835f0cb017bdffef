"""Conditions and trials: a trial is a pure function of (checkpoint, data, condition, trial number)."""

import hashlib
import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from drsrobust._storage import canonical_json
from drsrobust.evaluation import Evaluator
from drsrobust.injection import AddressSpace, Application, ErrorModel, canonical

CONDITION = ("model", "dataset", "protocol", "error_model", "rate", "ber", "target", "mitigation")

# One row per trial; the order of the columns is part of the interface.
SCHEMA = pa.schema(
    [
        *((name, pa.float64() if name in ("rate", "ber") else pa.string()) for name in CONDITION),
        ("trial", pa.int64()),
        ("seed", pa.uint64()),
        ("outcome", pa.string()),
        ("bits_flipped", pa.int64()),
        ("words_hit", pa.int64()),
        ("realised_rate", pa.float64()),
        ("bits_left", pa.int64()),
        ("auc", pa.float64()),
        ("auc_golden", pa.float64()),
        ("auc_drop", pa.float64()),
        ("logloss", pa.float64()),
        ("ne", pa.float64()),
        ("nan_rows", pa.int64()),
        ("inf_rows", pa.int64()),
        ("rows_reached", pa.int64()),
        ("detected", pa.bool_()),
        ("repaired", pa.bool_()),
        ("checkpoint", pa.string()),
        ("data", pa.string()),
    ]
)


@dataclass(frozen=True)
class Condition:
    """One cell of a campaign's grid."""

    error_model: ErrorModel
    target: str
    space: AddressSpace


def trial_seed(judge: Evaluator, condition: Condition, trial: int, *, seed: int, coupled: bool) -> int:
    """The uint64 that a trial's errors are drawn from: the first 8 bytes (big-endian) of SHA-256 over the sorted JSON of
    campaign seed, error model without rate or count, resolved target, model name, data set name and trial number.

    So trials at different rates share nested error maps. With `coupled=False` the rate goes in, and they are independent.
    """
    parts = {
        "seed": seed,
        "error_model": canonical(condition.error_model),
        "target": [tensor.name for tensor in condition.space.tensors],
        "model": judge.name,
        "dataset": judge.split.dataset,
        "trial": trial,
    }
    if not coupled:
        parts["rate"] = condition.error_model.rate
    return int.from_bytes(hashlib.sha256(canonical_json(parts).encode()).digest()[:8], "big")


def run_trial(
    judge: Evaluator, condition: Condition, trial: int, *, seed: int, coupled: bool, protocol: str
) -> dict[str, Any]:
    """One row of the campaign's table (every column of SCHEMA), with the `seconds` it took and, of a model that raised,
    the text of its `error`."""
    start = time.perf_counter()
    drawn_from = trial_seed(judge, condition, trial, seed=seed, coupled=coupled)
    error_map = condition.error_model.sample(condition.space, seed=drawn_from)
    golden = judge.golden
    if len(error_map):
        # Not `with error_map.applied(...)`: between its entry and the first statement an interrupt would slip through.
        application = Application(error_map, judge.model)
        try:
            application.apply()
            result = judge.run()
        finally:
            application.undo()
        rows_reached = result.rows_reached
    else:  # no error: the golden run is the answer, and costs nothing
        result, rows_reached = golden, 0
    row = dict.fromkeys(SCHEMA.names)
    row |= {
        "model": judge.name,
        "dataset": judge.split.dataset,
        "protocol": protocol,
        "error_model": str(condition.error_model),
        "rate": condition.error_model.rate,
        "ber": condition.error_model.expected_share(condition.space),
        "target": condition.target,
        "mitigation": "none",
        "trial": trial,
        "seed": drawn_from,
        "outcome": result.outcome,
        "bits_flipped": error_map.bits,
        "words_hit": len(error_map),
        "realised_rate": error_map.realised_rate,
        "bits_left": error_map.bits,
        "auc": result.auc,
        "auc_golden": golden.auc,
        "auc_drop": None if result.auc is None else golden.auc - result.auc,
        "logloss": result.logloss,
        "ne": result.ne,
        "nan_rows": result.nan_rows,
        "inf_rows": result.inf_rows,
        "rows_reached": rows_reached,
        "checkpoint": judge.checkpoint,
        "data": judge.split.fingerprint,
    }
    return row | {"error": result.error, "seconds": time.perf_counter() - start}
