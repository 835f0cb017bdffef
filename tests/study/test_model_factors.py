"""Trends over factors, shares of components, summaries and texts, on frames whose answer is known."""

import itertools

import numpy as np
import pandas as pd
import pytest

from drsrobust_study.factor_effects import component_claims, component_shares, factor_trends, factors_claim
from drsrobust_study.model_factors import deviation_summary, factor_grid

LEVELS = {"width": [64, 128, 256], "depth": [1, 2], "embedding_dim": [8], "density": [0.01]}
CLAIMS = {"width": "above", "depth": "above", "embedding_dim": "above", "density": "differs"}
BITS = {"all": 1000, "mlp": 100, "embedding": 900}


def trials(share, *, full=False, n=40, protocol="corrected", noise=0.02, ber=1e-6, models=1, between=0.0):
    """A table as of `dummy_trials`: share(cell, target) is the mean deviation; a normal number of deviation `between` is added
    to each model of a cell, and one that all cells of a trial have in common."""
    rng, rows = np.random.default_rng(0), []
    common = rng.normal(0, 0.05, n)
    for cell, target, drawn in itertools.product(factor_grid(LEVELS, full=full), BITS, range(models)):
        own = rng.normal(0, between) if between else 0.0
        values = np.clip(share(cell, target) + own + common + rng.normal(0, noise, n), 0, 1)
        for trial, value in enumerate(values):
            row = {"protocol": protocol, **cell, "drawn": drawn, "target": target, "ber": ber, "trial": trial}
            row |= {"n_inputs": 500}
            row |= {"bits": BITS[target], "present": 2 * ber, "bits_flipped": 3.0, "deviated_0.01": value}
            row |= {"deviated_0.1": value / 2, "median_change": np.inf if value > 0.5 else value, "spearman": 1 - value}
            rows.append(row | {"nan_inputs": 0.0, "inf_inputs": 0.0})
    return pd.DataFrame(rows)


def effects(table, **options):
    found = factor_trends(table, CLAIMS, ber=1e-6, **options)
    return found[found["target"] == "all"].set_index("factor")


def test_a_factor_with_which_robustness_falls():
    found = effects(trials(lambda cell, _: 0.2 + 0.1 * np.log2(cell["width"] / 64)))
    width = found.loc["width"]
    assert width["low"] > 0 and width["up"] == 2 == width["steps"] and width["down"] == 0
    assert (width["least"], width["greatest"], width["n"]) == (64, 256, 40)
    assert width["at_least"] == pytest.approx(0.2, abs=0.03) and width["value"] == pytest.approx(0.2, abs=0.02)
    assert width["low"] < 0.2 < width["high"]
    # What a trial has in common at all levels (0.05) does not widen the interval; what differs does: 0.02 sqrt(2) / sqrt(40).
    assert width["high"] - width["low"] == pytest.approx(2 * 2.02 * 0.0045, rel=0.4)
    assert found.loc["depth", "low"] < 0 < found.loc["depth", "high"] and list(found.index) == [
        "width",
        "depth",
    ]  # the others have one level


def test_a_model_that_raised_deviates_in_all_outputs():
    """Of 256 wide cells half of the trials raised: those that did not say nothing of width, and are not all there is."""
    table = trials(lambda *_: 0.3)
    assert effects(table).loc["width", "low"] < 0
    raised = table.assign(
        **{"deviated_0.01": table["deviated_0.01"].mask((table["width"] == 256) & (table["trial"] < 20))}
    )
    width = effects(raised).loc["width"]
    assert width["n"] == 40 and width["value"] == pytest.approx(0.35, abs=0.03) and width["low"] > 0
    mlp = table["deviated_0.01"].mask((table["target"] == "mlp") & (table["trial"] < 20))
    shares = component_shares(table.assign(**{"deviated_0.01": mlp}), ber=1e-6).iloc[0]
    assert shares["n"] == 40 and shares["share"] == pytest.approx(0.65 / 0.95, abs=0.03)


def test_a_change_that_is_the_same_in_all_trials_is_not_certain():
    table = trials(lambda cell, _: 0.2, noise=0.0)
    table["deviated_0.01"] = 0.2 + 0.1 * np.log2(table["width"] / 64)
    width = effects(table).loc["width"]
    u = 1 - 0.05 ** (1 / 40)
    assert (width["low"], width["high"]) == pytest.approx((0.2 - 1.2 * u, 0.2 + 0.8 * u))
    shares = component_shares(table, ber=1e-6).iloc[0]
    assert (
        np.isnan([shares["share_low"], shares["share_high"]]).all()
        and shares["per_bit_mlp_low"] < shares["per_bit_mlp"]
    )


def test_the_unit_is_the_drawn_model():
    """Models of one cell differ by 0.1: 8 of them do not show a difference of 0.05, however many trials each has."""
    one = dict(n=200, models=8, between=0.1)
    assert effects(trials(lambda cell, _: 0.3 + 0.05 * (cell["width"] == 256), **one)).loc["width", "low"] < 0
    width = effects(trials(lambda cell, _: 0.3 + 0.3 * (cell["width"] == 256), **one)).loc["width"]
    assert width["low"] > 0 and width["n"] == 8
    # Student's t of 8 differences whose deviation is 0.1 sqrt(2).
    assert width["high"] - width["low"] == pytest.approx(2 * 2.365 * 0.1 * np.sqrt(2) / np.sqrt(8), rel=0.5)
    summary = deviation_summary(trials(lambda *_: 0.5, **one))
    assert (summary["models"] == 8).all() and (summary["n"] == 1600).all()
    assert (summary["deviated_0.01_high"] - summary["deviated_0.01_low"] > 0.04).all()


def test_all_factors_together():
    trends = factor_trends(trials(lambda cell, _: 0.2 + 0.1 * np.log2(cell["width"] / 64)), CLAIMS, ber=1e-6)
    found = factors_claim(trends).set_index("target").loc["all"]
    assert (found["low"], found["high"], found["n"]) == (0.5, 1, 2)
    assert found["detail"] == "as claimed width; undecided depth"
    both = factors_claim(trends.assign(value=0.2, low=0.1, high=0.3))
    assert set(both["low"]) == {1} and both["detail"].tolist() == ["as claimed width, depth"] * 3
    neither = factors_claim(trends.assign(value=-0.2, low=-0.3, high=-0.1))
    assert set(neither["high"]) == {0} and neither["detail"][0] == "the reverse width, depth"


def test_a_factor_that_goes_back_says_so():
    shares = {64: 0.2, 128: 0.4, 256: 0.3}
    found = effects(trials(lambda cell, _: shares[cell["width"]]))
    assert found.loc["width", ["up", "down"]].tolist() == [1, 1] and found.loc["width", "low"] > 0


def test_a_factor_that_makes_robust_is_not():
    found = effects(trials(lambda cell, _: 0.5 - 0.2 * (cell["depth"] - 1)))
    assert found.loc["depth", "high"] < 0


def test_depends_in_either_direction():
    table = trials(lambda cell, _: 0.5 - 0.2 * (cell["depth"] - 1))
    found = factor_trends(table, {"depth": "differs", "width": "differs"}, ber=1e-6).set_index(["target", "factor"])
    whole = factors_claim(found.reset_index()).set_index("target").loc["all"]
    assert whole["detail"] == "as claimed depth; undecided width" and (whole["low"], whole["high"]) == (0.5, 1)


def test_a_full_grid_averages_over_the_other_factors():
    """Width matters at depth 2 alone: half of it shows in the mean, nothing around the middle (depth 1)."""
    table = trials(lambda cell, _: 0.2 + 0.2 * (cell["depth"] == 2) * np.log2(cell["width"] / 64), full=True)
    assert effects(table).loc["width", "value"] == pytest.approx(0.2, abs=0.02)
    around = table[(table["depth"] == 1) | (table["width"] == 128)]
    assert effects(around).loc["width", "low"] < 0


def test_what_trends_refuse():
    table = trials(lambda *_: 0.2)
    with pytest.raises(ValueError, match="unknown factor 'widht'; did you mean 'width'"):
        factor_trends(table, {"widht": "above"}, ber=1e-6)
    with pytest.raises(ValueError, match="unknown claim of width 'rises'"):
        factor_trends(table, {"width": "rises"}, ber=1e-6)
    with pytest.raises(ValueError, match="unknown rate '1e-05'; did you mean '1e-06'"):
        factor_trends(table, {"width": "above"}, ber=1e-5)


def test_what_components_do_in_total_and_per_bit():
    means = {"all": 0.5, "mlp": 0.3, "embedding": 0.1}
    found = component_shares(trials(lambda _, target: means[target], noise=0.01), ber=1e-6)
    assert len(found) == 4 and (found["effect"] == "more").all() and (found["bits_share"] == 0.1).all()
    row = found.iloc[0]
    assert row["share"] == pytest.approx(0.75, abs=0.03) and row["share_low"] < row["share"] < row["share_high"]
    assert row["per_bit_mlp"] == pytest.approx(0.3 / (2e-6 * 100), rel=0.1)
    assert row["per_bit_embedding"] == pytest.approx(0.1 / (2e-6 * 900), rel=0.15)
    swapped = {"per_bit_mlp": found["per_bit_embedding"], "per_bit_embedding": found["per_bit_mlp"]}
    less = found.assign(protocol="other", effect="less", **swapped)
    claims = component_claims(pd.concat([found.assign(protocol="one"), less])).set_index("protocol")
    assert claims[["value", "low", "high"]].values.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert claims.loc["one", "detail"].startswith("inputs that one wrong bit changes: 1.5e+05 % by mlp, ")


@pytest.mark.parametrize(("silent", "ends"), [("embedding", (1.0, 1.0)), ("mlp", (0.0, 0.0))])
def test_a_component_that_never_did_anything_may_yet(silent, ends):
    table = trials(lambda *_: 0.3)
    table.loc[table["target"] == silent, "deviated_0.01"] = 0.0
    row = component_shares(table, ber=1e-6).iloc[0]
    assert row["share"] == ends[0]
    room = 1 - 0.05 ** (1 / 40)  # what 40 trials may have missed
    reach = room / (room + 0.3)
    width = row["share_high"] - row["share_low"]
    assert width == pytest.approx(reach, abs=0.02) and row["share_low"] <= row["share"] <= row["share_high"]


def test_nothing_deviated_anywhere():
    table = trials(lambda *_: 0.3).assign(**{"deviated_0.01": 0.0})
    found = component_shares(table, ber=1e-6)
    assert found["share"].isna().all() and (found["effect"] == "unclear").all()
    assert component_claims(found.assign(protocol="one"))[["low", "high"]].values.tolist() == [[0, 1]]
    with pytest.raises(ValueError, match="no trials with errors in 'mlp' at 1e-06"):
        component_shares(table[table["target"] != "mlp"], ber=1e-6)


def test_summary():
    table = trials(lambda _, target: {"all": 0.9, "mlp": 0.3, "embedding": 0.0}[target])
    table.loc[table["target"] == "embedding", ["deviated_0.01", "median_change"]] = 0.0
    table.loc[(table["target"] == "mlp") & (table["trial"] == 0), ["deviated_0.01", "deviated_0.1", "spearman"]] = (
        np.nan
    )
    summary = deviation_summary(table).set_index(["width", "depth", "target"])
    row = summary.loc[(128, 1, "all")]
    assert row["median_change"] == row["median_change_low"] == np.inf and row["n"] == 40 and row["raised"] == 0
    assert row["deviated_0.01_low"] < 0.9 < row["deviated_0.01_high"] and row["spearman"] == pytest.approx(
        0.1, abs=0.03
    )
    assert summary.loc[(128, 1, "mlp"), "raised"] == 1 / 40
    quiet = summary.loc[(128, 1, "embedding")]
    assert quiet["deviated_0.01"] == 0 == quiet["median_change"]
    assert quiet["deviated_0.01_high"] == pytest.approx(1 - 0.05 ** (1 / 40))  # all trials alike: not "surely 0"
