"""The benchmark of mitigations in a tiny form: tables, honest counts, verdicts that can say no."""

from functools import partial

import numpy as np
import pytest
import torch

import drsrobust as dr
from benchmarks.mitigation import (
    REPAIR_COLUMNS,
    Clamp,
    Twice,
    clean_auc,
    describe,
    kind,
    memory_cost,
    mitigation_cost,
    verdicts,
)
from drsrobust.mitigation import ABFTEmbeddingBag
from drsrobust.study import mitigations as mitigation_cases
from drsrobust.study.abft import COLUMNS as DETECTION
from drsrobust.study.abft import beyond_rounding, single_errors
from drsrobust.study.mitigations import COLUMNS, LARGE, Case, large, trained, with_int8_tables
from drsrobust.training import Settings

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.ao.quantization")
SIZES = {"dense_mlp": [16, 16], "over_mlp": [16, 1]}


@pytest.fixture(scope="module")
def tables():
    make = partial(
        trained,
        ["synthetic-movielens/full"],
        ["dlrm", "fm"],
        rows=4000,
        settings=Settings(epochs=1, batch_size=512),
        progress=False,
    )
    return mitigation_cost(
        partial(large, 1300, 400, SIZES),
        make,
        batches=[64],
        turns=1,
        injections=320,
        int8_injections=96,
        test_rows=300,
        generated_rows=5000,
        trials=3,
        progress=False,
    )


@pytest.fixture
def case(data, trained):
    return Case("dlrm", data.name, trained, data.train, data.test)


@pytest.mark.long
def test_time(tables):
    time = tables["mitigation"]
    assert tuple(time.columns) == COLUMNS and set(time["batch"]) == {64}
    assert {"dlrm, 26 tables", "dlrm, 26 tables, int8 tables", "dlrm", "fm"} == set(time["model"])
    assert not time.duplicated(["mitigation", "model", "scope", "batch"]).any()
    peers = time["mitigation"].str.startswith("peer: ")
    assert (time[["plain_ms", "protected_ms"]] > 0).all(axis=None) and (time["stored_bits_percent"] > 0).equals(~peers)
    assert set(time[peers]["mitigation"]) == {Twice.name, Clamp.name} and set(time[peers]["model"]) == {"dlrm", LARGE}
    names = set(time.loc[time["model"] == "dlrm", "mitigation"])
    assert {"ABFT Linear (provable)", "ABFT Linear (calibrated)", "ABFT EmbeddingBag", "NaN guard", "clip 6"} < names
    assert "ABFT Linear (provable) + ABFT EmbeddingBag + clip profiled" in names
    operators = time[time["scope"] == "operator"].set_index(["model", "mitigation"])["plain_ms"]
    models = time[time["scope"] == "model"].set_index(["model", "mitigation"])["plain_ms"]
    assert len(operators) == 11 and operators.index.isin(models.index).all()  # times are not compared: one turn


def test_peers_do_what_they_say(case):
    twice, clamp = Twice(), Clamp()
    batch = case.test.head(64).batch()
    call = {"dense_features": batch.dense_features, "sparse_features": batch.sparse_features}
    with torch.no_grad():
        with twice.attach(case.model):
            scores = case.model(**call)
        assert not twice.detected and torch.equal(scores, case.model(**call))
        last = list(case.model.modules())[-1]
        with (
            twice.attach(case.model),
            clamp.attach(case.model),
            dr.inject(case.model, dr.SingleBit(30), "over_mlp", seed=1),
        ):
            assert case.model(**call).abs().max() <= 6
        assert not last._forward_hooks


def test_detection(tables):
    found = tables["detection"]
    assert tuple(found.columns) == DETECTION and (found["false_alarms"] == 0).all()
    per = found.groupby(["model", "mitigation"])["injections"].sum()
    assert per[("dlrm", "ABFT Linear (provable)")] == per[("dlrm", "ABFT EmbeddingBag")] == 320
    assert per[("dlrm, int8 tables", "ABFT EmbeddingBag by residues")] == 96
    high = found[~found["mitigation"].eq("ABFT EmbeddingBag") | (found["bit"] >= 23)]
    assert (high["significant_detected"] == high["significant"]).all() and high["significant"].sum() > 100
    mantissa = found[found["mitigation"].eq("ABFT EmbeddingBag") & (found["bit"] < 8)]
    assert mantissa["significant"].sum() < 0.1 * mantissa["injections"].sum()  # rounding may be as large
    generated = found[found["model"] == "dlrm, 26 tables"]
    assert len(generated) == 3 and (generated["clean_rows"] == 6144).all()  # whole batches of 2048


def test_repair_clean_and_memory(tables):
    repaired, clean, storage = (tables[f"mitigation_{name}"] for name in ("repair", "clean", "storage"))
    assert tuple(repaired.columns) == REPAIR_COLUMNS and (repaired["trials"] == 3).all()
    assert (repaired["largest_difference"] < 1e-4).all()
    clean = clean.set_index(["model", "mitigation"])
    exact = clean.index.get_level_values(1).str.startswith(("ABFT", "NaN"))
    assert clean[exact]["bit_equal"].all() and (clean[exact]["difference"] == 0).all()
    assert (clean["low"] <= clean["difference"]).all() and (clean["difference"] <= clean["high"]).all()
    assert not clean.loc["dlrm, int8 tables"]["bit_equal"].any()
    times = storage.set_index(["model", "mitigation"])["scrub_ms"]
    assert times[("dlrm", "range per tensor")] > 0 and times[("dlrm", "SECDED (72,64)")] > 0
    assert np.isnan(times[("dlrm", "3 copies, median")])
    bits = storage.set_index(["model", "mitigation"])["stored_bits_percent"]
    assert bits[("dlrm", "SECDED (72,64)")] == pytest.approx(12.5, abs=0.1)


def test_verdicts_can_say_no(tables):
    met = {verdict.name: verdict.met for verdict in verdicts(tables)}
    assert met["repair, BitFlip(1e-06): |AUC - golden|"] and met["ABFT EmbeddingBag, sign and exponent: detected"]
    text = describe(tables)
    assert "Targets" in text and "dlrm, 26 tables" in text
    worse = {name: table.copy() for name, table in tables.items()}
    time, detection = worse["mitigation"], worse["detection"]
    time["batch"], time["overhead_percent"] = 2048, 50.0
    detection["false_alarms"], detection["significant_detected"] = 1, 0
    worse["mitigation_repair"]["largest_difference"] = 1e-3
    worse["mitigation_clean"]["bit_equal"], worse["mitigation_clean"]["difference"] = False, -1e-3
    missed = list(verdicts(worse))
    assert not any(verdict.met for verdict in missed) and len(missed) > 20
    assert "MISSED" in describe(worse)
    assert [kind(name) for name in ("clip 6", "NaN guard", "ABFT Linear (provable) + clip 6")] == ["clip", None, None]


def test_beyond_rounding_by_hand(data, trained):
    """What float64 pooling of the rows says: an error of half the bound is none, one of twice the bound is."""
    found = single_errors(
        trained, data.test, [ABFTEmbeddingBag.fit(trained)], 64, targets=["embedding"], progress=False
    )
    tables = {name: p.detach().double() for name, p in trained.named_parameters() if "embedding_bags" in name}
    bags = {name: data.test.sparse[name.split(".")[-2].removeprefix("t_")] for name in found["tensor"].unique()}
    for name in found["tensor"].unique():
        table, ids = tables[name], bags[name]
        lengths = np.ones(len(ids.values), int) if ids.lengths is None else ids.lengths
        bag = np.repeat(np.arange(len(lengths)), lengths)
        pooled = np.bincount(bag, table.abs().sum(1).numpy()[ids.values], len(lengths))
        terms = table.shape[1] + 3 * (lengths + 2) + 3
        bounds = (terms * 2.0**-24 * pooled)[bag]
        row = int(ids.values[0])
        least = bounds[ids.values == row].min()
        one = (
            found[found["tensor"] == name].iloc[[0, 0]].assign(word=row * table.shape[1], change=[least / 2, 2 * least])
        )
        assert beyond_rounding(trained, data.test, one).tolist() == [False, True]
        unread = np.setdiff1d(np.arange(len(table)), ids.values)
        if len(unread):
            one = one.assign(word=int(unread[0]) * table.shape[1], change=1e30)
            assert not beyond_rounding(trained, data.test, one).any()


def test_int8_tables_are_a_copy(case):
    before = {name: p.clone() for name, p in case.model.named_parameters()}
    small = with_int8_tables(case)
    assert all(torch.equal(before[name], p) for name, p in case.model.named_parameters())
    assert small.name == "dlrm, int8 tables" and any(
        t.format.name.startswith("int8") for t in dr.resolve(small.model).tensors
    )


def test_memory_of_words_out_of_range(case):
    check = dr.WeightRange.fit(case.model, per="row")
    assert check.outside(case.model) == {}
    with dr.inject(case.model, dr.FixedCount(3, bits=(30,)), "over_mlp", seed=0) as error_map:
        assert sum(check.outside(case.model).values()) == len(error_map)
    with pytest.raises(ValueError, match="which this model lacks"):
        check.outside(torch.nn.Linear(2, 2))
    assert set(memory_cost([case])["model"]) == {"dlrm"}


def test_which_data(monkeypatch):
    asked = []
    monkeypatch.setattr(mitigation_cases, "load_dataset", lambda name: asked.append(name))
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    trained(models=[])
    assert asked == list(mitigation_cases.GENERATED)
    monkeypatch.setenv("DRSROBUST_DATA", "/somewhere")
    trained(models=[])
    assert asked[len(mitigation_cases.GENERATED) :] == list(mitigation_cases.REAL)


def test_clean_auc_is_that_of_the_protected_model(case, monkeypatch):
    monkeypatch.setattr("benchmarks.mitigation.clipping", lambda case: [dr.ActivationClipping(0.3)])
    found = clean_auc([case], progress=False).set_index("mitigation").loc["clip 0.3"]
    evaluator, clip = dr.Evaluator(case.model, case.test), dr.ActivationClipping(0.3)
    with evaluator.under(clip) as guarded:
        # Rounding at the clip decides a rank: the evaluator may score the last batch without padding.
        assert found["auc"] == pytest.approx(guarded.golden.auc, abs=2e-5) and not found["bit_equal"]
    assert found["difference"] == pytest.approx(found["auc"] - evaluator.golden.auc) and found["difference"] != 0
    assert found["low"] < found["difference"] < found["high"]
