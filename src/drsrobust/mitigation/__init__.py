"""Mitigations: they detect, limit or repair the damage of errors in memory and in the computation."""

from drsrobust.mitigation.activations.clipping import ActivationClipping
from drsrobust.mitigation.activations.nan_guard import NaNGuard
from drsrobust.mitigation.activations.sites import KINDS, clip_sites
from drsrobust.mitigation.base import Composed, Cost, Detection, Mitigation, Screened
from drsrobust.mitigation.memory.base import StorageProtection, storage_overhead
from drsrobust.mitigation.memory.ecc import ECC, SECDED
from drsrobust.mitigation.memory.weight_range import WeightRange
from drsrobust_extras.protection.abft.embedding import ABFTEmbeddingBag
from drsrobust_extras.protection.abft.linear import ABFTLinear
from drsrobust_extras.protection.bit_protection import BitProtection
from drsrobust_extras.protection.chipkill import Chipkill, SelectiveChipkill
from drsrobust_extras.protection.on_die import OnDieECC
from drsrobust_extras.protection.parity import ParityZero
from drsrobust_extras.protection.replication import Replication
from drsrobust_extras.protection.scrubbing import Scrubbing
from drsrobust_extras.protection.zero_space import ZeroSpaceECC, reserve_bits

__all__ = [
    "ECC",
    "KINDS",
    "SECDED",
    "ABFTEmbeddingBag",
    "ABFTLinear",
    "ActivationClipping",
    "BitProtection",
    "Chipkill",
    "Composed",
    "Cost",
    "Mitigation",
    "NaNGuard",
    "OnDieECC",
    "ParityZero",
    "Replication",
    "Screened",
    "Scrubbing",
    "SelectiveChipkill",
    "StorageProtection",
    "Detection",
    "WeightRange",
    "ZeroSpaceECC",
    "reserve_bits",
    "storage_overhead",
    "clip_sites",
]
