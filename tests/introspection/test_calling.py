from collections import namedtuple

import pytest
import torch
from torch import nn
from torchrec import KeyedJaggedTensor

from drsrobust.introspection.calling import call, device_of


class Pair(nn.Module):
    """Gives its arguments back, by name."""

    def __init__(self, device="cpu"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, device=device))

    def forward(self, dense_features, sparse_features):
        return dense_features, sparse_features


def kjt(values, lengths):
    return KeyedJaggedTensor(keys=["a"], values=torch.tensor(values), lengths=torch.tensor(lengths))


@pytest.mark.parametrize("kind", [tuple, list])
def test_dense_jagged_label(kind):
    dense, ids = torch.rand(2, 3), kjt([4, 5, 6], [1, 2])
    got = call(Pair(), kind([dense, ids, torch.zeros(2)]))
    assert got[0] is dense and got[1] is ids


def test_device():
    assert device_of(Pair("meta")) == torch.device("meta")
    assert device_of(nn.BatchNorm1d(2, affine=False, device="meta")) == torch.device("meta")
    assert device_of(nn.ReLU()) == torch.device("cpu")


def test_batches_are_moved_to_the_model(data):
    Rows = namedtuple("Rows", "x names")
    batch = {"a": [torch.ones(2), 3], "b": Rows(torch.ones(1), ("n",)), "c": kjt([4], [1])}
    got = call(Pair("meta"), batch, forward=lambda model, batch: batch)
    assert got["a"][0].is_meta and got["a"][1] == 3
    assert type(got["b"]) is Rows and got["b"].x.is_meta and got["b"].names == ("n",)
    assert got["c"].values().is_meta and got["c"].keys() == ["a"]
    assert not batch["a"][0].is_meta  # the caller's stays
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    got = call(Pair("meta"), [packed], forward=lambda model, batch: batch[0])
    assert got.data.is_meta and got.batch_sizes.tolist() == [2, 2, 1]  # which stay on the CPU
    dense, ids = call(Pair("meta"), next(data.test.batches(64)))
    assert dense.is_meta and ids.values().is_meta
    same = call(Pair(), batch, forward=lambda model, batch: batch)
    assert same is batch
