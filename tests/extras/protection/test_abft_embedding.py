"""ABFT on lookups: every kind of module and pooling, detection and actions."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.introspection.embedding_modules import quantized_tables, torchrec
from drsrobust.models import build_model, padded_batches, score
from drsrobust_extras.protection.abft.quantized_rows import residues
from tests.click_models import CLICK_MODELS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.ao.quantization")
FEATURES = {"a": 50, "b": 70, "c": 50}  # c reads the table of a


def collection(poolings=("SUM", "MEAN"), dims=(16, 16), weighted=False, seed=0):
    torch.manual_seed(seed)
    config, pooling = torchrec().EmbeddingBagConfig, torchrec().PoolingType
    rows, features = (50, 70), (["a", "c"], ["b"])
    return torchrec().EmbeddingBagCollection(
        tables=[
            config(
                name=f"t{i}",
                embedding_dim=dims[i],
                num_embeddings=rows[i],
                feature_names=features[i],
                pooling=pooling[poolings[i]],
            )
            for i in range(2)
        ],
        is_weighted=weighted,
    )


class Model(nn.Module):
    def __init__(self, tables):
        super().__init__()
        self.tables = tables

    def forward(self, ids):
        return self.tables(ids).values()


def jagged(longest=1, weighted=False, batch=40, order="bac", seed=0):
    """Ids of three features, in an order that is not the tables'."""
    rng = np.random.default_rng(seed)
    lengths = [np.ones(batch, int) if longest == 1 else rng.integers(0, longest + 1, batch) for _ in order]
    values = np.concatenate([rng.integers(0, FEATURES[f], n.sum()) for f, n in zip(order, lengths, strict=True)])
    weights = torch.tensor(rng.normal(size=len(values)), dtype=torch.float32) if weighted else None
    return torchrec().KeyedJaggedTensor(
        keys=list(order),
        values=torch.from_numpy(values).int(),
        lengths=torch.from_numpy(np.concatenate(lengths)).int(),
        weights=weights,
    )


def quantized(dtype=torch.int8, poolings=("SUM", "MEAN"), weighted=False, seed=0):
    from torchrec.inference.modules import quantize_embeddings

    return quantize_embeddings(Model(collection(poolings, weighted=weighted, seed=seed)), dtype=dtype, inplace=True)


def names(model):
    return [tensor.name for tensor in dr.resolve(model, "embedding").tensors]


def found(model, abft, ids, error, target, seed):
    with torch.no_grad(), dr.inject(model, error, target, seed=seed), abft.attach(model) as watch:
        model(ids)
    return watch.detected


@pytest.mark.parametrize("longest", [1, 7])
@pytest.mark.parametrize("dims", [(16, 4), (1, 1)])
@pytest.mark.parametrize(
    ("poolings", "weighted"), [(("SUM", "SUM"), False), (("SUM", "MEAN"), False), (("SUM", "SUM"), True)]
)
def test_collections(poolings, weighted, dims, longest):
    model, ids = Model(collection(poolings, dims, weighted)), jagged(longest, weighted)
    abft = dr.ABFTEmbeddingBag.fit(model)
    assert abft.covered == ["tables"]
    with torch.no_grad():
        plain = model(ids)
        with abft.attach(model) as watch:
            assert torch.equal(model(ids), plain) and watch.detected is False
    read = {"t0": set(), "t1": set()}
    for feature, table in [("a", "t0"), ("c", "t0"), ("b", "t1")]:
        read[table] |= set(ids[feature].values().tolist())
    for table, rows in read.items():
        here, away = sorted(rows)[:3], sorted(set(range(50)) - rows)[:1]
        for bit in range(23, 32):
            error = dr.SingleBit(bit)
            assert found(model, abft, ids, error, dr.Rows(table, here), 1), (table, bit)
            if away:
                assert not found(model, abft, ids, error, dr.Rows(table, away), 1)
    assert not model.tables._forward_hooks


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("padding", [None, 3])
def test_single_bags(mode, last, padding):
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(20, 5, mode=mode, include_last_offset=last, padding_idx=padding)
    with torch.no_grad():
        bag.weight[:] = torch.randn(20, 5)
    abft = dr.ABFTEmbeddingBag.fit(bag, action="zero")
    ids, offsets = torch.tensor([1, 2, 3, 3, 4, 5, 3]), torch.tensor([0, 2, 2, 5, 7][: 5 if last else 4])
    with torch.no_grad():
        for call, row in (((ids, offsets), 3), ((ids[:6].view(2, 3),), 1), ((ids.view(-1, 1),), 5)):  # which reads id 5
            golden = bag(*call)
            with abft.attach(bag) as watch:
                assert torch.equal(bag(*call), golden) and watch.detected is False
                with dr.inject(bag, dr.SingleBit(30), dr.Rows("weight", [5]), seed=0):
                    wrong = bag(*call)
            golden[row] = 0
            assert torch.equal(wrong, golden) and watch.detected


def test_single_bags_with_weights_and_rows():
    torch.manual_seed(0)
    bag, rows = nn.EmbeddingBag(20, 5, mode="sum"), nn.Embedding(20, 5)
    ids, weights = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0.5, -2.0], [1.0, 3.0]])
    for module, call in [(bag, (ids, None, weights)), (rows, (ids,))]:
        abft = dr.ABFTEmbeddingBag.fit(module, action="restore")
        with torch.no_grad():
            golden = module(*call)
            with abft.attach(module) as watch:
                assert torch.equal(module(*call), golden) and watch.detected is False
                for bit in (23, 27, 30, 31):
                    with dr.inject(module, dr.SingleBit(bit), dr.Rows("weight", [4]), seed=0):
                        assert torch.equal(module(*call), golden)
                assert watch.detected and watch.repaired


@pytest.mark.parametrize("action", ["report", "recompute", "zero", "restore"])
@pytest.mark.parametrize("kind", ["float", "residue", "sum"])
@pytest.mark.parametrize("longest", [1, 5])
def test_actions(action, kind, longest):
    model = Model(collection(dims=(16, 8))) if kind == "float" else quantized()
    abft = dr.ABFTEmbeddingBag.fit(model, action=action, quantized="sum" if kind == "sum" else "residue")
    ids = jagged(longest)
    names_, versions = names(model), [p._version for p in model.parameters()]
    with torch.no_grad():
        golden = model(ids)
        row = int(ids["b"].values()[0])
        error = dr.SingleBit(31 if kind == "float" else 6)
        with (
            dr.inject(model, error, dr.Rows(names_[-1], [row]), seed=2, mitigation=abft),
            dr.inject(model, dr.SingleBit(22 if kind == "float" else 5), dr.Rows(names_[-1], [row]), seed=3),
        ):
            with abft.attach(model) as watch:
                out = model(ids)
            assert watch.detected
        assert torch.equal(model(ids), golden)
    wrong = (out != golden).any(1)
    reads = torch.tensor([row in ids["b"].values()[a:b].tolist() for a, b in pairwise(ids["b"].offsets().tolist())])
    if action == "restore":
        assert not wrong.any() and watch.repaired and abft.ordered
        assert abft.golden.stored_bits == sum(8 * t.numel() * t.element_size() for t in _memory(model))
    else:
        assert torch.equal(wrong, reads) and watch.repaired is (False if action == "recompute" else None)
    if action == "zero":
        start = golden.shape[1] - (8 if kind == "float" else 16)
        assert not out[reads, start:].any() and torch.equal(out[:, :start], golden[:, :start])
    assert versions == [p._version for p in model.parameters()]


def _memory(model):
    tables = [table.tensor for table in quantized_tables(list(model.named_modules()))]
    return tables or list(model.parameters())


@pytest.mark.parametrize("dtype", [torch.int8, torch.quint4x2, torch.quint2x4, torch.float16])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("longest", [1, 6])
def test_quantized_tables(dtype, weighted, longest):
    poolings = ("SUM", "SUM") if weighted else ("SUM", "MEAN")
    model, ids = quantized(dtype, poolings, weighted), jagged(longest, weighted)
    exact, sums = (dr.ABFTEmbeddingBag.fit(model, quantized=way) for way in ("residue", "sum"))
    with torch.no_grad():
        plain = model(ids)
        for abft in (exact, sums):
            with abft.attach(model) as watch:
                assert torch.equal(model(ids), plain) and watch.detected is False
    live = set(ids["a"].values().tolist()) | set(ids["c"].values().tolist())
    rows = dr.Rows(names(model)[0], sorted(live))
    for field in dr.resolve(model, rows).tensors[0].format.fields.keys() - {"padding"}:
        for seed in range(6):
            one = dr.FixedCount(1, bits=field)
            assert found(model, exact, ids, one, rows, seed), field
            assert field == "mantissa" or found(model, sums, ids, one, rows, seed), field
    away = dr.Rows(names(model)[0], sorted(set(range(50)) - live)[:1])
    if set(range(50)) - live:
        assert not found(model, exact, ids, dr.BitFlip(0.5), away, 0)
    if dtype in (torch.int8, torch.quint4x2):  # rows of eight-byte multiples and padding
        assert not found(model, exact, ids, dr.BitFlip(0.5, bits="padding"), rows, 0)
    assert 8 * sum(t.shape[0] for t in _memory(model)) == exact.cost(model).stored_bits
    assert sums.cost(model).stored_bits == 8 * exact.cost(model).stored_bits


def test_residues():
    rng = np.random.default_rng(0)
    for live, width in [(20, 32), (5, 8), (12, 12), (3, 3)]:
        rows = torch.from_numpy(rng.integers(0, 256, (4, width), dtype=np.uint8))
        before = {modulus: residues(rows, live, modulus) for modulus in (3, 127, 255, 2**31 - 1)}
        for byte in range(width):
            for bit in range(8):
                flipped = rows.clone()
                flipped[2, byte] ^= 1 << bit
                for modulus, old in before.items():
                    new = residues(flipped, live, modulus)
                    assert torch.equal(new != old, torch.tensor([False, False, byte < live, False]))
                    assert (new >= 0).all() and (new < modulus).all()


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_every_model(name, data):
    torch.manual_seed(0)
    model, batches = build_model(name, data.schema), padded_batches(data.valid)
    plain = score(model, batches, len(data.valid))
    abft = pickle.loads(pickle.dumps(dr.ABFTEmbeddingBag.fit(model, action="restore")))
    with abft.attach(model) as watch:
        assert np.array_equal(score(model, batches, len(data.valid)), plain)
        assert watch.detected is False
        with dr.inject(model, dr.FixedCount(50, bits="exponent"), "embedding", seed=0):
            assert np.array_equal(score(model, batches, len(data.valid)), plain)
            assert watch.detected and watch.repaired
    assert not any(module._forward_hooks for module in model.modules())
    work = abft.cost(model)
    assert work.stored_bits > abft.golden.stored_bits > 0 and work.multiply_adds > 0 and work.bytes_touched > 0


def test_evaluators_look_at_reached_rows_only(data, trained):
    evaluator, abft = dr.Evaluator(trained, data.test), dr.ABFTEmbeddingBag.fit(trained)
    user = int(data.test.batch().sparse_features["user"].values()[0])
    with (
        evaluator.under(abft) as guarded,
        dr.inject(trained, dr.SingleBit(31), dr.Rows("*user*", [user]), seed=0) as error_map,
    ):
        with abft.attach(trained) as watch:
            few = guarded.rerun(error_map)
        assert watch.detected and 0 < few.rows_reached < len(data.test) and few.auc == guarded.run().auc


def test_what_is_not_covered():
    tables = nn.ModuleDict(
        {
            "max": nn.EmbeddingBag(5, 3, mode="max"),
            "norm": nn.Embedding(5, 3, max_norm=1.0),
            "small": nn.Embedding(5, 3, dtype=torch.float16),
            "good": nn.Embedding(5, 3),
        }
    )
    assert dr.ABFTEmbeddingBag.fit(tables).covered == ["good"]
