"""The choice against brute force, its bound and budgets; the simultaneous bound on populations of known expected losses."""

import itertools

import numpy as np
import pytest

from drsrobust_extras.risk.planning import simultaneous
from drsrobust_extras.risk.planning.choice import InfeasibleBudget, cheapest, choose
from drsrobust_extras.risk.planning.simultaneous import largest_ratio, uncertainty
from tests.refusals import refuses

SEEDS = range(12)


def instance(seed, groups=6, options=4):
    """Losses of several magnitudes and two costs; the first option of a group costs nothing, and some are missing."""
    random = np.random.default_rng(seed)
    losses = random.exponential(1e-7, (groups, options)) * 10.0 ** random.uniform(-2, 2, (groups, 1))
    costs = random.uniform(0, 1, (2, groups, options)).round(2)
    losses[random.random((groups, options)) < 0.1] = np.nan
    losses[:, 0], costs[:, :, 0] = random.exponential(1e-6, groups), 0.0
    return losses, costs


def brute_force(losses, costs, budgets):
    """The least loss of all choices within the budgets."""
    groups, options = losses.shape
    rows, best = np.arange(groups), np.inf
    for choice in itertools.product(range(options), repeat=groups):
        if (costs[:, rows, choice].sum(axis=1) <= budgets).all():
            best = np.fmin(best, losses[rows, choice].sum())
    return best


@pytest.mark.parametrize("seed", SEEDS)
def test_against_all_choices(seed):
    losses, costs = instance(seed)
    budgets = np.random.default_rng(seed).uniform(0, 3, 2)
    found = choose(losses, costs, budgets)
    rows = np.arange(len(losses))
    assert found.loss == pytest.approx(brute_force(losses, costs, budgets), rel=1e-4)
    assert found.loss == pytest.approx(losses[rows, found.option].sum())
    assert (costs[:, rows, found.option].sum(axis=1) <= budgets * (1 + 1e-6)).all()
    assert found.bound <= brute_force(losses, costs, budgets) * (1 + 1e-9)


def test_budgets_of_zero_leave_what_is_free():
    losses, costs = instance(2)
    assert choose(losses, costs, [0.0, 0.0]).option.tolist() == [0] * 6
    costs[:, 3, 2] = 0.0
    losses[3, 2] = 0.0
    assert choose(losses, costs, [0.0, 0.0]).option.tolist() == [0, 0, 0, 2, 0, 0]


def test_of_options_that_lose_alike_the_cheaper_one_is_chosen():
    losses = np.array([[1e-9, 0.0, 0.0, -1e-12]])
    costs = np.array([[[0.0, 2.0, 1.0, 3.0]]])
    assert choose(losses, costs, [2.5]).option.tolist() == [2]
    assert choose(losses, costs, [np.inf]).option.tolist() == [3]


def test_the_cheapest_budget_is_named_and_suffices():
    losses, costs = instance(3)
    losses[:2, 0] = np.nan  # two groups must choose something else
    refuses(lambda: choose(losses, costs, [0.0, np.inf]), InfeasibleBudget)
    number, least = cheapest(losses, costs, [0.0, np.inf])
    assert number == 0 and choose(losses, costs, [least, np.inf]).loss >= 0
    refuses(lambda: choose(losses, costs, [least * 0.99, np.inf]), InfeasibleBudget)
    number, least = cheapest(losses, costs, [np.inf, 0.0])
    assert number == 1 and choose(losses, costs, [np.inf, least]).loss >= 0


def test_each_group_can_fit_and_all_of_them_not():
    losses, costs = np.array([[np.nan, 0.0], [np.nan, 0.0]]), np.array([[[0.0, 1.0], [0.0, 1.0]]])
    refuses(lambda: choose(losses, costs, [1.5]), InfeasibleBudget, "no choice is within all budgets")
    assert cheapest(losses, costs, [1.5]) == (0, 2.0)


DRAWS, MAPS = 300, 60
WEIGHTS = np.array([0.9, 0.1])  # of maps without and with critical flips
HIT = np.array([0.02, 0.25])  # probability that errors harm a tensor, by stratum


def drawn(random, size, left):
    """Losses [2 MAPS, tensors, options]: a harmed tensor loses `size`, of which an option may leave all or nothing."""
    hit = random.random((2 * MAPS, len(size))) < np.repeat(HIT, MAPS)[:, None]
    kept = random.random((2 * MAPS, *left.shape)) < left
    return (hit * size)[:, :, None] * kept


@pytest.mark.long
def test_the_bound_of_the_chosen_plan_covers_its_expected_loss(monkeypatch):
    monkeypatch.setattr(simultaneous, "RESAMPLES", 59)
    members = np.repeat(np.eye(2, dtype=bool), MAPS, axis=1)
    covered = by_mean = 0
    for seed in range(DRAWS):
        random = np.random.default_rng(seed)
        size, left = random.uniform(0.01, 0.3, 5), random.uniform(0, 0.6, (5, 3))
        left[:, 0] = 1.0
        truth, cost = (WEIGHTS @ HIT) * size[:, None] * left, random.uniform(0, 1, (1, 5, 3))
        cost[:, :, 0] = 0.0
        found = uncertainty(drawn(random, size, left), members, WEIGHTS, seed=seed)
        robust, nominal = (choose(losses, cost, [1.2]) for losses in (found.upper, found.mean))
        rows = np.arange(5)
        covered += truth[rows, robust.option].sum() <= robust.loss + found.unseen
        by_mean += truth[rows, nominal.option].sum() <= nominal.loss
    assert covered >= 0.95 * DRAWS
    assert by_mean < 0.4 * DRAWS  # why the mean of a chosen plan is no estimate


def test_means_and_errors_are_those_of_the_strata():
    random = np.random.default_rng(0)
    values, members = random.exponential(1, (20, 2, 3)), np.repeat(np.eye(2, dtype=bool), [5, 15], axis=1)
    values[:, 1, 2] = np.nan  # a missing option
    found = uncertainty(values, members, WEIGHTS)
    one, other = values[:5, 0, 1], values[5:, 0, 1]
    assert found.mean[0, 1] == pytest.approx(0.9 * one.mean() + 0.1 * other.mean())
    spread = np.hypot(0.9 * one.std(ddof=1) / 5**0.5, 0.1 * other.std(ddof=1) / 15**0.5)
    assert found.error[0, 1] == pytest.approx(spread)
    assert np.isnan(found.upper[1, 2]) and np.isfinite(np.delete(found.upper.ravel(), 5)).all()
    assert found.factor > 0 and found.bonferroni > 1.96


def test_without_any_loss_nothing_is_uncertain():
    found = uncertainty(np.zeros((10, 3, 2)), np.ones((1, 10), bool), np.ones(1))
    assert (found.upper == 0).all() and found.factor == found.unseen == 0


def test_unseen_losses_are_spread_by_bits_and_left_as_seen_ones_are():
    values = np.zeros((50, 3, 3))
    values[0, 0] = [0.4, 0.1, 0.0]
    values[:, 1, 1] = np.nan
    found = uncertainty(values, np.ones((1, 50), bool), np.ones(1))
    spread = found.spread(np.array([0.5, 0.3, 0.2]))
    assert spread[:, 0] == pytest.approx(found.unseen * np.array([0.5, 0.3, 0.2]))
    assert spread[:, 1] == pytest.approx(spread[:, 0] / 4) and (spread[:, 2] == 0).all()


def test_what_few_maps_may_have_missed():
    values = np.zeros((100, 1, 1))
    values[0] = 0.2
    few, many = (
        uncertainty(v, np.ones((1, len(v)), bool), np.ones(1)) for v in (values, np.repeat(values, 10, axis=0))
    )
    assert few.unseen == pytest.approx(0.2 * (1 - 0.025 ** (1 / 100)))
    assert many.unseen == pytest.approx(few.unseen / 10, rel=0.05)


def test_the_largest_ratio_is_that_of_all_choices():
    random = np.random.default_rng(4)
    deviation, error = random.normal(size=(4, 3)), random.uniform(0.1, 1, (4, 3))
    ratios = [deviation[range(4), choice].sum() / error[range(4), choice].sum() for choice in np.ndindex(3, 3, 3, 3)]
    assert largest_ratio(deviation, error) == pytest.approx(max(ratios))
    assert largest_ratio(-abs(deviation), error) == 0
