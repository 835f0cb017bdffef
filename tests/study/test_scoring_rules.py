"""AUC by what is ranked and where NaN ranks, against scikit-learn's AUC of scores put in the order of each rule."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from drsrobust.evaluation import Evaluator
from drsrobust_study.scoring_rules import RULES, _by_rule, scoring_rules


def test_every_rule_is_an_order():
    rng = np.random.default_rng(0)
    labels = (rng.random(500) < 0.3).astype(np.float32)
    scores = (rng.normal(0, 3, 500) + labels).astype(np.float32)
    scores[:20] = 1e30 * (1 + np.arange(20))
    with np.errstate(over="ignore"):
        probabilities = (1 / (1 + np.exp(-scores))).astype(np.float32)
    missing = rng.random(500) < 0.2
    scores[missing] = probabilities[missing] = np.nan
    found = dict(zip([*RULES, "nan"], _by_rule(labels, scores, probabilities, 0.3), strict=True))
    put = {"prior": 0.3, "lowest": -1.0}
    for name, value in put.items():
        expected = roc_auc_score(labels, np.where(missing, value, probabilities))
        assert found[f"probability, NaN {name}"] == pytest.approx(expected)
    first = np.where(missing, 3.0 - np.arange(500) / 1000, probabilities)
    assert found["probability, NaN first"] == pytest.approx(roc_auc_score(labels, first))
    assert found["nan"] == missing.mean()
    # Logits of 1e30 and more rank apart, their probabilities tie; a NaN is half a pair either way.
    assert found["logit, NaN tie"] != found["probability, NaN tie"]
    known = roc_auc_score(labels[~missing], probabilities[~missing])
    pairs = (~missing)[labels == 1].mean() * (~missing)[labels == 0].mean()
    assert found["probability, NaN tie"] == pytest.approx(pairs * known + (1 - pairs) / 2)


def test_rules_meet_the_same_trials(trained, data):
    evaluator = Evaluator(trained, data.test)
    table = scoring_rules([evaluator], [1e-4, 1e-2], trials=3, seed=1)
    assert len(table) == 2 * len(RULES) and (table["n"] == 3).all()
    low = table[table["ber"] == 1e-4]
    assert low["auc"].nunique() <= 2 or low["nan_share"].max() > 0  # without NaN, rules for it agree
    again = scoring_rules([evaluator], [1e-4, 1e-2], trials=3, seed=1)
    assert again.equals(table)
