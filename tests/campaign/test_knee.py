"""Where the mean loss passes a threshold: known curves, raised trials, intervals that cover, and what is said of claim C3."""

import numpy as np
import pandas as pd
import pytest

from drsrobust.campaign import bit_verdict, flipped_magnitudes, has_group, knee_verdict, knees, sweep_caption
from drsrobust.campaign.knee import crossing
from drsrobust.models import build_model

RATES = [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]


def sweep(losses, model="dlrm", dataset="movielens-1m/ids", rates=RATES, places=10**6):
    """A table of trials from losses [trials, rates] (NaN: raised)."""
    rows = [
        {"trial": t, "ber": ber, "auc_drop": loss, "auc_golden": 0.8, "auc": 0.8 - loss}
        for t, trial in enumerate(losses)
        for ber, loss in zip(rates, trial, strict=True)
    ]
    same = {"model": model, "dataset": dataset, "protocol": "corrected", "target": "all", "error_model": "BitFlip"}
    return pd.DataFrame(rows).assign(places=places, **same)


def test_the_knee_of_a_known_curve():
    """A loss of 200 times the rate, up to 0.3: exact while it is proportional; half of 0.3 lies between two rates."""
    loss = np.minimum(200 * np.array(RATES), 0.3)
    found = knees(sweep([loss] * 3)).set_index("loss")
    assert found.loc["0.001", "knee"] == pytest.approx(5e-6) and found.loc["0.01", "knee"] == pytest.approx(5e-5)
    assert found.loc["half", "auc_drop"] == pytest.approx(0.15)
    assert found.loc["half", "knee"] == pytest.approx(1e-4 + (0.15 - 0.02) / (0.2 - 0.02) * 9e-4)
    assert (found["knee_low"] == found["knee"]).all() and (
        found["knee_high"] == found["knee"]
    ).all()  # all trials agree
    assert found.loc["0.001", "errors"] == pytest.approx(5) and (found["n"] == 3).all()


def test_ends_of_the_range():
    rates = np.array([1e-3, 1e-2])
    assert crossing(np.array([[0.0, 0.005]]), rates, 0.01).tolist() == [np.inf]
    assert np.allclose(crossing(np.array([[0.02, 0.3]]), rates, 0.01), 5e-4)  # below the lowest rate: from 0
    assert np.allclose(crossing(np.array([[0.02, 0.005], [0.0, 0.01]]), rates, 0.01), [5e-4, 1e-2])  # the first time


def test_trials_that_raised_are_left_out():
    whole = [[0.0, 0.0, 0.002, 0.02, 0.2, 0.3]] * 4
    raised = [[0.0, 0.0, np.nan, 0.02, 0.2, 0.3], *whole]
    assert np.allclose(knees(sweep(raised))["knee"], knees(sweep(whole))["knee"])


def test_the_interval_covers():
    """Of 100 trials, one in ten loses 0.2 from a rate of its own on: the knee of the truth lies in most intervals."""
    rng = np.random.default_rng(0)

    def draw(trials):
        begins = 10 ** rng.uniform(-7, -3, trials)
        hit = rng.random(trials) < 0.5
        return 0.2 * ((np.array(RATES) >= begins[:, None]) & hit[:, None])

    truth = knees(sweep(draw(200_000)[:20_000])).set_index("loss")["knee"]["0.01"]
    inside = 0
    for _ in range(40):
        row = knees(sweep(draw(100))).set_index("loss").loc["0.01"]
        inside += row["knee_low"] <= truth <= row["knee_high"]
    assert inside >= 33  # 95 % of 40 are 38


def test_wrong_tables_are_told():
    table = sweep([[0.0] * 6] * 2)
    with pytest.raises(ValueError, match="some trials lack a rate"):
        knees(table.drop(index=3))
    with pytest.raises(ValueError, match="no trial of BitFlip"):
        knees(table.assign(error_model="FixedCount(k=1)"))
    for wrong in ([], [0.0, 0.1], [0.1, 0.01]):
        with pytest.raises(ValueError, match="they must ascend from above 0"):
            knees(table, wrong)


STEEP, LATE = [0, 0, 0.002, 0.02, 0.2, 0.3], [0, 0, 0, 0.002, 0.1, 0.3]


def verdicts(*parts):
    table = pd.concat(parts)
    return knee_verdict(table, knees(table))


def test_verdicts():
    parts = [sweep([STEEP] * 3, places=10**8), sweep([LATE] * 3, "fm", places=10**8)]
    rows = verdicts(*parts).set_index("reading")
    assert rows.loc["knee", "verdict"].tolist() == ["reproduced"] * 2
    assert rows.loc["knee", "value"].tolist() == knees(pd.concat(parts)).query("loss == 'half'")["knee"].tolist()
    assert rows.loc["knee", "detail"].iloc[0].startswith("mean loss 0, surely under 0.001, at 1e-06 (300 flips in all)")
    differ = rows.loc["models"]
    assert differ["verdict"] == "reproduced" and differ["value"] == pytest.approx(differ["low"])  # all trials agree
    assert "dlrm 5.0e-05" in differ["detail"] and "fm 1.7e-04" in differ["detail"]
    assert rows.loc["data sets", "verdict"] == "one data set only" and np.isnan(rows.loc["data sets", "value"])
    parts += [sweep([LATE] * 3, dataset="criteo-kaggle/fields"), sweep([LATE] * 3, "fm", "criteo-kaggle/fields")]
    row = verdicts(*parts).set_index("reading").loc["data sets"]
    assert row["verdict"] == "reproduced" and row["dataset"] == "movielens-1m/ids, criteo-kaggle/fields"
    assert row["detail"].startswith("dlrm, 0.01 AUC lost: movielens-1m/ids 5.0e-05")


def test_rates_that_hit_nothing_are_no_test():
    """300 flips at the rate where AUC still holds, and 3."""
    rows = [verdicts(sweep([STEEP] * 3, places=places)).iloc[0] for places in (10**8, 10**6)]
    assert [row["verdict"] for row in rows] == ["reproduced", "partly"]
    assert rows[1]["detail"] == "at no rate with 100 flips surely under 0.001 lost, half is lost up to 0.01"


def test_a_knee_that_was_not_reached_counts_where_no_other_differs():
    never = [0, 0, 0, 0, 0.001, 0.005]
    row = verdicts(sweep([STEEP] * 3), sweep([never] * 3, "fm")).set_index("reading").loc["models"]
    assert row["verdict"] == "reproduced" and row["detail"].endswith("fm not up to the highest rate")
    row = (
        verdicts(sweep([STEEP] * 3), sweep([LATE] * 3, "dcn"), sweep([never] * 3, "fm"))
        .set_index("reading")
        .loc["models"]
    )
    assert row["verdict"] == "reproduced" and "dcn 1.7e-04" in row["detail"]


def test_models_that_do_not_surely_differ():
    rng = np.random.default_rng(0)
    both = [sweep(np.where(rng.random((8, 1)) < 0.5, STEEP, LATE), model) for model in ("dlrm", "fm")]
    row = verdicts(*both).set_index("reading").loc["models"]
    assert row["verdict"] == "not" and row["low"] < 1 < row["high"]


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [([0.1] * 6, "not"), ([0.1] * 5 + [0.3], "partly"), ([0, 0, 0, 0, 0, 0.01], "partly")],
)
def test_a_curve_without_a_knee(losses, verdict):
    rows = verdicts(sweep([losses] * 3))
    assert rows["verdict"].tolist() == [verdict, "one model only", "one data set only"]
    assert np.isnan(rows["value"].iloc[0]) == (max(losses) < 0.15)  # half is not lost


def test_groups_and_caption(trained, judge):
    import drsrobust as dr

    assert not has_group(trained, "as_released")
    table = dr.Campaign(judge, errors=[dr.BitFlip(ber) for ber in (1e-6, 1e-5)], trials=3).run(show=False)
    summary = dr.summarise(table)
    both = pd.concat([summary, summary.assign(dataset="criteo-sample/fields")])
    other = type(
        "Rows", (), {"dataset": "criteo-sample/fields", "whole": 10, "part": "test", "__len__": lambda _: 10}
    )()
    text = sweep_caption(both, [judge.split, other])
    assert (
        text.count("Data: ") == 2 and text.count("3 trials per point") == 1 and "criteo-sample/fields, 10 test" in text
    )
    text = sweep_caption(both, [judge.split, other], marks="Knee: there.")
    assert text.count("Knee: there.") == 1 and "bars" not in text


def test_what_bit_30_makes_of_weights(data):
    model = build_model("wide_deep", data.schema)
    assert has_group(model, "as_released")
    found = flipped_magnitudes([model]).set_index("target")
    assert found.loc["embedding", "flipped_median"] == pytest.approx(
        found.loc["embedding", "median"] * 2.0**128, rel=0.01
    )
    assert found.loc["deep_mlp", "infinite"] > 0  # BatchNorm's ones
    with pytest.raises(ValueError, match="bit is 32"):
        flipped_magnitudes([model], bit=32)


@pytest.mark.parametrize(
    ("losses", "low", "most", "size"),
    [
        ({30: 0.2, 29: 0.0}, 1e37, "reproduced", "reproduced"),
        ({30: 0.2, 29: 0.0}, 1e30, "reproduced", "partly"),
        ({30: 0.0, 29: 0.2}, 1e37, "not", "reproduced"),
    ],
)
def test_which_bit_dominates(losses, low, most, size):
    rows = [{"model": "m", "target": "t", "bit": b, "auc_drop": x} for b, x in losses.items()]
    data = pd.DataFrame(rows).assign(auc_drop_low=lambda f: f["auc_drop"] - 0.01, auc_drop_high=lambda f: f["auc_drop"])
    found = bit_verdict(data, pd.DataFrame({"flipped_median": [low, 1e38]}))
    assert found["verdict"].tolist() == [most, size] and found["value"].tolist() == [most == "reproduced", low]
    assert "of 1 components" in found["detail"][0] and f"{low:.1e} to 1.0e+38" in found["detail"][1]
    with pytest.raises(ValueError, match="of bit 30 and of others"):
        bit_verdict(data[data["bit"] == 30], pd.DataFrame({"flipped_median": [low]}))


def test_one_component_where_another_bit_does_more():
    rows = [
        {"target": t, "bit": b, "auc_drop": x}
        for t, b, x in (("a", 30, 0.2), ("a", 29, 0), ("b", 30, 0), ("b", 29, 0.2))
    ]
    data = pd.DataFrame(rows).assign(
        model="m", auc_drop_low=lambda f: f["auc_drop"], auc_drop_high=lambda f: f["auc_drop"]
    )
    found = bit_verdict(data, pd.DataFrame({"flipped_median": [1.0, 2.0]}))
    assert found["verdict"].tolist() == ["partly", "not"] and found["value"][0] == 0.5
