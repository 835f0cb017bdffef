import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.campaign import bit_partition
from drsrobust.injection import FixedCount, Rows, inject, resolve


class Mixed(nn.Module):
    """Components of one and of two formats."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4, dtype=torch.float16)
        self.over = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1).to(torch.bfloat16))


@pytest.mark.parametrize("target", ["all", "everything", "over", "*.weight", Rows("embedding.weight", [1, 4])])
def test_parts_can_be_drawn(target):
    """Sizes add up to all bits, and a trial of each part hits it and nothing else."""
    model = Mixed()
    found, whole = bit_partition(model, target), resolve(model, target)
    assert found["eligible"].sum() == whole.bits and found["weight"].sum() == pytest.approx(1)
    assert not found.duplicated(["component", "format", "bit_class"]).any()
    positions = set()
    for row in found.itertuples():
        error = FixedCount(1, bits=row.bits)
        space = error.eligible(resolve(model, row.target))
        assert space.bits == row.eligible and {tensor.component for tensor in space.tensors} == {row.component}
        tensor, word, bit = space.locate(np.arange(space.bits))
        positions |= {(space.tensors[t].name, w, b) for t, w, b in zip(tensor, word, bit, strict=True)}
        with inject(model, error, row.target, seed=3) as error_map:
            assert error_map.bits == 1
    assert len(positions) == whole.bits


def test_parts_of_a_recommender(trained):
    found = bit_partition(trained)
    assert set(found["component"]) == {"embedding", "dense_mlp", "over_mlp"} and set(found["format"]) == {"float32"}
    assert (found["target"] == found["component"]).all() and len(found) == 15
    assert found.groupby("component")["weight"].sum()["embedding"] == pytest.approx(
        resolve(trained, "embedding").bits / resolve(trained).bits
    )
