"""Every method flips what it says it flips."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from drsrobust.study.injection_speed import STUDY_SIZE, flipped_bits, study_model
from drsrobust.study.injectors import METHODS, OURS, cannot

SIZE = 30_000
WRITTEN = [name for name, kind in METHODS.items() if kind.needs is None]
INSTALLED = [
    pytest.param(name, marks=pytest.mark.skipif(cannot(name, "float32") is not None, reason=f"{name} is not installed"))
    for name, kind in METHODS.items()
    if kind.needs
]


def golden_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def injected(name, rate, *, dtype="float32", seed=3, size=SIZE):
    """The method, what it gave, and the parameters as they were."""
    model = study_model(size, dtype)
    golden = golden_of(model)
    method = METHODS[name](model)
    return method, method.inject(rate, seed), golden


def band(bits, rate):
    return binom.ppf([0.0005, 0.9995], bits, rate)


@pytest.mark.parametrize("parameters", [28_017, 100_000, 925_217, 925_218, 1_000_000])
def test_models_have_the_size_that_is_asked_for(parameters):
    model = study_model(parameters)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert len({table.num_embeddings for table in model.tables}) <= 2


def test_the_study_size_is_the_study_s_model():
    with torch.device("meta"):
        wide = study_model(1_000_000)
    assert [layer.out_features for layer in wide.bottom if hasattr(layer, "out_features")] == [512, 256, 16]
    assert [layer.out_features for layer in wide.top if hasattr(layer, "out_features")] == [512, 256, 1]
    mlps = sum(parameter.numel() for part in (wide.bottom, wide.top) for parameter in part.parameters())
    assert mlps + 16 * 1_000_000 == STUDY_SIZE


def test_models_of_one_seed_are_equal_and_run():
    one, other = study_model(SIZE, seed=1), study_model(SIZE, seed=1)
    assert flipped_bits(one, golden_of(other)) == 0 and flipped_bits(one, golden_of(study_model(SIZE, seed=2))) > 0
    assert one(torch.randn(5, 39)).isfinite().all() and one(torch.randn(5, 39)).shape == (5,)
    assert study_model(SIZE, "int8").spare.dtype == torch.int8
    with pytest.raises(ValueError, match=r"parameters must be at least 28,017"):
        study_model(20_000)


def test_flipped_bits_are_counted():
    for dtype, width in (("float32", 32), ("int8", 8)):
        model = study_model(SIZE, dtype)
        golden = golden_of(model)
        with torch.no_grad():
            words = model.tables[3].weight.view(-1).view({32: torch.int32, 8: torch.int8}[width])
            words[7] ^= 0b101
            words[9] ^= -1
        assert flipped_bits(model, golden) == 2 + width


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("rate", [1e-3, 9e-4, 7e-3])  # at 9e-4 and 7e-3 a map that cuts rate * (1 / rate) is empty
def test_the_realised_rate_is_the_asked_one(name, rate):
    _, faulted, golden = injected(name, rate)
    low, high = band(32 * SIZE, rate)
    assert low <= flipped_bits(faulted, golden) <= high


@pytest.mark.parametrize("name", WRITTEN)
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


@pytest.mark.parametrize("name", WRITTEN)
def test_a_seed_gives_the_same_errors_again_and_global_streams_are_left_alone(name):
    state = torch.random.get_rng_state()
    _, one, _ = injected(name, 1e-3, seed=5)
    _, again, _ = injected(name, 1e-3, seed=5)
    _, other, _ = injected(name, 1e-3, seed=6)
    assert flipped_bits(one, golden_of(again)) == 0 and flipped_bits(one, golden_of(other)) > 0
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_dense_map_is_what_it_flips():
    method, faulted, golden = injected("dense error map", 1e-3)
    names = [name for name, _ in faulted.named_parameters()]
    assert list(method.masks) == names
    for parameter, before, mask in zip(faulted.parameters(), golden, method.masks.values(), strict=True):
        now = parameter.detach().view(-1).view(torch.int32)
        assert mask.dtype == torch.int32 and torch.equal(now ^ before.view(-1).view(torch.int32), mask)


def test_int8_words():
    for name in (OURS, "per element loop"):
        _, faulted, golden = injected(name, 1e-2, dtype="int8")
        low, high = band(8 * SIZE, 1e-2)
        assert low <= flipped_bits(faulted, golden) <= high
    assert cannot("dense error map", "int8") == "it hits float32 only"


def test_ours_undoes_what_it_did():
    method, faulted, golden = injected(OURS, 1e-2)
    assert flipped_bits(faulted, golden) > 0
    method.undo()
    assert flipped_bits(faulted, golden) == 0


@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.filterwarnings("ignore")
def test_published_tools_inject_about_what_is_asked(name):
    _, faulted, golden = injected(name, 1e-3)
    assert 0.9 * 32 * SIZE * 1e-3 < flipped_bits(faulted, golden) < 1.1 * 32 * SIZE * 1e-3


def test_a_tool_that_is_not_there(monkeypatch):
    monkeypatch.setattr("drsrobust.study.injectors.find_spec", lambda name: None)
    assert cannot("MRFI", "float32") == "not installed (pip install -e '.[benchmark]')"
    assert cannot(OURS, "float32") is None
