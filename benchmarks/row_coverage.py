"""How often intervals over error maps and rows hold the mean on all rows, on many subsets of the rows."""

import numpy as np
import pandas as pd

from drsrobust._progress import progress_bar
from drsrobust.campaign.trial import ROW_TRIALS
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, FixedCount, inject
from drsrobust.injection.error_models import ErrorModel
from drsrobust.metrics.auc import auc, twice_won_by_row
from drsrobust.metrics.row_parts import auc_parts, draws
from drsrobust.statistics.columns import OVER_ROWS
from drsrobust.statistics.summary import summarise

# Maps that all do the same, that lose half, that differ in how much they lose, and that reach a few rows each.
CASES = ((BitFlip(1e-2), "all"), (BitFlip(1e-3), "all"), (BitFlip(1e-4), "all"), (FixedCount(100), "embedding"))
SUBSETS, ROWS, TRIALS, POOL = 200, 5000, 50, 150  # and error maps that each subset's trials are drawn from
METRICS = ("auc", "auc_drop")


def scores_under(evaluator: Evaluator, error: ErrorModel, target: str, maps: int = POOL) -> np.ndarray:
    """Probabilities of all rows under error maps, float32 [maps, n]."""
    found = np.empty((maps, len(evaluator.rows)), np.float32)
    with progress_bar(maps, f"{error} in {target}") as bar:
        for seed in range(maps):
            with inject(evaluator.model, error, target=target, seed=seed) as error_map:
                found[seed] = evaluator.rerun(error_map).probabilities
            bar.update()
    return found


def trials_on(clicked: np.ndarray, golden: np.ndarray, faulty: np.ndarray) -> pd.DataFrame:
    """A campaign's table of trials with given scores on some rows: clicked bool [n], golden [n], faulty [trials, n]."""
    without, parts = auc(clicked, golden), auc_parts(clicked, twice_won_by_row(clicked, golden))
    rows = []
    for trial, scores in enumerate(faulty):
        area = auc(clicked, scores)
        row = {"trial": trial, "seed": trial, "auc": area, "auc_golden": without, "auc_drop": without - area}
        if trial < ROW_TRIALS:
            errors = auc_parts(clicked, twice_won_by_row(clicked, scores))
            for name, of_metric in (("auc", errors), ("auc_drop", parts - errors)):
                row |= dict(zip(OVER_ROWS[name], draws(of_metric), strict=True))
        rows.append(row)
    about = dict.fromkeys(("model", "dataset", "protocol", "error_model", "target", "checkpoint", "data"), "made")
    about |= {"rate": 0.1, "ber": 0.1, "mitigation": "none", "outcome": "ok"}
    about |= dict.fromkeys(("nan_rows", "inf_rows", "n_sites", "n_events"), 0)
    return pd.DataFrame(rows).assign(**about)


def coverage(
    clicked: np.ndarray,
    golden: np.ndarray,
    faulty: np.ndarray,
    *,
    subsets: int = SUBSETS,
    rows: int = ROWS,
    trials: int = TRIALS,
    seed: int = 0,
) -> pd.DataFrame:
    """Of subsets of the rows, drawn without repetition, and of trials drawn from all error maps, the share whose 95 % interval
    holds the mean of all maps on all rows.

    Args:
        clicked: bool [n].
        golden: scores without errors [n].
        faulty: scores [maps, n].
        subsets: how many.
        rows: of a subset.
        trials: of a subset.

    Returns:
        a row for each of `METRICS`: `metric`, `maps` and `maps_and_rows` (coverage of the intervals over maps alone, and over
        both), `error_maps` and `error_rows` (medians over subsets: half-width over maps / 1.96, standard error over rows), and
        `deviation`, the standard deviation of the means of the subsets.
    """
    random, truth = np.random.default_rng(seed), auc(clicked, golden)
    mean = float(np.mean([auc(clicked, scores) for scores in faulty]))
    truths, found = {"auc": mean, "auc_drop": truth - mean}, []
    for _ in range(subsets):
        some = random.choice(len(clicked), rows, replace=False)
        maps = random.integers(len(faulty), size=trials)
        found.append(summarise(trials_on(clicked[some], golden[some], faulty[np.ix_(maps, some)]), METRICS).iloc[0])
    table, measured = pd.DataFrame(found), []
    for metric, value in truths.items():
        low, high = (table[f"{metric}_maps_{end}"] for end in ("low", "high"))
        row = {"metric": metric, "maps": ((low <= value) & (value <= high)).mean()}
        row["maps_and_rows"] = ((table[f"{metric}_low"] <= value) & (value <= table[f"{metric}_high"])).mean()
        row |= {
            "error_maps": float((high - low).median() / 3.92),
            "error_rows": float(table[f"{metric}_rows"].median()),
        }
        measured.append(row | {"deviation": float(table[metric].std())})
    return pd.DataFrame(measured)
