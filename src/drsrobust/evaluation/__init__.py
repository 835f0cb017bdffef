"""Scores and metrics of a model with and without errors in it, computing only what errors reach."""

from drsrobust._names import face
from drsrobust.evaluation.affected_rows import CoupledRowsError, ReachWarning
from drsrobust.evaluation.evaluation import Evaluation
from drsrobust.evaluation.evaluator import Evaluator

__getattr__, __dir__, __all__ = face(__name__)
