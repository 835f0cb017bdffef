"""The check of one `nn.Linear`."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from drsrobust.mitigation.abft import Check, Suspicion
from drsrobust.mitigation.checksum_bounds import LinearSums, linear_sums
from drsrobust.mitigation.golden_copy import GoldenCopy


class Levels(NamedTuple):
    """What turns the bound tau_i = |x_i|.t + t_0 into the threshold min(tau_i, max(least, share * tau_i)).

    Attributes:
        share: of the bound; 1: the bound itself.
        least: the lowest threshold, where the bound is not lower still.
        slope, start: tau_i >= slope * |x_i.c + s| + start, for any x: a bound from below that takes no product of its own.
    """

    share: float
    least: float
    slope: float
    start: float


@dataclass(frozen=True, eq=False)
class LinearCheck(Check):
    """Sums and threshold of one layer.

    Attributes:
        name: of the layer.
        sums: checksums and bound.
        levels: of the threshold.
        outputs: n.
    """

    name: str
    sums: LinearSums
    levels: Levels
    outputs: int

    @classmethod
    def of(cls, name: str, layer: nn.Linear, operand: float = 0.0) -> "LinearCheck":
        """The check by the bound itself, see `linear_sums`.

        Since t_l >= slope' |c_l| for each l, with the smallest of the ratios as slope', |x|.t >= slope' |x.c|, and
        |x.c| >= |x.c + s| - |s|. One per cent is taken off for the rounding of what is compared with it.
        """
        sums = linear_sums(layer.weight, layer.bias, operand)
        (c, t), (s, t0) = sums.columns.double().abs(), sums.offsets.double().abs().tolist()
        ratios = (t / c)[c > 0]
        slope = 0.99 * float(ratios.min()) if len(ratios) else 0.0
        kept = LinearSums(sums.columns.cpu(), sums.offsets.cpu())
        return cls(name, kept, Levels(1.0, 0.0, slope, 0.99 * t0 - slope * s), layer.out_features)

    @property
    def inputs(self) -> int:
        """k."""
        return self.sums.columns.shape[1]

    def tightened(self, share: float, least: float) -> "LinearCheck":
        """The same with a lower threshold."""
        return replace(self, levels=self.levels._replace(share=share, least=least))

    def tensors(self) -> dict[str, torch.Tensor]:
        levels = torch.tensor(self.levels, dtype=self.sums.columns.dtype)
        return {"columns": self.sums.columns, "offsets": self.sums.offsets, "levels": levels}

    def on(self, module: nn.Module) -> Suspicion:
        weight = getattr(module, "weight", None)
        if not isinstance(module, nn.Linear) or tuple(weight.shape) != (self.outputs, self.inputs):
            raise ValueError(
                f"{self.name} is {module}; sums were learnt of a Linear of {self.inputs} inputs, {self.outputs} outputs"
            )
        if weight.dtype != self.sums.columns.dtype:
            raise ValueError(f"{self.name} is {weight.dtype}; sums were learnt in {self.sums.columns.dtype}")
        return Differences(LinearSums(*(part.to(weight.device) for part in self.sums)), self.levels).suspicious

    def zeroed(self, output: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        copy = output.clone()
        copy.view(-1, output.shape[-1])[rows] = 0.0
        return copy

    def restore(self, module: nn.Module, golden: GoldenCopy, args: tuple, kwargs: dict, rows: torch.Tensor) -> None:
        golden.restore_tensor(f"{self.name}.weight", module.weight)
        if module.bias is not None:
            golden.restore_tensor(f"{self.name}.bias", module.bias)


class Differences:
    """Compares sums of a layer's outputs with what its inputs say: |sum_j y_j - x.c - s| with the threshold.

    |x|.t is reckoned only of rows whose difference is not below what the threshold must be over anyway (`Levels`): hardly any
    without errors. A sum may overflow where y does not, so rows that fail are looked at once more in float64.
    """

    def __init__(self, sums: LinearSums, levels: Levels) -> None:
        self._c, self._t = (row.contiguous() for row in sums.columns)
        self._s, self._t0 = sums.offsets
        self._levels = levels
        share, least, slope, start = levels
        self._absolute = least > share * start  # the lowest threshold is what matters mostly
        self._slope, self._start = (slope, start) if self._absolute else (share * slope, share * start)
        bound = 0.99 * float(self._t0)
        self._lowest, self._middle = min(bound, max(least, share * bound)), float(self._s)

    def suspicious(self, args: tuple, kwargs: dict[str, Any], output: torch.Tensor) -> torch.Tensor | None:
        """Rows of the output that are wrong."""
        x, y = self._rows(args[0] if args else kwargs["input"], output)
        if not len(y) or self._below_all(x, y):
            return None
        difference, expected = self._difference(x, y)
        if self._absolute:
            right = float(difference.max()) < self._levels.least
            if right and self._levels.least <= self._start:
                return None
        else:
            right = True
        # Quicker than to compare each and join what comes out; the largest is NaN where any is.
        excess = torch.sub(difference, expected.abs_(), alpha=self._slope)
        if right and float(excess.max()) < self._start:
            return None
        right = excess < self._start
        if self._absolute:
            right &= difference < self._levels.least
        rows = (~right).nonzero().squeeze(1)
        x, y = x[rows], y[rows]
        rest = (~(difference[rows] < self._threshold(x))).nonzero().squeeze(1)
        rest = rest[~self._right_in_float64(x[rest], y[rest])]
        return rows[rest] if len(rest) else None

    def _below_all(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        """Whether no difference reaches the lowest threshold there is, that of x = 0: as a rule, where a layer has biases.

        Few operations, as each takes longer than its arithmetic. The difference is rounded in another order than elsewhere,
        sum_j y_j - x.c before s, which the bound of `linear_sums` covers too: by u |s| instead of gamma_(k+1) |s|.
        """
        if not self._lowest:
            return False
        smallest, largest = torch.aminmax(y.sum(1).sub_(torch.mv(x, self._c)))
        if smallest.item() - self._middle > -self._lowest and largest.item() - self._middle < self._lowest:
            return True
        if bool(smallest.isfinite() & largest.isfinite()):
            self._lowest = 0.0  # clean rows go beyond it too, so it would be tried in vain
        return False

    def largest(self, args: tuple, kwargs: dict[str, Any], output: torch.Tensor) -> tuple[float, float]:
        """The largest difference in the rows of a call, by itself and relative to the bound; 0 of no rows."""
        x, y = self._rows(args[0] if args else kwargs["input"], output)
        if not len(y):
            return 0.0, 0.0
        difference, _ = self._difference(x, y)
        bound = torch.mv(x.abs(), self._t).add_(self._t0)
        return float(difference.max()), float((difference / bound).max())

    def _rows(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [B, k] and outputs [B, n] of any number of dimensions."""
        if torch.is_grad_enabled():
            x, y = x.detach(), y.detach()
        if y.dtype != self._c.dtype or x.dtype != self._c.dtype:
            raise TypeError(
                f"a layer of {self._c.dtype} was given {x.dtype} and gave {y.dtype}; autocast is not checked"
            )
        return (x, y) if y.dim() == 2 else (x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]))

    def _difference(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """|sum_j y_j - x.c - s|, and x.c + s; [B] each."""
        expected = torch.mv(x, self._c).add_(self._s)
        return y.sum(1).sub_(expected).abs_(), expected

    def _threshold(self, x: torch.Tensor) -> torch.Tensor:
        """[B], in the precision of x."""
        bound = torch.mv(x.abs(), self._t.to(x.dtype)).add_(self._t0.to(x.dtype))
        return torch.minimum(bound, (bound * self._levels.share).clamp(min=self._levels.least))

    def _right_in_float64(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Which rows are right after all, bool [m]."""
        x, y = x.double(), y.double()
        difference = y.sum(1) - x @ self._c.double() - self._s.double()
        return difference.abs() < self._threshold(x)


def floor_share(inputs: int, outputs: int) -> float:
    """What a largest share counts as at least: one rounding of |x|.a, of the 2 k + n that make the bound. (The output of a
    layer that has only one may be computed as its check is, and differ on no row that was seen.)"""
    return 1.0 / (2 * inputs + outputs + 8)
