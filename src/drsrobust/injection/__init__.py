"""Error models, targets, error maps: exact, reversible errors in the memory of any PyTorch module."""

from drsrobust.injection.application import (
    Application,
    ErrorMapMismatch,
    applied_maps,
    open_in,
    restore,
    restore_leftovers,
)
from drsrobust.injection.base import ErrorModel
from drsrobust.injection.clock import ErrorClock
from drsrobust.injection.combine import Sum
from drsrobust.injection.error_map import ErrorMap
from drsrobust.injection.flips import BitFlip, FixedCount, SingleBit, StuckAt
from drsrobust.injection.hooks import InjectionError
from drsrobust.injection.inject import Injection, inject
from drsrobust.injection.rows import Rows
from drsrobust.injection.space import AddressSpace, resolve
from drsrobust.injection.spatial import Burst, RowError, Strided
from drsrobust.injection.targets import Dtype, OptimizerState, Target, as_target
from drsrobust.injection.transient import Activations, Gradients, Inputs, Transient
from drsrobust.injection.wordwise import FieldMixture, MultiBit, Pattern, RandomValue, RandomWord

__all__ = [
    "Activations",
    "AddressSpace",
    "Application",
    "BitFlip",
    "Burst",
    "Dtype",
    "ErrorClock",
    "ErrorMap",
    "ErrorMapMismatch",
    "ErrorModel",
    "FieldMixture",
    "FixedCount",
    "Gradients",
    "Injection",
    "InjectionError",
    "Inputs",
    "MultiBit",
    "OptimizerState",
    "Pattern",
    "RandomValue",
    "RandomWord",
    "RowError",
    "Rows",
    "SingleBit",
    "Strided",
    "StuckAt",
    "Sum",
    "Target",
    "Transient",
    "applied_maps",
    "as_target",
    "inject",
    "open_in",
    "resolve",
    "restore",
    "restore_leftovers",
]
