"""What mitigations do to the AUC: repair under errors, and what they cost without any."""

import tempfile
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd

from drsrobust._progress import progress
from drsrobust.benchmark.mitigation_cases import Case, checks, clipping, with_int8_tables
from drsrobust.campaign import Campaign, auc_difference
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, FixedCount
from drsrobust.metrics import auc
from drsrobust.mitigation import ABFTEmbeddingBag, ABFTLinear, Mitigation, NaNGuard, make_room
from drsrobust.models import padded_batches, score

REPAIR_COLUMNS = ("mitigation", "model", "error_model", "trials", "auc_golden", "auc_faulty", "auc_repaired")
REPAIR_COLUMNS += ("largest_difference",)


def restoring(case: Case) -> Mitigation:
    """Checksums of linear layers and of tables that put layers and rows back from a golden copy."""
    return ABFTLinear.fit(case.model, action="restore") + ABFTEmbeddingBag.fit(case.model, action="restore")


def repair(case: Case, test_rows: int, trials: int, *, seed: int, show: bool) -> pd.DataFrame:
    """AUC without and with repair, on the same error maps over the whole model: one flip, and a bit error rate of 1e-6.

    Returns:
        the columns `REPAIR_COLUMNS`: means over trials, and the largest |AUC - golden| of any repaired trial.
    """
    judge, mitigation = Evaluator(case.model, case.test.head(min(test_rows, len(case.test)))), restoring(case)
    with tempfile.TemporaryDirectory() as folder:
        options = {"targets": ["all"], "mitigations": [None, mitigation], "trials": trials, "seed": seed}
        table = Campaign(judge, errors=[FixedCount(1), BitFlip(1e-6)], store=f"{folder}/store", **options).run(
            show=show
        )
    rows = []
    for (error_model, rate), group in table.groupby(["error_model", "rate"], sort=False, dropna=False):
        error_model = error_model if np.isnan(rate) else f"{error_model}({rate:g})"
        faulty, repaired = (group[group["mitigation"] == name] for name in ("none", mitigation.name))
        means = (faulty["auc_golden"].mean(), faulty["auc"].mean(), repaired["auc"].mean())
        worst = float(repaired["auc_drop"].abs().max()) if (repaired["outcome"] != "raised").all() else np.nan
        rows.append((mitigation.name, case.name, error_model, len(repaired), *means, worst))
    return pd.DataFrame(rows, columns=list(REPAIR_COLUMNS))


def clean_auc(cases: Sequence[Case], *, show: bool) -> pd.DataFrame:
    """AUC on all test rows without errors, with each mitigation against without.

    int8 rows whose spare bits zero-space ECC needs (`make_room`) are compared with the int8 rows as they were.

    Returns:
        `mitigation`, `model`, `data`, `auc`, `difference` (to the AUC without it) with `low`, `high` (95 %, paired DeLong),
        `bit_equal` (all scores).
    """
    rows = []
    with progress(len(cases), "clean AUC", show=show) as bar:
        for number, case in enumerate(cases):
            plain = _scores(case)
            guarding = [*checks(case), *clipping(case), NaNGuard(case.train.prior)]
            rows += [_compared(one.name, case, _scores(case, one), plain) for one in guarding]
            if number == 0:
                rows += _without_room(case)
            bar.update()
    return pd.DataFrame(rows)


def _without_room(case: Case) -> list[dict[str, Any]]:
    small = with_int8_tables(case)
    plain, rows = _scores(small), []
    for how in ("clip", "rescale"):
        changed = Case(small.name, case.data, deepcopy(small.model), case.train, case.test)
        make_room(changed.model, "embedding", how=how)
        rows.append(_compared(f"zero-space SECDED, room by {how}", small, _scores(changed), plain))
    return rows


def _scores(case: Case, mitigation: Mitigation | None = None) -> np.ndarray:
    batches = padded_batches(case.test)
    if mitigation is None:
        return score(case.model, batches, len(case.test))
    with mitigation.attach(case.model):
        return score(case.model, batches, len(case.test))


def _compared(name: str, case: Case, scores: np.ndarray, plain: np.ndarray) -> dict[str, Any]:
    difference, low, high, _ = auc_difference(case.test.labels, scores, plain)
    value = auc(case.test.labels, scores)
    equal = bool(np.array_equal(scores.view(np.uint32), plain.view(np.uint32)))
    about = {"mitigation": name, "model": case.name, "data": case.data, "auc": value}
    return about | {"difference": difference, "low": low, "high": high, "bit_equal": equal}
