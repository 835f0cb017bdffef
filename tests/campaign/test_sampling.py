"""Campaigns whose trials are drawn by the number of critical flips; and parts of the bits that can be drawn one by one."""

import logging
import re

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.campaign import Campaign, bit_partition
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, FixedCount, Rows, SingleBit, inject, resolve
from drsrobust.injection.critical_bits import CriticalBits, count_probability, masks_in
from drsrobust.mitigation import ECC, NaNGuard
from drsrobust.statistics.recovery import recovery
from drsrobust.statistics.summary import summarise
from drsrobust_extras.protection.memory_faults import MemoryFault

RATES = (0.0, 1e-9, 1e-6, 1e-4, 1e-1)


def campaign(evaluator, folder, rates=RATES, **options):
    options = {"errors": [BitFlip(rate) for rate in rates], "trials": 24, "sampling": "stratified"} | options
    return Campaign(evaluator, store=folder, **options)


def run(*arguments, **options):
    return campaign(*arguments, **options).run(progress=False, workers=1)


@pytest.fixture(scope="module")
def table(trained, data, tmp_path_factory):
    return run(Evaluator(trained, data.test), tmp_path_factory.mktemp("stratified") / "s")


def test_weights_are_probabilities(evaluator, table):
    assert table.groupby("rate")["weight"].sum().tolist() == pytest.approx([1.0] * len(RATES))
    assert table.groupby("rate").size().tolist() == [24] * len(RATES)
    n = CriticalBits().among(resolve(evaluator.model, "all")).bits
    strata = table.groupby(["rate", "stratum"])["weight"].sum()
    others = CriticalBits().parts(resolve(evaluator.model, "all")).others.bits
    none, any_critical = (count_probability(count, n, 1e-6) for count in (0, "1+"))
    expected = {f"0, others {k}": none * count_probability(0 if k == "0" else k, others, 1e-6) for k in ("0", "1+")}
    pilots = {name: 0.0 for name in strata[1e-6].index if "pilot" in name}
    assert len(pilots) == 2 and strata[1e-6].to_dict() == pytest.approx(expected | {"1+": any_critical} | pilots)
    assert set(strata[1e-4].index) > {"0", "1"} and list(strata[0.0].index) == list(strata[1e-1].index) == ["all"]
    summary = summarise(table)
    assert ((summary["realised_low"] <= summary["realised"]) & (summary["realised"] <= summary["realised_high"])).all()


def test_it_says_so(table):
    assert "stratified trials: the mean of a condition is the sum of weight * value" in repr(table.head(2))
    assert "stratified trials" in table.head(2)._repr_html_() and "stratified" not in repr(table[["auc"]])


def test_conditions_with_more_trials_than_asked_are_named_once(evaluator, tmp_path, caplog, monkeypatch):
    """At 1e-4 this model has four strata, at 1e-6 three, both with two pilots; at 1e-1 it has plain maps."""
    logger = logging.getLogger("drsrobust.campaign.campaign")
    monkeypatch.setattr(logger, "disabled", False)  # whatever another test's library did to the process's logging
    caplog.set_level(logging.WARNING, logger.name)
    options = {"errors": [BitFlip(rate) for rate in (1e-6, 1e-4, 1e-1)], "trials": 3}
    options["mitigations"] = [None, NaNGuard(value=0.0)]
    few = Campaign(evaluator, sampling="stratified", store=tmp_path / "s", **options)
    said = "trials=3 becomes 8 in 2 conditions, 10 in 2 conditions: each stratum takes 2 at least, each pilot 1"
    assert caplog.messages == [said]
    counts = few.run(progress=False, workers=1).groupby(["rate", "mitigation"]).size()
    assert sorted(counts) == [3, 3, 8, 8, 10, 10]
    caplog.clear()
    Campaign(evaluator, sampling="stratified", store=tmp_path / "s", **options | {"trials": 10})
    Campaign(evaluator, sampling="plain", store=tmp_path / "plain", **options)
    assert caplog.messages == []


def test_trials_are_maps_with_so_many_critical_flips(evaluator, table):
    """Each seed and stratum draws its map again by `inject`; pilots have many flips of one kind."""
    space = resolve(evaluator.model, "all")
    parts, seen = CriticalBits().parts(space), set()
    for row in table[table["rate"].isin([1e-6, 1e-4])].groupby(["rate", "stratum"]).head(2).itertuples():
        pilot, critical = row.stratum.partition("pilot, ")[2], row.stratum.split(",")[0]
        counts = {"critical": 0 if pilot else int(critical) if critical.isdigit() else critical}
        for name, count in re.findall(r"(others|mild) (\d+\+?)", row.stratum):
            counts[name] = int(count) if count.isdigit() else count
        with dr.inject(evaluator.model, BitFlip(row.rate, **counts), seed=row.seed) as error_map:
            assert (error_map.bits, error_map.n_events) == (row.bits_flipped, row.n_events)
            assert evaluator.rerun(error_map).auc == row.auc
            for name, count in counts.items():
                flips = int(np.bitwise_count(error_map.mask & masks_in(getattr(parts, name), space, error_map)).sum())
                assert flips == count if isinstance(count, int) else flips >= int(count[:-1])
        seen.add(row.stratum)
        assert bool(pilot) == (row.weight == 0)
    assert seen >= {"0, others 0", "0, others 1+", "1+", "0", "1", "2", "3+", "pilot, others 64", "pilot, mild 64"}


@pytest.mark.long
def test_one_process_several_and_more_trials(evaluator, table, tmp_path):
    run(evaluator, tmp_path / "s", trials=9)
    runner = campaign(evaluator, tmp_path / "s")
    pd.testing.assert_frame_equal(runner.run(progress=False, workers=2), table, check_exact=True)
    assert set(runner.timings()["stratum"]) == set(runner.errors()["stratum"]) == set(table["stratum"])


def test_the_default_is_stratified_where_that_is_possible(evaluator, tmp_path):
    """Without strata it is the campaign of plain maps: a store of that one is opened."""
    options = {"errors": [SingleBit(30), BitFlip(1e-1)], "trials": 2, "store": tmp_path / "s"}
    table = Campaign(evaluator, sampling="plain", **options).run(progress=False)
    pd.testing.assert_frame_equal(Campaign(evaluator, **options).table(), table, check_exact=True)
    mixed = {"errors": [SingleBit(30), BitFlip(1e-6)], "targets": ["over_mlp", Rows("user", range(5))]}
    table = run(evaluator, tmp_path / "m", **mixed, sampling=None)
    strata = table.groupby(["error_model", "target"])["stratum"].unique().map(set)
    assert (strata.drop(("BitFlip", "over_mlp")) == {"all"}).all() and len(strata["BitFlip", "over_mlp"]) > 3
    assert summarise(table)["n"].tolist() == [24] * 4


@pytest.mark.long
def test_the_mean_is_that_of_plain_maps(evaluator, tmp_path):
    """1,000 plain maps at a rate where every second one holds a critical flip."""
    plain = run(evaluator, tmp_path / "plain", [1e-4], sampling="plain", trials=1000)
    one = summarise(plain).iloc[0]
    for seed in range(4):
        drawn = run(evaluator, tmp_path / f"{seed}", [1e-4], sampling=None, trials=300, seed=seed)
        other = summarise(drawn).iloc[0]
        widths = (each["auc_maps_high"] - each["auc_maps_low"] for each in (one, other))  # the rows are the same
        assert abs(one["auc"] - other["auc"]) < 1.5 * np.hypot(*widths) / 2 < 0.02
        assert abs(one["trials_harmed"] - other["trials_harmed"]) < 0.1 and "stratum" not in plain


def test_mitigations_share_maps(evaluator, tmp_path):
    table = run(evaluator, tmp_path / "s", [1e-4], mitigations=[None, NaNGuard(0.5)])
    groups = [group[["seed", "stratum", "weight"]].reset_index(drop=True) for _, group in table.groupby("mitigation")]
    pd.testing.assert_frame_equal(*groups)
    assert recovery(table)["n"].tolist() == [24]


def test_plain_maps_where_the_memory_side_removes_critical_flips(evaluator, tmp_path):
    """SECDED corrects single flips, so their number decides nothing; its interval has a width."""
    table = run(evaluator, tmp_path / "s", [1e-5], mitigations=[None, ECC()])
    assert set(table["stratum"]) == {"all"} and recovery(table)["n"].tolist() == [24]
    row = summarise(table).set_index("mitigation").drop("none").iloc[0]
    assert row["auc_drop_low"] < row["auc_drop_high"] and row["auc_drop_bound"] > row["auc_drop"]


def test_critical_bits_of_large_tables_and_of_unions(evaluator, tmp_path):
    whole = campaign(evaluator, tmp_path / "w", [1e-6], targets=["embedding"], sampling=CriticalBits(table_rows=10**9))
    assert {condition.stratum.name for condition in whole.conditions} > {"0, others 0"}
    rows = campaign(evaluator, tmp_path / "r", [1e-6], targets=[Rows("user", range(5)) | "over_mlp"])
    assert rows.conditions[0].stratum.probability > 0.95
    assert BitFlip(1e-6, critical_bits=CriticalBits((30,))) == BitFlip(1e-6)


@pytest.mark.long
def test_memory_faults_are_drawn_by_chip(evaluator, tmp_path):
    errors = [dr.MemoryFault(mode) for mode in ("bit", "bank")]
    table = run(evaluator, tmp_path / "s", errors=errors, mitigations=[None, ECC()], trials=100)
    assert table["error_mode"].unique().tolist() == ["bit", "bank"]
    weights = table.groupby(["error_mode", "mitigation", "stratum"])["weight"].sum()
    chips = {"mantissa chips": 10 / 18, "exponent chips": 6 / 18, "check chips": 2 / 18}
    assert weights["bank", "none"].to_dict() == pytest.approx(chips)
    space = resolve(evaluator.model, "all")
    parts, bits = CriticalBits().parts(space), 72 * MemoryFault("bit").places(space)["word"]
    critical, others = parts.critical.bits / bits, parts.others.bits / bits
    expected = {
        "mantissa chips, not critical": 10 / 18,
        "exponent chips, not critical": 6 / 18 - critical - others,
        "check chips": 2 / 18,
        "other bits of sign and exponent": others,
        "critical bits": critical,
    }
    assert weights["bit", "none"][lambda found: found > 0].to_dict() == pytest.approx(expected)
    banks = table[table["error_mode"] == "bank"].set_index("stratum")
    bank, behind = banks[banks["mitigation"] == "none"], banks[banks["mitigation"] != "none"]
    assert bank.loc["exponent chips", "auc_drop"].mean() > 0.01 > bank.loc["mantissa chips", "auc_drop"].mean()
    assert set(bank.loc["check chips", "bits_flipped"]) == {0}
    assert behind.loc["check chips", "bits_left"].sum() > 0  # miscorrected into data


@pytest.mark.long
def test_the_loss_of_one_wrong_bit_is_that_of_single_flips(evaluator, tmp_path):
    """Figures 12 and 13: with strata of chips alone about one trial in a thousand hits a critical bit."""
    table = run(evaluator, tmp_path / "s", errors=[MemoryFault("bit")], trials=200, seed=3)
    space = resolve(evaluator.model, "all")
    critical = CriticalBits().among(space)
    grid = {"errors": [BitFlip(0.0, critical=1)], "sampling": "plain", "trials": 150}  # makes nearly all of the loss
    losses = run(evaluator, tmp_path / "one", **grid)["auc_drop"]
    expected = losses.mean() * critical.bits / (72 * MemoryFault("bit").places(space)["word"])
    row = summarise(table).iloc[0]
    assert row["auc_drop_low"] < expected < row["auc_drop_high"] < 3 * expected
    assert (table["stratum"] == "critical bits").sum() >= 90


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4, dtype=torch.float16)
        self.over = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1).to(torch.bfloat16))


@pytest.mark.parametrize("k", [1, 2, 3, 5, 60, 62, 63])
@pytest.mark.parametrize("bits", [(30,), (30, 0), (30, 31), (*range(23), 30), None])
@pytest.mark.parametrize("outputs", [1, 20])
def test_counts_that_cannot_be_are_no_strata(bits, k, outputs):
    """As no critical flip where all bits are critical, and an other one where there is none: by rounding over 0."""
    space = resolve(nn.Linear(62 // outputs, outputs), "all")  # 63 words, or 80
    strata = FixedCount(k, bits=bits).strata(space, CriticalBits())
    assert sum(one.probability for one in strata) == pytest.approx(1)
    assert all(one.probability > 0 or one.is_pilot for one in strata)
    assert all(one.error_model.sample(space, seed=0).bits == k for one in strata if not one.is_pilot)


@pytest.mark.parametrize("target", ["all", "everything", "over", "*.weight", Rows("embedding.weight", [1, 4])])
def test_parts_can_be_drawn(target):
    """Sizes add up to all bits, and a trial of each part hits it and nothing else."""
    model = Mixed()
    found, whole = bit_partition(model, target), resolve(model, target)
    assert found["eligible"].sum() == whole.bits and found["weight"].sum() == pytest.approx(1)
    assert not found.duplicated(["component", "format", "bit_class"]).any()
    positions = set()
    for row in found.itertuples():
        error = FixedCount(1, bits=row.bits)
        space = error.eligible(resolve(model, row.target))
        assert space.bits == row.eligible and {tensor.component for tensor in space.tensors} == {row.component}
        tensor, word, bit = space.locate(np.arange(space.bits))
        positions |= {(space.tensors[t].name, w, b) for t, w, b in zip(tensor, word, bit, strict=True)}
        with inject(model, error, row.target, seed=3) as error_map:
            assert error_map.bits == 1
    assert len(positions) == whole.bits


def test_parts_of_a_recommender(trained):
    found = bit_partition(trained)
    assert set(found["component"]) == {"embedding", "dense_mlp", "over_mlp"} and set(found["format"]) == {"float32"}
    assert (found["target"] == found["component"]).all() and len(found) == 15
    share = resolve(trained, "embedding").bits / resolve(trained).bits
    assert found.groupby("component")["weight"].sum()["embedding"] == pytest.approx(share)
