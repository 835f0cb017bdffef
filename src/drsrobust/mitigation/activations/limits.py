"""Bounds on the numbers of a tensor, in few passes over memory.

Without errors all numbers are within bounds: one pair of bounds then costs one read on a CPU, and no write. Measured on
2048 x 512 float32 numbers, one thread, with NaN: 0.13 ms to saturate, 0.16 ms to zero (0.18 and 0.35 ms with bounds per
neuron), half of that without numbers out of bounds. Plainer code is slower, since its kernels are not vectorised: `torch.fmin`
and `torch.fmax`, which drop NaN themselves, take 3.8 ms, `torch.where` 1.7 ms.
"""

from collections.abc import Callable

import torch

CLIP_MODES = ("saturate", "zero")
NANS = ("zero", "bound", "keep")
_NUMBERS_AT_ONCE = 1 << 18  # numbers: 1 MB of float32

Limit = torch.Tensor | float
Ends = tuple[Limit, Limit]

# In one pass: grad_output where low < input < high, else 0; and where input > threshold, else 0.
_inside = torch.ops.aten.hardtanh_backward.grad_input
_where_above = torch.ops.aten.threshold_backward.grad_input


def limiter(low: Limit, high: Limit, mode: str, nan: str) -> Callable[[torch.Tensor, bool], torch.Tensor]:
    """A function that bounds tensors. Numbers within [low, high] are unchanged.

    Args:
        low, high: one number, or one for each entry of the last dimension.
        mode: numbers outside become the nearer bound (`saturate`) or 0 (`zero`).
        nan: NaN becomes 0 (`zero`; in mode `saturate` the nearer bound where 0 is outside), the upper bound (`bound`), or
            stays (`keep`).

    Returns:
        (tensor, whether it may be written to) -> the bounded tensor: the same one if it may be written to or nothing was
        outside, else a new one.
    """
    ends = _Ends(low, high)

    def inside(x: torch.Tensor) -> bool:
        """Whether all numbers are known to be in bounds. Not checked on a GPU, which would have to be waited for."""
        if ends.several or x.device.type != "cpu" or not x.numel():
            return False
        (least, most), (smallest, largest) = ends.of(x), torch.aminmax(x.detach())
        return smallest.item() >= least and largest.item() <= most  # any NaN makes both NaN

    def saturated(x: torch.Tensor, fresh: bool) -> torch.Tensor:
        if inside(x):
            return x
        if nan != "keep":
            fill = 0.0 if nan == "zero" else torch.inf
            x = (x.nan_to_num_ if fresh else x.nan_to_num)(fill, torch.inf, -torch.inf)
        elif not fresh:
            return x.clamp(*ends.of(x))
        return x.clamp_(*ends.of(x))

    def zeroed(x: torch.Tensor, fresh: bool) -> torch.Tensor:
        if inside(x):
            return x
        if nan == "zero" and ends.several and not x.requires_grad:
            limited = x if fresh else x.clone()
            for part in _parts(limited):  # 1 where clamping changes nothing (NaN: 0), else 0
                _where_above(part, part.clamp(*ends.of(x)).eq_(part), 0.5, grad_input=part)
            return limited
        # Infinite numbers become the largest finite ones: still outside, and 0 when multiplied by 0 (NaN stays NaN).
        limited = (x.nan_to_num_ if fresh else x.nan_to_num)(torch.nan if nan == "keep" else 0.0)
        if (
            nan == "zero"
            and not ends.several
            and x.dtype in (torch.float32, torch.float64)
            and not limited.requires_grad
        ):
            return _inside(limited, limited, *ends.beyond(x), grad_input=limited)
        for part in _parts(limited):
            values = part.detach()
            part.mul_(values.clamp(*ends.of(x)).eq_(values))
        return limited

    return saturated if mode == "saturate" else zeroed


def _parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A tensor in parts of some rows, so that intermediate results stay in the cache. A tensor with gradients stays whole:
    autograd does not allow writes to parts."""
    if x.dim() < 2 or x.requires_grad or x.numel() <= _NUMBERS_AT_ONCE:
        return (x,)
    return x.split(max(1, _NUMBERS_AT_ONCE * len(x) // x.numel()))


class _Ends:
    """Bounds in a tensor's dtype and device, cached for the last ones.

    Attributes:
        several: whether there is one pair for each entry of the last dimension.
    """

    def __init__(self, low: Limit, high: Limit) -> None:
        self._float64 = (torch.as_tensor(low, dtype=torch.float64), torch.as_tensor(high, dtype=torch.float64))
        self.several = self._float64[0].dim() > 0
        self._for: tuple[torch.dtype, torch.device] | None = None
        self._ends: Ends = (-torch.inf, torch.inf)
        self._beyond: Ends = self._ends

    def of(self, x: torch.Tensor) -> Ends:
        """Low and high."""
        self._prepare(x)
        return self._ends

    def beyond(self, x: torch.Tensor) -> Ends:
        """The next numbers outside of one pair of bounds, in the tensor's dtype."""
        self._prepare(x)
        return self._beyond

    def _prepare(self, x: torch.Tensor) -> None:
        if self._for == (x.dtype, x.device):
            return
        most = torch.finfo(x.dtype).max
        low, high = (end.clamp(-most, most).to(x.dtype) for end in self._float64)
        if self.several:
            self._ends = low.to(x.device), high.to(x.device)
        else:
            self._ends = low.item(), high.item()
            if x.dtype in (torch.float32, torch.float64):
                outwards = torch.full_like(high, torch.inf)
                self._beyond = low.nextafter(-outwards).item(), high.nextafter(outwards).item()
        self._for = (x.dtype, x.device)
