from dataclasses import replace

import pandas as pd
import pytest

from drsrobust_study.captions import details, deviation_details, protocol_text, single_error_details
from drsrobust_study.components import layer_partition, single_errors
from drsrobust_study.model_factors import factor_grid

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
    assert (
        "Hall's correction of skewness; Stringer's bound where few trials are harmed; where all" in text
        and text.endswith("ECC. More.")
    )
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


def test_deviation_and_protocols():
    levels = {"width": [64, 128, 256], "depth": [1], "embedding_dim": [8], "density": [0.01]}
    row = {
        "density": 0.01,
        "ber": 1e-6,
        "n": 40,
        "models": 8,
        "n_inputs": 500,
        "target": "all",
        "deviated_0.01": 0.1,
        "present": 2e-6,
    }
    summary = pd.DataFrame([row | {"protocol": name} for name in ("corrected", "as_released")])
    text = deviation_details(summary, factor_grid(levels))
    assert text.startswith("Data: synthetic-dummy (generated inputs, not real clicks), densities 0.01; 500 inputs.")
    assert (
        "8 drawn per cell; 40 trials per point" in text
        and "Middle: width 128, depth 1, embedding dim 8, density 0.01." in text
    )
    assert "at 1e-06 a share of 2e-06 of all bits is wrong" in text
    assert text.endswith("here rates are 1e-06, inputs are 500, which vary far less than error maps.")
    assert "Bars: parts. Middle" in deviation_details(summary, factor_grid(levels), points="Bars: parts.")
    rates = pd.concat([summary.assign(ber=ber) for ber in (1e-8, 5e-8, 1e-7, 5e-7, 1e-6)])
    assert "The study ran" not in deviation_details(rates.assign(n_inputs=10_000), factor_grid(levels, full=True))
    assert protocol_text(summary, ber=1e-6).count("2e-06 of the bits wrong, inputs changed by errors in all") == 2
