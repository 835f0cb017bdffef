"""How many errors there are, and where: against what the error models say."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2, chisquare
from torch import nn

import drsrobust as dr
from drsrobust.injection import ErrorMapMismatch, resolve
from drsrobust.injection.address_space import AddressSpace, TargetTensor
from drsrobust.injection.stored import Stored
from tests.injection.spaces import COUNTED, filled, holder, space_of

NEARLY_SURE = [0.00005, 0.99995]


@pytest.mark.long
@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("rate", [1, 0.5, 0.007, 9e-4, 1e-6, 1e-10, 0])
def test_events_are_binomial(name, rate):
    kind, wide = COUNTED[name]
    shape = (max(100, min(10**13, int(60 / rate) if rate else 10**13)) * wide // 16 + 1,)
    memory = torch.zeros(1, dtype=torch.float16).expand(shape)  # one word that stands for all
    space = AddressSpace(
        [TargetTensor("t", "t", shape, TargetTensor.of("t", "t", torch.float16, shape).format, None, Stored(memory))]
    )
    maps = [kind(rate).sample(space, seed=seed) for seed in range(10)]
    places = {"RowError": space.rows(8), "MultiBit": space.words}.get(name, space.bits if wide == 1 else space.words)
    assert {error_map.n_sites for error_map in maps} == {places}
    low, high = binom.ppf(NEARLY_SURE, places * len(maps), rate)
    assert low <= sum(error_map.n_events for error_map in maps) <= high
    if name == "BitFlip":
        assert all(error_map.bits == error_map.n_events for error_map in maps)


def shared_space():
    """Words of three widths, of one tensor some rows."""
    model = holder(a=filled("float16", (5, 3), 1), b=filled("float32", (4, 2), 2), c=filled("uint8", (7,), 3))
    return resolve(model, dr.Rows("b", [0, 1, 3]) | "a" | "c")


@pytest.mark.parametrize(
    "error_model",
    [
        dr.BitFlip(0.03),
        dr.BitFlip(0.2, bits=("sign", 0)),
        dr.FixedCount(7),
        dr.SingleBit(7),
        dr.MultiBit(0.2, 3),
        dr.RandomWord(0.3),
        dr.Burst(0.01, 5),
        dr.Burst(0.01, 100),
        dr.RowError(0.3, row_bytes=8, density=0.3),
        dr.RowError(0.2, row_bytes=16, density=1),
    ],
    ids=str,
)
def test_expected_share_is_the_mean(error_model):
    space = shared_space()
    eligible = error_model.sample(space, seed=0).eligible_bits
    shares = np.array([error_model.sample(space, seed=seed).bits / eligible for seed in range(250)])
    expected = error_model.expected_share(space.only(error_model.bits) if hasattr(error_model, "bits") else space)
    assert abs(shares.mean() - expected) <= 4 * shares.std() / math.sqrt(len(shares)) + 1e-12
    assert error_model.sample(space, seed=0).requested_rate == expected


def test_what_depends_on_the_memory_has_no_expected_share():
    for error_model in (dr.StuckAt(1, 0.1), dr.RandomValue(0.1, 0, 1), dr.BitFlip(0.1) + dr.MultiBit(0.1, 2)):
        assert error_model.expected_share(shared_space()) is None
        assert error_model.sample(shared_space(), seed=1).requested_rate is None


def uniform(counts, scale=1.0):
    """Chi-square p-value of counts that should be equal; `scale`: their variance over a multinomial's."""
    counts = np.asarray(counts, float)
    return chi2.sf(chisquare(counts).statistic / scale, counts.size - 1)


def bits_of(mask, wide):
    """How often each bit is set in masks."""
    return [int(((mask >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(wide)]


def test_sets_of_bits_are_uniform():
    """MultiBit: every set of two bits of a byte, every bit of three, and every word."""
    error_map = dr.MultiBit(1, 2).sample(space_of((6000,), "uint8"), seed=1)
    pairs = [1 << one | 1 << other for one, other in itertools.combinations(range(8), 2)]
    assert uniform([int((error_map.mask == pair).sum()) for pair in pairs]) > 1e-4
    three = dr.MultiBit(1, 3).sample(space_of((6000,), "float64"), seed=1)
    assert uniform(bits_of(three.mask, 64), scale=1 - 2 / 63) > 1e-4
    words = np.bincount(dr.MultiBit(0.02, 1).sample(space_of((200_000,)), seed=1).word // 5000, minlength=40)
    assert uniform(words) > 1e-4


@pytest.mark.parametrize("error_model", [dr.StuckAt(1, 0.05), dr.RandomValue(0.5, -1, 1)], ids=str)
def test_maps_made_from_words_are_refused_on_others(error_model):
    model = nn.Linear(4, 3)
    error_map = error_model.sample(resolve(model), seed=1)
    twin = copy.deepcopy(model)
    with error_map.applied(twin):
        pass
    word = int(error_map.word[error_map.tensor == 1][0])
    with torch.no_grad():
        twin.weight.view(-1)[word] = 123.0
    for refused in (error_map, error_map | dr.BitFlip(0.5).sample(resolve(model), seed=1)):
        with pytest.raises(ErrorMapMismatch, match=f"words of 'weight'.*word {word} was 0x.*, here it is 0x42f60000"):
            refused.apply(twin)
    with torch.no_grad():
        untouched = next(i for i in range(12) if i not in error_map.word[error_map.tensor == 1])
        twin.weight.copy_(model.weight)
        twin.weight.view(-1)[untouched] = 123.0
    error_map.apply(twin)  # words that no mask was made from may differ


def test_random_values_of_the_whole_range():
    """All integers of 64 bits, and all float64 from the lowest to the highest."""
    model = holder(whole=torch.zeros(5000, dtype=torch.int64), wide=torch.zeros(5000, dtype=torch.float64))
    with dr.inject(model, dr.RandomValue(1, -(2**63), 2**63 - 1), "whole", seed=1):
        assert uniform(np.histogram(model.whole.double(), 40, (-(2.0**63), 2.0**63))[0]) > 1e-4
    most = torch.finfo(torch.float64).max
    with dr.inject(model, dr.RandomValue(1, -most, most), "wide", seed=1):
        assert (
            model.wide.isfinite().all() and uniform(np.histogram(model.wide / 2, 40, (-most / 2, most / 2))[0]) > 1e-4
        )


def test_long_bursts_and_rows_cost_what_is_there():
    """Lengths far beyond the memory; drawn whole they would take gigabytes."""
    space = space_of((4160,))
    assert dr.Burst(1e-4, 10**12).expected_share(space) == pytest.approx(
        dr.Burst(1e-4, space.bits).expected_share(space)
    )
    burst = dr.Burst(1e-4, 10**12).sample(space, seed=1)
    lowest = int(burst.mask[0])
    first = 32 * int(burst.word[0]) + (lowest & -lowest).bit_length() - 1
    assert burst.bits == space.bits - first
    row = dr.RowError(1, row_bytes=2**40, density=1).sample(space, seed=1)
    assert row.bits == space.bits and row.n_events == 1
