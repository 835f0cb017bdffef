"""What detects, limits or repairs the damage that errors do."""

from drsrobust.mitigation.abft_embedding import ABFTEmbeddingBag
from drsrobust.mitigation.abft_linear import ABFTLinear
from drsrobust.mitigation.base import Cost, Mitigation, Watch
from drsrobust.mitigation.bit_protection import BitProtection
from drsrobust.mitigation.checksums import Scrubbing
from drsrobust.mitigation.clipping import ActivationClipping
from drsrobust.mitigation.composed import Composed
from drsrobust.mitigation.ecc import ECC
from drsrobust.mitigation.nan_guard import NaNGuard
from drsrobust.mitigation.parity import ParityZero
from drsrobust.mitigation.places import KINDS, places
from drsrobust.mitigation.replication import Replication
from drsrobust.mitigation.secded import SECDED
from drsrobust.mitigation.storage import StorageProtection
from drsrobust.mitigation.weight_range import WeightRange
from drsrobust.mitigation.zero_space import ZeroSpaceECC, make_room

__all__ = [
    "ECC",
    "KINDS",
    "SECDED",
    "ABFTEmbeddingBag",
    "ABFTLinear",
    "ActivationClipping",
    "BitProtection",
    "Composed",
    "Cost",
    "Mitigation",
    "NaNGuard",
    "ParityZero",
    "Replication",
    "Scrubbing",
    "StorageProtection",
    "Watch",
    "WeightRange",
    "ZeroSpaceECC",
    "make_room",
    "places",
]
