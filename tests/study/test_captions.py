from dataclasses import replace

import pandas as pd
import pytest

from drsrobust_study.captions import details, single_error_details
from drsrobust_study.components import layer_partition, single_errors

BASE = {"model": "m", "dataset": "synthetic-movielens/full", "rate": 1e-3, "auc_golden": 0.8}


@pytest.fixture
def summary():
    return pd.DataFrame([BASE | {"n": n} for n in (3, 1)])


def test_data_trials_intervals_and_stress_rates(summary, data):
    text = details(data.test.head(123), summary, "", "More.")
    assert text.startswith(
        "Data: synthetic-movielens/full (generated data, not real clicks), 123 of 600 test rows. AUC"
    )
    assert "m 0.8000" in text and "1 to 3 trials per point" in text and "stress range" in text
    assert "Hall's correction of skewness; Stringer's bound where few trials are harmed; where all" in text
    assert text.endswith("ECC. More.")
    assert "stress" not in details(data.test, summary.assign(rate=1e-6))
    drawn = details(replace(data.test, dataset="movielens-1m/full"), summary, points="Colours: means.")
    assert "generated" not in drawn and "Colours: means." in drawn and "bars" not in drawn
    assert details(data.test).endswith(", 600 test rows.")


def test_several_data_sets_are_named_once_each(summary, data):
    other = replace(data.test, dataset="criteo-sample/fields")
    text = details([data.test, other], pd.concat([summary, summary.assign(dataset=other.dataset, auc_golden=0.7)]))
    assert text.count("Data: ") == 2 and text.count("trials per point") == 1
    assert "Data: criteo-sample/fields, 600 test rows. AUC without errors: m 0.7000." in text


def test_single_errors(evaluator, tmp_path):
    from drsrobust import Campaign

    options = {"metrics": ["decision_changed"], "trials": 2, "store": tmp_path / "s"}
    partition = layer_partition(evaluator.model)
    table = Campaign(evaluator, conditions=single_errors(partition)[:2], **options).run(progress=False)
    text = single_error_details(table, evaluator)
    assert "2 trials for each layer or table" in text and "moves by over 0.001" in text and "95%" in text
    changed = single_error_details(table, evaluator, ["decision_changed"])
    assert changed.endswith("samples. Incorrect: a decision on the other side of probability 0.5.")
    assert single_error_details(table, evaluator, []).endswith("of stratified samples.")
