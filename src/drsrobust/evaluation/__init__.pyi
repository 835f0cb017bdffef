from drsrobust.evaluation.affected_rows import CoupledRowsError as CoupledRowsError
from drsrobust.evaluation.affected_rows import ReachWarning as ReachWarning
from drsrobust.evaluation.clean_costs import clean_cost as clean_cost
from drsrobust.evaluation.evaluation import Evaluation as Evaluation
from drsrobust.evaluation.evaluator import Evaluator as Evaluator
from drsrobust_extras.pages.propagation import trace as trace
