"""Mitigations: they detect, limit or repair the damage of errors in memory and in the computation."""

from drsrobust.mitigation.abft.embedding import ABFTEmbeddingBag
from drsrobust.mitigation.abft.linear import ABFTLinear
from drsrobust.mitigation.activations.clipping import ActivationClipping
from drsrobust.mitigation.activations.nan_guard import NaNGuard
from drsrobust.mitigation.activations.sites import KINDS, clip_sites
from drsrobust.mitigation.base import Composed, Cost, Detection, Mitigation, Screened
from drsrobust.mitigation.memory.base import StorageProtection, storage_overhead
from drsrobust.mitigation.memory.bit_protection import BitProtection
from drsrobust.mitigation.memory.chipkill import Chipkill, SelectiveChipkill
from drsrobust.mitigation.memory.ecc import ECC, SECDED
from drsrobust.mitigation.memory.on_die import OnDieECC
from drsrobust.mitigation.memory.parity import ParityZero
from drsrobust.mitigation.memory.replication import Replication
from drsrobust.mitigation.memory.scrubbing import Scrubbing
from drsrobust.mitigation.memory.weight_range import WeightRange
from drsrobust.mitigation.memory.zero_space import ZeroSpaceECC, reserve_bits

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
