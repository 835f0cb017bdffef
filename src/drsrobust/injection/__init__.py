"""Error models, targets, error maps: exact, reversible errors in the memory of any PyTorch module."""

from drsrobust.injection.address_space import AddressSpace
from drsrobust.injection.apply import AppliedMap, ErrorMapMismatch, applied_maps, open_in, restore, restore_leftovers
from drsrobust.injection.bit_errors import BitFlip, FixedCount, SingleBit, StuckAt
from drsrobust.injection.critical_bits import CriticalBits
from drsrobust.injection.error_clock import ErrorClock
from drsrobust.injection.error_map import ErrorMap
from drsrobust.injection.error_models import ErrorModel, Sum
from drsrobust.injection.inject import Injection, inject
from drsrobust.injection.rank import Rank
from drsrobust.injection.rows import Rows
from drsrobust.injection.targets import Dtype, OptimizerState, Target, as_target, resolve
from drsrobust.injection.transient import Activations, Gradients, InjectionError, Inputs, Transient
from drsrobust_extras.protection.field_errors import Burst, MultiBit, RandomValue, RandomWord, RowError
from drsrobust_extras.protection.memory_faults import MemoryFault
from drsrobust_extras.protection.memory_map import Geometry

__all__ = [
    "Activations",
    "AddressSpace",
    "AppliedMap",
    "BitFlip",
    "CriticalBits",
    "Burst",
    "Dtype",
    "ErrorClock",
    "ErrorMap",
    "ErrorMapMismatch",
    "ErrorModel",
    "FixedCount",
    "Geometry",
    "Gradients",
    "Injection",
    "InjectionError",
    "Inputs",
    "MemoryFault",
    "MultiBit",
    "OptimizerState",
    "RandomValue",
    "RandomWord",
    "Rank",
    "RowError",
    "Rows",
    "SingleBit",
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
