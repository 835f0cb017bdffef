"""The choice of one option per group that loses least within budgets, by integer programming (a multiple-choice knapsack)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_SOLVER_GAP = 1e-4  # between the chosen loss and the proven bound, as a share of the loss


class InfeasibleBudget(ValueError):
    """No choice lies within the budgets."""


class Choice(NamedTuple):
    """The options that were chosen.

    Attributes:
        option: int64 [groups].
        loss: sum over groups.
        bound: no choice within the budgets loses less, for these losses.
    """

    option: np.ndarray
    loss: float
    bound: float


def choose(losses: np.ndarray, costs: np.ndarray, budgets: Sequence[float]) -> Choice:
    """Minimises the sum of losses with one option per group and the sum of each cost within its budget (`scipy.optimize.milp`,
    which proves a lower bound).

    Losses are divided by the largest, since the solver's tolerances are absolute. Options are dropped where another one of
    their group is no worse in loss and all costs. Budgets hold within the solver's tolerance of a millionth.

    Args:
        losses: float64 [groups, options]; NaN where a group lacks an option.
        costs: float64 [costs, groups, options], 0 or more.
        budgets: one for each cost, 0 or more; infinite: no limit.

    Raises:
        InfeasibleBudget: no choice is within the budgets.
        RuntimeError: the solver stopped without a choice.

    Example:
        >>> losses = np.array([[0.3, 0.1, 0.0], [0.2, 0.0, 0.0]])
        >>> found = choose(losses, np.array([[[0, 1, 4], [0, 1, 2]]]), [2])
        >>> found.option.tolist(), round(found.loss, 6), round(found.bound, 6)
        ([1, 1], 0.1, 0.1)
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    losses, costs, budgets = (np.asarray(array, np.float64) for array in (losses, costs, budgets))
    with np.errstate(invalid="ignore"):
        feasible = ~np.isnan(losses) & (costs <= budgets[:, None, None]).all(axis=0)
    if not feasible.any(axis=1).all():
        raise InfeasibleBudget(f"no option of group {int(np.argmin(feasible.any(axis=1)))} is within the budgets")
    feasible &= ~_dominated(np.where(feasible, losses, np.inf), costs)
    group, option = np.nonzero(feasible)
    scale = np.abs(losses[feasible]).max() or 1.0
    limited = np.isfinite(budgets) & (budgets > 0)  # options that are left cost nothing of a budget of 0
    columns = np.arange(len(group))
    constraints = [LinearConstraint(coo_array((np.ones(len(group)), (group, columns))).tocsr(), 1, 1)]
    if limited.any():
        constraints.append(LinearConstraint(costs[limited][:, group, option] / budgets[limited][:, None], -np.inf, 1))
    solution = milp(
        losses[feasible] / scale,
        integrality=np.ones(len(group)),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"mip_rel_gap": _SOLVER_GAP},
    )
    if solution.status == 2:
        raise InfeasibleBudget("no choice is within all budgets")
    if solution.x is None:
        raise RuntimeError(f"the solver found no choice: {solution.message}")
    chosen = solution.x > 0.5
    loss = float(losses[group[chosen], option[chosen]].sum())
    return Choice(option[chosen], loss, min(loss, float(scale * solution.mip_dual_bound)))


def cheapest(losses: np.ndarray, costs: np.ndarray, budgets: Sequence[float]) -> tuple[int, float]:
    """The budget that is too small, and the least one with which a choice exists: the first cost's with the others as they are
    if that helps, else the others' in turn, with the first unlimited.

    Args:
        losses, costs, budgets: as of `choose`.

    Returns:
        number of the cost, and its least budget.
    """
    losses, limits = np.where(np.isnan(losses), np.nan, 0.0), list(map(float, budgets))
    for number in range(len(limits)):
        limits[number] = np.inf
        try:
            option = choose(losses + costs[number], costs, limits).option
        except InfeasibleBudget:
            continue
        return number, float(costs[number][np.arange(len(option)), option].sum())
    raise InfeasibleBudget("a group has no option")


def _dominated(losses: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Options (bool [groups, options]) for which another one is no worse in all; of equal ones the first stays."""
    all_costs = np.concatenate([losses[None], costs])  # [1 + costs, groups, options]
    dominated = np.zeros(losses.shape, bool)
    for option in range(losses.shape[1]):
        costs_of_option = all_costs[:, :, [option]]
        no_worse, equal = (all_costs <= costs_of_option).all(axis=0), (all_costs == costs_of_option).all(axis=0)
        equal[:, :option] = False
        dominated[:, option] = (no_worse & ~equal).any(axis=1)
    return dominated
