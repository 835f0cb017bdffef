"""The instances of the benchmark of plans: budgets bind, the solver is no worse than the greedy rule."""

from benchmarks.planning import describe, greedy, instance, solver_times
from drsrobust.planning import choose


def test_the_solver_is_at_least_as_good_as_the_greedy_rule():
    for seed in range(4):
        losses, costs, budgets = instance(12, 4, seed)
        found = choose(losses, costs, budgets)
        spent = costs[:, range(12), found.option].sum(axis=1)
        assert (spent <= budgets * 1.00001).all() and found.bound <= found.loss <= greedy(
            losses, costs, budgets
        ) + 1e-12
        assert losses.min(axis=1).sum() < found.loss < losses[:, 0].sum()


def test_the_text_has_times_and_the_target():
    text = describe(solver_times(((8, 3),), repeats=1))
    assert "greedy_gap" in text and "8 tensors, 3 options" in text and " met" in text
