"""Estimates with intervals from tables of trials. The modules know only arrays and DataFrames."""

from drsrobust.statistics.count_curve import binomial_weights, curve_from_counts, error_count_grid
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
from drsrobust.statistics.stopping import checkpoints, is_precise, required_trials, stopping_interval
from drsrobust.statistics.stratified import stratified_mean, stratified_proportion
from drsrobust.statistics.summary import summarise

__all__ = [
    "across_models",
    "bootstrap_interval",
    "bounded_interval",
    "required_trials",
    "error_count_grid",
    "checkpoints",
    "mean_interval",
    "curve_from_counts",
    "binomial_weights",
    "pvf",
    "quantile_interval",
    "recovery",
    "is_precise",
    "stopping_interval",
    "stratified_mean",
    "stratified_proportion",
    "summarise",
    "rule_of_three",
    "wilson",
]
