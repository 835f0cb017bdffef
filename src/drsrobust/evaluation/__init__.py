"""Golden run and faulty runs of a model on the rows of a split."""

from drsrobust.evaluation.evaluator import Evaluation, Evaluator

__all__ = ["Evaluation", "Evaluator"]
