"""Numbers of notebooks 12, 15 and 18: faults of memory chips, number formats, probe rows."""

import numpy as np
import pandas as pd
import pytest

import drsrobust as dr
import drsrobust_study as study
from drsrobust.statistics.summary import summarise
from drsrobust_extras.data.stored_as import stored_as
from drsrobust_extras.experiments.probe_rows import DETECTED, NOT_READ, OUTCOMES
from drsrobust_study import components, figures
from drsrobust_study.components import layer_partition, single_errors
from drsrobust_study.memory_faults import effects, expected_loss, mixed, ranked, ranking, understatement
from drsrobust_study.number_formats import RATE
from drsrobust_study.probe_rows import DENSE, PARTS, TABLES, WHOLE

pytestmark = pytest.mark.long

MODES = ("bit", "row", "bank")


@pytest.fixture(scope="module")
def evaluator(trained, data):
    return dr.Evaluator(trained, data.test)


@pytest.fixture(scope="module")
def trials(evaluator, tmp_path_factory):
    options = {"trials": 60, "sampling": "stratified", "store": tmp_path_factory.mktemp("faults") / "s"}
    errors = [dr.MemoryFault(mode) for mode in MODES]
    return dr.Campaign(evaluator, errors=errors, mitigations=[None, dr.Chipkill(), dr.ECC()], **options).run(
        progress=False
    )


def test_a_mixture_is_the_weighted_mean_of_its_modes(trials):
    rates = {"bit": 3.0, "row": 0.0, "bank": 1.0}
    each = summarise(trials).set_index(["error_mode", "mitigation"])["auc_drop"]
    for row in summarise(mixed(trials, rates)).itertuples():
        assert row.auc_drop == pytest.approx(0.75 * each["bit", row.mitigation] + 0.25 * each["bank", row.mitigation])
        assert (row.error_mode, row.n) == ("any", 120) and row.auc_drop_low <= row.auc_drop <= row.auc_drop_high
    plain = trials.drop(columns=["stratum", "weight"])
    mean = plain.groupby(["error_mode", "mitigation"])["auc_drop"].mean()
    found = summarise(mixed(plain, rates)).set_index("mitigation")["auc_drop"]
    assert found["none"] == pytest.approx(0.75 * mean["bit", "none"] + 0.25 * mean["bank", "none"])
    with pytest.raises(ValueError, match="the table has no trials of ranks"):
        mixed(trials, {"bit": 1.0, "ranks": 0.1})


def test_expected_loss_of_a_year(trials):
    found = expected_loss(trials, {"bit": 1e-9, "row": 2e-9, "bank": 1e-6})
    assert list(found["error_mode"].unique()) == [*MODES, "any"] and len(found) == 12
    by = found.set_index(["error_mode", "mitigation"])
    bank = by.loc["bank", "none"]
    assert bank["hits_per_year"] == pytest.approx(8.766e-3) and bank["per_year"] == bank["auc_drop"] * 8.766e-3
    total = sum(by.loc[mode, "none"]["per_year"] for mode in MODES)
    assert by.loc["any", "none"]["per_year"] == pytest.approx(total)
    corrected = by.xs("chipkill RS(18,16)", level="mitigation")
    assert (corrected[["auc_drop", "auc_drop_low", "auc_drop_high"]] == 0).all(axis=None)
    assert (by.xs("none", level="mitigation")["auc_drop_high"] > by.xs("none", level="mitigation")["auc_drop"]).all()


def test_the_factor_over_single_bits(evaluator, trials, data, tmp_path):
    parts = layer_partition(evaluator.model)
    flips = dr.Campaign(
        evaluator, conditions=single_errors(parts), trials=6, sampling="plain", store=tmp_path / "s"
    ).run(progress=False)
    fit, hits = {"bit": 1.0, "row": 0.5, "bank": 0.5}, {"bit": 1e-12, "row": 1e-12, "bank": 1e-9}
    faults = trials[trials["mitigation"] == "none"]
    large = {"bit": 1e-11, "row": 1e-11, "bank": 2e-9}
    found = understatement(faults, flips, parts, data.test, fit, {"1 MB": hits, "10 MB": large}).set_index("what")
    losses = summarise(faults).set_index("error_mode")["auc_drop"]
    (flip,) = components.stratified_loss(flips, parts, data.test, by=())["auc_drop"]
    mean = sum(hits[mode] * losses[mode] for mode in MODES) / sum(hits.values())
    bit = flip * 16 / 18
    assert found["value"][["fault", "bit", "fault over bit"]].tolist() == pytest.approx([mean, bit, mean / bit])
    for size, rates in (("1 MB", hits), ("10 MB", large), ("a full memory", fit)):
        per_hour = sum(rates[mode] * losses[mode] for mode in MODES)
        expected = per_hour / (2.0 * rates["bit"] * bit)  # twice as many faults as bits
        assert found.loc[f"memory over bits, {size}", "value"] == pytest.approx(expected)


@pytest.fixture
def rankings():
    keys = {"model": "dlrm", "dataset": "d", "mitigation": ["range", "clip", "chipkill"]}
    flips = {"recovery": [0.99, 0.9, 0.5], "recovery_low": [0.9, 0.8, 0.4], "recovery_high": [1.0, 1.0, 0.6]}
    storage = pd.DataFrame({"mitigation": keys["mitigation"], "stored_percent": [0.1, 0.0, 12.5]})
    tables = {}
    for seed in range(3):
        recovered = np.array([0.4 + 0.1 * seed, 0.1, 1.0])
        faults = {"recovery": recovered, "recovery_low": recovered - 0.01, "recovery_high": recovered}
        tables[seed] = ranking(pd.DataFrame(keys | flips), pd.DataFrame(keys | faults), storage)
    return tables


def test_rankings_are_drawn(rankings):
    data = ranked(rankings)
    assert data["stored_percent"].tolist() == [12.5, 0.1, 0.0]
    assert data["mitigation"].tolist() == ["chipkill", "range", "clip"]
    ax = figures.protection_ranking(data, ber=1e-3)
    drawn = [line.lines[0].get_xdata().tolist() for line in ax.containers]
    assert drawn == [pytest.approx([1.0, 0.5, 0.1]), pytest.approx([0.5, 0.99, 0.9])]
    figures.protection_ranking(data.head(0), ber=1e-3)


def test_effects_over_trainings(rankings):
    factors = {
        seed: pd.DataFrame({"what": ["fault", "fault over bit"], "value": [0.06, 10.0**seed]}) for seed in range(3)
    }
    factors = {seed: table.assign(low=table["value"] / 2, high=table["value"] * 2) for seed, table in factors.items()}
    lead = pd.DataFrame(
        {"mitigation": ["none", "range"], "ber": 1e-3, "auc": [0.5, 0.8], "auc_low": 0.5, "auc_high": 0.8}
    )
    leads = {seed: lead.assign(auc_golden=0.8 + 0.01 * seed, train_seed=seed) for seed in range(3)}
    found = effects(factors, rankings, leads, ber=1e-3).set_index("effect")
    assert found.loc["fault over bit", "value"] == pytest.approx(10)  # geometric
    assert found.loc["faults range", ["value", "least", "most", "n"]].tolist() == pytest.approx([0.5, 0.4, 0.6, 3])
    assert found["value"][["auc", "auc none", "auc range"]].tolist() == pytest.approx([0.81, 0.5, 0.8])


FORMATS = {DENSE: ["fp32", "bf16", "fp8_e5m2"], TABLES: ["fp32", "int4"]}


@pytest.fixture(scope="module")
def formats(trained, data):
    stored = study.number_formats.stored_models(trained, data.test.head(300), *FORMATS.values())
    flips = study.number_formats.flips(stored, trials=7, seed=1)
    return stored, flips, study.number_formats.clean_cost(trained, stored)


def test_parts_and_sizes(formats, trained):
    """Every number of a part is counted once; storage is what the words take, with scales, biases and padding."""
    stored, _, clean = formats
    assert list(zip(clean["part"], clean["format"], strict=True)) == [
        (p, f) for p, names in FORMATS.items() for f in names
    ]
    numbers = dr.components(trained).set_index("component")["parameters"]
    expected = {DENSE: numbers.drop("embedding").sum(), TABLES: numbers["embedding"]}
    assert clean.groupby("part")["numbers"].first().to_dict() == expected
    by_format = clean.set_index(["part", "format"])
    dense, size = expected[DENSE], by_format["megabytes"] * 1e6
    tensors = sum(not name.startswith("sparse") for name, _ in trained.named_parameters())
    sizes = [size[DENSE, name] for name in ("fp32", "bf16", "fp8_e5m2")]
    assert sizes == [4 * dense, 2 * dense, dense + 4 * tensors]
    rows = sum(len(p) for name, p in trained.named_parameters() if name.startswith("sparse"))
    assert size[TABLES, "int4"] == 16 * rows  # 2 + 2 + 8 bytes, padded
    assert (by_format.xs("fp32", level=1)["auc_change"] == 0).all()
    assert (clean["auc_change_low"] <= clean["auc_change"]).all()
    assert (clean["auc_change"] <= clean["auc_change_high"]).all()


def test_losses_by_bit_weight_and_rate(formats):
    """The mean over classes, weighted by their bits; what depends on it is that times numbers of bits."""
    stored, flips, clean = formats
    numbers = clean.groupby("part")["numbers"].first()
    losses = study.number_formats.flip_losses(stored, flips, numbers)
    for one, row in zip(stored, losses.to_dict("records"), strict=True):
        partition, trials = study.number_formats.partition_of(one), flips[one.part, one.format]
        means = [
            trials[(trials["error_model"] == error.label) & (trials["target"] == str(target))]["auc_drop"].mean()
            for error, target in study.components.single_errors(partition)
        ]
        assert row["per_bit"] == pytest.approx(float(np.dot(means, partition["weight"])), abs=1e-12)
        assert row["bits"] == partition["eligible"].sum() and row["n"] == 7 * len(partition)
        assert row["per_weight"] == pytest.approx(row["per_bit"] * row["bits"] / numbers[one.part])
        assert row["at_rate"] == pytest.approx(row["per_bit"] * row["bits"] * RATE)
    names = losses.set_index(["part", "format"])["bits"]
    assert names[DENSE, "fp32"] == 2 * names[DENSE, "bf16"]
    figure = study.figures.number_formats_data(clean, losses)
    for quantity in ("auc_change", "per_bit", "at_rate"):
        ax = study.figures.number_formats(figure, quantity=quantity)
        expected = ["fp32", "bf16", "fp8", "fp32", "int4"]
        assert [label.get_text().partition(" ")[0] for label in ax.get_yticklabels()] == expected
    classes = study.number_formats.class_losses(stored, flips)
    of_scaled = classes[(classes["part"] == DENSE) & (classes["format"] == "fp8_e5m2")]
    assert set(of_scaled["bit_class"]) == {"sign", "exponent_top", "exponent_low", "mantissa", "scale"}
    for (part, name), rows in classes.groupby(["part", "format"]):
        whole = losses.set_index(["part", "format"])["per_bit"][part, name]
        assert float(np.dot(rows["auc_drop"], rows["share"])) == pytest.approx(whole, abs=1e-12)


def test_effects_of_formats(formats, trained, data):
    stored, flips, clean = formats
    losses = study.number_formats.flip_losses(stored, flips, clean.groupby("part")["numbers"].first())
    half = study.number_formats.Evaluator(stored_as(trained, dense="bf16", tables="fp16"), data.test.head(300))
    kept = study.number_formats.kept_under_errors(half, ber=1e-2, trials=6, seed=2).assign(format="half")
    tables = [{seed: table for seed in range(2)} for table in (clean, losses, kept)]
    found = study.number_formats.effects(*tables).set_index("effect")
    lost = losses.set_index(["part", "format"])
    for quantity in ("per_bit", "at_rate"):
        ratio = lost.loc[(DENSE, "bf16"), quantity] / lost.loc[(DENSE, "fp32"), quantity]
        assert found.loc[f"{quantity} {DENSE} bf16", "value"] == pytest.approx(ratio)
    change = clean.set_index(["part", "format"])["auc_change"][TABLES, "int4"]
    assert found.loc[f"change {TABLES} int4", "value"] == pytest.approx(change)
    plain, protected = (found.loc[f"kept {name}, half", "value"] for name in ("no protection", "exponents protected"))
    assert plain < 0.5 < protected <= 1.01


COUNTS = [1, 64, 200]


@pytest.fixture(scope="module")
def probed(trained, data):
    evaluator = dr.Evaluator(trained, data.test.head(300))
    probes = {how: dr.ProbeRows.fit(evaluator, data.train, max(COUNTS), how=how) for how in ("cover", "random")}
    few = dr.ProbeRows(evaluator, probes["cover"].rows.head(64))
    flips = study.probe_rows.flips(evaluator, probes, trials=6, explained=few, seed=3)
    return evaluator, probes, flips


def test_trials_are_in_strata_and_in_one_another(probed):
    """Weights are the shares of all bits; what few rows detect more rows detect; reasons agree with the rows needed."""
    evaluator, _, flips = probed
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


def test_curves_are_weighted_shares_beside_exact_coverage(probed):
    evaluator, probes, flips = probed
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


def test_noticed_losses_are_weighted_by_what_flips_cost(probed):
    """The lost AUC that goes with detected flips over all that is lost; a detector of all notices all, one of none nothing."""
    evaluator, _, flips = probed
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


def test_effects_of_probes(probed):
    """Shares that one row and many detect and read, of several trainings."""
    evaluator, probes, flips = probed
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
