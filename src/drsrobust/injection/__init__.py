"""Error models, targets, error maps: exact, reversible errors in the memory of any PyTorch module."""

from drsrobust._names import face
from drsrobust.injection.address_space import AddressSpace
from drsrobust.injection.apply import AppliedMap, ErrorMapMismatch, applied_maps, open_in, restore, restore_leftovers
from drsrobust.injection.bit_errors import BitFlip, FixedCount, SingleBit, StuckAt
from drsrobust.injection.critical_bits import CriticalBits
from drsrobust.injection.error_clock import ErrorClock
from drsrobust.injection.error_map import ErrorMap
from drsrobust.injection.error_models import ErrorModel, Sum
from drsrobust.injection.inject import Injection, inject
from drsrobust.injection.rows import Rows
from drsrobust.injection.targets import Dtype, OptimizerState, Target, as_target, resolve
from drsrobust.injection.transient import InjectionError, Transient

__getattr__, __dir__, __all__ = face(__name__)
