from .choice import Choice as Choice
from .choice import InfeasibleBudget as InfeasibleBudget
from .choice import choose as choose
from .losses import Losses as Losses
from .protection_plan import Plan as Plan
from .protection_plan import plan as plan
