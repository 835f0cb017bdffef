"""Error models, targets, error maps: exact, reversible errors in the memory of any PyTorch module."""

from drsrobust.injection.application import Application, ErrorMapMismatch, applied_maps, restore, restore_leftovers
from drsrobust.injection.clock import ErrorClock
from drsrobust.injection.error_map import ErrorMap
from drsrobust.injection.error_models import BitFlip, ErrorModel, FixedCount, SingleBit, canonical
from drsrobust.injection.inject import inject
from drsrobust.injection.space import AddressSpace, resolve

__all__ = [
    "AddressSpace",
    "Application",
    "BitFlip",
    "ErrorClock",
    "ErrorMap",
    "ErrorMapMismatch",
    "ErrorModel",
    "FixedCount",
    "SingleBit",
    "applied_maps",
    "canonical",
    "inject",
    "resolve",
    "restore",
    "restore_leftovers",
]
