"""On a GPU: the same errors of a seed as on the CPU; reruns within the stated bound of full runs, and of the CPU."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.campaign.trial import audit
from drsrobust.data.dataset import Ids, Split
from drsrobust.evaluation.affected_rows import BOUND

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


class Clicks(nn.Module):
    """Two tables and a perceptron, without TorchRec."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, 16, mode="sum") for rows in (5000, 700))
        self.mlp = nn.Sequential(nn.Linear(35, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense, ids):
        return self.mlp(torch.cat([dense, *(table(i[:, None]) for table, i in zip(self.tables, ids, strict=True))], 1))


def forward(model, batch):
    return model(batch.dense_features, batch.sparse_features.values().reshape(2, -1).long())


@pytest.fixture(scope="module")
def rows():
    random, n = np.random.default_rng(0), 70_000  # two batches
    sparse = {name: Ids(random.integers(0, size, n).astype(np.int32)) for name, size in (("a", 5000), ("b", 700))}
    dense, labels = random.normal(size=(n, 3)).astype(np.float32), (random.random(n) < 0.3).astype(np.float32)
    return Split(dense, sparse, labels, None, np.arange(n), "made", "test", 0.3, "made", n)


def test_rerun_is_run(rows):
    model = Clicks().eval().cuda()
    evaluator = dr.Evaluator(model, rows, forward=forward, output="logit")
    assert evaluator.full_run is None
    reached = []
    for target in ("all", "tables", "mlp"):
        for error_model in (dr.FixedCount(1), dr.BitFlip(1e-4), dr.BitFlip(1e-2)):
            with dr.inject(model, error_model, target, seed=3) as error_map:
                full, quick = evaluator.run(), evaluator.rerun(error_map)
            np.testing.assert_allclose(quick.scores, full.scores, rtol=BOUND, atol=BOUND, equal_nan=True)
            assert quick.outcome == full.outcome
            reached.append(quick.rows_reached)
    assert min(reached) < len(rows) / 10
    assert np.array_equal(evaluator.run().scores, evaluator.golden.scores)
    on_cpu = dr.Evaluator(Clicks().eval(), rows, forward=forward, output="logit")
    np.testing.assert_allclose(evaluator.golden.scores, on_cpu.golden.scores, rtol=BOUND, atol=BOUND)


def test_campaign(rows, tmp_path):
    evaluator = dr.Evaluator(Clicks().eval().cuda(), rows, forward=forward, output="logit")
    campaign = dr.Campaign(
        evaluator, errors=[dr.BitFlip(1e-5), dr.FixedCount(3)], targets=["tables", "all"], trials=5, store=tmp_path
    )
    table = campaign.run(workers=1, progress=False)
    assert len(table) == 20 and (table["outcome"] == "ok").any()
