"""The choice against brute force, its bound, its budgets, and what an infeasible budget says."""

import itertools

import numpy as np
import pytest

from drsrobust_extras.risk.planning.choice import InfeasibleBudget, cheapest, choose

SEEDS = range(12)
TIMES = np.array([0.5, 2.0])  # budgets


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
    with pytest.raises(InfeasibleBudget):
        choose(losses, costs, [0.0, np.inf])
    number, least = cheapest(losses, costs, [0.0, np.inf])
    assert number == 0 and choose(losses, costs, [least, np.inf]).loss >= 0
    with pytest.raises(InfeasibleBudget):
        choose(losses, costs, [least * 0.99, np.inf])
    number, least = cheapest(losses, costs, [np.inf, 0.0])
    assert number == 1 and choose(losses, costs, [np.inf, least]).loss >= 0


def test_each_group_can_fit_and_all_of_them_not():
    losses, costs = np.array([[np.nan, 0.0], [np.nan, 0.0]]), np.array([[[0.0, 1.0], [0.0, 1.0]]])
    with pytest.raises(InfeasibleBudget, match="no choice is within all budgets"):
        choose(losses, costs, [1.5])
    assert cheapest(losses, costs, [1.5]) == (0, 2.0)
