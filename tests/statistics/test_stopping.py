import numpy as np
import pytest
from scipy.stats import t

from drsrobust.statistics.intervals import CONFIDENCE, bounded_interval, mean_interval
from drsrobust.statistics.stopping import checkpoints, is_precise, required_trials, stopping_interval


def test_looks():
    assert checkpoints(32, 1024) == [32, 64, 128, 256, 512, 1024]
    assert checkpoints(32, 1000) == [32, 64, 128, 256, 512, 1000]
    assert checkpoints(32, 20) == [20] and checkpoints(32, 32) == [32] and checkpoints(32, 33) == [32, 33]
    assert checkpoints(1, 5, growth=1.1) == [1, 2, 3, 4, 5]  # no look twice
    with pytest.raises(ValueError, match="max_trials must be a whole number of at least 1, got 0"):
        checkpoints(32, 0)
    with pytest.raises(ValueError, match="growth is 1; it must be more than 1"):
        checkpoints(32, 64, growth=1)


def collapses(rng, shape, share, drop=0.3):
    """AUCs of 0.8, of which a share is less by something uniform up to `drop`; and their mean."""
    harmed = rng.random(shape) < share
    return 0.8 - harmed * rng.uniform(0, drop, shape), 0.8 - share * drop / 2


def at_the_stop(values, schedule, precision):
    """Where trials end, and the interval there."""
    done = 0
    while (n := required_trials([values[:done]], schedule, precision)) > done:
        done = n
    return n, stopping_interval(values[:n])


@pytest.mark.parametrize(
    "draw, precision, most",
    [
        pytest.param(lambda rng, shape: (rng.normal(0.65, 0.1, shape).clip(0, 1), 0.65), 0.025, 300, id="normal"),
        pytest.param(lambda rng, shape: collapses(rng, shape, 0.3), 0.025, 260, id="often harmed"),
        pytest.param(lambda rng, shape: collapses(rng, shape, 0.01), 0.025, 130, id="rarely harmed"),
        pytest.param(lambda rng, shape: (0.8 * (rng.random(shape) > 0.01), 0.792), 0.025, 320, id="rarely lost"),
        pytest.param(lambda rng, shape: (rng.beta(2, 1, shape), 2 / 3), 0.05, 400, id="beta"),
    ],
)
def test_the_interval_where_trials_stop_covers(draw, precision, most):
    """Of 120 campaigns at least 95 % - 3 standard errors, and they do stop before the last look, on average by `most`."""
    values, mean = draw(np.random.default_rng(0), (120, 1024))
    ends = [at_the_stop(one, checkpoints(32, 1024), precision) for one in values]
    covered = np.mean([low <= mean <= high for _, (_, low, high) in ends])
    assert covered >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 120)
    for n, (_, low, high) in ends:
        assert (high - low) / 2 <= precision or n == 1024
    assert np.mean([n for n, _ in ends]) <= most


def test_student_would_stop_at_once_where_harm_is_rare():
    """Why bounds are needed: of 400 campaigns in which 1 error map in 100 does harm, t says enough at the first look in nine
    of ten, and its interval there covers in fewer than half."""
    values, mean = collapses(np.random.default_rng(1), (400, 32), 0.01)
    half = t.ppf(1 - 0.025 / 6, 31) * values.std(axis=1, ddof=1) / np.sqrt(32)  # alpha split over six looks, even so
    found = np.stack([values.mean(axis=1), values.mean(axis=1) - half, values.mean(axis=1) + half], axis=1)
    narrow = (found[:, 2] - found[:, 1]) / 2 <= 0.02
    assert narrow.mean() > 0.9 and ((found[:, 1] <= mean) & (mean <= found[:, 2])).mean() < 0.5
    assert not any(is_precise([one], 0.02) for one in values)


def test_it_holds_at_all_looks_at_once():
    """A coin of 1/10 looked at 20 times: the interval is right at all looks in 95 % of runs; Student's t in far fewer."""
    rng = np.random.default_rng(2)
    schedule = checkpoints(16, 1024, growth=1.25)
    ours = students = 0
    for coins in (rng.random((100, 1024)) < 0.1).astype(float):
        found = np.array([(*stopping_interval(coins[:n]), *mean_interval(coins[:n])) for n in schedule])
        ours += bool(((found[:, 1] <= 0.1) & (found[:, 2] >= 0.1)).all())
        students += bool(((found[:, 4] <= 0.1) & (found[:, 5] >= 0.1)).all())
    assert len(schedule) == 20 and ours >= 95 - 3 * np.sqrt(100 * 0.05 * 0.95) and students < 70


def test_decisions_rest_on_the_trials_before_them():
    rng = np.random.default_rng(3)
    values = rng.normal(0.6, 0.1, (3, 2048)).clip(0, 1)
    schedule = checkpoints(32, 2048)
    n = required_trials(values, schedule, 0.02)
    assert 64 < n < 2048
    assert required_trials(values[:, :n], schedule, 0.02) == n  # no more than it asked for
    other = values.copy()
    other[:, n:] = rng.random((3, 2048 - n))
    assert required_trials(other, schedule, 0.02) == n  # whatever comes behind
    assert required_trials(values[:, : n - 1], schedule, 0.02) == n  # one trial short of it: go on
    assert required_trials([values[0], values[1][:40], values[2]], schedule, 0.02) == 64  # the shortest counts
    assert required_trials(values[:, :5], schedule, 0.02) == 32 and required_trials(values, [32, 50], 0.02) == 50


def test_conditions_stop_together():
    rng = np.random.default_rng(4)
    noisy, quiet = rng.random(2048), np.full(2048, 0.8)
    alone = [required_trials([one], checkpoints(32, 2048), 0.03) for one in (noisy, quiet)]
    assert alone[1] < alone[0] == required_trials([noisy, quiet], checkpoints(32, 2048), 0.03)
    assert is_precise([quiet[:512]], 0.03) and not is_precise([quiet[:512], noisy[:512]], 0.03)


def test_trials_that_raised():
    rng = np.random.default_rng(5)
    values = rng.normal(0.6, 0.05, 512).clip(0, 1)
    holes = np.where(rng.random(512) < 0.3, np.nan, values)
    assert stopping_interval(holes) == bounded_interval(holes[~np.isnan(holes)], confidence=CONFIDENCE)
    mean, low, high = stopping_interval(np.full(99, np.nan))
    assert np.isnan(mean) and (low, high) == (0, 1)
    assert required_trials([np.full(99, np.nan)], [32, 64], 0.1) == 64  # nothing is known of it: to the end


def test_useless_arguments():
    with pytest.raises(ValueError, match="0 conditions and 1 checkpoints"):
        required_trials([], [32], 0.01)
    with pytest.raises(ValueError, match="precision must be more than 0, got 0"):
        required_trials([np.zeros(99)], [32, 64], 0)
    with pytest.raises(ValueError, match=r"1 of 2 values are not between 0.0 and 1.0, as -0.2"):
        is_precise([np.array([0.5, -0.2])], 0.1)
    assert is_precise([np.full(2000, -0.2)], 0.02, bounds=(-1, 1))
