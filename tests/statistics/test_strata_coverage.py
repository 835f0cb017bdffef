"""How often intervals of stratified means and shares hold the truth, and the bounds of each stratum."""

from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from drsrobust.statistics.intervals import mean_interval, rule_of_three, stringer_interval, wilson
from drsrobust.statistics.strata import Strata

WEIGHTS = np.array([0.7, 0.25, 0.05])
CENTRES, SPREADS = np.array([0.01, 0.1, 0.5]), np.array([0.005, 0.05, 0.25])


def strata_of(weights, values, bounded=False):
    """The strata of values [strata][trials] as losses, and these values."""
    names = np.repeat(np.arange(len(values)), [len(own) for own in values]).astype(str)
    weight = np.concatenate([np.full(len(own), w / len(own)) for w, own in zip(weights, values, strict=True)])
    losses = np.concatenate(values)
    table = pd.DataFrame({"stratum": names, "weight": weight, "auc_drop": losses, "outcome": "ok"})
    return Strata.of(table.assign(loss_is_bounded=bounded)), losses


def interval(weights, values, bounds=(0.0, 1.0)):
    strata, losses = strata_of(weights, values)
    return strata.mean_interval(losses, bounds)


@pytest.mark.long
def test_a_mean_covers():
    """Of 1,500 campaigns of 60 trials in three strata 95 %; each stratum's interval is Student's."""
    random = np.random.default_rng(0)
    total = CENTRES * (1 - CENTRES) / SPREADS**2 - 1
    ends = []
    for _ in range(1500):
        values = [random.beta(c * t, (1 - c) * t, 20) for c, t in zip(CENTRES, total, strict=True)]
        ends.append(interval(WEIGHTS, values)[1:])
    low, high = np.transpose(ends)
    covered = ((low <= WEIGHTS @ CENTRES) & (high >= WEIGHTS @ CENTRES)).mean()
    assert abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 1500) + 0.01


def test_a_stratum_whose_trials_are_alike_is_not_known():
    mean, low, high = interval([0.9, 0.1], [np.full(100, 0.2), np.full(50, 0.5)])
    u, v = rule_of_three(100), rule_of_three(50)
    assert mean == pytest.approx(0.23)
    assert mean - low == pytest.approx(np.hypot(0.9 * u * 0.2, 0.1 * v * 0.5))
    assert high - mean == pytest.approx(np.hypot(0.9 * u * 0.8, 0.1 * v * 0.5))


def test_each_stratum_has_its_bounds():
    """Equal trials, few harmful ones and many: the rule of three, Stringer's bound and Student's t, each within its bounds."""
    random = np.random.default_rng(1)
    alike, few, many = np.zeros(60), np.append(np.zeros(59), 0.04), random.uniform(0.1, 0.3, 60)
    least, greatest = np.array([-0.01, 0.0, 0.0]), np.array([0.02, 0.05, 1.0])
    mean, low, high = interval([0.5, 0.3, 0.2], [alike, few, many], (least, greatest))
    each = np.array(
        [
            mean_interval(alike, bounds=(-0.01, 0.02)),
            stringer_interval(few, (0.0, 0.05)),
            mean_interval(many, bounds=(0.0, 1.0)),
        ]
    )
    weights = np.array([0.5, 0.3, 0.2])
    assert mean == pytest.approx(weights @ each[:, 0])
    assert mean - low == pytest.approx(np.linalg.norm(weights * (each[:, 0] - each[:, 1])))
    assert high - mean == pytest.approx(np.linalg.norm(weights * (each[:, 2] - each[:, 0])))
    two = [np.array([0.0, 0.2]), np.array([0.5, 1.0])]
    _, low, high = interval([0.5, 0.5], two, (np.array([0.0, 0.5]), np.array([0.2, 1.0])))
    assert 0.25 <= low < 0.425 < high <= 0.6


def test_values_outside_of_a_stratums_bounds_are_refused():
    with pytest.raises(ValueError, match="are not between 0.0 and 0.2"):
        interval([0.5, 0.5], [np.append(np.zeros(59), 0.3), np.full(60, 0.1)], (0.0, np.array([0.2, 1.0])))


def test_a_mean_covers_where_harm_is_rare():
    """One error in 50 of a large stratum takes 0.3; of 40 trials there nearly half of all campaigns see none. Exactly, over
    all counts: at least 93 %."""
    p, n = 0.02, 40
    truth, covered = 0.9 * p * 0.3 + 0.1 * 0.5, 0.0
    known = 0.5 + 0.01 * np.tile([-1.0, 1.0], n // 2)
    for count in range(n + 1):
        _, low, high = interval([0.9, 0.1], [np.repeat([0.3, 0.0], [count, n - count]), known])
        covered += binom.pmf(count, n, p) * (low <= truth <= high)
    assert covered > 0.93


@pytest.mark.parametrize(
    "weights, shares, ns",
    [
        pytest.param((0.8, 0.2), (0.02, 0.5), (40, 40), id="rare and frequent"),
        pytest.param((0.5, 0.3, 0.2), (0.1, 0.3, 0.7), (12, 12, 12), id="three small ones"),
        pytest.param((0.9, 0.1), (0.001, 0.3), (60, 30), id="hardly ever"),
    ],
)
def test_a_share_covers(weights, shares, ns):
    """Exactly, over all counts: about 95 %, as for Wilson's own interval, whose coverage goes up and down around it. The
    normal approximation sum W^2 p (1 - p) / n covers less."""
    truth, one = np.dot(weights, shares), cache(wilson)
    chances = [binom.pmf(np.arange(n + 1), n, share) for n, share in zip(ns, shares, strict=True)]
    covered = normal = 0.0
    for counts in product(*(np.flatnonzero(chance > 1e-5) for chance in chances)):
        chance = np.prod([c[count] for c, count in zip(chances, counts, strict=True)])
        found = np.array([one(int(count), n) for count, n in zip(counts, ns, strict=True)])
        low = found[:, 0] @ weights - np.sqrt((np.square(weights) * (found[:, 0] - found[:, 1]) ** 2).sum())
        high = found[:, 0] @ weights + np.sqrt((np.square(weights) * (found[:, 2] - found[:, 0]) ** 2).sum())
        if chance > 1e-3:
            values = [np.repeat([1.0, 0.0], [count, n - count]) for count, n in zip(counts, ns, strict=True)]
            strata, flags = strata_of(weights, values)
            assert strata.share(flags > 0) == pytest.approx((found[:, 0] @ weights, low, high))
        covered += chance * (low <= truth <= high)
        half = 1.96 * np.sqrt((np.square(weights) * found[:, 0] * (1 - found[:, 0]) / ns).sum())
        normal += chance * (abs(found[:, 0] @ weights - truth) <= half)
    assert covered > 0.935 and normal < covered
