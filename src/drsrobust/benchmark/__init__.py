"""What `make bench` and notebook 09 measure. The methods to compare with are written anew from their published descriptions."""

from drsrobust.benchmark.injection import caption, growth, injection_speed, ratios, speed_claim

__all__ = ["caption", "growth", "injection_speed", "ratios", "speed_claim"]
