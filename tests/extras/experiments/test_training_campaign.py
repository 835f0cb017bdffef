"""A campaign of errors during training: one table however it is run, and its columns."""

from concurrent.futures import ProcessPoolExecutor

import pandas as pd
import pytest

import drsrobust as dr
from drsrobust._processes import process_context
from drsrobust.campaign import StoreError, merge
from drsrobust_extras.experiments.training_errors import AdamState, GradientNorm, LossSpike, Recompute, RollBack, Skip
from drsrobust_extras.experiments.training_errors.campaign import TrainingCampaign, modes
from drsrobust_extras.experiments.training_errors.trial import Trials

SETTINGS = dr.training.Settings(batch_size=64)
GRID = {
    "targets": ["over_mlp", dr.OptimizerState(glob="over*.exp_avg_sq"), dr.Gradients("over*"), dr.Inputs("dense")],
    "errors": [dr.SingleBit(30), dr.FixedCount(1, bits="mantissa")],
    "detectors": [GradientNorm(), LossSpike(), AdamState()],
    "actions": [Skip(), Recompute(), RollBack(every=3)],
    "trials": 3,
    "warm_up": 20,
    "evaluate_at": (4, 10),
    "when": range(3),
    "settings": SETTINGS,
}


def campaign(data, folder, **options):
    return TrainingCampaign("dlrm", data, store=folder, **(GRID | options))


def same(table, expected):
    pd.testing.assert_frame_equal(table, expected, check_exact=True)


@pytest.fixture(scope="module")
def stored(data, tmp_path_factory):
    return tmp_path_factory.mktemp("training") / "one"


@pytest.fixture(scope="module")
def expected(data, stored):
    return campaign(data, stored).run(workers=1, progress=False)


def test_a_row_for_each_trial(expected):
    assert len(expected) == 4 * 2 * 3 and not expected.duplicated(["target", "error_model", "trial"]).any()
    assert set(expected["bits_flipped"]) == {1} and set(expected["step"]) == {0, 1, 2}
    assert (expected["auc_drop"] == expected["auc_golden"] - expected["auc"]).all()
    assert expected["auc_golden"].nunique() == 1
    assert set(expected["bit"][expected["error_bit"] == 30]) == {30}
    dense = expected["target"] == "Inputs(dense)"
    assert (expected["component"] == dense.map({True: "dense", False: "over_mlp"})).all() and dense.any()
    computed = expected[expected["target"].isin(["Gradients(over*)", "Inputs(dense)"])]
    noticed = computed[computed["alarm_gradient_norm"] == 1]
    assert len(noticed) and (noticed["auc_recompute"] == noticed["auc_golden"]).all()
    unnoticed = expected[expected["alarm_gradient_norm"].isna()]
    assert len(unnoticed) and (unnoticed["auc_recompute"] == unnoticed["auc"]).all()


def test_the_first_evaluation_is_that_of_the_end_of_a_shorter_campaign(data, expected, tmp_path):
    short = campaign(data, tmp_path / "s", evaluate_at=4, actions=()).run(workers=1, progress=False)
    assert (short["auc_drop"] == short["auc_drop_first"]).all()
    assert (short["auc_drop"].to_numpy() == expected["auc_drop_first"].to_numpy()).all()


@pytest.mark.long
def test_shards(data, expected, tmp_path):
    for shard in ("0/2", "1/2"):
        campaign(data, tmp_path / "s").run(shard=shard, workers=1, progress=False)
    same(merge(campaign(data, tmp_path / "s")), expected)


@pytest.mark.long
def test_an_interrupted_campaign_goes_on_in_another_process(data, expected, tmp_path, monkeypatch):
    row, done = Trials.row, []

    def interrupted(self, run, condition, trial):
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(trial)
        return row(self, run, condition, trial)

    monkeypatch.setattr(Trials, "row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        campaign(data, tmp_path / "s").run(workers=1, progress=False)
    monkeypatch.undo()
    again = campaign(data, tmp_path / "s")
    assert len(again.table()) == 5
    with ProcessPoolExecutor(1, mp_context=process_context()) as executor:
        same(again.run(executor=executor, progress=False), expected)


def test_another_campaign_is_refused(data, expected, stored):
    with pytest.raises(StoreError, match="they differ in detectors"):
        campaign(data, stored, detectors=[GradientNorm(factor=6.0), LossSpike(), AdamState()])


def test_modes():
    curves = pd.DataFrame(
        [
            ("spike and degrade", "ok", 0.006, 0.0, 3),
            ("spike and recover", "ok", 0.005, 0.4, 1),
            ("silent degradation", "ok", 0.006, 0.006, None),
            ("silent degradation", "ok", 0.006, 0.006, 4),  # too late for a spike
            ("gradual drift", "ok", 0.006, 0.005, None),
            ("harmless", "ok", 0.005, 0.3, None),
            ("harmless", "ok", -0.1, 0.0, None),
            ("raised", "raised", None, None, 1),
        ],
        columns=["expected", "outcome", "auc_drop", "auc_drop_first", "alarm"],
    ).astype({"alarm": "Int64"})
    assert modes(curves, ["alarm"]).tolist() == curves["expected"].tolist()
    assert modes(curves, ["alarm"], harmful=0.5).tolist()[:3] == ["spike and recover", "spike and recover", "harmless"]
    assert modes(curves, []).tolist()[:2] == ["gradual drift", "harmless"]


def test_alarms_without_errors_and_time(data, tmp_path):
    training = campaign(data, tmp_path / "s", detectors=[GradientNorm(), GradientNormOfNothing()], actions=())
    found = training.false_alarms(30).set_index("detector")
    assert found["alarms"].to_dict() == {"gradient_norm": 0, "always": 30} and (found["steps"] == 30).all()
    assert found.loc["always", "per_10000"] == 1e4 and 1000 < found.loc["gradient_norm", "per_10000_high"] < 1500
    times = training.overhead(2)
    assert times["detector"].tolist() == ["gradient_norm", "always"]
    assert (times[["plain_ms", "step_ms"]] > 0).all(axis=None)


class GradientNormOfNothing(GradientNorm):
    name = "always"

    def alarm(self, reading, past):
        return True
