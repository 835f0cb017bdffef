import time

import numpy as np
import pytest
from scipy.stats import binom

from drsrobust.statistics.count_curve import binomial_weights, curve_from_counts, error_count_grid
from drsrobust.statistics.intervals import mean_interval

BITS = 200
HARM = np.concatenate([np.full(5, 0.5), np.full(20, 0.1), np.zeros(BITS - 25)])  # what each bit takes away


def metric(flipped):
    """Of a set of flipped bits (boolean [..., BITS]): errors multiply, so that E[metric; p] is a product over bits."""
    return 0.5 + 0.3 * np.prod(1 - HARM * flipped, axis=-1)


def expected(rate):
    return 0.5 + 0.3 * np.prod(1 - rate * HARM)


def nested(rng, trials, rungs):
    """The metric of every trial at every rung: uniform k-subsets, each part of the next; [trials, rungs]."""
    order = rng.random((trials, BITS)).argsort(axis=1).argsort(axis=1)  # the place of each bit in the order of errors
    return np.stack([metric(order < k) for k in rungs], axis=1)


def test_ladder():
    assert error_count_grid(10**6, [1e-6]) == [0, 1, 2, 4, 8, 16]
    assert error_count_grid(10**6, [1e-6], growth=1.5) == [0, 1, 2, 3, 4, 5, 8, 11]
    for bits, rates in [(5 * 10**8, [1e-9, 1e-2]), (1000, [0.5]), (40, [0, 1.0]), (10**7, [1e-3])]:
        rungs = error_count_grid(bits, rates)
        assert rungs[0] == 0 and rungs == sorted(set(rungs)) and rungs[-1] <= bits
        assert binom.sf(rungs[-1], bits, max(rates)) <= 1e-6
        assert max(b / a for a, b in zip(rungs[1:], rungs[2:], strict=False)) <= 2
    assert error_count_grid(40, [1.0])[-1] == 40 and error_count_grid(40, [0]) == [0]
    # Where all errors of interest are many, few rungs stand below them; and those of more rates hold those of fewer.
    assert error_count_grid(10**7, [1e-3]) == [0, 2048, 4096, 8192, 16384]
    assert set(error_count_grid(10**7, [1e-3])) <= set(error_count_grid(10**7, [1e-6, 1e-3, 1e-2]))
    with pytest.raises(ValueError, match="growth is 1; it must be more than 1"):
        error_count_grid(100, [0.1], growth=1)
    with pytest.raises(ValueError, match=r"rates are \[1.5\]; they must be one or more numbers from 0 to 1"):
        error_count_grid(100, [1.5])


def test_a_ladder_of_all_numbers_is_the_binomial():
    rates = [0, 1e-3, 0.02, 0.1]
    rungs = np.arange(60)
    weights = binomial_weights(rungs, BITS, rates)
    np.testing.assert_allclose(weights, binom.pmf(rungs, BITS, np.array(rates)[:, None]), atol=1e-8)


def test_weights_reproduce_what_interpolation_can():
    """A metric that is linear in log k, or in k up to 4, is mixed exactly, though most numbers of errors have no rung: by
    cells of many errors as well as one by one."""
    for bits, rate in [(10**4, 0.02), (10**9, 1e-3)]:
        rungs = error_count_grid(bits, [rate])
        curve = lambda k: np.log(np.maximum(k, 1))  # noqa: E731
        low, high = binom.ppf([1e-12, 1 - 1e-12], bits, rate).astype(int)
        errors = np.arange(low, high + 1)
        truth = binom.pmf(errors, bits, rate) @ curve(errors)
        assert binomial_weights(rungs, bits, [rate])[0] @ curve(np.array(rungs)) == pytest.approx(truth, rel=1e-7)
    rungs = [0, 1, 2, 4]
    assert binomial_weights(rungs, 10**6, [1e-8])[0] @ rungs == pytest.approx(1e-2)


def test_every_rate_against_brute_force():
    """One campaign of nested k-subsets against E[metric; p] by its formula, which independent flips give too."""
    rng = np.random.default_rng(0)
    rates = [0, 1e-4, 1e-3, 1e-2, 0.05, 0.2]
    rungs = error_count_grid(BITS, rates, growth=1.3)
    found = curve_from_counts(nested(rng, 2000, rungs), rungs, BITS, rates)
    truth = np.array([expected(rate) for rate in rates])
    error = (found["high"] - found["low"]) / 2 + found["interpolation_error"]
    assert (abs(found["mean"] - truth) <= 1.5 * error + 1e-12).all()
    assert (found["interpolation_error"] < 1e-3).all() and (found["n"] == 2000).all()
    assert found.loc[0, ["mean", "low", "high", "interpolation_error"]].tolist() == [0.8, 0.8, 0.8, 0]
    flips = metric(rng.random((20_000, BITS)) < 0.05)
    assert flips.mean() == pytest.approx(truth[4], abs=4 * flips.std() / 141)


def test_interval_covers_and_independent_rungs_would_not():
    """300 campaigns of 60 trials: 95 % intervals of the mixed trials cover in 95 %; with rungs taken as independent of
    each other (variances w^2 s^2 / n added up) in far fewer."""
    rng = np.random.default_rng(1)
    rate = 0.05
    rungs = error_count_grid(BITS, [rate], growth=1.3)
    weight, truth = binomial_weights(rungs, BITS, [rate])[0], expected(rate)
    values = nested(rng, 300 * 60, rungs).reshape(300, 60, -1)
    covered = independent = 0
    for campaign in values:
        row = curve_from_counts(campaign, rungs, BITS, [rate]).iloc[0]
        covered += row["low"] <= truth <= row["high"]
        half = 2.0 * np.sqrt((weight**2 * campaign.var(axis=0, ddof=1) / 60).sum())  # t of 59 degrees of freedom
        independent += abs(campaign.mean(axis=0) @ weight - truth) <= half
    assert abs(covered / 300 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 300)
    assert independent / 300 < 0.85


def test_interpolation_error_is_about_the_error():
    """Of smooth curves without noise, on a coarse ladder: it bounds the error nearly everywhere, and is not far above it."""
    bits, rates = 10**8, np.logspace(-9, -2, 29)
    rungs = error_count_grid(bits, rates)
    held, ratio = [], []
    for half in (30, 1e4):
        for curve in (lambda k, h=half: 0.8 - 0.3 * k / (k + h), lambda k, h=half: 0.5 + 0.3 * np.exp(-k / h)):
            found = curve_from_counts(np.stack([curve(np.array(rungs, float))] * 2), rungs, bits, rates)
            for rate, mean, estimate in found[["rate", "mean", "interpolation_error"]].to_numpy():
                low, high = binom.ppf([1e-10, 1 - 1e-10], bits, rate).astype(int)
                errors = np.unique(np.linspace(low, high + 1, 20_001).astype(int))
                mass = np.diff(binom.cdf(np.append(errors - 1, high + 1), bits, rate))
                wrong = abs(mean - mass @ curve(errors) / mass.sum())
                held.append(wrong <= estimate + 1e-6)
                ratio.append((wrong, estimate))
    assert np.mean(held) > 0.95
    wrong, estimate = np.array(ratio).T
    assert 0.001 < wrong.max() < 0.005 and estimate.max() < 0.01


def test_no_harm_seen_is_not_no_harm():
    """50 trials without any harm at low rates: Student's t has no ends, bounds give some, in proportion to P(K > 0)."""
    rungs = [0, 1, 2, 4, 8]
    values = np.full((50, 5), 0.8)
    rates = [1e-6, 1e-4]
    assert curve_from_counts(values, rungs, 1000, rates)[["low", "high"]].isna().all(axis=None)
    found = curve_from_counts(values, rungs, 1000, rates, bounds=(0, 1))
    width = found["high"] - found["low"]
    assert width[1] / width[0] == pytest.approx((1 - 0.9999**1000) / (1 - 0.999999**1000))
    assert width[1] == pytest.approx(0.095 * (1 - (0.05 / 16) ** (1 / 50)), rel=0.1)


def test_interval_with_bounds_covers_rare_harm():
    """One critical bit in 100, 40 trials per campaign, at a rate where 1 flip is usual: t covers in few of 200 campaigns."""
    rng = np.random.default_rng(2)
    rungs, rate = np.arange(9), 0.01
    first = rng.permuted(np.tile(np.arange(100), (200 * 40, 1)), axis=1)[:, 0]  # when the critical bit is hit
    values = np.where(first[:, None] < rungs, 0.3, 0.8).reshape(200, 40, 9)
    truth = 0.8 - 0.5 * rate
    ours = student = 0
    for campaign in values:
        low, high = curve_from_counts(campaign, rungs, 100, [rate], bounds=(0, 1)).loc[0, ["low", "high"]]
        ours += low <= truth <= high
        low, high = curve_from_counts(campaign, rungs, 100, [rate]).loc[0, ["low", "high"]]
        student += low <= truth <= high
    assert ours >= 190 - 3 * np.sqrt(200 * 0.95 * 0.05) and student < 150


def test_trials_that_raised():
    rng = np.random.default_rng(3)
    rungs = error_count_grid(BITS, [0.001, 0.05], growth=1.5)
    values = nested(rng, 100, rungs)
    values[:30, rungs.index(17) :] = np.nan  # too many errors for these
    found = curve_from_counts(values, rungs, BITS, [0.001, 0.05])
    assert found["n"].tolist() == [100, 70]
    whole = curve_from_counts(values[30:], rungs, BITS, [0.05]).iloc[0]
    assert found.loc[1, "mean"] == whole["mean"] and found.loc[1, "low"] == whole["low"]
    values[:, 1:] = np.nan
    nothing = curve_from_counts(values, rungs, BITS, [0, 0.05])
    assert nothing["n"].tolist() == [100, 0] and nothing["mean"].isna().tolist() == [False, True]


def test_the_ladders_top():
    values = np.full((5, 4), 0.8)
    with pytest.raises(ValueError, match=r"at rate 0.05 0.9\d* of the probability lies above the last point, 4 errors"):
        curve_from_counts(values, [0, 1, 2, 4], BITS, [0.0001, 0.05])
    assert binomial_weights([0, 1, 2, 4], BITS, [1e-3]).sum() == pytest.approx(1)  # a little above it is allowed
    assert binomial_weights([0, 100, BITS], BITS, [1.0]).tolist() == [[0, 0, 1]]


def test_useless_arguments():
    with pytest.raises(ValueError, match=r"the grid is \[1, 2\]; it must ascend from 0 errors to at most 200"):
        binomial_weights([1, 2], BITS, [0.001])
    with pytest.raises(ValueError, match=r"values have shape \(5, 3\); they must be \[trials, 4 points\]"):
        curve_from_counts(np.zeros((5, 3)), [0, 1, 2, 4], BITS, [0.001])
    with pytest.raises(ValueError, match="without errors all trials have the golden metric"):
        curve_from_counts(np.arange(20.0).reshape(5, 4), [0, 1, 2, 4], BITS, [0.001])


def test_large_models_cost_no_more():
    bits, rates = 5 * 10**9, np.logspace(-10, -2, 33)
    start = time.process_time()
    rungs = error_count_grid(bits, rates)
    found = curve_from_counts(np.full((300, len(rungs)), 0.8), rungs, bits, rates)
    assert time.process_time() - start < 2 and len(found) == 33 and len(rungs) < 30


def test_a_complete_ladder_of_one_trial():
    found = curve_from_counts(np.array([[0.8, 0.7, 0.6]]), [0, 1, 2], 100, [1e-4])
    assert np.isnan(found.loc[0, "low"]) and found.loc[0, "interpolation_error"] == 0
    assert np.isnan(curve_from_counts(np.array([[0.8, 0.7]] * 3), [0, 9], 100, [1e-4]).loc[0, "interpolation_error"])
    assert mean_interval(np.array([found.loc[0, "mean"]]))[0] == pytest.approx(0.8 - 0.1 * 0.01, abs=1e-6)
