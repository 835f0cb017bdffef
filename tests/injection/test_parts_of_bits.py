"""Strata by critical and other harmful bits: their weights, their maps, and what pilots decide."""

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.injection.critical_bits import CriticalBits, Stratum, harmful_pilots, masks_in
from drsrobust.injection.number_formats import harmful_masks, plain, quantized_rows
from tests.conftest import long_but

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


def test_bad_counts_of_parts():
    with pytest.raises(ValueError, match="others is 1; it needs critical="):
        dr.BitFlip(1e-3, others=1)
    with pytest.raises(ValueError, match=r"critical is '1\+'; with others= it must be a number"):
        dr.FixedCount(3, critical="1+", others=0)
    with pytest.raises(ValueError, match="others is 4, which is impossible where 3 of"):
        dr.FixedCount(3, critical=0, others=4).sample(dr.resolve(nn.Linear(4, 4)), seed=0)
