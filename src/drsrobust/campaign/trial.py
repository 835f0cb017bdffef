"""What was flipped, counted by component, tensor and number of the bit.

A trial: a pure function of (checkpoint, data, condition, trial number)."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from drsrobust._hashing import canonical_json
from drsrobust.campaign.conditions import Condition
from drsrobust.campaign.table import BIT_COUNT, SCHEMA
from drsrobust.evaluation import CoupledRowsError, Evaluation, Evaluator
from drsrobust.injection import ErrorMap, Injection
from drsrobust.mitigation.base import CombinedDetection

_BLOCK = 1 << 16  # words counted at a time: what they are widened to stays in the processor's cache
_BITS_OF_BYTE = (np.arange(256)[:, None] >> np.arange(8)) & 1  # [256, 8]


def errors_by_bit(error_map: ErrorMap) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many bits of each number are flipped in each tensor at rest. (What transient errors hit is in the map's log.)

    Returns:
        tensor: int64 [n], index into `error_map.targets`, ascending.
        bit: uint8 [n], 0 the lowest of its word, ascending within a tensor.
        count: int64 [n], at least 1.
    """
    hit = [(number, count_bits(error_map.mask[here])) for number, here in error_map.by_tensor()]
    counts = np.array([count for _, count in hit], np.int64).reshape(-1, 64)
    row, bit = np.nonzero(counts)
    numbers = np.array([number for number, _ in hit], np.int64)
    return numbers[row], bit.astype(np.uint8), counts[row, bit]


def count_bits(masks: np.ndarray) -> np.ndarray:
    """How many of masks uint64 [n] have each bit: int64 [64].

    By a histogram of each byte, for the bytes that are not 0 everywhere.
    """
    counts = np.zeros((8, 8), np.int64)
    if not len(masks):
        return counts.reshape(64)
    octets = np.ascontiguousarray(masks, "<u8").view(np.uint8).reshape(-1, 8)
    used = np.flatnonzero(np.bitwise_or.reduce(masks).astype("<u8").reshape(1).view(np.uint8))
    for start in range(0, len(octets), _BLOCK):
        for number in used:
            histogram = np.bincount(octets[start : start + _BLOCK, number], minlength=256)
            counts[number] += histogram @ _BITS_OF_BYTE
    return counts.reshape(64)


def audit(error_map: ErrorMap) -> pa.StructArray:
    """The entries of a trial's column `errors` (BIT_COUNT): tensors at rest in the map's order, then the places that
    transient errors hit (as component and as tensor), in the order in which they were hit first; bits ascending.

    Bits of quantized rows are those of their bytes. Transient errors must have been, when this is called.
    """
    tensor, bit, count = errors_by_bit(error_map)
    components = np.array([entry.component for entry in error_map.fingerprint], object)[tensor]
    tensors = np.array(error_map.targets, object)[tensor]
    by_place = defaultdict(list)
    for hit in () if error_map.log is None else error_map.log.hits:
        by_place[hit.site].append(hit.mask)
    for place, masks in by_place.items():
        counts = count_bits(np.concatenate(masks))
        bits = np.flatnonzero(counts)
        here = np.full(len(bits), place, object)
        components, tensors = np.append(components, here), np.append(tensors, here)
        bit, count = np.append(bit, bits.astype(np.uint8)), np.append(count, counts[bits])
    arrays = [pa.array(components, pa.string()), pa.array(tensors, pa.string()), pa.array(bit), pa.array(count)]
    return pa.StructArray.from_arrays(arrays, fields=list(BIT_COUNT))


def trial_seed(evaluator: Evaluator, condition: Condition, trial: int, *, seed: int, coupled: bool) -> int:
    """The uint64 that a trial's errors are drawn from: the first 8 bytes (big-endian) of SHA-256 over the sorted JSON of
    campaign seed, error model without rate or count, resolved target, model name, data set name and trial number.

    So trials at different rates share nested error maps, and trials under different mitigations the same. With
    `coupled=False` the rate goes in, and they are independent.
    """
    parts = {
        "seed": seed,
        "error_model": condition.error_model.canonical(),
        "target": condition.resolved,
        "model": evaluator.name,
        "dataset": evaluator.rows.dataset,
        "trial": trial,
    }
    if not coupled:
        parts["rate"] = condition.error_model.rate
    return int.from_bytes(hashlib.sha256(canonical_json(parts).encode()).digest()[:8], "big")


def run_trial(
    evaluator: Evaluator,
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
        evaluator: of the model without mitigation.
        condition: one of the campaign's.
        trial: its number, from 0.
        seed, coupled, protocol, metrics: of the campaign.
        guarded: the evaluator of the model under the condition's mitigation, while it is attached; None where there is none.

    Returns:
        a row of the campaign's table (every column of SCHEMA and of `metrics`), with the `seconds` it took, the text of its
        `error` when the model raised, and the `errors` as counts by bit (see `audit`).
    """
    start = time.perf_counter()
    drawn_from = trial_seed(evaluator, condition, trial, seed=seed, coupled=coupled)
    injection = Injection(evaluator.model, [(condition.error_model, condition.hits)], seed=drawn_from)
    drawn, detected, repaired = injection.error_map, None, None
    if guarded is None:
        result, left = _judged(evaluator, condition, injection), drawn
    else:
        left = condition.mitigation.screen(drawn, evaluator.model, seed=drawn_from)
        if left is not drawn:
            injection = injection.replaced(left)
        with condition.mitigation.attach(evaluator.model) as watch:
            result = _judged(guarded, condition, injection)
        noticed = CombinedDetection([left, watch])  # in memory, and while the model computed
        detected, repaired = noticed.detected, noticed.repaired
    found = drawn if drawn.log is None else drawn.log
    golden = evaluator.golden.auc
    row = dict.fromkeys(SCHEMA.names)
    row |= {
        "model": evaluator.name,
        "dataset": evaluator.rows.dataset,
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
        "checkpoint": evaluator.checkpoint,
        "data": evaluator.rows.fingerprint,
        "n_sites": found.n_sites,
        "n_events": found.n_events,
        "mitigation_id": condition.mitigation_id,
    }
    row |= result.metrics(metrics)
    return row | {"error": result.error, "errors": audit(drawn), "seconds": time.perf_counter() - start}


def _judged(evaluator: Evaluator, condition: Condition, injection: Injection) -> Evaluation:
    """The model with these errors. Without any the golden run is the answer, and costs nothing.

    Raises:
        CoupledRowsError: the evaluator found out just now that its earlier reruns may be wrong.
    """
    error_map: ErrorMap = injection.error_map
    if not len(error_map) and error_map.log is None:
        return evaluator.golden.unreached()
    # Not `with inject(...)`: between its entry and the first statement an interrupt would slip through.
    try:
        injection.apply()
        full_run, result = evaluator.full_run, evaluator.rerun(error_map)
        if evaluator.full_run != full_run:
            raise CoupledRowsError(evaluator.full_run)
        if (places := injection.unreached()) and result.outcome != "raised":
            raise ValueError(f"{condition.target}: the model never calls {', '.join(places)}, so nothing is hit there")
    finally:
        injection.undo()
    return result
