"""Means over trained models: intervals that hold for another training seed."""

import numpy as np
import pandas as pd
import pytest

from drsrobust.statistics import across_models
from drsrobust.statistics.intervals import mean_interval


def summary(value, half, **others):
    row = {"model": "fm", "dataset": "d", "rate": 1e-4, "target": "all", "mitigation": "none", "n": 50}
    row |= {"auc_drop": value, "auc_drop_low": value - half, "auc_drop_high": value + half, "auc_golden": 0.8}
    return pd.DataFrame([row | others])


@pytest.mark.long
@pytest.mark.parametrize(("between", "within"), [(0.05, 0.01), (0.01, 0.05), (0.0, 0.05)])
def test_the_interval_holds_for_another_model(between, within):
    """Losses of models are normal around 0.2; of each, 20 trials are seen. 400 repetitions, as 400 rates."""
    rng, frames = np.random.default_rng(0), [[], [], []]
    for rate in range(400):
        for frame, truth in zip(frames, rng.normal(0.2, between, 3), strict=True):
            mean, low, high = mean_interval(rng.normal(truth, within * np.sqrt(20), 20), 0.95, None)
            frame.append(summary(mean, 0.0, auc_drop_low=low, auc_drop_high=high, rate=rate))
    found = across_models([pd.concat(frame) for frame in frames], ["auc_drop"])
    inside = (found["auc_drop_low"] <= 0.2) & (found["auc_drop_high"] >= 0.2)
    assert len(found) == 400 and inside.mean() >= 0.92


def test_one_model_is_as_it_was():
    found = across_models([summary(0.2, 0.05), summary(0.3, 0.05, model="dlrm")], ["auc_drop"])
    assert found["train_seeds"].tolist() == [1, 1]
    assert found[["auc_drop", "auc_drop_low", "auc_drop_high"]].to_numpy() == pytest.approx(
        np.array([[0.2, 0.15, 0.25], [0.3, 0.25, 0.35]])
    )


def test_numbers_of_several_models_are_means():
    row = across_models([summary(0.2, 0.05), summary(0.3, 0.05, auc_golden=0.7)], ["auc_drop"]).iloc[0]
    assert (row["n"], row["auc_drop"], row["auc_golden"]) == pytest.approx((100, 0.25, 0.75))


def test_two_rows_of_one_condition_are_refused():
    twice = pd.concat([summary(0.2, 0.05)] * 2)
    with pytest.raises(ValueError, match="two rows of .*'mitigation': 'none'.*names of their own"):
        across_models([twice])


def test_the_method_is_named():
    one, other = (summary(value, 0.05, interval="Stringer's bound") for value in (0.2, 0.3))
    name = across_models([one, other], ["auc_drop"])["interval"].iloc[0]
    assert name == "Student's t over models; of each model: Stringer's bound"
    plain = [frame.assign(interval="Student's t") for frame in (one, other)]
    assert across_models(plain, ["auc_drop"])["interval"].tolist() == ["Student's t over models"]
    assert across_models([one], ["auc_drop"])["interval"].tolist() == ["Stringer's bound"]
