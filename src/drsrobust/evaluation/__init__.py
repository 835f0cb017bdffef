"""Scores and metrics of a model with and without errors in it, computing only what errors reach."""

from drsrobust.evaluation.affected_rows import CoupledRowsError, ReachWarning
from drsrobust.evaluation.clean_costs import clean_cost
from drsrobust.evaluation.evaluation import Evaluation
from drsrobust.evaluation.evaluator import Evaluator
from drsrobust_extras.pages.propagation import trace

__all__ = ["CoupledRowsError", "Evaluation", "Evaluator", "ReachWarning", "clean_cost", "trace"]
