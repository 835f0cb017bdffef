"""The training benchmark in a tiny form: columns, equal rows for all, equal sums where methods should agree."""

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import training as study
from benchmarks.__main__ import main
from benchmarks.op_profile import _OTHER_OPERATIONS as REST
from benchmarks.op_profile import LOOK_UPS, OUTSIDE, PRODUCTS, Operations, bound, parts
from benchmarks.quality import TORCHFM_MODELS as MODELS
from benchmarks.quality import ids_of, installed, set_dropout, torchfm_model
from benchmarks.training import (
    AUC_COLUMNS,
    COLUMNS,
    Fused,
    OursBfloat16,
    Plain,
    describe,
    has_bfloat16,
    large_tables,
    ratios,
    training_speed,
)
from benchmarks.training import STEP_KINDS as STEPS
from benchmarks.training import OursStep as Ours
from drsrobust._environment import cores, threads
from drsrobust.data import load_dataset
from drsrobust.data.dataset import Feature, Schema
from drsrobust.data.synthetic import log_uniform, planted
from drsrobust.models import build_model, padded_batches, score
from drsrobust.training import Settings

SIZES = {"dense_mlp": [32, 16], "over_mlp": [32, 1]}
LARGE = {"table_rows": 1300, "rows": 20_100, "valid": 4_000, "batch": 256, "sizes": SIZES}
SMALL = {"models": ["fm", "dcn"], "steps": 2, "scored": 500, "settings": Settings(batch_size=128), "repeats": 1}
needs_torchfm = pytest.mark.skipif(not installed(), reason="torchfm not run: not installed")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """More threads than this would only slow tiny models down, by a lot where others compute too."""
    monkeypatch.setattr("benchmarks.training.cores", lambda: 1)


@pytest.fixture(scope="module")
def start():
    schema, train, *_ = planted(1300, 1000, 100)
    return build_model("dlrm", schema, **SIZES), schema, train


def test_all_methods_train_on_the_same_rows_and_learn():
    before = torch.get_num_threads()
    speeds, areas, remarks = large_tables(**LARGE, progress=False)
    assert torch.get_num_threads() == before
    assert [row["method"] for row in speeds] == [row["method"] for row in areas]
    assert {"drsrobust", Plain.name, Fused.name} <= {row["method"] for row in speeds} <= set(STEPS)
    assert all(tuple(row) == COLUMNS and row["rows_per_s"] > 0 and row["batch"] == 256 for row in speeds)
    assert all(tuple(row) == AUC_COLUMNS and row["rows"] == LARGE["rows"] for row in areas)
    area = {row["method"]: row["valid_auc"] for row in areas}
    assert all(0.55 < one < 0.9 for one in area.values())
    # The same kernels from the same weights on the same rows: what differs is how they are called.
    assert area["drsrobust"] == pytest.approx(area[Fused.name], abs=2e-3)
    assert "teacher's own AUC on these 4,000 validation rows is 0.8" in " ".join(remarks)


def test_methods_start_from_the_same_weights_and_leave_them_alone(start):
    ours, schema, train = start
    golden = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    batches = padded_batches(train)
    expected = score(ours, batches, len(train))
    for kind in (Plain, Fused, Ours, OursBfloat16):
        method = kind(ours, schema)
        np.testing.assert_allclose(score(method.model, batches, len(train)), expected, atol=1e-6)
        if kind is OursBfloat16 and not has_bfloat16():
            continue
        first = method.step(train.batch(slice(256)))
        assert first == pytest.approx(np.log1p(np.exp(-expected[:256] * (2 * train.labels[:256] - 1))).mean(), rel=5e-3)
        assert np.abs(score(method.model, batches, len(train)) - expected).max() > 1e-5
        method.close()
    assert all(torch.equal(golden[name], tensor) for name, tensor in ours.state_dict().items())


def test_plain_is_torchrec_and_optimises_all_there_is(start):
    ours, schema, _ = start
    plain, fused = Plain(ours, schema), Fused(ours, schema)
    assert type(plain.model).__module__ == type(fused.model).__module__ == "torchrec.models.dlrm"
    (group,) = plain.optimizer.param_groups
    assert len(group["params"]) == len(list(ours.parameters()))
    assert len(fused.optimizer.param_groups[0]["params"]) == len(list(ours.parameters())) - 26


def test_planted_rows():
    schema, train, valid, best = planted(1003, 5000, 1000, seed=4)
    assert sum(feature.cardinality for feature in schema.features) == 1003 and len(schema.features) == 26
    assert len(train) == 5000 and len(valid) == 1000 and 0.75 < best < 0.95
    assert all(
        train.sparse[feature.name].values.max() < feature.cardinality and valid.sparse[feature.name].values.min() >= 0
        for feature in schema.features
    )
    again = planted(1003, 5000, 1000, seed=4)
    assert np.array_equal(again[1].labels, train.labels) and again[3] == best
    ids = log_uniform(np.random.default_rng(0), 999, 20_000)
    assert ids.min() == 0 and ids.max() <= 998
    assert (ids == 0).mean() == pytest.approx(np.log(2) / np.log(1000), abs=0.01)


def test_a_processor_without_bfloat16_is_told(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor: 0\nflags\t\t: fpu avx2 avx512f\n")
    assert not has_bfloat16(cpuinfo) and not has_bfloat16(tmp_path / "none")
    cpuinfo.write_text("flags\t\t: fpu avx512_bf16\n")
    assert has_bfloat16(cpuinfo)
    monkeypatch.setattr("benchmarks.training.has_bfloat16", lambda: False)
    small = LARGE | {"rows": 512, "methods": ["drsrobust", OursBfloat16.name]}
    speeds, areas, remarks = large_tables(**small, progress=False)
    assert [row["method"] for row in speeds] == ["drsrobust"] == [row["method"] for row in areas]
    assert remarks[0].startswith("drsrobust, bfloat16: not run: this processor")


def test_unknown_methods():
    with pytest.raises(ValueError, match="unknown method 'plane'"):
        large_tables(**LARGE, methods=["plane"], progress=False)


def test_threads_are_set_and_put_back():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before and cores() >= 1


def test_rates_leave_the_first_batch_out(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(study.time, "perf_counter", lambda: next(clock))
    done = []
    assert study.after_the_first(iter([5, 7, 7]), done.append, lambda batch: batch) == 14  # in one second of that clock
    assert done == [5, 7, 7]


@pytest.mark.parametrize("name", MODELS)
def test_parts_of_scoring(name):
    data = load_dataset("synthetic-movielens/ids", rows=4000)
    found = parts(build_model(name, data.schema), data.test.head(128).batch(), repeats=3)
    kinds = [LOOK_UPS, *([] if name == "fm" else [PRODUCTS]), REST, OUTSIDE, "a large product", "a large copy"]
    assert found.index.tolist() == kinds  # a factorization machine has no matrix product
    assert found["share"].sum() == pytest.approx(1)
    assert found.loc["a large product", "gflop_s"] > 0 and found.loc["a large copy", "gb_s"] > 0


def test_operations_are_counted():
    model = torch.nn.Sequential(torch.nn.Linear(8, 4, bias=False), torch.nn.ReLU())
    bags, ids = torch.nn.EmbeddingBag(100, 6, mode="sum"), torch.arange(20).view(10, 2)
    with torch.no_grad(), Operations() as counted:
        model(torch.ones(5, 8))
        bags(ids)
    (_, flop, size), (_, _, rest) = counted.found[PRODUCTS], counted.found[REST]
    assert flop == 2 * 5 * 8 * 4 and size == 4 * (5 * 8 + 8 * 4 + 5 * 4) and rest >= 4 * 2 * 5 * 4
    _, flop, size = counted.found[LOOK_UPS]
    assert flop == 20 * 6 and 4 * 6 * (20 + 10) < size < 4 * 6 * 100  # rows that are read, not the table
    assert bound(0.9, 0.1) == "arithmetic" and bound(0.0, 0.4) == "memory" and bound(0.1, 0.2) == "latency"


def test_the_whole_benchmark(tmp_path, capsys, monkeypatch):
    made = training_speed(
        LARGE | {"rows": 1024, "valid": 500},
        SMALL,
        "synthetic-movielens/ids",
        table_rows=1300,
        parts_of=("fm",),
        progress=False,
    )
    table, areas, looked, remarks = made
    assert tuple(table.columns) == COLUMNS and tuple(areas.columns) == AUC_COLUMNS
    here = table[(table["method"] == "drsrobust") & (table["model"] != "dlrm")]
    assert here[["model", "phase", "batch"]].to_numpy().tolist() == [
        *(["fm", "train", 128], ["fm", "score", 2048], ["dcn", "train", 128], ["dcn", "score", 2048]),
    ]
    text = describe(*made)
    assert "1 threads" in text and "Scoring 2,048 rows: dlrm, 26 tables" in text
    assert ("torchfm not run: not installed" in text) is not installed()
    monkeypatch.setattr("benchmarks.training.training_speed", lambda: made)
    assert main(["training", "--out", str(tmp_path)]) == 0
    assert pd.read_csv(tmp_path / "training.csv").columns.tolist() == [
        "method",
        "model",
        "phase",
        "batch",
        "rows_per_s",
    ]
    assert pd.read_csv(tmp_path / "training_auc.csv").columns.tolist() == ["method", "model", "rows", "valid_auc"]
    assert "wrote" in capsys.readouterr().out


def test_ratios():
    lines = [("drsrobust", "m", "train", 2, 30.0), ("drsrobust, bfloat16", "m", "train", 2, 60.0)]
    lines += [("a", "m", "train", 2, 10.0), ("b", "m", "train", 2, 20.0)]
    found = ratios(pd.DataFrame(lines, columns=list(COLUMNS))).loc[("m", "train")]
    assert found.to_dict() == {"a": 3.0, "b": 1.5, "best": 1.5}


@needs_torchfm
def test_torchfm_computes_the_same_factorization_machine():
    data = load_dataset("synthetic-movielens/ids", rows=4000)
    for name in ("fm", "deepfm", "wide_deep"):
        ours, theirs = build_model(name, data.schema), torchfm_model(name, data.schema).eval()
        with torch.no_grad():
            tables = ours.fields.embeddings if hasattr(ours, "fields") else ours.embeddings
            theirs.embedding.embedding.weight.copy_(torch.cat([bag.weight for bag in tables.embedding_bags.values()]))
            theirs.linear.fc.weight.copy_(torch.cat([bag.weight for bag in ours.first_order.embedding_bags.values()]))
            if name != "fm":
                deep = ours.deep.dense_module if name == "deepfm" else ours.deep
                theirs.mlp.mlp.load_state_dict(deep.state_dict())
            found = torch.logit(theirs(torch.from_numpy(ids_of(data.test))))
        np.testing.assert_allclose(found, score(ours, padded_batches(data.test), len(data.test)), atol=1e-5)


@needs_torchfm
def test_torchfm_s_attention_drops_in_training_alone():
    data = load_dataset("synthetic-movielens/ids", rows=4000)
    model, ids = torchfm_model("afm", data.schema), torch.from_numpy(ids_of(data.test))
    set_dropout(model, True)
    assert not torch.equal(model(ids), model(ids))
    set_dropout(model, False)
    assert torch.equal(model(ids), model(ids))


@needs_torchfm
@pytest.mark.parametrize("workers", [0, 1])
def test_torchfm_is_fed_all_rows(workers):
    data = load_dataset("synthetic-movielens/ids", rows=4000)
    one = study.Torchfm("fm", data, Settings(batch_size=100), workers)
    assert one.train(3) > 0 and one.train(1000) > 0  # fewer rows than asked for: one epoch
    probabilities, rate = one.score(data.test, 64)
    assert len(probabilities) == len(data.test) and rate > 0
    with torch.no_grad():
        expected = one.model(torch.from_numpy(ids_of(data.test)))
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)


@needs_torchfm
def test_torchfm_has_no_dense_columns():
    with pytest.raises(ValueError, match="single-hot ids alone"):
        torchfm_model("fm", Schema(("I1",), (Feature("C1", 3),)))
