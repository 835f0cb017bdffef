"""Estimates with intervals from tables of trials. The modules know only arrays and DataFrames."""

from drsrobust._names import face
from drsrobust.statistics.intervals import (
    bootstrap_interval,
    bounded_interval,
    mean_interval,
    quantile_interval,
    rule_of_three,
    wilson,
)
from drsrobust.statistics.recovery import recovery
from drsrobust.statistics.summary import summarise

__getattr__, __dir__, __all__ = face(__name__)
