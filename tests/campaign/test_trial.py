import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.campaign import trial
from drsrobust.campaign.trial import audit, count_bits, errors_by_bit
from drsrobust.injection import Activations, BitFlip, FixedCount, Inputs, SingleBit, inject, resolve


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10).bfloat16(), nn.Linear(10, 5).double())


@pytest.mark.parametrize("few", [0, trial._FEW_IN_ALL])
def test_as_the_map_counts(model, few, monkeypatch):
    """Of a small map all words at once, else tensor by tensor."""
    monkeypatch.setattr(trial, "_FEW_IN_ALL", few)
    for error in (BitFlip(1e-1), BitFlip(1e-3), SingleBit(14), BitFlip(0.5, bits="sign"), FixedCount(0)):
        error_map = error.sample(resolve(model), seed=3)
        tensor, bit, count = errors_by_bit(error_map)
        assert (np.diff(64 * tensor + bit) > 0).all() and (count > 0).all() and count.sum() == error_map.bits
        by_bit, by_tensor = np.bincount(bit, count, 64), np.bincount(tensor, count, len(error_map.targets))
        assert {k: n for k, n in enumerate(by_bit) if n} == error_map.counts("bit").to_dict()
        assert dict(zip(error_map.targets, by_tensor, strict=True)) == error_map.counts("tensor").to_dict()


def test_transient_errors(model):
    """By place, over all calls of it."""
    lower = nn.Sequential(model[0], nn.ReLU())
    for target, places in ((Activations("*"), {"0", "1"}), (Inputs("dense"), {"dense"})):
        with inject(lower, BitFlip(0.05), target, seed=1) as error_map:
            for _ in range(3):
                lower(torch.rand(8, 30))
        entries = audit(error_map).to_pylist()
        assert {entry["tensor"] for entry in entries} == {entry["component"] for entry in entries} == places
        for place in places:
            masks = np.concatenate([hit.mask for hit in error_map.log.hits if hit.site == place])
            expected = {bit: int(((masks >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(32)}
            assert {entry["bit"]: entry["count"] for entry in entries if entry["tensor"] == place} == expected


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 200_000])
def test_count_bits(size):
    masks = np.random.default_rng(size).integers(0, 2**64, 2 * size, dtype=np.uint64)[::2]  # not contiguous
    expected = [int(((masks >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)]
    assert count_bits(masks).tolist() == expected
    low = masks >> np.uint64(41)
    assert count_bits(low).tolist() == expected[41:] + [0] * 41
