"""Golden copies: words are reloaded exactly, without new tensor versions, and undo after a repair gives the original words."""

import pickle

import torch
from torch import nn

import drsrobust as dr
from drsrobust_extras.protection.golden_copy import GoldenCopy


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(7, 5), nn.Linear(5, 3, dtype=torch.float16), nn.Embedding(11, 4, dtype=torch.float64)
    )


def words(module):
    return [p.detach().clone().view(torch.uint8) for p in module.parameters()]


def test_everything_comes_back():
    module = model()
    copy, golden = GoldenCopy.of(module), words(module)
    versions = [p._version for p in module.parameters()]
    assert copy.reload(module) == 0
    with dr.inject(module, dr.BitFlip(0.1), seed=0) as error_map:
        assert copy.reload(module) == error_map.words
        assert all(torch.equal(a, b) for a, b in zip(golden, words(module), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(golden, words(module), strict=True))
    assert versions == [p._version for p in module.parameters()]
    assert copy.stored_bits == 32 * 40 + 16 * 18 + 64 * 44


def test_rows():
    module = model()
    copy = GoldenCopy.of(module, ["2.weight"])
    with dr.inject(module, dr.BitFlip(1.0, bits="sign"), "2.weight", seed=0):
        wrong = module[2].weight.detach().clone()
        assert copy.reload_tensor("2.weight", module[2].weight, torch.tensor([3, 9, 3])) == 8
        assert torch.equal(module[2].weight[[3, 9]], -wrong[[3, 9]])
        rest = [row for row in range(11) if row not in (3, 9)]
        assert torch.equal(module[2].weight[rest], wrong[rest])
        assert copy.reload_tensor("2.weight", module[2].weight, torch.empty(0, dtype=torch.int64)) == 0


def test_tensors_that_do_not_lie_row_by_row():
    module = nn.Linear(4, 6)
    module.weight = nn.Parameter(torch.randn(4, 6).t())
    copy, golden = GoldenCopy.of(module), module.weight.detach().clone()
    module.weight.data[2] = 0
    module.weight.data[5] = 0
    assert copy.reload_tensor("weight", module.weight, torch.tensor([2])) == 4 and copy.reload(module) == 4
    assert torch.equal(module.weight, golden)


def test_identity():
    module = model()
    copy = GoldenCopy.of(module)
    assert pickle.loads(pickle.dumps(copy)).digest() == copy.digest() == GoldenCopy.of(model()).digest()
    module[0].bias.data[0] = 1
    assert GoldenCopy.of(module).digest() != copy.digest()
