"""Estimates with intervals from tables of trials. The modules know only arrays and DataFrames."""

from drsrobust.statistics.count_curve import ladder, mixed, mixture
from drsrobust.statistics.intervals import (
    bootstrap_interval,
    bounded_interval,
    mean_interval,
    quantile_interval,
    sample_size,
    unseen,
    wilson,
)
from drsrobust.statistics.pvf import pvf
from drsrobust.statistics.recovery import recovery
from drsrobust.statistics.stopping import decide, looks, stop, stopping_interval
from drsrobust.statistics.stratified import neyman, stratified_mean, stratified_proportion
from drsrobust.statistics.summary import summarise

__all__ = [
    "bootstrap_interval",
    "bounded_interval",
    "decide",
    "ladder",
    "looks",
    "mean_interval",
    "mixed",
    "mixture",
    "neyman",
    "pvf",
    "quantile_interval",
    "recovery",
    "sample_size",
    "stop",
    "stopping_interval",
    "stratified_mean",
    "stratified_proportion",
    "summarise",
    "unseen",
    "wilson",
]
