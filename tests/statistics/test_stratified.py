from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import nn

from drsrobust.campaign.conditions import strata
from drsrobust.injection import FixedCount, Rows, inject, resolve
from drsrobust.injection.number_formats import bit_classes, plain, quantized_rows
from drsrobust.statistics.intervals import rule_of_three
from drsrobust.statistics.stratified import stratified_mean, stratified_proportion


def test_bit_classes_of_float32_are_the_literatures():
    assert bit_classes("float32") == {
        "sign": (31,),
        "exponent_top": (30,),
        "exponent_high": (27, 28, 29),
        "exponent_low": (23, 24, 25, 26),
        "mantissa": tuple(range(23)),
    }


def test_bit_classes_of_other_formats():
    bfloat16, float64 = bit_classes("bfloat16"), bit_classes("float64")
    assert bfloat16["exponent_high"] == (11, 12, 13) and bfloat16["exponent_low"] == (7, 8, 9, 10)
    assert float64["exponent_top"] == (62,) and float64["exponent_low"] == (52, 53, 54, 55)
    assert "exponent_high" not in bit_classes("float16") and bit_classes("float8_e4m3fn")["exponent_low"] == (3, 4, 5)
    assert bit_classes("int8") == {"sign": (7,), "value_high": (3, 4, 5, 6), "value_low": (0, 1, 2)}
    assert bit_classes("uint8") == {"value_high": (4, 5, 6, 7), "value_low": (0, 1, 2, 3)}
    assert bit_classes(quantized_rows("int4", 6, 4, 16)) == {
        "value": ("value",),
        "scale": ("scale",),
        "bias": ("bias",),
    }
    assert bit_classes(quantized_rows("float16", 3, 0, 8)) == bit_classes("float16")


FORMATS = [
    plain(getattr(torch, name)) for name in ("float64", "float32", "float16", "bfloat16", "float8_e5m2", "int32")
]


@pytest.mark.parametrize("known", [*FORMATS, quantized_rows("int8", 5, 4, 16), quantized_rows("float32", 3, 0, 16)])
def test_bit_classes_are_a_partition(known):
    """Each bit but padding is in one class, and classes say what their flips scale by."""
    everything, seen = known.eligible(None), np.zeros(known.period, np.uint64)
    for bits in bit_classes(known).values():
        mask = known.eligible(bits)
        assert not (mask & seen).any() and mask.any()
        seen |= mask
    assert (seen == everything).all()


class Mixed(nn.Module):
    """Components of one and of two formats."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4, dtype=torch.float16)
        self.over = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1).to(torch.bfloat16))


@pytest.mark.parametrize("target", ["all", "everything", "over", "*.weight", Rows("embedding.weight", [1, 4])])
def test_strata_are_a_partition_that_can_be_drawn(target):
    """Sizes add up to all bits, and a trial of each stratum hits it and nothing else."""
    model = Mixed()
    found, whole = strata(model, target), resolve(model, target)
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


def test_strata_of_a_recommender(trained):
    found = strata(trained)
    assert set(found["component"]) == {"embedding", "dense_mlp", "over_mlp"} and set(found["format"]) == {"float32"}
    assert (found["target"] == found["component"]).all() and len(found) == 15
    assert found.groupby("component")["weight"].sum()["embedding"] == pytest.approx(
        resolve(trained, "embedding").bits / resolve(trained).bits
    )


WEIGHTS = np.array([0.7, 0.25, 0.05])
CENTRES, SPREADS = np.array([0.01, 0.1, 0.5]), np.array([0.005, 0.05, 0.25])


def campaigns(rng, ns, many):
    """Means and variances [many, strata] of trials that are beta-distributed."""
    total = CENTRES * (1 - CENTRES) / SPREADS**2 - 1
    drawn = [rng.beta(c * t, (1 - c) * t, (many, n)) for c, t, n in zip(CENTRES, total, ns, strict=True)]
    return np.stack([d.mean(1) for d in drawn], 1), np.stack([d.var(1, ddof=1) for d in drawn], 1)


def test_stratified_mean_by_hand():
    mean, low, high = stratified_mean([0.6, 0.4], [0.1, 0.5], [0.04, 0.09], [9, 16])
    a, b = 0.36 * 0.04 / 9, 0.16 * 0.09 / 16
    freedom = (a + b) ** 2 / (a**2 / 8 + b**2 / 15)
    assert freedom == pytest.approx(16.71, abs=0.01)
    assert (mean, high - mean) == pytest.approx((0.26, 2.1126 * np.sqrt(a + b)), rel=1e-3)  # t from a table
    assert mean - low == pytest.approx(high - mean)


def test_stratified_mean_covers():
    """Of 1,500 campaigns of 60 trials in three strata 95 %."""
    rng, ns = np.random.default_rng(0), np.array([20, 20, 20])
    means, variances = campaigns(rng, ns, 1500)
    found = np.array([stratified_mean(WEIGHTS, m, v, ns) for m, v in zip(means, variances, strict=True)])
    covered = ((found[:, 1] <= WEIGHTS @ CENTRES) & (found[:, 2] >= WEIGHTS @ CENTRES)).mean()
    assert abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 1500) + 0.01


def test_a_stratum_whose_trials_are_alike_is_not_known():
    mean, low, high = stratified_mean([0.9, 0.1], [0.2, 0.5], [0, 0], [100, 50], bounds=(0, 1))
    u, v = rule_of_three(100), rule_of_three(50)
    assert mean == pytest.approx(0.23)
    assert mean - low == pytest.approx(np.hypot(0.9 * u * 0.2, 0.1 * v * 0.5))
    assert high - mean == pytest.approx(np.hypot(0.9 * u * 0.8, 0.1 * v * 0.5))
    assert stratified_mean([1], [0.0], [0], [300], bounds=(-1, 1))[1] == pytest.approx(-rule_of_three(300))


def test_a_stratified_mean_stays_within_the_bounds():
    mean, low, high = stratified_mean([0.5, 0.5], [0.01, 0.98], [0.3, 0.3], [2, 2])
    assert mean == pytest.approx(0.495) and (low, high) == (0, 1)
    least, greatest = np.array([0.0, 0.5]), np.array([0.2, 1.0])
    found = stratified_mean([0.5, 0.5], [0.01, 0.98], [0.3, 0.3], [2, 2], bounds=(least, greatest))
    assert found[1:] == pytest.approx((0.25, 0.6))


def test_stratified_mean_covers_where_harm_is_rare():
    """One error in 50 of a large stratum takes 0.3; of 40 trials there nearly half of all campaigns see none. Exactly, over
    all counts: at least 93 %, where the formula that takes what has no variance as known covers in a little over half."""
    p, n = 0.02, 40
    truth = 0.9 * p * 0.3 + 0.1 * 0.5
    covered = naive = 0.0
    for count in range(n + 1):
        mean, variance = 0.3 * count / n, 0.09 * count * (n - count) / n / (n - 1)
        chance = binom.pmf(count, n, p)
        _, low, high = stratified_mean([0.9, 0.1], [mean, 0.5], [variance, 0.0001], [n, n])
        covered += chance * (low <= truth <= high)
        if count:
            naive += chance * (low <= truth <= high)
    assert covered > 0.93 and naive < 0.6


def test_stratified_proportion_of_one_stratum_is_wilson():
    assert stratified_proportion([1], [3], [20]) == pytest.approx((0.15, 0.05237, 0.36041), abs=1e-4)


@pytest.mark.parametrize(
    "weights, shares, ns",
    [
        pytest.param((0.8, 0.2), (0.02, 0.5), (40, 40), id="rare and frequent"),
        pytest.param((0.5, 0.3, 0.2), (0.1, 0.3, 0.7), (12, 12, 12), id="three small ones"),
        pytest.param((0.9, 0.1), (0.001, 0.3), (60, 30), id="hardly ever"),
    ],
)
def test_stratified_proportion_covers(weights, shares, ns):
    """Exactly, over all counts: about 95 %, as for Wilson's own interval, whose coverage goes up and down around it. The
    normal approximation sum W^2 p (1 - p) / n covers less."""
    from drsrobust.statistics.intervals import wilson

    truth, one = np.dot(weights, shares), cache(wilson)
    chances = [binom.pmf(np.arange(n + 1), n, share) for n, share in zip(ns, shares, strict=True)]
    covered = normal = 0.0
    for counts in product(*(np.flatnonzero(chance > 1e-5) for chance in chances)):
        chance = np.prod([c[count] for c, count in zip(chances, counts, strict=True)])
        found = np.array([one(int(count), n) for count, n in zip(counts, ns, strict=True)])
        low = found[:, 0] @ weights - np.sqrt((np.square(weights) * (found[:, 0] - found[:, 1]) ** 2).sum())
        high = found[:, 0] @ weights + np.sqrt((np.square(weights) * (found[:, 2] - found[:, 0]) ** 2).sum())
        if chance > 1e-3:
            assert stratified_proportion(weights, counts, ns) == pytest.approx((found[:, 0] @ weights, low, high))
        covered += chance * (low <= truth <= high)
        half = 1.96 * np.sqrt((np.square(weights) * found[:, 0] * (1 - found[:, 0]) / ns).sum())
        normal += chance * (abs(found[:, 0] @ weights - truth) <= half)
    assert covered > 0.935 and normal < covered


def test_useless_strata():
    with pytest.raises(ValueError, match=r"weights are \[0.5, 0.4\]; they must be \[strata\], 0 or more, and sum to 1"):
        stratified_mean([0.5, 0.4], [0, 0], [0, 0], [5, 5])
    with pytest.raises(ValueError, match=r"ns have shape \(1,\); they must be as many as the weights, 2"):
        stratified_proportion([0.5, 0.5], [0, 0], [5])
    with pytest.raises(ValueError, match=r"strata have \[5, 1\] trials; a variance needs two of each"):
        stratified_mean([0.5, 0.5], [0, 0], [0, 0], [5, 1])
    with pytest.raises(ValueError, match=r"means \[-0.1, 0.0\] must lie within \(0.0, 1.0\)"):
        stratified_mean([0.5, 0.5], [-0.1, 0], [0, 0], [5, 5])
    with pytest.raises(ValueError, match=r"\[6.0, 0.0\] events in \[5.0, 5.0\] trials"):
        stratified_proportion([0.5, 0.5], [6, 0], [5, 5])
