"""What detects, limits or repairs the damage that errors do."""

from drsrobust.mitigation.base import Cost, Mitigation, Watch
from drsrobust.mitigation.composed import Composed

__all__ = ["Composed", "Cost", "Mitigation", "Watch"]
