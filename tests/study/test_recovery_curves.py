"""Fig. 12: trials on the same maps, shares of the loss, and the values by which S13 to S17 are judged."""

import itertools

import numpy as np
import pandas as pd
import pytest

import drsrobust as dr
from drsrobust_study import figures, recovery_curves
from drsrobust_study.recovery_curves import CLIPPING, CODES, IDEAL, SECDED, TMR


@pytest.fixture(scope="module")
def evaluators():
    data = dr.load_dataset("synthetic-movielens/ids", rows=3000)
    return {name: dr.Evaluator(dr.models.build_model(name, data.schema).eval(), data.test) for name in ("fm", "dcn")}


def test_trials_share_their_maps_and_weights_are_probabilities(evaluators, empty_cache):
    bers = [1e-4, 1e-3]
    for name, evaluator in evaluators.items():
        table = recovery_curves.recovery_trials(evaluator, bers, trials=40, train_seed=3, seed=1)
        kinds = ["none", *([CLIPPING] if name == "dcn" else []), *CODES]
        assert table["mitigation"].unique().tolist() == kinds and set(table["train_seed"]) == {3}
        flips = table.pivot(index=["ber", "stratum", "trial"], columns="mitigation", values="bits_flipped")
        assert (flips.nunique(axis=1) == 1).all()
        plain = table[table["mitigation"] == "none"]
        strata = plain.groupby(["ber", "stratum"]).agg({"weight": "first", "bits_flipped": ["mean", "var", "size"]})
        assert strata["weight", "first"].groupby("ber").sum().tolist() == pytest.approx([1, 1])
        for ber, part in strata.groupby("ber"):
            # The weighted mean number of flips is the number of bits times the rate, however maps are drawn.
            weights, (mean, var, n) = part["weight", "first"], part["bits_flipped"].to_numpy().T
            bits = dr.resolve(evaluator.model).bits
            assert abs(weights @ mean - ber * bits) < 5 * np.sqrt(weights**2 @ (var / n))


def test_protections_by_name(evaluators):
    assert recovery_curves.protections(evaluators["fm"].model)[0] is None
    clip = recovery_curves.protections(evaluators["dcn"].model)[1]
    assert (clip.name, clip.bound, clip.sites, clip.nan) == (CLIPPING, 6.0, ("linear",), "zero")


def trials(model, seed, ber, golden, aucs):
    """Two strata of probability 0.9 and 0.1; mitigation -> AUC of the trials of each."""
    rows = []
    for (name, strata), (number, (stratum, weight)) in itertools.product(
        aucs.items(), enumerate({"0": 0.9, "1+": 0.1}.items())
    ):
        for trial, auc in enumerate(strata[number]):
            place = {"model": model, "dataset": "d", "train_seed": seed, "ber": ber, "mitigation": name}
            rows.append(
                place | {"stratum": stratum, "weight": weight, "trial": trial, "auc": auc, "auc_golden": golden}
            )
    return pd.DataFrame(rows)


def test_points_of_weighted_strata_on_paired_maps():
    aucs = {"none": [[0.80, 0.78], [0.60, 0.50]], CLIPPING: [[0.80, 0.79], [0.70, 0.60]]}
    aucs |= {TMR: [[0.80, 0.80], [0.80, 0.80]]}
    none, clip, tmr = recovery_curves.recovery_points(trials("dcn", 0, 1e-3, 0.8, aucs)).to_dict("records")
    lost = 0.9 * 0.01 + 0.1 * 0.25
    assert none["lost"] == pytest.approx(lost) and none["auc"] == pytest.approx(0.8 - lost) and none["share"] == 0
    gained = 0.9 * 0.005 + 0.1 * 0.1
    assert clip["points"] == pytest.approx(gained) and clip["share"] == pytest.approx(gained / lost)
    assert clip["lost_error"] == pytest.approx(np.hypot(0.9 * 0.01, 0.1 * 0.05))
    assert clip["points_error"] == pytest.approx(0.9 * 0.005)  # gains of the second stratum agree
    share = gained / lost  # per trial: gained - share * lost
    ends = [abs(0.01 - share * 0.02) / 2, abs(share * 0.1) / 2]
    assert clip["share_error"] == pytest.approx(np.hypot(0.9 * ends[0], 0.1 * ends[1]) / lost)
    assert tmr["share"] == pytest.approx(1) and tmr["share_error"] == pytest.approx(0, abs=1e-9)
    assert tmr["ahead"] == pytest.approx(share - 1) and tmr["ahead_error"] == pytest.approx(clip["share_error"])
    broken = recovery_curves.recovery_points(trials("dcn", 0, 1e-3, 0.8, aucs | {TMR: [[0.8, None], [0.8, 0.8]]}))
    assert broken.set_index("mitigation").loc[TMR, ["auc", "share"]].isna().all()


@pytest.fixture
def points():
    rows = []
    shares = {CLIPPING: 0.2, IDEAL: 1.0, SECDED: 0.5, TMR: 0.9}
    for model, ber, seed, (name, share) in itertools.product(
        ("fm", "dcn", "dlrm"), (1e-5, 1e-2), range(3), shares.items()
    ):
        if (model, name) == ("fm", CLIPPING):
            continue
        lost = {1e-5: 0.004, 1e-2: 0.2}[ber]
        share += 0.3 * (model == "fm") * (name == SECDED) + 0.01 * seed
        row = {"model": model, "dataset": "d", "train_seed": seed, "ber": ber, "mitigation": name, "golden": 0.8}
        row |= {"lost": lost, "auc": 0.8 - lost * (1 - share), "auc_error": 0.01, "share": share, "share_error": 0.03}
        row |= {"points": share * lost, "points_error": 0.004, "ahead_error": 0.05}
        rows.append(row | {"ahead": np.nan if model == "fm" else 0.2 + 0.01 * seed - share})
    return pd.DataFrame(rows)


def test_values_are_of_cells_that_lose(points):
    found = recovery_curves.statement_values(points)
    assert set(found["item"]) == {"fm at 0.01", "dcn at 0.01", "at 0.01, fm against dcn"}  # not 1e-5, not dlrm
    assert found.groupby(["statement", "part", "item"]).size().eq(3).all()
    means = found.groupby(["statement", "part", "item"])["value"].mean()
    assert means["S13", "share", "dcn at 0.01"] == pytest.approx(0.21)
    assert means["S13", "AUC points", "dcn at 0.01"] == pytest.approx(0.042)
    assert means["S14", "SECDED, share", "fm at 0.01"] == pytest.approx(0.81)
    assert means["S14", "ideal, AUC points", "fm at 0.01"] == pytest.approx(0.202)
    assert means["S15", "TMR", "dcn at 0.01"] == pytest.approx(-0.7) and ("S15", "TMR", "fm at 0.01") not in means
    assert means["S16", "SECDED", "at 0.01, fm against dcn"] == pytest.approx(0.3)
    assert means["S16", "TMR", "at 0.01, fm against dcn"] == pytest.approx(0)
    assert "S17" not in set(found["statement"])  # without AFM no table-heavy model is clipped
    error = found.set_index(["statement", "part"]).loc[("S16", "TMR"), "error"]
    assert error.tolist() == pytest.approx([np.hypot(0.03, 0.03)] * 3)
    afm = points[points["model"] == "dcn"].assign(model="afm", share=lambda own: own["share"] + 0.1)
    robust = recovery_curves.statement_values(pd.concat([points, afm])).query("statement == 'S17'")
    assert robust["value"].tolist() == pytest.approx([0.1] * 3)


def test_panels_show_means_over_trainings(points):
    data = figures.recovery_curves_data(points)
    row = data[(data["model"] == "dcn") & (data["mitigation"] == CLIPPING) & (data["ber"] == 1e-2)].iloc[0]
    assert row["share"] == pytest.approx(0.21) and row["share_low"] < 0.21 < row["share_high"] and row["trainings"] == 3
    axes = dr.plots.new_panels(2)
    figures.recovery_curves(data, axes[0], model="fm", dataset="d")
    figures.recovery_curves(data, axes[1], model="afm", dataset="d")
    assert [text.get_text() for ax in axes for text in ax.texts] == ["nothing to clip", "not run"]
    drawn = [line.lines[0].get_ydata().tolist() for line in axes[0].containers]
    assert drawn[3] == pytest.approx([0.8 - 0.004 * 0.19, 0.8 - 0.2 * 0.19])
    ax = figures.given_back(data, mitigation=SECDED)
    shown = [line.lines[0].get_ydata().tolist() for line in ax.containers]
    assert shown == [pytest.approx([0.81]), pytest.approx([0.51])]  # of cells that lose over 0.005
