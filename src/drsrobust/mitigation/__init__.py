"""What detects, limits or repairs the damage that errors do."""

from drsrobust.mitigation.protocol import Mitigation, Watch

__all__ = ["Mitigation", "Watch"]
