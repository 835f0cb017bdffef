from dataclasses import replace

import pandas as pd
import pytest

import drsrobust as dr
from drsrobust_study.captions import details, single_error_details
from drsrobust_study.components import layer_partition, single_errors

BASE = {"model": "m", "dataset": "synthetic-movielens/full", "rate": 1e-3, "auc_golden": 0.8}


@pytest.fixture
def summary():
    return pd.DataFrame([BASE | {"n": n} for n in (3, 1)])


def test_data_trials_intervals_and_stress_rates(summary, data):
    text = details(data.test.head(123), summary, "", "More.")
    assert text.startswith("Data: synthetic-movielens/full (generated data, not real clicks), 123 of 600 test rows.")
    assert "m 0.8000" in text and "1 to 3 trials per point" in text and "stress range" in text
    assert "stress" not in details(data.test, summary.assign(rate=1e-6))
    other = replace(data.test, dataset="criteo-sample/fields")
    both = details([data.test, other], pd.concat([summary, summary.assign(dataset=other.dataset, auc_golden=0.7)]))
    assert both.count("Data: ") == 2 and "m 0.7000" in both and both.count("generated") == 1
    assert details(data.test).endswith(", 600 test rows.")


def test_single_errors(evaluator, tmp_path):
    options = {"metrics": ["decision_changed"], "trials": 2, "store": tmp_path / "s"}
    conditions = single_errors(layer_partition(evaluator.model))[:2]
    table = dr.Campaign(evaluator, conditions=conditions, **options).run(progress=False)
    assert "2 trials for each layer" in single_error_details(table, evaluator)
    assert "probability 0.5." in single_error_details(table, evaluator, ["decision_changed"])
    assert single_error_details(table, evaluator, []).endswith("of stratified samples.")
