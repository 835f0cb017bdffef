"""What detects, limits or repairs the damage that errors do."""

from drsrobust.mitigation.base import Cost, Mitigation, Watch
from drsrobust.mitigation.bit_protection import BitProtection
from drsrobust.mitigation.checksums import Scrubbing
from drsrobust.mitigation.composed import Composed
from drsrobust.mitigation.ecc import ECC
from drsrobust.mitigation.parity import ParityZero
from drsrobust.mitigation.replication import Replication
from drsrobust.mitigation.secded import SECDED
from drsrobust.mitigation.storage import StorageProtection
from drsrobust.mitigation.zero_space import ZeroSpaceECC, make_room

__all__ = [
    "ECC",
    "SECDED",
    "BitProtection",
    "Composed",
    "Cost",
    "Mitigation",
    "ParityZero",
    "Replication",
    "Scrubbing",
    "StorageProtection",
    "Watch",
    "ZeroSpaceECC",
    "make_room",
]
