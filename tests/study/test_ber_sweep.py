"""Rate at loss: known curves, raised trials, coverage of intervals; verdicts on C3 and C8."""

import numpy as np
import pandas as pd
import pytest

from drsrobust.introspection.tensors import has_group
from drsrobust.models import build_model
from drsrobust.study.ber_sweep import crossing, knee_verdict, rate_at_loss
from drsrobust.study.bit_sensitivity import bit_verdict, flipped_magnitudes

RATES = [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]


def sweep(losses, model="dlrm", dataset="movielens-1m/ids", rates=RATES, n_sites=10**6, **more):
    """A table of trials from losses [trials, rates] (NaN: raised)."""
    rows = [
        {"trial": t, "ber": ber, "auc_drop": loss, "auc_golden": 0.8, "auc": 0.8 - loss}
        for t, trial in enumerate(losses)
        for ber, loss in zip(rates, trial, strict=True)
    ]
    same = {"model": model, "dataset": dataset, "protocol": "corrected", "target": "all", "error_model": "BitFlip"}
    same |= {"mitigation": "none", "stopping": "fixed"} | more
    return pd.DataFrame(rows).assign(n_sites=n_sites, **same)


def test_the_knee_of_a_known_curve():
    """A loss of 200 times the rate, up to 0.3: exact while it is proportional; half of 0.3 lies between two rates."""
    loss = np.minimum(200 * np.array(RATES), 0.3)
    found = rate_at_loss(sweep([loss] * 3)).set_index("loss")
    assert found.loc["0.001", "knee"] == pytest.approx(5e-6) and found.loc["0.01", "knee"] == pytest.approx(5e-5)
    assert found.loc["half", "auc_drop"] == pytest.approx(0.15)
    assert found.loc["half", "knee"] == pytest.approx(1e-4 + (0.15 - 0.02) / (0.2 - 0.02) * 9e-4)
    # All trials agree. A share of 0.63 of error maps may lose all the 0.8, or raise AUC to 1.
    u = 1 - 0.05 ** (1 / 3)
    rates = np.array(RATES)
    for limit, name in ((0.001, "0.001"), (0.01, "0.01"), (0.15, "half")):
        ends = [crossing((loss + u * (worst - loss))[None], rates, limit)[0] for worst in (0.8, -0.2)]
        assert found.loc[name, ["knee_low", "knee_high"]].tolist() == pytest.approx(ends)
    assert (found["knee_low"] < found["knee"]).all() and (found["knee"] < found["knee_high"]).all()
    assert found.loc["0.001", "errors"] == pytest.approx(5) and (found["n"] == 3).all()


def test_ends_of_the_range():
    rates = np.array([1e-3, 1e-2])
    assert crossing(np.array([[0.0, 0.005]]), rates, 0.01).tolist() == [np.inf]
    assert np.allclose(crossing(np.array([[0.02, 0.3]]), rates, 0.01), 5e-4)  # below the lowest rate: from 0
    assert np.allclose(crossing(np.array([[0.02, 0.005], [0.0, 0.01]]), rates, 0.01), [5e-4, 1e-2])  # the first time


def test_trials_that_raised_are_in_no_mean_but_in_the_interval():
    whole = [[0.0, 0.0, 0.002, 0.02, 0.2, 0.3], [0.0, 0.0, 0.0025, 0.021, 0.2, 0.3]] * 20
    raised = [[0.0, 0.0, np.nan, 0.0205, 0.2, 0.3], *whole]
    one, other = (rate_at_loss(sweep(losses)).set_index("loss").loc["0.001"] for losses in (raised, whole))
    assert one["knee"] == pytest.approx(other["knee"]) and one["knee_high"] == pytest.approx(
        other["knee_high"], rel=0.1
    )
    assert one["knee_low"] < other["knee_low"] / 4  # one map of 41 that loses all
    assert one["raised"] == pytest.approx(1 / 41 / 6) and other["raised"] == 0


def test_where_every_trial_raised_nothing_holds():
    nan = np.nan
    found = rate_at_loss(sweep([[0.0, 0.0, 0.0, 0.0, nan, nan]] * 40)).set_index("loss")
    assert found.loc["half", "knee"] == pytest.approx(1e-4 + 0.15 / 0.8 * 9e-4) and found.loc["half", "raised"] == 1 / 3
    rows = verdicts(sweep([[nan] * 6] * 40, n_sites=10**8))
    assert rows["verdict"].iloc[0] == "partly" and rows["detail"].iloc[0].startswith(
        "at no rate with 100 flips clearly"
    )


def test_mitigations_and_error_models_have_knees_of_their_own():
    parts = [sweep([STEEP, LATE] * 4, mitigation=name) for name in ("none", "ECC")]
    parts += [sweep([LATE, STEEP] * 4, error_model="BitFlip(bits=[30])")]
    found = rate_at_loss(pd.concat(parts))
    keys = found[["error_model", "mitigation"]].drop_duplicates().values.tolist()
    assert keys == [["BitFlip", "none"], ["BitFlip", "ECC"], ["BitFlip(bits=[30])", "none"]] and len(found) == 9
    pd.testing.assert_frame_equal(rate_at_loss(parts[0]), found[:3])
    differ = knee_verdict(pd.concat(parts), found).set_index("reading")["reason"]
    assert differ["models"] == "one model only" and differ["data sets"] == "one data set only"


def test_a_model_is_not_compared_with_itself():
    """The knee of one lies within the other's interval: it has the least high end and the greatest low one."""
    ends = [("wide", 1e-5, 1e-6, 1e-4), ("narrow", 1e-5, 0.9e-5, 1.1e-5)]
    found = rate_at_loss(pd.concat([sweep([STEEP, LATE] * 4, model) for model, *_ in ends]))
    for model, knee, low, high in ends:
        found.loc[found["model"] == model, ["knee", "knee_low", "knee_high"]] = knee, low, high
    table = pd.concat([sweep([STEEP, LATE] * 4, model) for model, *_ in ends])
    row = knee_verdict(table, found).set_index("reading").loc["models"]
    assert row["verdict"] == "not" and row["detail"].count("wide") == row["detail"].count("narrow") == 1
    assert row["low"] < 1 < row["high"]


def test_the_interval_covers():
    """Of 100 trials, one in ten loses 0.2 from a rate of its own on: the knee of the truth lies in most intervals."""
    rng = np.random.default_rng(0)

    def draw(trials):
        begins = 10 ** rng.uniform(-7, -3, trials)
        hit = rng.random(trials) < 0.5
        return 0.2 * ((np.array(RATES) >= begins[:, None]) & hit[:, None])

    truth = rate_at_loss(sweep(draw(4_000))).set_index("loss")["knee"]["0.01"]
    inside = 0
    for _ in range(40):
        row = rate_at_loss(sweep(draw(100))).set_index("loss").loc["0.01"]
        inside += row["knee_low"] <= truth <= row["knee_high"]
    assert inside >= 33  # 95 % of 40 are 38


def test_wrong_tables_are_refused():
    table = sweep([[0.0] * 6] * 2)
    with pytest.raises(ValueError, match="some trials lack a rate"):
        rate_at_loss(table.drop(index=3))
    with pytest.raises(ValueError, match="must hold trials of BitFlip"):
        rate_at_loss(table.assign(error_model="FixedCount(k=1)"))
    with pytest.raises(ValueError, match="corrected, all, BitFlip, none: trials were stopped by precision"):
        rate_at_loss(table.assign(stopping="precision"))
    with pytest.raises(ValueError, match="a trial has a rate twice"):
        rate_at_loss(pd.concat([table, table]))
    for wrong in ([], [0.0, 0.1], [0.1, 0.01]):
        with pytest.raises(ValueError, match="losses must ascend from above 0"):
            rate_at_loss(table, wrong)


STEEP, LATE = [0, 0, 0.002, 0.02, 0.2, 0.3], [0, 0, 0, 0.002, 0.1, 0.3]


def near(losses):
    """20 trials that nearly agree: losses [rates] give or take up to 5 %, and up to 2e-5 more."""
    spread = np.linspace(-1, 1, 20)[:, None]
    return np.array(losses) * (1 + 0.05 * spread) + 1e-5 * (1 + spread)


def verdicts(*parts):
    table = pd.concat(parts)
    return knee_verdict(table, rate_at_loss(table))


def test_verdicts():
    parts = [sweep(near(STEEP), n_sites=10**8), sweep(near(LATE), "fm", n_sites=10**8)]
    rows = verdicts(*parts).set_index("reading")
    assert rows.loc["knee", "verdict"].tolist() == ["reproduced"] * 2
    assert rows.loc["knee", "value"].tolist() == rate_at_loss(pd.concat(parts)).query("loss == 'half'")["knee"].tolist()
    assert (
        rows.loc["knee", "detail"]
        .iloc[0]
        .startswith("mean loss 1e-05, clearly under 0.001, at 1e-06 (2,000 flips in all)")
    )
    differ = rows.loc["models"]
    assert differ["verdict"] == "reproduced" and 1 < differ["low"] < differ["value"] < differ["high"]
    assert "dlrm 5.0e-05" in differ["detail"] and "fm 1.7e-04" in differ["detail"]
    assert rows.loc["data sets", "reason"] == "one data set only" and np.isnan(rows.loc["data sets", "value"])
    parts += [sweep(near(LATE), dataset="criteo-kaggle/fields"), sweep(near(LATE), "fm", "criteo-kaggle/fields")]
    row = verdicts(*parts).set_index("reading").loc["data sets"]
    assert row["verdict"] == "reproduced" and row["dataset"] == "movielens-1m/ids, criteo-kaggle/fields"
    assert row["detail"].startswith("dlrm, 0.01 AUC lost: movielens-1m/ids 5.0e-05")


def test_rates_that_hit_nothing_are_no_test():
    """2,000 flips at the rate where AUC still holds, and 20."""
    rows = [verdicts(sweep(near(STEEP), n_sites=n_sites)).iloc[0] for n_sites in (10**8, 10**6)]
    assert [row["verdict"] for row in rows] == ["reproduced", "partly"]
    alike = verdicts(sweep([STEEP] * 20, n_sites=10**8)).iloc[0]
    assert alike["verdict"] == "partly"  # 20 trials that agree do not show that 1 in 100 loses nothing
    assert rows[1]["detail"] == "at no rate with 100 flips clearly under 0.001 lost, half is lost up to 0.01"


def test_a_knee_that_was_not_reached_counts_where_no_other_differs():
    never = [0, 0, 0, 0, 0.001, 0.005]
    row = verdicts(sweep(near(STEEP)), sweep(near(never), "fm")).set_index("reading").loc["models"]
    assert row["verdict"] == "reproduced" and row["detail"].endswith("fm not up to the highest rate")
    row = (
        verdicts(sweep(near(STEEP)), sweep(near(LATE), "dcn"), sweep(near(never), "fm"))
        .set_index("reading")
        .loc["models"]
    )
    assert row["verdict"] == "reproduced" and "dcn 1.7e-04" in row["detail"]


def test_a_knee_that_no_trial_reached_may_be_reached():
    """20 trials that lose nothing at any rate: 1 in 7 may lose all, which is more than 0.01 on average."""
    row = rate_at_loss(sweep([[0.0] * 6] * 20)).set_index("loss").loc["0.01"]
    assert row["knee"] == row["knee_high"] == np.inf and row["knee_low"] < 1e-7
    row = verdicts(sweep(near(STEEP)), sweep([[0.0] * 6] * 20, "fm")).set_index("reading").loc["models"]
    assert row["verdict"] == "not"


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
    rows = verdicts(sweep(near(losses)))
    assert rows["verdict"].tolist() == [verdict, "not tested", "not tested"]
    assert np.isnan(rows["value"].iloc[0]) == (max(losses) < 0.15)  # half is not lost


def test_what_bit_30_makes_of_weights(data):
    model = build_model("wide_deep", data.schema)
    assert has_group(model, "as_released")
    found = flipped_magnitudes([model]).set_index("target")
    assert found.loc["embedding", "flipped_median"] == pytest.approx(
        found.loc["embedding", "median"] * 2.0**128, rel=0.01
    )
    assert found.loc["deep_mlp", "infinite"] > 0  # BatchNorm's ones


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
    with pytest.raises(ValueError, match="flips of bit 30 and of other bits"):
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
