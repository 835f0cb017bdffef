"""Estimates with intervals from tables of trials. The modules know only arrays and DataFrames."""

from drsrobust.statistics.intervals import (
    bootstrap_interval,
    bounded_interval,
    mean_interval,
    quantile_interval,
    rule_of_three,
    wilson,
)
from drsrobust.statistics.pvf import pvf
from drsrobust.statistics.random_effects import across_models
from drsrobust.statistics.recovery import recovery
from drsrobust.statistics.summary import summarise

__all__ = [
    "across_models",
    "bootstrap_interval",
    "bounded_interval",
    "mean_interval",
    "pvf",
    "quantile_interval",
    "recovery",
    "summarise",
    "rule_of_three",
    "wilson",
]
