"""How many errors there are, and where: against what the error models say; strata by critical bits, and their weights."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.injection import ErrorMapMismatch, resolve
from drsrobust.injection.critical_bits import CriticalBits, Stratum, harmful_pilots, masks_in
from drsrobust.injection.number_formats import harmful_masks, plain, quantized_rows
from tests.conftest import long_but
from tests.injection.spaces import filled, holder, space_of


def shared_space(copies):
    """Words of three widths, of one tensor some rows, several times: one draw of them all is as good as several."""
    tensors, targets = {}, []
    for n in range(copies):
        tensors |= {f"a{n}": filled("float16", (5, 3), 1), f"c{n}": filled("uint8", (7,), 3)}
        tensors[f"b{n}"] = filled("float32", (4, 2), 2)
        targets += [f"a{n}", dr.Rows(f"b{n}", [0, 1, 3]), f"c{n}"]
    return resolve(holder(**tensors), targets)


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
    space = shared_space(10)
    eligible = error_model.sample(space, seed=0).eligible_bits
    shares = np.array([error_model.sample(space, seed=seed).bits / eligible for seed in range(25)])
    expected = error_model.expected_share(space.only(error_model.bits) if hasattr(error_model, "bits") else space)
    assert abs(shares.mean() - expected) <= 4 * shares.std() / math.sqrt(len(shares)) + 1e-12
    assert error_model.sample(space, seed=0).requested_rate == expected


def test_what_depends_on_the_memory_has_no_expected_share():
    for error_model in (dr.StuckAt(1, 0.1), dr.RandomValue(0.1, 0, 1), dr.BitFlip(0.1) + dr.MultiBit(0.1, 2)):
        assert error_model.expected_share(shared_space(1)) is None
        assert error_model.sample(shared_space(1), seed=1).requested_rate is None


@pytest.mark.parametrize("error_model", [dr.StuckAt(1, 0.05), dr.RandomValue(0.5, -1, 1)], ids=str)
def test_maps_made_from_words_are_refused_on_others(error_model):
    model = nn.Linear(4, 3)
    error_map = error_model.sample(resolve(model), seed=1)
    twin = copy.deepcopy(model)
    with error_map.applied(twin):
        pass
    word = int(error_map.word[error_map.tensor == 1][0])
    twin.weight.data.view(-1)[word] = 123.0
    for refused in (error_map, error_map | dr.BitFlip(0.5).sample(resolve(model), seed=1)):
        with pytest.raises(ErrorMapMismatch, match=f"words of 'weight'.*word {word} was 0x.*, here it is 0x42f60000"):
            refused.apply(twin)
    untouched = next(i for i in range(12) if i not in error_map.word[error_map.tensor == 1])
    twin.weight.data.copy_(model.weight)
    twin.weight.data.view(-1)[untouched] = 123.0
    error_map.apply(twin)  # words that no mask was made from may differ


def test_long_bursts_and_rows_cost_what_is_there():
    """Lengths far beyond the memory; drawn whole they would take gigabytes."""
    space, long = space_of((4160,)), dr.Burst(1e-4, 10**12)
    assert long.expected_share(space) == pytest.approx(dr.Burst(1e-4, space.bits).expected_share(space))
    burst = long.sample(space, seed=1)
    lowest = int(burst.mask[0])
    first = 32 * int(burst.word[0]) + (lowest & -lowest).bit_length() - 1
    assert burst.bits == space.bits - first
    row = dr.RowError(1, row_bytes=2**40, density=1).sample(space, seed=1)
    assert row.bits == space.bits and row.n_events == 1


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", long_but(DTYPES[::4], DTYPES))
@pytest.mark.parametrize("errors", [dr.BitFlip(2e-3), dr.FixedCount(2)], ids=str)
def test_weights_give_the_flips_of_plain_maps(dtype, errors):
    """In each part of the bits the weighted mean number of flips is that of plain maps, and a seed draws its map again."""
    model = nn.Linear(12, 9)
    model.weight = nn.Parameter(torch.zeros(9, 12, dtype=dtype), requires_grad=False)
    space = dr.resolve(model, "weight")
    parts, strata = CriticalBits().parts(space), errors.strata(space, CriticalBits())
    assert sum(one.probability for one in strata) == pytest.approx(1)
    narrow = dtype in (torch.float8_e4m3fn, torch.float8_e5m2) and isinstance(errors, dr.FixedCount)
    assert narrow or {"0, others 0", "0, others 1+"} <= {one.name for one in strata}
    share, means = getattr(errors, "ber", None) or errors.k / space.bits, np.zeros(3)
    for one in (one for one in strata if not one.is_pilot):
        for seed in range(200):
            error_map = one.error_model.sample(space, seed=seed)
            flips = [int(np.bitwise_count(error_map.mask & masks_in(p, space, error_map)).sum()) for p in parts[:3]]
            assert not one.name.startswith("0, others") or (flips[0] == 0 and (flips[1] > 0) == one.name.endswith("1+"))
            assert getattr(errors, "k", error_map.bits) == error_map.bits == sum(flips)
            means += one.probability / 200 * np.array(flips)
    expected = share * np.array([part.bits for part in parts[:3]])
    assert np.abs(means - expected) == pytest.approx(0, abs=0.35 * max(1, expected.max() ** 0.5))


def test_which_bits_are_harmful():
    rows = harmful_masks(quantized_rows("int8", 8, 4, 16))
    assert rows.tolist() == [0, 0xFC, 0, 0xFC, *[0] * 12]  # sign and exponent of a float16 scale and bias
    expected = {torch.float32: 0xFF800000, torch.float8_e5m2: 0xFC, torch.float8_e4m3fn: 0xFF, torch.int8: 0xFF}
    for dtype, masks in expected.items():
        assert int(harmful_masks(plain(dtype))[0]) == masks


def test_a_pilot_that_shows_harm_takes_the_bound_away():
    """The stratum that saw none of 17 % of a flip's loss was taken as bounded by what it saw."""
    pilots = "pilot, others 47", "pilot, mild 64"
    strata = [
        Stratum("0, others 0", 0.967, None, "anywhere", pilots[1:]),
        Stratum("0, others 1+", 0.029, None, "anywhere", pilots[:1]),
        Stratum("1+", 0.004, None),
        *(Stratum(name, 0.0, None, pilot_share=share) for name, share in zip(pilots, (6e-4, 1.3e-3), strict=True)),
    ]
    losses = [np.zeros(16), np.zeros(16), np.full(16, 0.29), np.full(8, 0.3), np.full(8, 0.003)]
    harmful = harmful_pilots(strata, losses)
    assert harmful == {pilots[0]} and [one.is_bounded("chip", harmful) for one in strata[:3]] == [True, False, False]
    assert harmful_pilots(strata, [*losses[:3], np.full(8, 1e-3), losses[4]]) == set()
