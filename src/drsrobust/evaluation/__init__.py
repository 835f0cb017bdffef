"""Scores and metrics of a model with and without errors in it, computing only what errors reach."""

from drsrobust.evaluation.evaluation import Evaluation
from drsrobust.evaluation.evaluator import Evaluator
from drsrobust.evaluation.reach import CoupledRowsError

__all__ = ["CoupledRowsError", "Evaluation", "Evaluator"]
