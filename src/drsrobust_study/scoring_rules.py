"""AUC of the same trials by what is ranked, logits or probabilities, and by where NaN ranks (notebook 03)."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, inject
from drsrobust.metrics import auc

if TYPE_CHECKING:
    import pandas as pd

RULES = {
    "probability, NaN tie": "as here: float32 probabilities; NaN is half a pair",
    "probability, NaN prior": "NaN counts as the click rate of the training rows",
    "probability, NaN lowest": "NaN ranks last",
    "probability, NaN first": "NaN ranks first, in the order of the rows, as in the published scripts",
    "logit, NaN tie": "logits in place of probabilities",
}


def scoring_rules(
    evaluators: Iterable[Evaluator], bers: Sequence[float], *, trials: int, seed: int = 0
) -> "pd.DataFrame":
    """Mean AUC under independent bit flips in all parameters, by rule, on the same error maps.

    Args:
        evaluators: of trained models, with the training rows' click rate in their rows.
        bers: bit error rates.
        trials: error maps per rate.
        seed: of the error maps.

    Returns:
        one row per model, data set, rate and rule: `model`, `dataset`, `ber`, `rule` (of `RULES`), `n`, `auc` (mean over the
        trials whose model did not raise) and `nan_share`, of the scores.
    """
    import pandas as pd

    rows = []
    for evaluator in evaluators:
        labels, prior = evaluator.rows.labels, evaluator.rows.prior
        for ber in bers:
            scored = []
            for trial in range(trials):
                with inject(evaluator.model, BitFlip(ber), seed=seed + trial) as error_map:
                    result = evaluator.rerun(error_map)
                if result.scores is not None:
                    scored.append(_by_rule(labels, result.scores, result.probabilities, prior))
            means = np.mean(scored, axis=0) if scored else np.full(len(RULES) + 1, np.nan)
            row_labels = {"model": evaluator.name, "dataset": evaluator.rows.dataset, "ber": ber, "n": len(scored)}
            rows += [
                row_labels | {"rule": rule, "auc": float(mean), "nan_share": float(means[-1])}
                for rule, mean in zip(RULES, means, strict=False)
            ]
    return pd.DataFrame(rows)


def _by_rule(labels: np.ndarray, scores: np.ndarray, probabilities: np.ndarray, prior: float) -> list[float]:
    """AUC by each of `RULES`, and the share of NaN."""
    missing = np.isnan(probabilities)
    first = probabilities.astype(np.float64)
    first[missing] = 2.0 - np.flatnonzero(missing) / len(first)  # over all probabilities, earlier rows higher
    ranked = [
        probabilities,
        np.where(missing, prior, probabilities),
        np.where(missing, -1.0, probabilities),
        first,
        scores,
    ]
    return [*(auc(labels, values) for values in ranked), float(missing.mean())]
