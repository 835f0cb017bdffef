"""Targets beyond names: dtypes, rows, unions, optimizer state, wrapped models."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.injection import FixedCount, Rows, inject, resolve
from drsrobust.introspection.embedding_modules import torchrec
from tests.injection.spaces import fused_collection


def rows_of(space):
    return {t.name: None if t.rows is None else t.rows.tolist() for t in space.tensors}


def small():
    torch.manual_seed(0)
    model = nn.Module()
    model.table, model.other, model.top = nn.EmbeddingBag(10, 4), nn.Embedding(6, 3), nn.Linear(4, 2)
    return model


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([7, 2, 2], [2, 7]),
        (np.array([9]), [9]),
        (torch.tensor([1, 0]), [0, 1]),
        (range(3), [0, 1, 2]),
        (slice(8, None), [8, 9]),
        (np.arange(10) % 5 == 0, [0, 5]),
    ],
)
def test_rows_by_number(rows, expected):
    model = small()
    space = resolve(model, dr.Rows("table", rows))
    assert rows_of(space) == {"table.weight": expected} and space.bits == 128 * len(expected)
    before = model.table.weight.detach().clone()
    with dr.inject(model, dr.BitFlip(1.0, bits="sign"), dr.Rows("table", rows), seed=1) as error_map:
        changed = (model.table.weight.detach() != before).all(dim=1)
        assert changed.nonzero().flatten().tolist() == expected
        assert error_map.counts("row").to_dict() == {("table.weight", row): 4 for row in expected}
    assert torch.equal(model.table.weight.detach(), before)


@pytest.mark.parametrize(
    ("table", "rows", "says"),
    [
        ("table", [10], "row 10 does not exist in table.weight; it has rows 0 to 9"),
        ("table", [-1], "row -1 does not exist"),
        ("table", [], r"rows must be row numbers, a mask or a slice, got \[\]"),
        ("table", [1.5], "rows must be row numbers"),
        ("table", np.ones(9, bool), r"a mask \[10\] or a slice"),
        ("tabel", [1], "unknown table 'tabel'; known: other.weight, table.weight, top.weight"),
        ("*.weight", [1], r"table '\*.weight' could be other.weight, table.weight; name one of them"),
    ],
)
def test_bad_rows(table, rows, says):
    with pytest.raises(ValueError, match=says):
        resolve(small(), dr.Rows(table, rows))


class Reads:
    """What `Rows.hot` needs of a split: features with (values, lengths)."""

    def __init__(self, **features):
        self.sparse = {name: (np.array(values), None) for name, values in features.items()}
        self.fingerprint = "abc"


def test_rows_by_how_often_they_are_read():
    split = Reads(table=[3] * 5 + [1] * 4 + [8] * 2 + [0])
    model = small()
    found = {
        text: rows_of(resolve(model, target))["table.weight"]
        for text, target in {
            "hot": dr.Rows.hot("table", split, 0.2),
            "least hot": dr.Rows.hot("table", split, 0.01),
            "cold": dr.Rows.cold("table", split, 0.6),
            "middle": dr.Rows.quantile("table", split, 0.2, 0.4),
        }.items()
    }
    assert found == {"hot": [1, 3], "least hot": [3], "cold": [2, 4, 5, 6, 7, 9], "middle": [0, 8]}
    assert str(dr.Rows.hot("table", split, 0.2)) == "Rows(table, hot 0.2 of abc)"
    halves = [dr.Rows.hot("table", split, 0.5), dr.Rows.cold("table", split, 0.5)]
    assert resolve(model, halves[0] | halves[1]).bits == resolve(model, "table.weight").bits


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan")])
def test_bad_shares(share):
    with pytest.raises(ValueError, match="share must be a number over 0, at most 1, got"):
        dr.Rows.hot("table", Reads(table=[1]), share)


def test_shares_that_follow_each_other_are_a_partition():
    table, split = nn.EmbeddingBag(12_345, 1), Reads(weight=list(range(300)) * 3)
    parts = [dr.Rows.quantile("weight", split, low / 20, (low + 1) / 20) for low in range(20)]
    rows = np.concatenate([resolve(table, part).tensors[0].rows for part in parts])
    assert sorted(rows) == list(range(12_345))
    halves = [resolve(table, rows) for rows in (dr.Rows.hot("weight", split, 0.5), dr.Rows.cold("weight", split, 0.5))]
    assert sum(space.words for space in halves) == 12_345
    with pytest.raises(ValueError, match="no row of table.weight lies between share 0.15 and 0.16 of its 10"):
        resolve(small(), dr.Rows.quantile("table", Reads(table=[1]), 0.15, 0.16))


def test_bad_splits():
    with pytest.raises(TypeError, match="split must be a Split, as data.train, got"):
        dr.Rows.hot("table", [1], 0.1)
    with pytest.raises(ValueError, match="table.weight has 10 rows, but feature 'table' of the split reads row 10"):
        resolve(small(), dr.Rows.hot("table", Reads(table=[10]), 0.1))
    with pytest.raises(ValueError, match="which feature reads table.weight"):
        resolve(small(), dr.Rows.hot("table", Reads(x=[1]), 0.1))


def test_hot_rows_of_a_real_model(trained, data):
    """Counted by the features that TorchRec's configuration names, multi-hot ones too."""
    for feature in ("movie", "genres"):
        space = resolve(trained, dr.Rows.hot(feature, data.train, 0.1))
        (tensor,) = space.tensors
        reads = np.bincount(data.train.sparse[feature].values, minlength=tensor.shape[0])
        inside = reads[tensor.rows].min()
        assert inside >= np.delete(reads, tensor.rows).max()
        assert len(tensor.rows) == int(0.1 * tensor.shape[0])


def test_a_table_of_several_features():
    model = nn.Module()
    config = torchrec().EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=5, feature_names=["a", "b"])
    model.bags = torchrec().EmbeddingBagCollection(tables=[config])
    space = resolve(model, dr.Rows.hot("t", Reads(a=[0, 0, 1], b=[1, 1]), 0.2))
    assert rows_of(space) == {"bags.embedding_bags.t.weight": [1]}
    with pytest.raises(ValueError, match=r"unknown feature \(which reads bags.*\) 'b'"):
        resolve(model, dr.Rows.hot("t", Reads(a=[0]), 0.2))


def test_exact_names_go_before_globs():
    model = nn.Module()
    model.t = nn.ModuleDict({"a[0]": nn.Linear(2, 2, bias=False), "a0": nn.Linear(2, 2, bias=False)})
    assert list(rows_of(resolve(model, "t.a[0].weight"))) == ["t.a[0].weight"]
    assert list(rows_of(resolve(model, "t.a?.weight"))) == ["t.a0.weight"]


def test_booleans_are_left_out_unless_named():
    model = nn.Linear(3, 3)
    model.register_buffer("mask", torch.ones(3, dtype=torch.bool))
    assert (
        list(rows_of(resolve(model, "everything")))
        == list(rows_of(resolve(model, dr.injection.Dtype("float32"))))
        == ["bias", "weight"]
    )
    with pytest.raises(ValueError, match="mask is torch.bool, which has no bit positions to hit"):
        resolve(model, "mask")


def test_dtypes():
    model = small()
    model.top = model.top.half()
    model.register_buffer("codes", torch.zeros(3, dtype=torch.int8))
    assert list(rows_of(resolve(model, dr.injection.Dtype("float16")))) == ["top.bias", "top.weight"]
    assert list(rows_of(resolve(model, dr.injection.Dtype(torch.int8)))) == ["codes"]
    assert list(rows_of(resolve(model, dr.injection.Dtype("float32", within="other.*")))) == ["other.weight"]
    assert str(dr.injection.Dtype("float16", within="all")) == "Dtype(float16, within=all)"
    with pytest.raises(ValueError, match="dtype must be .*, got 'float17'"):
        dr.injection.Dtype("float17")
    with pytest.raises(ValueError, match=r"target 'Dtype\(float64\)' matches nothing"):
        resolve(model, dr.injection.Dtype("float64"))


def test_unions_count_each_word_once():
    model = small()
    both = dr.Rows("table", [1, 2]) | "table.weight" | dr.Rows("other", [0])
    assert rows_of(resolve(model, both)) == {"table.weight": None, "other.weight": [0]}
    assert rows_of(resolve(model, "top" | dr.Rows("table", [1]) | dr.Rows("table", [1, 5])))["table.weight"] == [1, 5]
    assert str("top" | dr.Rows("table", [1])) == "Rows(table, [1]) | top"
    with pytest.raises(ValueError, match="target 'nothing' matches nothing; components: embedding, top; tensors"):
        resolve(model, dr.Rows("table", [1]) | "nothing")


@pytest.mark.parametrize("make", [torch.optim.Adam, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)])
def test_optimizer_state(make):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = make(model.parameters())
    with pytest.raises(
        ValueError, match="no optimizer state matches .*; there is none of this model: take a step first"
    ):
        resolve(model, dr.OptimizerState(optimizer))
    model(torch.randn(8, 3)).sum().backward()
    optimizer.step()
    key = "exp_avg_sq" if isinstance(optimizer, torch.optim.Adam) else "momentum_buffer"
    target = dr.OptimizerState(optimizer, f"0.weight.{key}")
    state = optimizer.state[model[0].weight][key]
    before = state.clone()
    with dr.inject(model, dr.BitFlip(1.0, bits="sign"), target, seed=1) as error_map:
        assert error_map.targets == (f"optimizer.0.weight.{key}",) and torch.equal(state, -before)
        assert error_map.frame()["component"].unique().tolist() == ["0"]
    assert torch.equal(state, before)
    with error_map.applied(model, optimizer=optimizer):
        assert torch.equal(state, -before)
    with pytest.raises(ValueError, match=r"does not have this optimizer state \(name it by optimizer=\)"):
        error_map.apply(model)
    assert resolve(model, dr.OptimizerState(optimizer, f"*.{key}")).words == 21
    with pytest.raises(ValueError, match="no optimizer state matches 'x'; there are: 0.weight"):
        resolve(model, dr.OptimizerState(optimizer, "x"))


def test_weights_and_their_optimizer_state_in_one_target():
    model = nn.Linear(3, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 3)).sum().backward()
    optimizer.step()
    before = {name: t.clone() for name, t in optimizer.state[model.weight].items()}
    weight = model.weight.detach().clone()
    with dr.inject(model, dr.BitFlip(1.0), "weight" | dr.OptimizerState(optimizer, "weight.exp*"), seed=1) as error_map:
        assert error_map.targets == ("optimizer.weight.exp_avg", "optimizer.weight.exp_avg_sq", "weight")
    assert torch.equal(model.weight.detach(), weight)
    assert all(torch.equal(t, before[name]) for name, t in optimizer.state[model.weight].items())
    other = torch.optim.Adam(model.parameters())
    with pytest.raises(ValueError, match="names the states of 2 optimizers"):
        resolve(model, dr.OptimizerState(optimizer) | dr.OptimizerState(other))


def test_state_of_a_fused_optimizer():
    model = fused_collection(torch.optim.Adagrad)
    optimizer = model.bags.fused_optimizer()
    space = resolve(model, dr.OptimizerState(optimizer))
    assert space.words >= 5 and all(tensor.name.startswith("optimizer.") for tensor in space.tensors)
    with dr.inject(model, dr.BitFlip(0.2), dr.OptimizerState(optimizer), seed=1) as error_map:
        assert len(error_map)
    assert not any(t.any() for t in (tensor.memory for tensor in space.tensors))


def test_compiled_models_have_the_names_of_plain_ones():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))
    compiled = torch.compile(model, backend="aot_eager")
    inner = nn.Sequential(torch.compile(model[0], backend="aot_eager"), model[1], model[2])
    for wrapped in (compiled, inner):
        assert rows_of(resolve(wrapped)) == rows_of(resolve(model))
        assert [t.component for t in resolve(wrapped).tensors] == ["0", "0", "2", "2"]
    x = torch.randn(4, 6)
    with torch.no_grad():
        golden = compiled(x)
        with dr.inject(compiled, dr.BitFlip(1.0, bits="sign"), "2", seed=1) as error_map:
            assert torch.allclose(compiled(x), -golden)
        assert torch.equal(compiled(x), golden)
        with error_map.applied(model):
            assert torch.allclose(model(x), -golden)


def test_components_of_wrapped_models(trained):
    compiled = torch.compile(trained, backend="eager")
    assert dr.components(compiled).equals(dr.components(trained))
    assert dr.components(nn.DataParallel(trained)).equals(dr.components(trained))


def test_frozen_and_trained_weights_alike():
    model = nn.Linear(5, 4).requires_grad_(False)
    with dr.inject(model, dr.BitFlip(1.0), seed=1) as error_map:
        assert error_map.bits == 24 * 32 and not model.weight.requires_grad


def test_autograd_is_not_told_of_errors_in_memory():
    """A weight that goes wrong between forward and backward is used as it is by then, as memory would have it."""
    model, x = nn.Linear(3, 1), torch.randn(2, 3, requires_grad=True)
    weight = model.weight.detach().clone()
    y = model(x).sum()
    with dr.inject(model, dr.BitFlip(1.0, bits="sign"), "weight", seed=1):
        y.backward()
    assert torch.equal(x.grad[0], -weight[0])


class Mlp(nn.Module):
    """Two embeddings in a ModuleDict, and an MLP with batch normalisation."""

    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleDict({"user_id": nn.Embedding(5, 4), "item_id": nn.Embedding(6, 4)})
        self.mlp = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 1))
        self.scale = nn.BatchNorm1d(4, affine=False)


def targeted(model, target):
    return [tensor.name for tensor in resolve(model, target).tensors]


def test_a_module_is_a_target():
    model = Mlp()
    assert targeted(model, "mlp.0") == ["mlp.0.bias", "mlp.0.weight"]
    assert targeted(model, "mlp.1") == ["mlp.1.bias", "mlp.1.weight"]  # its parameters, as of a component
    assert targeted(model, "scale") == ["scale.num_batches_tracked", "scale.running_mean", "scale.running_var"]
    assert targeted(model, "embeddings.user_id") == ["embeddings.user_id.weight"]
    assert targeted(model, "embeddings") == targeted(model, "embedding")
    assert targeted(model, "mlp.2") == targeted(model, "mlp.2.*")
    assert resolve(nn.Sequential(*(nn.Linear(1, 1) for _ in range(12))), "1").words == 2  # not 10 and 11


def test_a_list_of_targets_is_their_union():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    both = resolve(model, ["0.*", "2.bias"])
    assert [tensor.name for tensor in both.tensors] == ["0.bias", "0.weight", "2.bias"] and both.words == 13
    assert targeted(model, ("2.bias", Rows("0.weight", [1]))) == ["0.weight", "2.bias"]
    assert targeted(model, ["2", "2.bias"]) == ["2.bias", "2.weight"] and targeted(model, ["2"]) == targeted(model, "2")
    with inject(model, FixedCount(13 * 32), ["0.*", "2.bias"], seed=0) as error_map:
        assert error_map.counts("tensor").to_dict() == {"0.bias": 96, "0.weight": 288, "2.bias": 32}
    with inject(model, [(FixedCount(5), ["0.*", "2.bias"])], seed=0) as error_map:
        assert error_map.bits == 5
    with pytest.raises(ValueError, match="target 'nine' matches nothing"):
        resolve(model, ["0.*", "nine"])
    for wrong in ([], [3], [["0.*"], 3]):
        with pytest.raises(ValueError, match="target must be .* or a list of these, got"):
            resolve(model, wrong)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("mpl", "did you mean 'mlp'"),
        ("mlp.9", r"did you mean .*'mlp.\d'"),
        ("embeding", "did you mean 'embedding'"),
        ("embeddings.usr_id", "did you mean 'embeddings.user_id'"),
        ("mlp.0.wieght", "did you mean 'mlp.0.weight'"),
    ],
)
def test_the_nearest_names_are_suggested(wrong, hint):
    with pytest.raises(
        ValueError, match=f"matches nothing.*; {hint}.* components: embedding, mlp, scale; 16 tensors"
    ) as told:
        resolve(Mlp(), wrong)
    assert len(str(told.value)) < 250


def test_weights_that_are_rounded_are_named_once():
    """Hits of mantissas change nothing where forward rounds the weight to int8 codes."""
    from torch.ao import quantization
    from torch.nn.utils import parametrize

    config = quantization.get_default_qat_qconfig("fbgemm")
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).train()
    layers[0].qconfig = config
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantization.prepare_qat(layers, inplace=True)
    layers(torch.randn(64, 4))
    layers.eval()
    parametrize.register_parametrization(layers[2], "weight", quantization.default_weight_fake_quant())
    layers(torch.randn(64, 4))
    with pytest.warns(
        UserWarning, match="forward rounds 0.weight, 2.parametrizations.weight.original to codes"
    ) as said:
        resolve(layers)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve(layers)  # once
    layers.apply(quantization.disable_observer)  # the scale of the codes is learnt
    rows = torch.randn(64, 4)
    before = layers(rows)
    with inject(layers, FixedCount(8, bits=range(8)), "0.weight", seed=0) as error_map:
        assert len(error_map) > 0 and torch.equal(layers(rows), before)
    activations = nn.Sequential(nn.Linear(4, 4), quantization.FakeQuantize())
    off = copy.deepcopy(layers).apply(quantization.disable_fake_quant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve(activations)
        resolve(off)


class Block(nn.Module):
    """A weight beside an index, a mask, rotations and positions."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("index", torch.arange(3))
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        self.register_buffer("rotation", torch.ones(3, dtype=torch.complex64))
        self.register_buffer("position", torch.ones(3))


def blocks():
    return nn.ModuleDict({"blocks": nn.ModuleList([Block(), Block()]), "head": nn.Linear(1, 1)})


@pytest.mark.parametrize(
    ("target", "hit"),
    [
        ("blocks.*", "blocks.0.position blocks.0.weight blocks.1.position blocks.1.weight"),
        ("*.0.*", "blocks.0.position blocks.0.weight"),
        (["blocks.0.*", "blocks.1.index"], "blocks.0.position blocks.0.weight blocks.1.index"),
    ],
)
def test_a_glob_leaves_integer_buffers_out_and_says_so_once(target, hit):
    model = blocks()
    with pytest.warns(
        UserWarning, match="leaves out .*blocks.0.index, blocks.0.mask, blocks.0.rotation.*: buffers"
    ) as said:
        assert " ".join(tensor.name for tensor in resolve(model, target).tensors) == hit
        resolve(model, target)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("target", "hit"),
    [
        ("blocks.0.index", "blocks.0.index"),
        ("*.index", "blocks.0.index blocks.1.index"),
        ("*.0.[ip]*", "blocks.0.index blocks.0.position"),
        (dr.injection.Dtype("int64", within="blocks.0.*"), "blocks.0.index"),
        ("blocks", "blocks.0.weight blocks.1.weight"),
    ],
)
def test_integer_buffers_that_are_named_are_hit(target, hit):
    assert " ".join(tensor.name for tensor in resolve(blocks(), target).tensors) == hit
