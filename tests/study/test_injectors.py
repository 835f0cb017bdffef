"""Every method flips what it says it flips."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from drsrobust_study.injection_speed import flipped_bits, study_model
from drsrobust_study.injectors import METHODS, OURS

SIZE = 30_000


def golden_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def injected(name, rate, *, dtype="float32", seed=3):
    """The method, the model with errors, and the parameters as they were."""
    model = study_model(SIZE, dtype)
    golden = golden_of(model)
    method = METHODS[name](model)
    return method, method.inject(rate, seed), golden


def band(bits, rate):
    return binom.ppf([0.0005, 0.9995], bits, rate)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("rate", [1e-3, 7e-3])  # at 7e-3 a map that cuts rate * (1 / rate) is empty
def test_the_realised_rate_is_the_asked_one(name, rate):
    _, faulted, golden = injected(name, rate)
    low, high = band(32 * SIZE, rate)
    assert low <= flipped_bits(faulted, golden) <= high


@pytest.mark.parametrize("name", METHODS)
def test_all_bits_of_all_tensors_are_hit_alike(name):
    _, faulted, golden = injected(name, 0.02)
    parts = [
        (parameter.detach().view(-1).view(torch.int32) ^ before.view(-1).view(torch.int32)).numpy().view(np.uint32)
        for parameter, before in zip(faulted.parameters(), golden, strict=True)
    ]
    masks = np.concatenate(parts)
    low, high = band(SIZE, 0.02)
    for bit in range(32):
        assert low <= int(((masks >> np.uint32(bit)) & 1).sum()) <= high, bit
    for part in parts:
        if 32 * part.size * 0.02 > 50:
            low, high = band(32 * part.size, 0.02)
            assert low <= int(np.bitwise_count(part).sum()) <= high


@pytest.mark.parametrize("name", METHODS)
def test_a_seed_gives_the_same_errors_again_and_global_streams_are_left_alone(name):
    state = torch.random.get_rng_state()
    _, first, _ = injected(name, 1e-3, seed=5)
    _, again, _ = injected(name, 1e-3, seed=5)
    _, other, _ = injected(name, 1e-3, seed=6)
    assert flipped_bits(first, golden_of(again)) == 0 and flipped_bits(first, golden_of(other)) > 0
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_dense_map_is_what_it_flips():
    method, faulted, golden = injected("dense error map", 1e-3)
    assert list(method.masks) == [name for name, _ in faulted.named_parameters()]
    for parameter, before, mask in zip(faulted.parameters(), golden, method.masks.values(), strict=True):
        now = parameter.detach().view(-1).view(torch.int32)
        assert mask.dtype == torch.int32 and torch.equal(now ^ before.view(-1).view(torch.int32), mask)


def test_int8_words():
    _, faulted, golden = injected(OURS, 1e-2, dtype="int8")
    low, high = band(8 * SIZE, 1e-2)
    assert low <= flipped_bits(faulted, golden) <= high
