"""Conditions and trials: a trial is a pure function of (checkpoint, data, condition, trial number)."""

import hashlib
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from torch import nn

from drsrobust._storage import canonical_json
from drsrobust.evaluation import Evaluator
from drsrobust.injection import AddressSpace, BitFlip, ErrorModel, Gradients, Injection, Target, Transient

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
        ("places", pa.int64()),
        ("events", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Condition:
    """One cell of a campaign's grid. `hits` is what errors are drawn over: an address space, or a transient target."""

    error_model: ErrorModel
    target: str | Target | Transient
    hits: AddressSpace | Transient

    @property
    def ber(self) -> float | None:
        """Expected share of eligible bits that flip; None where it is not known beforehand."""
        if isinstance(self.hits, Transient):
            return self.error_model.rate if isinstance(self.error_model, BitFlip) else None
        return self.error_model.expected_share(self.hits)

    def check(self, model: nn.Module) -> None:
        """Raises ValueError for an error model or a target that does not fit the model, and for gradients, which no evaluator
        takes. (Whether a transient target's tensors have the bits asked for shows when the model runs.)"""
        if isinstance(self.hits, AddressSpace):
            self.error_model.expected_share(self.hits)
            return
        if isinstance(self.hits, Gradients):
            raise ValueError(f"{self.hits}: an evaluator takes no gradients; use inject while the model is trained")
        hooks = Injection(model, [(self.error_model, self.hits)], seed=0)
        try:
            hooks.apply()
        finally:
            hooks.undo()

    @cached_property
    def resolved(self) -> list:
        """What the target resolves to, as JSON: tensor names, with the rows where some are chosen; a transient one's text."""
        if isinstance(self.hits, Transient):
            return [str(self.hits)]
        return [
            tensor.name if tensor.rows is None else [tensor.name, hashlib.sha256(tensor.rows).hexdigest()]
            for tensor in self.hits.tensors
        ]


def trial_seed(judge: Evaluator, condition: Condition, trial: int, *, seed: int, coupled: bool) -> int:
    """The uint64 that a trial's errors are drawn from: the first 8 bytes (big-endian) of SHA-256 over the sorted JSON of
    campaign seed, error model without rate or count, resolved target, model name, data set name and trial number.

    So trials at different rates share nested error maps. With `coupled=False` the rate goes in, and they are independent.
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
    judge: Evaluator, condition: Condition, trial: int, *, seed: int, coupled: bool, protocol: str
) -> dict[str, Any]:
    """One row of the campaign's table (every column of SCHEMA), with the `seconds` it took and, of a model that raised,
    the text of its `error`."""
    start = time.perf_counter()
    drawn_from = trial_seed(judge, condition, trial, seed=seed, coupled=coupled)
    injection = Injection(judge.model, [(condition.error_model, condition.hits)], seed=drawn_from)
    error_map, golden = injection.error_map, judge.golden
    if len(error_map) or error_map.log is not None:
        # Not `with inject(...)`: between its entry and the first statement an interrupt would slip through.
        try:
            injection.apply()
            result = judge.run()
            if (places := injection.unreached()) and result.outcome != "raised":
                raise ValueError(
                    f"{condition.target}: the model never calls {', '.join(places)}, so nothing is hit there"
                )
        finally:
            injection.undo()
        rows_reached = result.rows_reached
    else:  # no error: the golden run is the answer, and costs nothing
        result, rows_reached = golden, 0
    found = error_map if error_map.log is None else error_map.log
    row = dict.fromkeys(SCHEMA.names)
    row |= {
        "model": judge.name,
        "dataset": judge.split.dataset,
        "protocol": protocol,
        "error_model": str(condition.error_model),
        "rate": condition.error_model.rate,
        "ber": condition.ber,
        "target": str(condition.target),
        "mitigation": "none",
        "trial": trial,
        "seed": drawn_from,
        "outcome": result.outcome,
        "bits_flipped": found.bits,
        "words_hit": found.words,
        "realised_rate": found.realised_rate,
        "bits_left": found.bits,
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
        "places": found.places,
        "events": found.events,
    }
    return row | {"error": result.error, "seconds": time.perf_counter() - start}
