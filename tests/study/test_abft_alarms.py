"""Alarms of forward passes against counting and enumeration, re-execution, and the figure."""

import numpy as np
import pandas as pd
import pytest
import torch

from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, resolve
from drsrobust_extras.protection.abft.linear import ABFTLinear
from drsrobust_study import figures
from drsrobust_study.abft_alarms import PASSES, STAYS, alarm_points, alarm_trials, reexecution, statement_values

BERS = [1e-8, 1e-6, 1e-4]


@pytest.fixture(scope="module")
def trials(trained, data):
    one_pass = Evaluator(trained, data.test.head(128))
    return alarm_trials(one_pass, BERS, trials=4, train_seed=3, seed=1, progress=False)


@pytest.fixture(scope="module")
def points(trials):
    return alarm_points(trials)


def test_the_exact_curve_counts_bits(trained, points):
    """Against the product over all bits in logarithms, and parts that add up to the whole."""
    stored = points[points["error"] == STAYS].set_index(["part", "ber"])
    bits = 32 * sum(parameter.numel() for parameter in trained.parameters())
    assert (
        stored.loc[("all", 1e-6), "bits"] == bits == stored.loc["mlp", "bits"][1e-6] + stored.loc["table", "bits"][1e-6]
    )
    assert stored.loc[("all", 1e-6), "exact"] == pytest.approx(1 - (1 - 1e-6) ** bits, rel=1e-9)
    assert stored["exact"].between(0, 1).all() and (stored.loc["all", "exact"] >= stored.loc["mlp", "exact"]).all()


def test_alarms_are_those_of_a_pass_by_hand(trained, data, trials):
    """The check on a pass of the model with the same map, without a campaign."""
    rows = trials[(trials["part"] == "mlp") & (trials["error"] == STAYS)].set_index(["ber", "trial"])["detected"]
    assert set(rows[1e-4]) == {True} and not rows[1e-8].any()
    check, (batch,) = ABFTLinear.fit(trained), list(data.test.head(128).batches(128))
    space, alarms = resolve(trained, "mlp"), []
    for seed in range(40):
        with BitFlip(1e-4).sample(space, seed=seed).applied(trained), check.attach(trained) as seen, torch.no_grad():
            trained(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
        alarms.append(seen.detected)
    assert np.mean(alarms) > 0.9


def test_reexecution_ends_alarms_of_errors_that_pass_and_no_others(points):
    table = reexecution(points).reset_index().set_index("error")
    assert table.loc[STAYS, ["passes", "alarms", "ended"]].tolist() == [4, 4, 0]
    passing = table.loc[PASSES]
    assert passing["alarms"] == passing["ended"] > passing["passes"] / 2
    counts = points[(points["error"] == PASSES)]["trials"].sum()
    assert passing["passes"] == counts > 4  # the tables and each linear layer


def test_a_restored_weight_raises_no_alarm(trials):
    """Maps without a flip are silent passes."""
    silent = trials[(trials["error"] == STAYS) & (trials["bits_flipped"] == 0)]
    assert len(silent) and not silent["detected"].any()


def test_values(points):
    values = statement_values(points)
    assert values["what"].tolist() == ["alarms at 1e-08", "alarms at 1e-06", "alarms at 0.0001"]
    last = values.iloc[-1]
    assert (last["statement"], last["unit"], last["value"]) == ("S18", 3, 1.0)
    assert last["error"] == pytest.approx((5 / 6 * (1 / 6) / 6) ** 0.5)  # 4 of 4 alarms: 5 of 6


def test_the_figure_draws_measured_and_exact(points):
    ax = figures.abft_alarms(points[points["error"] == STAYS], dataset=points["dataset"].iloc[0], part="mlp")
    line, markers, limit = ax.lines
    mlp = points[(points["part"] == "mlp")].set_index("ber")
    assert markers.get_ydata().tolist() == mlp["alarms"].tolist() and markers.get_xdata().tolist() == BERS
    assert line.get_ydata()[[0, -1]] == pytest.approx(mlp["exact"][[1e-8, 1e-4]].to_numpy())
    assert set(limit.get_xdata()) == {1e-4}
    assert not figures.abft_alarms(pd.DataFrame(columns=points.columns), dataset="d", part="all").lines[:-1]
