import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.injection import BitFlip, FixedCount, Injection, resolve
from drsrobust.injection.address_space import AddressSpace, TargetTensor
from drsrobust_extras.protection.field_errors import MultiBit


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


@pytest.mark.parametrize("target", ["over", "", "overmlp"])
def test_a_target_that_matches_nothing_says_what_there_is(trained, target):
    known = (
        "components: dense_mlp, embedding, interaction, over_mlp, mlp; .*tensors.*dense_arch.model._mlp.0._linear.bias"
    )
    with pytest.raises(ValueError, match=f"target '{target}' matches nothing.*{known}"):
        resolve(trained, target)


def test_what_cannot_be_hit():
    with pytest.raises(ValueError, match="target must be .*, got 3"):
        resolve(Mixed(), 3)
    with pytest.raises(ValueError, match="weight is torch.complex64"):
        resolve(nn.Linear(2, 2, bias=False, dtype=torch.complex64))
    with pytest.raises(ValueError, match="is on the meta device"):
        resolve(nn.Linear(2, 2, device="meta"))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:Lazy modules")
def test_what_would_crash_or_cannot_be_read_is_refused():
    quantized = nn.Module()
    quantized.register_buffer("codes", torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8))
    with pytest.raises(ValueError, match="codes is torch.qint8; only plain dense tensors"):
        resolve(quantized, "everything")
    sparse = nn.Module()
    sparse.register_buffer("s", torch.eye(3).to_sparse())
    with (
        pytest.raises(ValueError, match="s is torch.sparse_coo"),
        pytest.warns(UserWarning, match="cannot hit s: sparse"),
    ):
        resolve(sparse, "s")
    from torch.testing._internal.two_tensor import TwoTensor

    wrapped = nn.Module()
    wrapped.register_buffer("a", TwoTensor(torch.ones(3), torch.ones(3)))
    wrapped.register_buffer("b", TwoTensor(torch.ones(3), torch.ones(3)))
    with pytest.raises(ValueError, match="a is a TwoTensor, which has no memory of its own"):
        resolve(wrapped, "everything")
    with pytest.raises(ValueError, match="bias is not initialised yet: run the model once"):
        resolve(nn.LazyLinear(3))


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
    expanded = nn.Module()
    expanded.register_buffer("one", torch.zeros(1).expand(8))
    with pytest.raises(ValueError, match="one repeats words of its memory"):
        resolve(expanded, "everything")
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
    with pytest.raises(ValueError, match=r"c: bit 8 does not exist in uint8; its words have bits 0 to 7"):
        space.only([8])


def test_further_names_of_tied_tensors_mean_the_same_memory():
    tied = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    tied["b"].weight = tied["a"].weight
    assert names(resolve(tied, "b.weight")) == names(resolve(tied, "b")) == names(resolve(tied, "a")) == ["a.weight"]
    shared = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    shared.append(shared[0])
    assert names(resolve(shared, "2.*")) == ["0.bias", "0.weight"]


def test_reprs_say_what_a_thing_is():
    space = resolve(nn.Linear(4, 2))
    assert repr(space) == "<AddressSpace: 320 bits in 10 words of 2 tensors: bias, weight>"
    assert str(BitFlip(1e-3)) == "BitFlip(ber=0.001)" and BitFlip(1e-3).label == "BitFlip"
    assert BitFlip(0.1, bits=(31, 30)).label == "BitFlip(bits=[30, 31])"
    assert str(MultiBit(1e-6, 2)) == "MultiBit(rate=1e-06, bits_per_word=2)"
    assert str(BitFlip(1e-3, bits=(30,)) + FixedCount(2)) == "BitFlip(ber=0.001, bits=[30]) + FixedCount(k=2)"
    injection = Injection(nn.Linear(4, 2), [(FixedCount(2), "all")], seed=1)
    assert repr(injection).startswith("<Injection, not applied: <ErrorMap FixedCount(k=2), seed 1: 2 bits")
