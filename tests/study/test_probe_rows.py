"""Numbers of notebook 18: trials in strata, curves, reasons, and effects."""

import numpy as np
import pytest

import drsrobust as dr
import drsrobust_study as study
from drsrobust_extras.experiments.probe_rows import DETECTED, NOT_READ, OUTCOMES
from drsrobust_study.probe_rows import DENSE, PARTS, TABLES, WHOLE

pytestmark = pytest.mark.long

COUNTS = [1, 64, 200]


@pytest.fixture(scope="module")
def measured(trained, data):
    evaluator = dr.Evaluator(trained, data.test.head(300))
    probes = {how: dr.ProbeRows.fit(evaluator, data.train, max(COUNTS), how=how) for how in ("cover", "random")}
    few = dr.ProbeRows(evaluator, probes["cover"].rows.head(64))
    flips = study.probe_rows.flips(evaluator, probes, trials=6, explained=few, seed=3)
    return evaluator, probes, flips


def test_trials_are_in_strata_and_in_one_another(measured):
    """Weights are the shares of all bits; what few rows detect more rows detect; reasons agree with the rows needed."""
    evaluator, _, flips = measured
    partition = dr.campaign.bit_partition(evaluator.model)
    assert flips["weight"].sum() == pytest.approx(1) and flips["seed"].is_unique
    by_class = flips.groupby(["component", "bit_class"])["weight"].sum()
    expected = partition.set_index(["component", "bit_class"])["weight"]
    assert by_class.sort_index().to_numpy() == pytest.approx(expected.sort_index().to_numpy())
    numbers = flips.groupby("stratum").size()
    tables = len(list(name for name, _ in evaluator.model.named_parameters() if "embedding_bags" in name))
    assert numbers.min() >= 6 and len(numbers) == len(partition) - 1 + tables
    top = flips[(flips["bit_class"] == "exponent_top") & (flips["part"] == DENSE)]
    assert top.groupby("component").size().min() >= 60
    assert ((flips["reason"] == DETECTED) == (flips["cover"] <= 64)).all()
    assert (flips.loc[flips["part"] == DENSE, "reason"] != NOT_READ).all()


def by_hand(some, how, probes, count, evaluator):
    """Sum over strata of weight, exact share of words read, and share of the flips in these words that are detected."""
    first, terms = dr.ProbeRows(evaluator, probes.rows.head(count)), []
    for _, stratum in some.groupby("stratum"):
        words = first.coverage(stratum["target"].iloc[0])
        inside = stratum[stratum[f"{how}_reading"] <= count]
        found = (inside[how] <= count).mean() if len(inside) else np.nan
        terms.append((stratum["weight"].sum() * words["read"].sum() / words["words"].sum(), found))
    weights, found = np.array(terms).T
    known = ~np.isnan(found)
    found[~known] = weights[known] @ found[known] / weights[known].sum()
    return weights @ found / some["weight"].sum()


def test_curves_are_weighted_shares_beside_exact_coverage(measured):
    evaluator, probes, flips = measured
    curves = study.probe_rows.curves(flips, evaluator, probes, COUNTS)
    assert len(curves) == len(PARTS) * len(probes) * len(COUNTS)
    for row in curves.itertuples():
        some = flips if row.part == WHOLE else flips[flips["part"] == row.part]
        share = by_hand(some, row.how, probes[row.how], row.rows, evaluator)
        assert row.detected == pytest.approx(share) and row.detected_low <= share <= row.detected_high
        assert row.detected_high <= row.read + 1e-12  # what no row reads cannot be found
    at = curves.set_index(["part", "how", "rows"]).sort_index()
    assert (at.loc[DENSE, "read"] == 1).all()
    assert at.loc[(TABLES, "cover", 200), "read"] > at.loc[(TABLES, "random", 200), "read"]
    covered = dr.ProbeRows(evaluator, probes["random"].rows.head(64)).coverage("embedding")["share"].item()
    assert at.loc[(TABLES, "random", 64), "read"] == covered
    reasons = study.probe_rows.outcomes(flips)
    assert reasons.groupby("part")["share"].sum().to_numpy() == pytest.approx(1)
    unread = reasons.set_index(["part", "outcome"])["share"].xs(NOT_READ, level=1)
    assert unread[WHOLE] == pytest.approx(1 - at.loc[(WHOLE, "cover", 64), "read"], abs=1e-9)  # exact, by the ids
    assert list(reasons["outcome"].unique()) == list(OUTCOMES)
    detected = reasons.set_index(["part", "outcome"]).sort_index()["share"].xs(DETECTED, level=1)
    for part in PARTS:
        assert detected[part] == pytest.approx(at.loc[(part, "cover", 64), "detected"])
    for part in PARTS:
        ax = study.figures.probe_coverage(curves, part=part, claimed=0.94)
    assert ax.get_title(loc="left") == TABLES or ax.get_title() == TABLES
    study.figures.probe_coverage(curves.head(0), part=WHOLE)


def test_noticed_losses_are_weighted_by_what_flips_cost(measured):
    """The lost AUC that goes with detected flips over all that is lost; a detector of all notices all, one of none nothing."""
    evaluator, _, flips = measured
    made = flips.assign(auc_drop=np.where(flips["bit_class"] == "exponent_top", 0.2, 0.002), rows_reached=300)
    every, none = made["trial"] >= 0, made["trial"] < 0
    top, half = made["bit_class"] == "exponent_top", made["trial"] % 2 == 0
    found = {"every": every, "none": none, "top": top, "half": half}
    shares = study.probe_rows.noticed_losses(made, evaluator.rows, found)
    losses = made["weight"] * made["auc_drop"]
    assert shares["every"][0] == 1 and shares["none"][0] == pytest.approx(0)
    for name, flags in found.items():
        share, low, high = shares[name]
        assert share == pytest.approx(losses[flags].sum() / losses.sum()) and low <= share <= high
    assert 0.5 < shares["every"][1] < 1 == shares["every"][2]  # another flip may escape
    assert shares["half"][2] - shares["half"][1] > 0.1


def test_effects(measured):
    """Shares that one row and many detect and read, of several trainings."""
    evaluator, probes, flips = measured
    curves = study.probe_rows.curves(flips, evaluator, probes, COUNTS)
    found = study.probe_rows.effects({0: curves, 1: curves}, [1, 200]).set_index("effect")
    assert len(found) == 2 * (2 * len(PARTS) + 1) * len(probes)
    assert found.loc["noticed 200 cover, whole model", "value"] > 0.9  # nearly all harm is in dense layers
    expected = by_hand(flips, "cover", probes["cover"], 1, evaluator)
    assert found.loc["detected 1 cover, whole model", "value"] == pytest.approx(expected)
    for part in PARTS:
        for n in (1, 200):
            detected, read = (found.loc[f"{name} {n} cover, {part}"] for name in ("detected", "read"))
            assert detected["high"] <= read["value"] + 1e-12 and detected["n"] == 2  # what no row reads cannot be found
    spread = {seed: curves.assign(detected=curves["read"] * share) for seed, share in enumerate((0.1, 0.9, 0.95))}
    table = study.probe_rows.joined(spread)
    assert (table["detected_high"] <= table["read"] + 1e-12).all() and len(table) == len(curves)
