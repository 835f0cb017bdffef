"""Faults of memory chips: modes mixed by their rates, the factor over single bits, large models of equal scores, figures."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

import drsrobust as dr
from drsrobust.statistics.summary import summarise
from drsrobust_study import components, figures
from drsrobust_study.components import layer_partition, single_errors
from drsrobust_study.memory_faults import effects, expected_loss, mixed, ranked, ranking, understatement

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
    flips = dr.Campaign(evaluator, conditions=single_errors(parts), trials=6, store=tmp_path / "s").run(progress=False)
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


def frame(modes, names):
    rows = []
    for (place, mode), (number, name) in product(enumerate(modes), enumerate(names)):
        value = 0.0 if number == 1 else 10.0 ** -(4 - place)
        row = {"model": "dlrm", "dataset": "d", "error_mode": mode, "mitigation": name, "n": 9, "hits_per_year": 1e-3}
        for quantity, scale in (("auc_drop", 1.0), ("per_year", 1e-3)):
            row |= {quantity: scale * value, f"{quantity}_low": scale * value / 2}
            row |= {f"{quantity}_high": scale * 2 * value}
        rows.append(row)
    return pd.DataFrame(rows)


@pytest.mark.parametrize("names", [["none"], ["none", "chipkill", "SECDED"]])
def test_losses_are_drawn(names):
    data = figures.memory_fault_loss_data(frame(["bit", "banks", "any"], names))
    ax = figures.memory_fault_loss(data.assign(auc_drop_low=-1.0))
    drawn = {bars.get_label(): [bar.get_width() for bar in bars] for bars in ax.containers if hasattr(bars, "patches")}
    assert len(drawn) == len(names) and ax.get_xlim()[0] == 0 and ax.get_xscale() == "linear"
    assert drawn["no protection"] == pytest.approx([1e-4, 1e-3, 1e-2])
    starts = [line[0][0] for bars in ax.collections for line in bars.get_segments()]
    assert min(starts) == 0  # no interval falls through the floor


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
