"""Where activations can be bounded, in every model and in foreign ones."""

import pytest
import torch
from torch import nn

from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.mitigation.activations.sites import (
    check_sites,
    find_sites,
    hook_layers,
    hook_output,
    layer_count,
    select_sites,
)
from drsrobust.models import build_model
from drsrobust_extras.data.dcn import VectorCross
from tests.click_models import CLICK_MODELS

SMALL = {"afn": {"neurons": 8, "deep_mlp": (16, 16)}}


def test_widths_are_those_of_the_outputs(data):
    """Where sizes say how many numbers a sample has, that many come out (layers that a sample passes several times aside)."""
    batch = data.train.batch(slice(0, 64))
    for name in CLICK_MODELS:
        model = build_model(name, data.schema, **SMALL.get(name, {})).eval()
        seen, handles = {}, []
        for place in find_sites(model):
            if place.layer is None:

                def note(output, fresh, place=place, seen=seen):
                    seen.setdefault(place, output.numel() / 64)
                    return output

                handles.append(hook_output(model.get_submodule(place.module), note))
        model(batch.dense_features, batch.sparse_features)
        for handle in handles:
            handle.remove()
        for place, width in seen.items():
            several = place.module.startswith(("attention.", "logarithmic."))  # a sample passes these several times
            assert width >= place.width if several else width == place.width, (name, place)


class Foreign(nn.Module):
    """A model of plain PyTorch: tables, one of width 1, and layers, one of which has a misleading name."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.items, self.users, self.weights = nn.Embedding(9, 4), nn.EmbeddingBag(9, 4), nn.Embedding(9, 1)
        self.head = nn.Linear(12, 1)

    def forward(self, x, ids):
        vectors = torch.cat((self.linear(x), self.items(ids), self.users(ids.unsqueeze(1))), 1)
        return self.head(vectors) + self.weights(ids)


def test_a_foreign_model():
    found = [(place.kind, place.module, place.width) for place in find_sites(Foreign())]
    assert found == [
        ("linear", "linear", 4),
        ("embedding", "items", 4),
        ("embedding", "users", 4),
        ("first_order", "weights", 1),
        ("last", "head", 1),
        ("logit", "", 1),
    ]


def test_kinds():
    assert check_sites(["logit", "linear", "logit"]) == ("linear", "logit") and check_sites("norm") == ("norm",)
    assert check_sites(None) is None
    assert [place.module for place in select_sites(Foreign(), ("cross", "last"))] == ["head"]  # it has no cross layers


def cross_nets():
    crossnet = torchrec().modules.crossnet
    return [
        VectorCross(12, 3),
        crossnet.VectorCrossNet(12, 3),
        crossnet.LowRankCrossNet(12, 3, 4),
    ]


@pytest.mark.parametrize(
    "net", cross_nets(), ids=lambda net: f"{type(net).__module__.split('.')[0]} {type(net).__name__}"
)
def test_cross_layers_give_the_same_bits(net):
    """What stands in for a cross network's forward computes the same, and shows what is between the layers."""
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    x, seen = torch.randn(64, 12), []
    expected = net(x)

    def note(y, fresh):
        assert fresh
        seen.append(y)
        return y

    (handle,) = hook_layers(net, dict.fromkeys(range(layer_count(net)), note))
    assert torch.equal(net(x), expected)
    assert len(seen) == layer_count(net) and seen[0].shape == (64, 12) and torch.equal(seen[-1], expected)
    handle.remove()
    assert "forward" not in net.__dict__
    (handle,) = hook_layers(net, {0: lambda y, fresh: y.zero_()})
    assert not torch.equal(net(x), expected)
    handle.remove()
    assert torch.equal(net(x), expected)


def test_keyed_tensors_keep_their_keys(data):
    model = build_model("dlrm", data.schema)
    collection = model.sparse_arch.embedding_bag_collection
    batch = data.train.batch(slice(0, 64))
    before = collection(batch.sparse_features)
    handle = hook_output(collection, lambda values, fresh: values * 2)
    after = collection(batch.sparse_features)
    handle.remove()
    assert type(after) is type(before) and after.keys() == before.keys()
    assert after.length_per_key() == before.length_per_key() and after.offset_per_key() == before.offset_per_key()
    assert all(torch.equal(after[key], 2 * before[key]) for key in data.test.sparse)


def test_what_may_be_written_to(data):
    """Outputs that nobody else holds; not those of classes that may give what they were given, nor while a stand-in watches."""
    found = {}
    for module in (nn.Linear(2, 3), nn.Identity(), nn.BatchNorm1d(2).eval(), nn.LayerNorm(2)):

        def note(y, fresh, module=module):
            found[type(module).__name__] = fresh
            return y

        handle = hook_output(module, note)
        module(torch.ones(4, 2))
        handle.remove()
    assert found == {"Linear": True, "Identity": False, "BatchNorm1d": True, "LayerNorm": True}

    seen, module = [], nn.Linear(2, 3)
    module.forward = module.forward
    hook_output(module, lambda y, fresh: (seen.append(fresh), y)[1])
    module(torch.ones(4, 2))
    assert seen == [False]
