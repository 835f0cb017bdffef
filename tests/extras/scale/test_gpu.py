"""The same seed gives the same errors on a GPU as on the CPU."""

import copy

import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.campaign.trial import audit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ERROR_MODELS = [
    dr.BitFlip(0.01),
    dr.BitFlip(0.01, bits="exponent"),
    dr.FixedCount(40),
    dr.SingleBit(3),
    dr.MultiBit(0.05, 3),
    dr.RandomWord(0.05),
    dr.RandomValue(0.05, -1, 1),
    dr.StuckAt(1, 0.02),
    dr.Burst(0.002, 20),
    dr.RowError(0.3, row_bytes=128),
    dr.BitFlip(0.01) + dr.StuckAt(0, 0.01),
]


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)).to(dtype)


def memory(module):
    return {name: tensor.detach().cpu().view(torch.uint8).clone() for name, tensor in module.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("error_model", ERROR_MODELS, ids=str)
def test_maps_and_memory(error_model, dtype):
    cpu = model(dtype)
    gpu = copy.deepcopy(cpu).cuda()
    before = memory(cpu)
    with dr.inject(cpu, error_model, seed=5) as here, dr.inject(gpu, error_model, seed=5) as there:
        assert here.frame().equals(there.frame()) and same(memory(cpu), memory(gpu))
    assert same(memory(cpu), before) and same(memory(gpu), before)
    with here.applied(gpu):
        assert not same(memory(gpu), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("error_model", [dr.BitFlip(1e-2), dr.BitFlip(0.2, bits="exponent")], ids=str)
def test_maps_that_the_gpu_draws(error_model, dtype):
    torch.manual_seed(0)
    cpu = nn.Sequential(nn.Embedding(5000, 64), nn.Linear(64, 100)).to(dtype)
    gpu = copy.deepcopy(cpu).cuda()
    before = memory(cpu)
    with dr.inject(cpu, error_model, seed=5) as here, dr.inject(gpu, error_model, seed=5) as there:
        assert same(memory(cpu), memory(gpu))
        assert there.on_device is not None and all(vars(there)[name] is None for name in ("tensor", "word", "mask"))
        assert audit(here).equals(audit(there)) and (here.bits, len(here)) == (there.bits, len(there))
    assert same(memory(cpu), before) and same(memory(gpu), before)
    for model in (cpu, gpu, cpu):
        with there.applied(model):
            assert not same(memory(model), before)
    assert here.frame().equals(there.frame()) and same(memory(cpu), before) and same(memory(gpu), before)


@pytest.mark.parametrize("per", ["call", "sample"])
def test_transient_errors(per):
    cpu, x = model(), torch.randn(6, 20)
    gpu = copy.deepcopy(cpu).cuda()
    pairs = [(dr.BitFlip(0.01), dr.Inputs("dense", per)), (dr.MultiBit(0.1, 2), dr.Activations("*", per))]
    with torch.no_grad():
        with dr.inject(cpu, pairs, seed=5) as here:
            cpu(x)
        with dr.inject(gpu, pairs, seed=5) as there:
            gpu(x.cuda())
    assert here.log.frame().equals(there.log.frame())


def test_gradients():
    cpu, x = model(), torch.randn(6, 20)
    gpu = copy.deepcopy(cpu).cuda()
    for module, batch in ((cpu, x), (gpu, x.cuda())):
        with dr.inject(module, dr.BitFlip(1.0, bits="sign"), dr.Gradients("2.bias"), seed=5):
            module(batch).sum().backward()
    assert torch.equal(cpu[2].bias.grad, gpu[2].bias.grad.cpu())


@pytest.mark.parametrize("out_of_range", ["raise", "first", "wrap"])
def test_ids_out_of_range_never_reach_the_device(out_of_range):
    table = nn.EmbeddingBag(28, 3).cuda()
    target = dr.Inputs("ids", out_of_range=out_of_range)
    with torch.no_grad(), dr.inject(table, dr.BitFlip(1.0, bits=(6,)), target, seed=1):
        if out_of_range == "raise":
            with pytest.raises(IndexError):
                table(torch.tensor([[1]]).cuda())
        else:
            row = {"first": 0, "wrap": 65 % 28}[out_of_range]
            assert torch.equal(table(torch.tensor([[1]]).cuda())[0], table.weight[row])
    torch.cuda.synchronize()
