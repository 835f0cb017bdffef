"""Protection plans: which protection each tensor gets, within budgets of memory and time."""

from drsrobust_extras.risk.planning.choice import Choice, InfeasibleBudget, choose
from drsrobust_extras.risk.planning.losses import Losses
from drsrobust_extras.risk.planning.protection_plan import Plan, plan

__all__ = ["Choice", "InfeasibleBudget", "Losses", "Plan", "choose", "plan"]
