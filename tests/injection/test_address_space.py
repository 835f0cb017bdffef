import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.injection import BitFlip, FixedCount, resolve
from drsrobust.injection.address_space import AddressSpace, TargetTensor
from tests.injection.spaces import holder


class Mixed(nn.Module):
    """Several widths, a buffer, an empty and a tied tensor."""

    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.zeros(2, 3))
        self.a = nn.Parameter(torch.zeros(4, dtype=torch.float16))
        self.empty = nn.Parameter(torch.zeros(0, 5))
        self.tied = self.b
        self.register_buffer("codes", torch.zeros(5, dtype=torch.uint8))


def names(space):
    return [tensor.name for tensor in space.tensors]


def test_targets():
    model = Mixed()
    assert names(resolve(model, "all")) == ["a", "b"]  # in name order; the empty one has no bits, the tied one is b
    assert names(resolve(model, "everything")) == ["a", "b", "codes"]
    assert names(resolve(model, "c*")) == ["codes"]
    assert names(resolve(model, "[ab]")) == ["a", "b"]
    assert names(resolve(model, "x", components={"x": "[ab]"})) == ["a", "b"]


def test_components_and_groups(trained):
    assert {t.component for t in resolve(trained, "over_mlp").tensors} == {"over_mlp"}
    assert {t.component for t in resolve(trained, "mlp").tensors} == {"dense_mlp", "over_mlp"}
    everything = names(resolve(trained, "everything"))
    assert everything == sorted(everything) and "inter_arch.triu_indices" in everything
    total = sum(p.numel() for p in trained.parameters())
    assert resolve(trained, "all").words == total and resolve(trained).bits == 32 * total


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:Lazy modules")
def test_what_would_crash_or_cannot_be_read_is_refused():
    from torch.testing._internal.two_tensor import TwoTensor

    codes = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    for model, says in (
        (holder(codes=codes), "codes is torch.qint8"),
        (holder(a=TwoTensor(torch.ones(3), torch.ones(3))), "a is a TwoTensor"),
        (nn.LazyLinear(3), "bias is not initialised"),
    ):
        with pytest.raises(ValueError, match=says):
            resolve(model, "everything")


def test_shared_memory_counts_once():
    shared = nn.Module()
    shared.a = nn.Parameter(torch.zeros(8, 8))
    shared.b = nn.Parameter(shared.a.data)
    assert names(resolve(shared)) == ["a"]
    shared.c = nn.Parameter(shared.a.data[2:4])
    with pytest.raises(ValueError, match="a and c share a part of their memory"):
        resolve(shared)
    tied = nn.Module()
    tied.encoder = nn.Parameter(torch.zeros(4, 4))
    tied.decoder = nn.Parameter(tied.encoder.data.t())
    with pytest.raises(ValueError, match="decoder and encoder share a part|encoder and decoder share a part"):
        resolve(tied)
    columns, whole = nn.Module(), torch.zeros(4, 6)
    columns.left, columns.right = nn.Parameter(whole[:, :2]), nn.Parameter(whole[:, 2:])
    assert resolve(columns).words == 24  # beside each other, row by row: nothing is shared
    fused = torch.zeros(10)
    views = nn.Module()
    views.one, views.two = nn.Parameter(fused[:4]), nn.Parameter(fused[4:])
    assert resolve(views).words == 10


def test_an_exact_component_goes_before_a_group():
    model = nn.Module()
    model.mlp, model.user_mlp, model.top = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    assert names(resolve(model, "mlp")) == ["mlp.bias", "mlp.weight"]
    model.rest = model.mlp
    del model.mlp
    assert names(resolve(model, "mlp")) == ["user_mlp.bias", "user_mlp.weight"]


def test_a_component_of_buffers_alone(trained):
    assert names(resolve(trained, "interaction")) == ["inter_arch.triu_indices"]


def test_locate_is_the_inverse_of_counting():
    space = AddressSpace(
        [
            TargetTensor.of("b", "x", torch.float32, (2, 3)),
            TargetTensor.of("a", "x", torch.float16, (4,)),
            TargetTensor.of("c", "x", torch.uint8, (1,)),
        ]
    )
    assert space.bits == 4 * 16 + 6 * 32 + 8 and space.words == 11
    expected = [
        (t, word, bit)
        for t, (words, width) in enumerate([(4, 16), (6, 32), (1, 8)])
        for word in range(words)
        for bit in range(width)
    ]
    tensor, word, bit = space.locate(np.arange(space.bits))
    assert list(zip(tensor, word, bit, strict=True)) == expected
    some = np.array([0, 63, 64, 255, 263])
    assert list(zip(*space.locate(some), strict=True)) == [expected[i] for i in some]
    only = space.only([7, 0])
    assert only.bits == 22
    assert list(zip(*only.locate(np.arange(22)), strict=True)) == [e for e in expected if e[2] in (0, 7)]


def test_labels_leave_out_rates_alone():
    assert BitFlip(1e-3).label == "BitFlip" and BitFlip(0.1, bits=(31, 30)).label == "BitFlip(bits=[30, 31])"
    assert str(BitFlip(1e-3, bits=(30,)) + FixedCount(2)) == "BitFlip(ber=0.001, bits=[30]) + FixedCount(k=2)"


def test_further_names_of_tied_tensors_mean_the_same_memory():
    tied = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    tied["b"].weight = tied["a"].weight
    assert names(resolve(tied, "b.weight")) == names(resolve(tied, "b")) == names(resolve(tied, "a")) == ["a.weight"]
    shared = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    shared.append(shared[0])
    assert names(resolve(shared, "2.*")) == ["0.bias", "0.weight"]
