"""The check of one `nn.Linear`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from drsrobust.mitigation.abft import Check, Suspicion
from drsrobust.mitigation.checksum_bounds import LinearSums
from drsrobust.mitigation.golden_copy import GoldenCopy

FEW = 64  # where one row in so many is cleared by |x| alone, inputs have both signs


@dataclass(frozen=True, eq=False)
class LinearCheck(Check):
    """Sums and threshold of one layer.

    Attributes:
        name: of the layer.
        columns, offsets: as in `LinearSums`.
        outputs: n.
    """

    name: str
    columns: torch.Tensor
    offsets: torch.Tensor
    outputs: int

    @property
    def inputs(self) -> int:
        """k."""
        return self.columns.shape[1]

    def tightened(self, factor: float) -> "LinearCheck":
        """The same with a threshold that is `factor` times as high."""
        scale = torch.tensor([[1.0], [factor]], dtype=self.columns.dtype)
        return LinearCheck(self.name, self.columns * scale, self.offsets * scale.squeeze(1), self.outputs)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"columns": self.columns, "offsets": self.offsets}

    def on(self, module: nn.Module) -> Suspicion:
        weight = getattr(module, "weight", None)
        if not isinstance(module, nn.Linear) or tuple(weight.shape) != (self.outputs, self.inputs):
            raise ValueError(
                f"{self.name} is {module}; sums were learnt of a Linear of {self.inputs} inputs, {self.outputs} outputs"
            )
        if weight.dtype != self.columns.dtype:
            raise ValueError(f"{self.name} is {weight.dtype}; sums were learnt in {self.columns.dtype}")
        return _Differences(LinearSums(self.columns.to(weight.device), self.offsets.to(weight.device))).suspicious

    def zeroed(self, output: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        copy = output.clone()
        copy.view(-1, output.shape[-1])[rows] = 0.0
        return copy

    def restore(self, module: nn.Module, golden: GoldenCopy, args: tuple, kwargs: dict, rows: torch.Tensor) -> None:
        golden.restore_tensor(f"{self.name}.weight", module.weight)
        if module.bias is not None:
            golden.restore_tensor(f"{self.name}.bias", module.bias)


class _Differences:
    """Compares sums of a layer's outputs with what its inputs say.

    What decides is |sum_j y_j - x.c - s| < |x|.t + t_0, in the layer's precision. As x.t is not over |x|.t, and the same where
    x comes out of a ReLU, |x| is made only where that fails, or failed before; so which way is gone does not matter for the
    outcome. A sum may overflow where y does not: rows that fail are looked at once more in float64.
    """

    def __init__(self, sums: LinearSums) -> None:
        self._columns, self._offsets = sums
        self._c, self._t = (row.contiguous() for row in sums.columns)
        self._s, self._t0 = sums.offsets
        self._signed = False

    def suspicious(self, args: tuple, kwargs: dict[str, Any], output: torch.Tensor) -> torch.Tensor | None:
        """Rows of the output that are wrong."""
        x, y = args[0] if args else kwargs["input"], output
        if torch.is_grad_enabled():
            x, y = x.detach(), y.detach()
        if y.dtype != self._c.dtype or x.dtype != self._c.dtype:
            raise TypeError(
                f"a layer of {self._c.dtype} was given {x.dtype} and gave {y.dtype}; autocast is not checked"
            )
        if y.dim() != 2:
            x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        difference, threshold = self._compared(x, y, self._signed)
        right = difference < threshold
        if right.all():
            return None
        rows = (~right).nonzero().squeeze(1)
        if not self._signed:
            x, y, before = x[rows], y[rows], len(x)
            right = difference[rows] < torch.addmv(self._t0, x.abs(), self._t)
            self._signed = bool(right.sum() * FEW > before)
            wrong = (~right).nonzero().squeeze(1)
            rows, x, y = rows[wrong], x[wrong], y[wrong]
        else:
            x, y = x[rows], y[rows]
        rows = rows[~self._right_in_float64(x, y)]
        return rows if len(rows) else None

    def _compared(self, x: torch.Tensor, y: torch.Tensor, signed: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """|sum_j y_j - x.c - s| and the threshold (x.t + t_0 where x may have either sign and is not known to), [B] each."""
        if signed:
            expected = torch.addmv(self._s, x, self._c)
            threshold = torch.addmv(self._t0, x.abs(), self._t)
        else:
            expected, threshold = nn.functional.linear(x, self._columns, self._offsets).unbind(1)
        return y.sum(1).sub_(expected).abs_(), threshold

    def _right_in_float64(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Which rows are right after all, bool [m]."""
        x, y = x.double(), y.double()
        difference = y.sum(1) - x @ self._c.double() - self._s.double()
        return difference.abs() < x.abs() @ self._t.double() + self._t0.double()


def largest_share(sums: LinearSums, x: torch.Tensor, y: torch.Tensor) -> float:
    """The largest difference in rows of inputs [B, k] and outputs [B, n], relative to the threshold; 0 of no rows."""
    if not len(y):
        return 0.0
    difference, threshold = _Differences(sums)._compared(x, y, True)
    return float((difference / threshold).max())


def floor_share(inputs: int, outputs: int) -> float:
    """What a largest share counts as at least: one rounding of |x|.a, of the 2 k + n that make the threshold. (The output of a
    layer that has only one may be computed as its check is, and differ on no row that was seen.)"""
    return 1.0 / (2 * inputs + outputs + 8)
