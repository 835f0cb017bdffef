"""Mitigations: they detect, limit or repair the damage of errors in memory and in the computation."""

from drsrobust._names import face
from drsrobust.mitigation.activations.clipping import ActivationClipping
from drsrobust.mitigation.activations.nan_guard import NaNGuard
from drsrobust.mitigation.activations.sites import KINDS, clip_sites
from drsrobust.mitigation.base import Composed, Cost, Detection, Mitigation, Screened
from drsrobust.mitigation.memory.base import StorageProtection, storage_overhead
from drsrobust.mitigation.memory.ecc import ECC, SECDED

__getattr__, __dir__, __all__ = face(__name__)
