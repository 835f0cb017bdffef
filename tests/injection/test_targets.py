"""Targets beyond names: dtypes, rows, unions, optimizer state, wrapped models; weights that no target holds."""

import copy
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.injection import Dtype, FixedCount, Rows, inject, resolve
from drsrobust.introspection.embedding_modules import torchrec
from tests.injection.spaces import Mixed, Mlp, Reads, holder, small


def rows_of(space):
    return {t.name: None if t.rows is None else t.rows.tolist() for t in space.tensors}


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


def test_shares_that_follow_each_other_are_a_partition():
    table, split = nn.EmbeddingBag(12_345, 1), Reads(weight=list(range(300)) * 3)
    parts = [dr.Rows.quantile("weight", split, low / 20, (low + 1) / 20) for low in range(20)]
    rows = np.concatenate([resolve(table, part).tensors[0].rows for part in parts])
    assert sorted(rows) == list(range(12_345))
    halves = [resolve(table, rows) for rows in (dr.Rows.hot("weight", split, 0.5), dr.Rows.cold("weight", split, 0.5))]
    assert sum(space.words for space in halves) == 12_345


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


def test_unions_count_each_word_once():
    model = small()
    both = dr.Rows("table", [1, 2]) | "table.weight" | dr.Rows("other", [0])
    assert rows_of(resolve(model, both)) == {"table.weight": None, "other.weight": [0]}
    assert rows_of(resolve(model, "top" | dr.Rows("table", [1]) | dr.Rows("table", [1, 5])))["table.weight"] == [1, 5]
    assert str("top" | dr.Rows("table", [1])) == "Rows(table, [1]) | top"
    assert str(Dtype("float16", within="all")) == "Dtype(float16, within=all)"


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


def test_weights_and_their_optimizer_state_in_one_target():
    model = nn.Linear(3, 4)
    optimizer, other = torch.optim.Adam(model.parameters()), torch.optim.Adam(model.parameters())
    model(torch.randn(8, 3)).sum().backward()
    optimizer.step()
    held = {"weight": model.weight.detach()} | optimizer.state[model.weight]
    before = {name: tensor.clone() for name, tensor in held.items()}
    with dr.inject(model, dr.BitFlip(1.0), "weight" | dr.OptimizerState(optimizer, "weight.exp*"), seed=1) as error_map:
        assert error_map.targets == ("optimizer.weight.exp_avg", "optimizer.weight.exp_avg_sq", "weight")
    assert all(torch.equal(tensor, before[name]) for name, tensor in held.items())
    with pytest.raises(ValueError, match="names the states of 2 optimizers"):
        resolve(model, dr.OptimizerState(optimizer) | dr.OptimizerState(other))


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


def targeted(model, target):
    return [tensor.name for tensor in resolve(model, target).tensors]


def test_a_list_of_targets_is_their_union():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    both = resolve(model, ["0.*", "2.bias"])
    assert [tensor.name for tensor in both.tensors] == ["0.bias", "0.weight", "2.bias"] and both.words == 13
    assert targeted(model, ("2.bias", Rows("0.weight", [1]))) == ["0.weight", "2.bias"]
    assert targeted(model, ["2", "2.bias"]) == ["2.bias", "2.weight"] and targeted(model, ["2"]) == targeted(model, "2")
    with inject(model, [(FixedCount(13 * 32), ["0.*", "2.bias"])], seed=0) as error_map:
        assert error_map.counts("tensor").to_dict() == {"0.bias": 96, "0.weight": 288, "2.bias": 32}


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
    with pytest.warns(UserWarning, match="0.weight, 2.parametrizations.weight.original to codes") as said:
        resolve(layers)
    assert len(said) == 1
    resolve(layers)  # once: warnings are errors here
    layers.apply(quantization.disable_observer)  # the scale of the codes is learnt
    rows = torch.randn(64, 4)
    before = layers(rows)
    with inject(layers, FixedCount(8, bits=range(8)), "0.weight", seed=0) as error_map:
        assert len(error_map) > 0 and torch.equal(layers(rows), before)
    resolve(nn.Sequential(nn.Linear(4, 4), quantization.FakeQuantize()))  # rounds activations
    resolve(copy.deepcopy(layers).apply(quantization.disable_fake_quant))


def block():
    """A weight beside an index, a mask, rotations and positions."""
    rotation, mask = torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.bool)
    made = holder(index=torch.arange(3), mask=mask, rotation=rotation, position=torch.ones(3))
    made.weight = nn.Parameter(torch.ones(2))
    return made


def blocks():
    return nn.ModuleDict({"blocks": nn.ModuleList([block(), block()]), "head": nn.Linear(1, 1)})


def test_a_glob_leaves_integer_buffers_out_and_says_so_once():
    model = blocks()
    with pytest.warns(UserWarning, match="blocks.0.index, blocks.0.mask, blocks.0.rotation") as said:
        for _ in range(2):
            assert targeted(model, "*.0.*") == ["blocks.0.position", "blocks.0.weight"]
    assert len(said) == 1
    with pytest.warns(UserWarning, match="leaves out"):
        assert targeted(model, ["blocks.0.*", "blocks.1.index"])[2:] == ["blocks.1.index"]


def layers(*names):
    return nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in names})


def tied():
    model = layers("a", "b")
    model["b"].weight = model["a"].weight
    return model


@pytest.mark.parametrize(
    ("make", "target", "hit"),
    [
        (Mixed, "all", "a b"),  # in name order; the empty one has no bits, the tied one is b
        (Mixed, "everything", "a b codes"),
        (Mixed, "c*", "codes"),
        (Mixed, "[ab]", "a b"),
        (Mixed, Dtype("float16"), "a"),
        (Mixed, Dtype(torch.uint8), "codes"),
        (lambda: layers("a[0]", "a0"), "a[0].weight", "a[0].weight"),  # an exact name goes before a glob
        (lambda: layers("a[0]", "a0"), "a?.weight", "a0.weight"),
        (lambda: layers("mlp", "user_mlp", "top"), "mlp", "mlp.weight"),  # an exact component before a group
        (lambda: layers("rest", "user_mlp", "top"), "mlp", "user_mlp.weight"),
        # Modules: of those with parameters these, as of a component.
        (Mlp, "mlp.0", "mlp.0.bias mlp.0.weight"),
        (Mlp, "mlp.1", "mlp.1.bias mlp.1.weight"),
        (Mlp, "scale", "scale.num_batches_tracked scale.running_mean scale.running_var"),
        (Mlp, "embeddings.user_id", "embeddings.user_id.weight"),
        (Mlp, "embeddings", "embeddings.item_id.weight embeddings.user_id.weight"),
        (Mlp, "embedding", "embeddings.item_id.weight embeddings.user_id.weight"),
        (lambda: layers(*map(str, range(12))), "1", "1.weight"),  # not 10 and 11
        (tied, "b.weight", "a.weight"),  # further names of tied tensors mean the same memory
        (tied, "b", "a.weight"),
        (lambda: nn.Sequential(layer := nn.Linear(2, 2), nn.ReLU(), layer), "2.*", "0.bias 0.weight"),
        # Integer buffers that are named.
        (blocks, "blocks.0.index", "blocks.0.index"),
        (blocks, "*.index", "blocks.0.index blocks.1.index"),
        (blocks, "*.0.[ip]*", "blocks.0.index blocks.0.position"),
        (blocks, Dtype("int64", within="blocks.0.*"), "blocks.0.index"),
        (blocks, Dtype("float32", within="blocks.0.*"), "blocks.0.position blocks.0.weight"),
        (blocks, "blocks", "blocks.0.weight blocks.1.weight"),
    ],
)
def test_what_is_hit(make, target, hit):
    assert " ".join(targeted(make(), target)) == hit


@dataclass
class Settings:
    scale: torch.Tensor
    name: str = "a"


class Metric(nn.Module):
    """As torchmetrics has them: states are attributes."""

    def __init__(self):
        super().__init__()
        self.total = torch.zeros(3)

    def update(self): ...

    def compute(self): ...

    def reset(self): ...


class Holder(nn.Module): ...


def told(held):
    model = Holder()
    model.known = nn.Linear(2, 2)
    model.held = held(model) if callable(held) and not isinstance(held, nn.Module) else held
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            dr.resolve(model, "all")
    return [str(one.message) for one in said]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([nn.Linear(2, 2)], "held[0]"),
        ({"a": nn.Linear(2, 2)}, "held['a']"),
        ({"a": [nn.Sequential(nn.Linear(2, 2))]}, "held['a'][0]"),
        (torch.ones(3), "held"),
        ((torch.ones(3), 1), "held[0]"),
        (Settings(torch.ones(2)), "held.scale"),
    ],
)
def test_what_no_target_holds_is_named_once(value, path):
    (text,) = told(value)
    assert text.startswith(f"errors cannot hit {path}: modules in a plain list")


@pytest.mark.parametrize(
    "value",
    [
        lambda model: [model.known],
        lambda model: {"w": model.known.weight},
        lambda model: model.known.weight.data[0],
        lambda model: torch.optim.Adam(model.parameters()),
        lambda model: [nn.ReLU(), nn.BCELoss()],
        Metric(),
        torch.ones(3, dtype=torch.bool),
        torch.empty(0),
        Settings(None),
    ],
)
def test_no_false_alarm(value):
    assert told(value) == []
