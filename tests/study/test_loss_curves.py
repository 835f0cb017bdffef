"""Fig. 12: trials on the same maps, shares of the loss, and the values by which S13 to S17 are judged."""

import itertools

import numpy as np
import pandas as pd
import pytest

import drsrobust as dr
from drsrobust_study import figures, recovery_curves
from drsrobust_study import part_curves as curves
from drsrobust_study.recovery_curves import CLIPPING, CODES, IDEAL, SECDED, TMR


@pytest.fixture(scope="module")
def data():
    return dr.load_dataset("synthetic-movielens/ids", rows=3000)


@pytest.fixture(scope="module")
def evaluators(data):
    return {name: dr.Evaluator(dr.models.build_model(name, data.schema).eval(), data.test) for name in ("fm", "dcn")}


def test_trials_share_their_maps_and_weights_are_probabilities(evaluators, empty_cache):
    bers = [1e-4, 1e-3]
    for name, evaluator in evaluators.items():
        table = recovery_curves.recovery_trials(evaluator, bers, trials=40, train_seed=3, seed=1)
        kinds = ["none", *([CLIPPING] if name == "dcn" else []), *CODES]
        assert table["mitigation"].unique().tolist() == kinds and set(table["train_seed"]) == {3}
        flips = table.pivot(index=["ber", "stratum", "trial"], columns="mitigation", values="bits_flipped")
        assert (flips.nunique(axis=1, dropna=False) == 1).all()
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


RATES = np.array([1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
STUDY = ["fm", "dcn", "afm", "wide_deep", "deepfm"]
REST = {"dcn": ["cross"]}  # in `all` alone


@pytest.mark.parametrize("name", [*STUDY, "afn", "dlrm"])
def test_parts_and_the_rest_add_up_to_all(name, data):
    model = dr.models.build_model(name, data.schema)
    targets = curves.part_targets(model)
    bits = {part: dr.resolve(model, target).bits for part, target in targets.items()}
    rest = sum(dr.resolve(model, other).bits for other in REST.get(name, []))
    assert bits["all"] == bits["table"] + bits.get("mlp", 0) + rest
    assert ("mlp" in targets) == (name != "fm")


def part_points_of(
    losses, *, model="fm", dataset="movielens-1m/ids", part="all", seed=0, bits=10**6, error=0.01, spread=0.01
):
    lost = np.asarray(losses, float)
    frame = pd.DataFrame({"ber": RATES, "lost": lost, "auc": 0.8 - lost, "lost_error": error * lost + 1e-9})
    same = {"model": model, "dataset": dataset, "train_seed": seed, "part": part, "bits": bits, "golden": 0.8}
    return frame.assign(**same, n=40, spread=spread, least=frame["auc"] - 0.1, most=frame["auc"] + 0.1)


def test_the_law_of_a_known_curve():
    """200 times the rate, which is 2e-4 a flip of a million bits, until 0.3."""
    (law,) = curves.loss_per_flip(part_points_of(np.minimum(200 * RATES, 0.3))).to_dict("records")
    assert law["per_flip"] == pytest.approx(2e-4) and law["flips"] == pytest.approx(50)
    assert law["rate"] == pytest.approx(5e-5) and law["fails_at"] == 1e-2  # 0.2 at 1e-3 is still on the line
    assert law["steepest"] == pytest.approx(1)
    (knee,) = curves.loss_per_flip(part_points_of([1e-6, 1e-5, 1e-4, 3e-3, 0.03, 0.3])).to_dict("records")
    assert knee["steepest"] == pytest.approx(np.log10(30))
    (never,) = curves.loss_per_flip(part_points_of(0 * RATES)).to_dict("records")
    assert np.isnan([never["per_flip"], never["steepest"]]).all() and never["rate"] == np.inf
    laws = curves.loss_per_flip(
        pd.concat(part_points_of(200 * RATES * 10**k, seed=seed) for seed, k in enumerate((-0.1, 0, 0.1)))
    )
    (mean,) = curves.law_over_trainings(laws).to_dict("records")
    half = 4.302653 * 0.1 / np.sqrt(3)  # Student's t of three trainings, in decades
    assert [mean[f"flips{end}"] for end in ("", "_low", "_high")] == pytest.approx(
        [50, 50 * 10**-half, 50 * 10**half], rel=1e-5
    )


def test_crossings():
    for power in (0.4, 1.0, 1.3):  # a power of the rate is met exactly
        assert curves.crossing(5 * RATES**power, RATES) == pytest.approx((0.01 / 5) ** (1 / power))
    two = np.array([1e-3, 1e-2])
    assert curves.crossing(np.array([0.0, 0.005]), two) == np.inf
    assert curves.crossing(np.array([0.02, 0.3]), two) == pytest.approx(5e-4)  # below the lowest rate: from 0
    assert curves.crossing(np.array([0.0, 0.02]), two) == pytest.approx(1e-3 + 0.5 * 9e-3)


def test_values_of_statements():
    """Criteo loses ten times as much as MovieLens, DCN four times as much as FM; tables vary half as much as MLPs."""
    parts = []
    for dataset, factor in (("movielens-1m/ids", 1), ("criteo-sample/fields", 10)):
        for model, weak in (("fm", 1), ("dcn", 4)):
            for seed in (0, 1, 2):
                losses = np.minimum(factor * weak * 100 * RATES, 0.3)
                of = {"model": model, "dataset": dataset, "seed": seed}
                parts += [part_points_of(losses, **of), part_points_of(losses / 2, part="table", spread=0.01, **of)]
                parts += [part_points_of(losses / 2, part="mlp", spread=0.02, **of)] if model == "dcn" else []
    table = curves.statement_values(pd.concat([*parts, part_points_of(0 * RATES, model="afn")]), ["fm", "dcn"])
    found = table.groupby(["statement", "dataset", "item", "what"])["value"].agg(["mean", "size"])
    assert (found["size"] == 3).all() and "afn" not in set(table["item"])
    value = found["mean"].to_dict()
    movielens, criteo = "movielens-1m/ids", "criteo-sample/fields"
    assert value["S6", movielens, "dcn", "lost at 1e-05"] == pytest.approx(0.004)
    assert value["S7", movielens, "fm", "share lost at 0.001"] == pytest.approx(0.1 / 0.3)
    assert value["S7", criteo, "fm", "AUC at 0.01"] == pytest.approx(0.5)
    assert value["S8", criteo, "fm", "lost at 0.0001, tables"] == pytest.approx(0.05)
    assert value["S9", movielens, "dcn", "deviation, tables over MLPs"] == pytest.approx(0.5)
    assert value["S10", criteo, "dcn", "rate over FM's"] == pytest.approx(0.25)
    both = f"{movielens}, {criteo}"
    assert value["S11", both, "fm", "rate, Criteo over MovieLens"] == pytest.approx(0.1)
    name = f"fm on {movielens} over dcn on {criteo}"
    assert value["S12", both, name, "largest over smallest"] == pytest.approx(40)
    few = curves.statement_values(pd.concat(parts).query("ber > 2e-6"), ["fm", "dcn"])
    assert set(few["statement"]) == {"S7", "S9", "S10", "S11", "S12"}  # 1e-6 was not run


def test_trials_of_a_model(data):
    """Stratified means are those of plain maps, and both parts together lose what all loses, where little is lost."""
    evaluator = dr.Evaluator(dr.models.build_model("wide_deep", data.schema), data.test)
    options = {"trials": 30, "plain_trials": 6, "train_seed": 3, "seed": 1}
    table = curves.part_trials(evaluator, [1e-4, 1e-3], **options)
    assert set(table.loc[table["part"] == "as_released", "protocol"]) != {curves.PLAIN}
    made = curves.part_points(table)
    assert len(made) == 8 and (made["train_seed"] == 3).all()
    single = table[(table["protocol"] == curves.PLAIN) & (table["part"] == "mlp") & (table["ber"] == 1e-3)]["auc"]
    (row,) = made[(made["part"] == "mlp") & (made["ber"] == 1e-3)].to_dict("records")
    assert (row["least"], row["most"], row["spread"]) == pytest.approx((single.min(), single.max(), single.std()))
    over = curves.over_trainings(made)
    assert (over["trainings"] == 1).all() and over["auc_low"].isna().all()
    assert over["sd_maps"].notna().sum() == 6  # as released there are no plain maps
