"""Campaigns: grids of trials, stored as they finish, summarised with intervals.

Names are imported at first use: whoever only reads or writes a store needs no PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Public name -> module that defines it. TYPE_CHECKING and __all__ below say the same to editors; a test compares them.
_HOME = {
    "Campaign": "drsrobust.campaign.campaign",
    "CannotShip": "drsrobust.campaign.shipped",
    "Store": "drsrobust.campaign.store",
    "StoreError": "drsrobust.campaign.store",
    "WorkersDied": "drsrobust.campaign.running",
    "auc_difference": "drsrobust.campaign.delong",
    "auc_interval": "drsrobust.campaign.delong",
    "auc_under_errors": "drsrobust.campaign.protection",
    "bit_classes": "drsrobust.campaign.stratified",
    "bit_verdict": "drsrobust.campaign.magnitudes",
    "bootstrap_interval": "drsrobust.campaign.statistics",
    "bounded_interval": "drsrobust.campaign.statistics",
    "caption": "drsrobust.campaign.summary",
    "cheapest": "drsrobust.campaign.protection",
    "clean_table": "drsrobust.campaign.clean",
    "component_shares": "drsrobust.campaign.deviation",
    "component_claims": "drsrobust.campaign.deviation_text",
    "component_text": "drsrobust.campaign.deviation_text",
    "decades": "drsrobust.campaign.grid",
    "decide": "drsrobust.campaign.sequential",
    "deviation_caption": "drsrobust.campaign.deviation_text",
    "deviation_summary": "drsrobust.campaign.deviation",
    "dummy_trials": "drsrobust.campaign.dummy",
    "factor_grid": "drsrobust.campaign.factors",
    "factor_trends": "drsrobust.campaign.deviation",
    "flipped_magnitudes": "drsrobust.campaign.magnitudes",
    "front": "drsrobust.campaign.protection",
    "kept_by": "drsrobust.campaign.protection",
    "kept_within": "drsrobust.campaign.protection",
    "has_group": "drsrobust.campaign.knee",
    "knee_verdict": "drsrobust.campaign.knee",
    "knees": "drsrobust.campaign.knee",
    "ladder": "drsrobust.campaign.conditional",
    "looks": "drsrobust.campaign.sequential",
    "mean_interval": "drsrobust.campaign.statistics",
    "mixed": "drsrobust.campaign.conditional",
    "mixture": "drsrobust.campaign.conditional",
    "neyman": "drsrobust.campaign.stratified",
    "priced": "drsrobust.campaign.protection",
    "protocol_text": "drsrobust.campaign.deviation_text",
    "pvf": "drsrobust.campaign.vulnerability",
    "quantile_interval": "drsrobust.campaign.statistics",
    "recovery": "drsrobust.campaign.paired",
    "sample_size": "drsrobust.campaign.statistics",
    "stop": "drsrobust.campaign.sequential",
    "stopping_interval": "drsrobust.campaign.sequential",
    "stored": "drsrobust.campaign.protection",
    "strata": "drsrobust.campaign.stratified",
    "stratified_mean": "drsrobust.campaign.stratified",
    "stratified_proportion": "drsrobust.campaign.stratified",
    "sweep_caption": "drsrobust.campaign.knee",
    "summarise": "drsrobust.campaign.summary",
    "trend_text": "drsrobust.campaign.deviation_text",
    "unseen": "drsrobust.campaign.statistics",
    "up_to": "drsrobust.campaign.protection",
    "wilson": "drsrobust.campaign.statistics",
    "without_errors": "drsrobust.campaign.protection",
}

if TYPE_CHECKING:
    from drsrobust.campaign.campaign import Campaign
    from drsrobust.campaign.clean import clean_table
    from drsrobust.campaign.conditional import ladder, mixed, mixture
    from drsrobust.campaign.delong import auc_difference, auc_interval
    from drsrobust.campaign.deviation import component_shares, deviation_summary, factor_trends
    from drsrobust.campaign.deviation_text import (
        component_claims,
        component_text,
        deviation_caption,
        protocol_text,
        trend_text,
    )
    from drsrobust.campaign.dummy import dummy_trials
    from drsrobust.campaign.factors import factor_grid
    from drsrobust.campaign.grid import decades
    from drsrobust.campaign.knee import has_group, knee_verdict, knees, sweep_caption
    from drsrobust.campaign.magnitudes import bit_verdict, flipped_magnitudes
    from drsrobust.campaign.paired import recovery
    from drsrobust.campaign.protection import (
        auc_under_errors,
        cheapest,
        front,
        kept_by,
        kept_within,
        priced,
        stored,
        up_to,
        without_errors,
    )
    from drsrobust.campaign.running import WorkersDied
    from drsrobust.campaign.sequential import decide, looks, stop, stopping_interval
    from drsrobust.campaign.shipped import CannotShip
    from drsrobust.campaign.statistics import (
        bootstrap_interval,
        bounded_interval,
        mean_interval,
        quantile_interval,
        sample_size,
        unseen,
        wilson,
    )
    from drsrobust.campaign.store import Store, StoreError
    from drsrobust.campaign.stratified import bit_classes, neyman, strata, stratified_mean, stratified_proportion
    from drsrobust.campaign.summary import caption, summarise
    from drsrobust.campaign.vulnerability import pvf

__all__ = [
    "Campaign",
    "CannotShip",
    "Store",
    "StoreError",
    "WorkersDied",
    "auc_difference",
    "auc_interval",
    "auc_under_errors",
    "bit_classes",
    "bit_verdict",
    "bootstrap_interval",
    "bounded_interval",
    "caption",
    "cheapest",
    "clean_table",
    "component_shares",
    "component_claims",
    "component_text",
    "decades",
    "decide",
    "deviation_caption",
    "deviation_summary",
    "dummy_trials",
    "factor_grid",
    "factor_trends",
    "flipped_magnitudes",
    "front",
    "has_group",
    "kept_by",
    "kept_within",
    "knee_verdict",
    "knees",
    "ladder",
    "looks",
    "mean_interval",
    "mixed",
    "mixture",
    "neyman",
    "priced",
    "protocol_text",
    "pvf",
    "quantile_interval",
    "recovery",
    "sample_size",
    "stop",
    "stopping_interval",
    "stored",
    "strata",
    "stratified_mean",
    "stratified_proportion",
    "summarise",
    "sweep_caption",
    "trend_text",
    "unseen",
    "up_to",
    "wilson",
    "without_errors",
]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'drsrobust.campaign' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
