"""What published tools of this kind get wrong, each shown to be right here."""

import copy
import random

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import nn

import drsrobust as dr
from drsrobust.injection import applied_maps, resolve
from drsrobust.injection.address_space import AddressSpace, TargetTensor
from tests.injection.oracle import entries, raw

NEARLY_SURE = [0.00005, 0.99995]


class Recommender(nn.Module):
    """Dense values and ids in, one table much larger than all else."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.EmbeddingBag(2000, 16, mode="sum")
        self.norm = nn.BatchNorm1d(16)
        self.top = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense, ids, offsets=None):
        assert ids.dtype == torch.int64 and dense.dtype == self.top[0].weight.dtype
        pooled = self.norm(self.table(ids, offsets))
        return self.top(torch.cat([dense, pooled], 1)).squeeze(1)


@pytest.fixture
def model():
    return Recommender().eval()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 4, generator=generator), torch.randint(0, 2000, (32, 5), generator=generator)


def words(model):
    return {name: raw(tensor) for name, tensor in [*model.named_parameters(), *model.named_buffers()]}


def flips(before, after):
    """How many bits differ, by tensor."""
    return {
        name: sum((a ^ b).bit_count() for a, b in zip(old, after[name], strict=True)) for name, old in before.items()
    }


def wide(words_, form="float32"):
    """An address space of more words than there is memory."""
    return AddressSpace([TargetTensor.of("t", "t", getattr(torch, form), (words_,))])


@torch.no_grad()
def scores(model, batch):
    return model(*batch).tolist()


def test_a_saved_map_is_as_large_as_its_errors(tmp_path):
    """A million parameters: one error takes a few hundred bytes of file, not the model's megabytes."""
    big, sizes = nn.Linear(1000, 1000), []
    for k in (1, 100, 10_000):
        dr.FixedCount(k).sample(resolve(big), seed=1).save(tmp_path / "map.npz")
        sizes.append((tmp_path / "map.npz").stat().st_size)
    assert sizes[0] < 2000 and sizes[1] < 4000 and sizes[2] < 130_000


def test_buffers_and_tied_weights_are_within_reach(model, batch):
    """Running statistics and counters are hit; a weight of two names is one memory, and both of its users feel it."""
    before, golden = words(model), scores(model, batch)
    with dr.inject(model, dr.BitFlip(1), "norm.running_*", seed=1):
        assert {name for name, n in flips(before, words(model)).items() if n} == {
            "norm.running_mean",
            "norm.running_var",
        }
        assert scores(model, batch) != golden
    with dr.inject(model, dr.FixedCount(5), "norm.num_batches_tracked", seed=1):
        assert int(model.norm.num_batches_tracked) != 0
    tied = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    tied["b"].weight = tied["a"].weight
    outputs = [one(torch.ones(3)).tolist() for one in tied.values()]
    with dr.inject(tied, dr.BitFlip(1, bits="sign"), seed=1) as error_map:
        assert error_map.eligible_bits == 9
        assert [one(torch.ones(3)).tolist() for one in tied.values()] == [[-x for x in one] for one in outputs]


def test_parameters_stay_views_of_one_buffer():
    """Tables that are slices of one fused memory are hit in place: the output changes, the views stay views."""
    fused = torch.randn(64)
    model = nn.ModuleList([nn.EmbeddingBag(4, 8), nn.EmbeddingBag(4, 8)])
    for table, part in zip(model, fused.split(32), strict=True):
        table.weight = nn.Parameter(part.view(4, 8))
    places, before = [table.weight.data_ptr() for table in model], fused.clone()
    with dr.inject(model, dr.BitFlip(1, bits="sign"), seed=1) as error_map:
        assert error_map.bits == 64 and torch.equal(fused, -before)
        assert torch.equal(model[1](torch.tensor([[2]]))[0], -before[48:56])
    assert torch.equal(fused, before) and [table.weight.data_ptr() for table in model] == places
    with torch.no_grad():
        fused.zero_()
    assert not model[0].weight.any()


@pytest.mark.parametrize("error_model", ["value", "BitFlip", 1e-6, None, dr.BitFlip, (dr.BitFlip(0.1),), {"ber": 1e-6}])
def test_what_is_no_error_model_is_refused(model, error_model):
    """Nothing is taken for a bit flip that is none."""
    with pytest.raises(TypeError, match="it must be an error model, as BitFlip"):
        dr.inject(model, error_model, seed=1).__enter__()


def test_no_errors_are_the_golden_run(model, batch):
    """Rate 0 takes the same path and changes nothing; rates 0.1 and 1 are rates as any other."""
    golden = scores(model, batch)
    for error_model in (dr.BitFlip(0), dr.FixedCount(0), dr.StuckAt(1, 0), dr.RowError(0.0), dr.RandomValue(0, 0, 1)):
        with dr.inject(model, error_model, "everything", seed=1) as error_map:
            assert len(error_map) == error_map.bits == error_map.realised_rate == 0
            assert scores(model, batch) == golden
    for rate in (0.1, 1):
        with dr.inject(model, dr.BitFlip(rate), seed=1) as error_map:
            assert error_map.realised_rate == pytest.approx(rate, rel=0.01)


def test_the_seed_alone_decides(model):
    """Random numbers drawn elsewhere change no map, and no generator elsewhere moves on."""
    one, two = (dr.BitFlip(1e-4) + dr.RandomValue(1e-3, 0, 1) for _ in range(2))
    with dr.inject(model, one, seed=7) as error_map:
        first = entries(error_map)
    torch.rand(5), np.random.rand(5), random.random()
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    with dr.inject(model, two, seed=7) as error_map:
        assert entries(error_map) == first
    with dr.inject(model, one, seed=8) as error_map:
        assert entries(error_map) != first
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1] and random.getstate() == states[2]


def test_close_seeds_and_large_ones_are_different_trials():
    """No two seeds share a map: none is folded into a smaller range."""
    space = wide(10**9)
    seeds = [*range(300), *(2**n + k for n in range(17, 64) for k in (0, 1)), 100_000, 200_000, 2**64 - 1]
    assert len({tuple(dr.FixedCount(3).sample(space, seed=seed).word.tolist()) for seed in seeds}) == len(set(seeds))


def test_tensors_are_hit_in_proportion_to_their_bits(model):
    """A layer of 0.1 % of the bits gets 0.1 % of the errors: small ones neither none, nor one each, nor half of all."""
    small = {"float64": (1,), "float32": (30,), "int8": (1000,), "float16": (20_000,)}
    space = AddressSpace([TargetTensor.of(form, form, getattr(torch, form), shape) for form, shape in small.items()])
    sizes = np.array([eligible.bits for eligible in space.eligible])
    for error_model in (dr.FixedCount(1), dr.BitFlip(1 / space.bits), dr.FixedCount(40), dr.Burst(1e-5, 1)):
        hits = np.zeros(len(sizes))
        for seed in range(400):
            hits += np.bincount(error_model.sample(space, seed=seed).tensor, minlength=4)
        expected = sizes / sizes.sum() * hits.sum()
        large = expected > 5
        assert chisquare([*hits[large], hits[~large].sum()], [*expected[large], expected[~large].sum()]).pvalue > 1e-4
    assert (hits[sizes < 1000] <= 5).all()


def test_later_changes_of_weights_are_not_reverted(model, batch):
    """No forward pass puts old weights or errors back; leaving puts back the words that were hit and no others, and says so
    when somebody wrote to their tensor meanwhile."""
    new = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.mul_(2)
    says = "top.0.weight: written to while errors were in it"
    with pytest.raises(RuntimeError, match=says), dr.inject(model, dr.BitFlip(1e-3), "top", seed=1), torch.no_grad():
        model.top[0].weight.zero_()
        scores(model, batch)
        assert not model.top[0].weight.any()
    model.load_state_dict(new.state_dict())
    assert scores(model, batch) == scores(new, batch) and words(model) == words(new)
    with dr.inject(model, dr.FixedCount(1), "top.0.weight", seed=1) as error_map, torch.no_grad():
        before = model.top[0].bias.clone()
        model.top[0].bias.add_(1)
    assert len(error_map) == 1 and torch.equal(model.top[0].bias, before + 1)


def test_nothing_is_left_behind_after_an_exception(model, batch):
    """Words, hooks and the list of open maps are as before; the next injection is as if nothing had been."""
    before, golden = words(model), scores(model, batch)
    with pytest.raises(ZeroDivisionError), dr.inject(model, dr.BitFlip(0.01), "everything", seed=1):
        scores(model, batch)
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="not in the valid range"), dr.inject(model, dr.BitFlip(0.01), seed=1):
        model(batch[0], torch.full((32, 5), 10**6))
    assert words(model) == before and scores(model, batch) == golden and applied_maps(model) == ()
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_only_what_was_hit_is_touched(model):
    """No tensor is copied or put in another place: addresses and versions that autograd counts stay as they are."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    places = {name: (tensor.data_ptr(), tensor._version) for name, tensor in tensors.items()}
    with dr.inject(model, dr.BitFlip(1e-2), "everything", seed=1):
        now = dict(model.named_parameters()) | dict(model.named_buffers())
        assert all(now[name] is tensor for name, tensor in tensors.items())
    assert {name: (tensor.data_ptr(), tensor._version) for name, tensor in tensors.items()} == places
