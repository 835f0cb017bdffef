"""Figures of checksums: which numbers they draw, and where."""

import matplotlib as mpl
import pandas as pd
import pytest

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip
from drsrobust.mitigation import ABFTLinear
from drsrobust.statistics import summarise
from drsrobust.statistics.intervals import wilson
from drsrobust_study import figures
from drsrobust_study.abft import claims, noticed_shares, repair_claims
from drsrobust_study.rounding import threshold_claim

mpl.use("Agg")


@pytest.fixture
def found():
    rows = [
        ("ABFT Linear (provable)", "dlrm", "over_mlp", 30, 2000, 2000, 2000, 2000, 0, 100_000),
        ("ABFT Linear (provable)", "dlrm", "over_mlp", 0, 10, 0, 0, 0, 0, 100_000),
        ("ABFT EmbeddingBag", "dlrm", "embedding", 31, 3000, 2000, 1998, 1998, 1, 100_000),
        ("ABFT EmbeddingBag", "dlrm", "embedding", 1, 100, 50, 0, 0, 1, 100_000),
        ("ABFT EmbeddingBag", "other", "", -1, 0, 0, 0, 0, 0, 5000),
    ]
    columns = ["mitigation", "model", "component", "bit", "injections", "significant", "significant_detected"]
    return pd.DataFrame(rows, columns=[*columns, "detected", "false_alarms", "clean_rows"]).assign(third=1)


@pytest.fixture
def runs():
    rows = []
    for mitigation, model, operator in (("ABFT Linear (provable)", 5.0, 10.0), ("ABFT EmbeddingBag", 2.0, 40.0)):
        for scope, percent in (("model", model), ("operator", operator)):
            for off in (-1.0, 0.0, 4.0):
                rows.append((mitigation, "dlrm", scope, 2048, 1.0, 1 + percent / 100, percent + off))
    columns = ["mitigation", "model", "scope", "batch", "plain_ms", "protected_ms", "overhead_percent"]
    return pd.DataFrame(rows, columns=columns)


def test_detection(found):
    found = pd.concat([found, found.head(1).assign(component="dense_mlp", significant_detected=1999)])
    data = figures.abft_detection_data(noticed_shares(found))
    assert len(data) == 4 and data["mitigation"].iloc[0] == "ABFT Linear (provable)"
    top = data[data["bit"] == 30].iloc[0]  # over both components
    assert top[["injections", "significant", "significant_detected"]].tolist() == [4000, 4000, 3999]
    ax = figures.abft_detection(data, mitigations=["ABFT EmbeddingBag", "ABFT Linear (provable)"], published=0.95)
    heights = {bars.get_label(): [bar.get_height() for bar in bars.patches] for bars in ax.containers}
    assert heights["ABFT EmbeddingBag: detected"] == pytest.approx([0.0, 1998 / 3000])
    assert heights["ABFT EmbeddingBag: missed"] == pytest.approx([0.5, 2 / 3000])
    assert heights["ABFT Linear (provable): missed"] == pytest.approx([0.0, 1 / 4000])
    assert ax.get_title(loc="left") == "dlrm" and ax.get_xlim()[0] > ax.get_xlim()[1]
    share, low, high = (f"{100 * end:.3g}" for end in wilson(3999, 4000))
    legend = [text.get_text() for text in (ax.get_legend() or ax.figure.legends[0]).get_texts()]
    assert f"ABFT Linear (provable): 3,999 of 4,000 harmful errors detected, {share} [{low}, {high}] %" in legend
    assert "(published: over 95 % of harmful errors)" in legend and "harmful, missed" in legend
    with pytest.raises(ValueError, match="no column 'noticed_low'"):
        figures.abft_detection_data(found)


def test_overhead(runs):
    data = figures.abft_overhead_data(runs)
    assert data["overhead_percent"].tolist() == [5, 10, 2, 40]
    assert data["lowest"].tolist() == [4, 9, 1, 39] and data["highest"].tolist() == [9, 14, 6, 44]
    for scope, values in (("model", [5, 2]), ("operator", [10, 40])):
        ax = figures.abft_overhead(data, scope=scope, published={"ABFT Linear": 20})
        points = [x for line in ax.lines if line.get_marker() == "o" for x in line.get_xdata()]
        assert points == values and ax.get_xlim()[1] > max(values)
        assert "published: under 20 %" in [text.get_text().strip() for text in ax.texts]


def test_repair():
    auc = {"auc": [0.8, 0.6, 0.8, 0.8], "auc_low": [0.79, 0.5, 0.8, 0.79], "auc_high": [0.81, 0.7, 0.8, 0.8]}
    loss = {
        "auc_drop": [0.0, 0.2, 0.0, 0.0],
        "auc_drop_low": [-0.01, 0.1, 0.0, 0.0],
        "auc_drop_high": [0.01, 0.3, 0.0, 0.01],
    }
    shared = {"model": "dlrm", "dataset": "d", "mitigation": ["none", "none", "both", "both"]}
    summary = pd.DataFrame(shared | auc | loss | {"ber": [1e-5, 1e-3] * 2, "n": 3, "auc_golden": 0.8})
    single = pd.DataFrame(shared | {"auc_drop": [-0.1, 0.01, 0, 1e-9]})
    data = figures.abft_repair_data(summary, single)
    assert data[data["panel"] == "single"]["change"].tolist() == [0, 1e-9, 0.01, 0.1]
    ax = figures.abft_repair(data)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[:2] == ["no protection", "rows and layers repaired"] and labels[2].startswith("at most")
    shown = [bars.lines[0].get_ydata().tolist() for bars in ax.containers]
    assert shown == [[0.2], []] and ax.get_yscale() == "log"  # all that surely is a loss
    bounds = [line.get_ydata().tolist() for line in ax.lines if line.get_marker() == "v"]
    assert bounds[0] == [0.01] and max(bounds[1]) == 0.01


def test_claims(found, runs):
    table = claims(found, runs, batch=2048)
    whole = table[table["third"] == 0].set_index(["part", "reading"])
    layers, alarms = whole.loc[("layers", "noticed")], whole.loc[("layers", "alarms")]
    assert layers["value"] == 1 and layers["low"] > 0.95 and alarms["n"] == 49
    assert (alarms["value"], alarms["low"]) == (0, 0) and alarms["high"] == pytest.approx(1 - 0.025 ** (1 / 49))
    assert whole.loc[("tables", "alarms"), "value"] == 1 / 49
    assert set(whole.xs("alarms", level="reading")["interval"]) == {"exact binomial (Clopper-Pearson)"}
    assert whole.loc[("tables", "time"), ["n", "interval"]].tolist() == [3, "range over timings"]
    bags = whole.loc[("tables", "noticed")]
    assert (bags["n"], bags["value"]) == (2000, 0.999)  # sign and exponent alone
    assert whole.loc[("tables", "time"), ["value", "low", "high"]].tolist() == [40.0, 39.0, 44.0]
    loud = claims(found.assign(false_alarms=[1, 1, 30, 30, 0]), runs, batch=2048).query("reading == 'alarms'")
    assert loud["value"].tolist() == [1 / 49, 30 / 49] and loud["low"].tolist()[0] > 0
    blind = claims(found.assign(significant_detected=0), runs, batch=2048).query("reading == 'noticed' and third == 0")
    assert blind["value"].tolist() == [0, 0]
    few = found[found["bit"] == 30].assign(significant=10, significant_detected=10)
    assert claims(few, runs, batch=2048)["low"][0] < 0.95


def test_what_is_lost_in_spite_of_repair(trained, data):
    """The loss at the worst rate of the trials with repair, as the summary has it, not of those without."""
    repair = ABFTLinear.fit(trained, action="restore")
    campaign = Campaign(
        Evaluator(trained, data.test), errors=[BitFlip(1e-5), BitFlip(1e-3)], mitigations=[None, repair], trials=6
    )
    trials = campaign.run(progress=False)
    found = repair_claims(trials)
    assert found["third"].tolist() == [0, 1, 2, 3] and found["n"].tolist() == [6, 2, 2, 2]
    summary = summarise(trials)
    worst = summary[summary["mitigation"] == repair.name].set_index("ber").loc[1e-3]
    row = found.iloc[0]
    assert row[["part", "reading", "mitigation", "detail"]].tolist() == [
        "repair",
        "loss",
        repair.name,
        "at 0.001, 6 trials",
    ]
    assert row["value"] == worst["auc_drop"] > 0 and row["high"] == worst["auc_drop_high"]
    harmless = repair_claims(trials.assign(auc=trials["auc_golden"], auc_drop=0.0))
    assert set(harmless["value"]) == {0} and (harmless["high"] > 0).all()


def test_thirds_of_the_errors(found, runs):
    third = found[found["injections"] > 0].assign(significant=30, significant_detected=[30, 30, 0, 30])
    parts = pd.concat(
        [third.assign(third=number, significant_detected=30 if number < 3 else 0) for number in (1, 2, 3)]
    )
    noticed = claims(parts, runs, batch=2048).query("part == 'layers' and reading == 'noticed'").set_index("third")
    assert noticed["n"].tolist() == [180, 60, 60, 60] and noticed["value"].tolist() == pytest.approx([2 / 3, 1, 1, 0])
    assert noticed.loc[3, "high"] < 0.1
    shares = noticed_shares(parts)
    assert len(shares) == 4 and (shares["significant"] == 90).all() and (shares["significant_detected"] == 60).all()


def test_what_was_not_measured_is_no_test(found, runs):
    untimed = claims(found, runs[runs["scope"] == "model"], batch=2048).query("reading == 'time'")
    assert untimed["value"].isna().all() and set(untimed["n"]) == {0}
    assert set(untimed["reason"]) == {"the operator's time was not measured"}
    harmless = claims(found.assign(significant=0, significant_detected=0), runs, batch=2048).query(
        "reading == 'noticed'"
    )
    assert set(harmless["reason"]) == {"no significant errors to detect"}


def test_thresholds_over_rounding(trained, data):
    """The ratio is that of the provable threshold and the largest difference, row by row."""
    found = threshold_claim(trained, data.test).iloc[0]
    check = ABFTLinear.fit(trained, data.test, mode="calibrated", margin=2.0).checks
    shares = [2.0 / one.rule.share for one in check.values()]
    assert (found["low"], found["high"], found["n"]) == pytest.approx((min(shares), max(shares), len(shares)))
    assert found["low"] > 1  # else there would be false alarms
