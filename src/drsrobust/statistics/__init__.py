"""Estimates with intervals from tables of trials. The modules know only arrays and DataFrames."""

from drsrobust.removed_names import module_getattr
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

_REMOVED = {
    **dict.fromkeys(("required_trials", "checkpoints", "is_precise", "stopping_interval"), "give trials= to campaigns"),
    **dict.fromkeys(("error_count_grid", "curve_from_counts", "binomial_weights"), 'run sampling="stratified"'),
    **dict.fromkeys(("stratified_mean", "stratified_proportion"), "use drsrobust.statistics.strata.Strata"),
}
__getattr__ = module_getattr(__name__, _REMOVED)
