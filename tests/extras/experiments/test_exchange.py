"""Error maps of and for other tools: what is read does to a model what the tool, or the writer, did."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust._arguments import ArgumentError
from drsrobust.injection import ErrorMapMismatch
from tests.refusals import refuses

exchange = dr.exchange
NOTHING = {"layer_num": [], "k": [], "dim1": [], "dim2": [], "dim3": [], "value": []}


@pytest.fixture
def model():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Linear(5, 3), nn.Embedding(9, 4, dtype=torch.float16), nn.BatchNorm1d(3)
    )


def words(model):
    return {name: tensor.reshape(-1).view(torch.uint8).tolist() for name, tensor in model.state_dict().items()}


def under(error_map, model):
    """The words of a copy with the errors."""
    error_map.apply(faulty := copy.deepcopy(model))
    return words(faulty)


ERRORS = [
    (dr.BitFlip(0.05), "all"),
    (dr.BitFlip(0.0), "1.weight"),
    (dr.StuckAt(1, 0.05), ["0.*", "2.weight"]),
    (dr.StuckAt(0, 0.1) + dr.BitFlip(0.1), "everything"),
]


@pytest.mark.parametrize(("errors", "target"), ERRORS)
def test_a_file_gives_the_same_map(model, tmp_path, errors, target):
    with dr.inject(model, errors, target, seed=5) as error_map:
        path = tmp_path / "map.json"
        refuses(lambda: exchange.write(error_map, path, model), ValueError, "model")
    exchange.write(error_map, path, model)
    read = exchange.read(path, model)
    for name in ("targets", "seed", "error_model", "eligible_bits", "n_sites", "clock"):
        assert getattr(read, name) == getattr(error_map, name), name
    assert read.frame().equals(error_map.frame()) and under(read, model) == under(error_map, model)
    read.save(tmp_path / "map.npz")
    assert dr.ErrorMap.load(tmp_path / "map.npz").frame().equals(read.frame())
    nn.init.zeros_(model[1].weight)
    refuses(lambda: exchange.read(path, model), ErrorMapMismatch, path.stem, "same_weights")
    assert exchange.read(path, model, same_weights=False).frame().equals(read.frame())


FILES = [
    (lambda c: c.update(format="other"), ValueError, "format", "other"),
    (lambda c: c["drawn"].update(clock="3"), ValueError, "clock", "'3'"),
    (lambda c: c["tensors"][0].update(name="9.weight"), ErrorMapMismatch, "'9.weight'"),
    (lambda c: c["tensors"][0].update(shape=[3, 6]), ErrorMapMismatch, "1.weight", "[3, 6]"),
    (lambda c: c["tensors"][0].update(format="float16"), ErrorMapMismatch, "1.weight", "float16"),
    (lambda c: c["tensors"][0].update(word=[15, 2]), ValueError, "1.weight", 15),
    (lambda c: c["tensors"][0].update(word=[2, 3.7]), ValueError, "word", 3.7),
    (lambda c: c["tensors"].append(c["tensors"][0]), ValueError, "'1.weight'"),
    (lambda c: c["drawn"].update(requested_rate=1e999), ValueError, "requested_rate", "inf"),
    (lambda c: c.pop("tensors"), ValueError, "'tensors'"),
    (lambda c: c["tensors"][0].update(word=[2, 2]), ValueError, "1.weight", "distinct"),
    (lambda c: c["tensors"][0].update(bits=[[3], [32]]), ValueError, "[32]"),
    (lambda c: c["tensors"][0].update(bits=[[3], []]), ValueError, "[]"),
    (lambda c: c["tensors"][0].update(was=["0"]), ValueError, "1.weight", "was", 1),
]


@pytest.mark.parametrize(("change", "error", "said"), [(change, error, said) for change, error, *said in FILES])
def test_other_files_are_refused(model, tmp_path, change, error, said):
    error_map = dr.FixedCount(2).sample(dr.resolve(model, "1.weight"), seed=1)
    exchange.write(error_map, path := tmp_path / "map.json")
    change(content := json.loads(path.read_text()))
    path.write_text(json.dumps(content))
    refuses(lambda: exchange.read(path, model), error, *said)


def test_pytei(model, tmp_path):
    """The masks that it saves, as it applies them."""
    random, faulty = np.random.default_rng(0), copy.deepcopy(model)
    masks = {
        name: torch.from_numpy(random.integers(-(2**31), 2**31, p.shape).astype(np.int32)) * (torch.rand(p.shape) < 0.2)
        for name, p in model.named_parameters()
        if p.dtype == torch.float32
    }
    for name, mask in masks.items():
        parameter = faulty.get_parameter(name)
        parameter.data = (parameter.data.view(torch.int32) ^ mask).view(torch.float32)
    torch.save(masks, path := tmp_path / "map.pt")
    error_map = exchange.from_pytei(path, model)
    assert under(error_map, model) == words(faulty)
    assert error_map.eligible_bits == 32 * sum(mask.numel() for mask in masks.values())
    difference = exchange.between(model, faulty)
    assert difference.frame().equals(error_map.frame()) and difference.eligible_bits is None
    torch.save({"2.weight": torch.zeros(9, 4, dtype=torch.int32)}, path)
    refuses(lambda: exchange.from_pytei(path, model), ErrorMapMismatch, "2.weight", "float16")
    tied = nn.ModuleList([model[1], model[1]])
    torch.save({f"{n}.weight": torch.ones(3, 5, dtype=torch.int32) for n in (0, 1)}, path)
    refuses(lambda: exchange.from_pytei(path, tied), ErrorMapMismatch, "'1.weight'", "'0.weight'")
    torch.save({"0.bias": torch.zeros(4)}, path)
    refuses(lambda: exchange.from_pytei(path, model), ValueError, path)


def test_pytorchfi(model):
    """Values at places of numbered layers, one after the other."""
    places = [(0, 3, 0, 1, 2, 1e30), (1, 2, 4, None, None, 0.5), (1, 2, 4, None, None, 2.1)]
    errors = dict(zip(NOTHING, map(list, zip(*places, strict=True)), strict=True))
    error_map = exchange.from_pytorchfi(model, **errors, layer_types=[nn.Conv2d, nn.Linear])
    faulty = copy.deepcopy(model)
    with torch.no_grad():
        faulty[0].weight[3, 0, 1, 2], faulty[1].weight[2, 4] = 1e30, 2.1
    assert under(error_map, model) == words(faulty) and len(error_map) == 2
    nn.init.zeros_(model[0].weight)
    refuses(lambda: error_map.apply(model), ErrorMapMismatch, "0.weight")
    one = {"layer_num": [0], "k": [3], "dim1": [0], "dim2": [1], "dim3": [2], "value": [1.0]}
    wrong = [({"layer_num": [1]}, 1), ({"k": [4]}, 4), ({"k": [0.5]}, 0.5), ({"dim3": [None]}, None)]
    for changed, said in (*wrong, ({"value": []}, "[]")):
        refuses(lambda c=changed: exchange.from_pytorchfi(model, **one | c), ArgumentError, *changed, said)
    assert len(exchange.from_pytorchfi(model, **NOTHING)) == 0


def fault(positions, mode, **more):
    selector = None if positions is None else {"method": "FixPositions", "positions": positions}
    same = {"type": "weight", "name": ["weight"], "module_type": "Linear"}
    return same | {"selector": selector, "error_mode": mode} | more


def test_mrfi(model):
    """Bits, values and zeros at fixed places; a later entry finds what an earlier one left."""
    flips = {"method": "FloatFixedBitFlip", "bit": [30, 3]}
    faults = [
        fault([2, 9], flips),
        fault([[1, 0], [4, 4]], {"method": "FloatFixedBitFlip", "bit": 31}),
        fault([0], {"method": "SetValue", "value": 7.5}, module_type=[], module_fullname="0"),
        fault(None, {"method": "SetZero"}, name=["bias"], module_type=None, module_name="1"),
        fault([0], {"method": "SetZero"}, enabled=False),
    ]
    faults[2]["selector"] = {"method": "FixPosition", "position": [3, 0, 2, 2]}
    error_map, faulty = exchange.from_mrfi(model, {"faultinject": faults}), copy.deepcopy(model)
    with torch.no_grad():
        bits = faulty[1].weight.view(-1).view(torch.int32)
        bits[[2, 9]] ^= torch.tensor([1 << 30, 1 << 3], dtype=torch.int32)
        faulty[1].weight[1, 4] *= -1
        faulty[1].weight[0, 4] *= -1
        faulty[0].weight[3, 0, 2, 2] = 7.5
        nn.init.zeros_(faulty[1].bias)
    assert under(error_map, model) == words(faulty)
    assert error_map.depends.tolist() == [True] * 4 + [False] * 3
    tied = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    tied[1].weight = tied[0].weight  # the second module to run reads it with both flips
    both = {"faultinject": [fault([4, 5], flips)]}
    refuses(lambda: exchange.from_mrfi(tied, both), ValueError, "'1.weight'", "'0.weight'")


REFUSED = [
    ({"type": "activation"}, ValueError, "type", "activation"),
    ({"quantization": {"method": "SymmericQuantization"}}, ValueError, "quantization"),
    ({"selector": {"method": "RandomPositionByRate", "rate": 1e-3}}, ValueError, "selector", "RandomPositionByRate"),
    ({"selector": {"method": "FixPosition", "position": 15}}, ArgumentError, "selector", 15),
    ({"selector": {"method": "FixPosition", "position": 1.5}}, ArgumentError, "selector", 1.5),
    ({"selector": {"method": "FixPositions"}}, ArgumentError, "selector", None),
    ({"error_mode": {"method": "FloatFixedBitFlip", "bit": 3.7}}, ArgumentError, "bit", 3.7),
    ({"error_mode": {"method": "FloatFixedBitFlip", "bit": [1, 2, 3]}}, ArgumentError, "bit", "[1, 2, 3]"),
    ({"error_mode": {"method": "SetValue", "value": "x"}}, ArgumentError, "value", "'x'"),
    ({"error_mode": None}, ArgumentError, "error_mode", None),
    ({"error_mode": {"method": "FloatRandomBitFlip"}}, ValueError, "error_mode", "FloatRandomBitFlip"),
    ({"error_mode": {"method": "FloatFixedBitFlip", "bit": 32}}, ArgumentError, "bit", 32),
]


@pytest.mark.parametrize(("changed", "error", "said"), [(changed, error, said) for changed, error, *said in REFUSED])
def test_other_configurations_are_refused(model, changed, error, said):
    config = {"faultinject": [fault([1], {"method": "FloatFixedBitFlip", "bit": 3}, **changed)]}
    refuses(lambda: exchange.from_mrfi(model, config), error, *said)


def test_two_models(model):
    faulty = copy.deepcopy(model)
    assert len(exchange.between(model, faulty)) == 0
    faulty[3].num_batches_tracked += 4
    faulty[2].weight.data[8, 3] = float("nan")
    difference = exchange.between(model, faulty)
    assert difference.targets == ("2.weight", "3.num_batches_tracked") and under(difference, model) == words(faulty)
    refuses(lambda: exchange.between(model, model[:3]), ErrorMapMismatch, "3.")
    refuses(lambda: exchange.between(model[1], nn.Linear(5, 4)), ErrorMapMismatch, "weight", "[4, 5]")
    refuses(lambda: exchange.between(model, "model.pt"), ArgumentError, "faulty", "model.pt")
    with dr.inject(model, dr.BitFlip(0.1), dr.Activations("1"), seed=0) as error_map:
        model[1](torch.ones(2, 5))
    refuses(lambda: exchange.write(error_map, "map.json"), ValueError, "error_map")
    of_rank = dataclasses.replace(difference, rank=1)
    refuses(lambda: exchange.write(of_rank, "map.json"), ValueError, "error_map", 1)
