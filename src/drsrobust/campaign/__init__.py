"""Campaigns: grids of trials, stored as they finish, summarised with intervals."""

from drsrobust.campaign.campaign import Campaign, decades
from drsrobust.campaign.clean import clean_table
from drsrobust.campaign.delong import auc_difference, auc_interval
from drsrobust.campaign.statistics import mean_interval, wilson
from drsrobust.campaign.store import Store, StoreError
from drsrobust.campaign.summary import caption, summarise

__all__ = [
    "Campaign",
    "Store",
    "StoreError",
    "auc_difference",
    "auc_interval",
    "caption",
    "clean_table",
    "decades",
    "mean_interval",
    "summarise",
    "wilson",
]
