"""Checksums of linear layers (Huang & Abraham 1984)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from drsrobust.extend import check_choice, check_number
from drsrobust.introspection import Forward, named_modules
from drsrobust.mitigation import ActiveMitigation, Handle
from drsrobust_extras.protection.abft.base import (
    ABFT,
    Check,
    FindWrongRows,
    can_check,
    check_options,
    refuse_errors,
    run,
)
from drsrobust_extras.protection.abft.rounding_bounds import OPERANDS, LinearSums, linear_sums
from drsrobust_extras.protection.golden_copy import GoldenCopy

BOUND_KINDS = ("provable", "calibrated")
_CHECKED = (torch.float32, torch.float64)


class ABFTLinear(ABFT):
    """Checks every `nn.Linear` by column sums of trusted weights: for each row of a layer's output Y = X W^T + b::

        | sum_j Y_ij - (x_i . c + sum b) | < tau_i,    c = W^T 1.

    An error in a weight, a bias, or the product itself breaks it; sums of the present weights would miss errors in weights. A
    difference that is not finite counts as detected. Inputs that are wrong but finite pass: the check of the module that made
    them covers them. Source: K.-H. Huang and J. A. Abraham, "Algorithm-based fault tolerance for matrix operations", IEEE
    Transactions on Computers C-33 (1984).

    - `provable`: `tau_i = |x_i| . t + t_0`, a running error bound above all rounding (derived in `linear_sums`), so there is no
      false alarm for any inputs, batch size or order of summation.
    - `calibrated`: tau_i is `margin` times the largest difference on training rows, layer by layer; for rows of larger numbers
      `margin` times the largest share of the provable bound that a difference takes there (at least the share of one rounding
      of |x_i| . |W|^T 1); never more than the bound. It is lower and finds smaller errors, but only experience shows that clean
      rows stay below it.

    Checked are layers of float32 and float64 weights, also inside other modules (TorchRec's MLP). Not checked: all other
    products (TorchRec's cross nets, BatchNorm, a model's own parameters). `covered` names the layers.

    It stores c, t and six numbers per layer. In a sum of mitigations it comes before those that change outputs of layers:
    `abft + clipping`. Use `fit`.
    """

    def __init__(
        self,
        checks: Mapping[str, Check],
        *,
        mode: str,
        margin: float | None,
        products: str,
        action: str,
        every: int,
        golden: GoldenCopy | None,
    ) -> None:
        super().__init__("ABFT Linear", [mode], checks, action=action, every=every, golden=golden)
        self.mode, self.margin, self.products = mode, margin, products

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        rows: Any = None,
        *,
        mode: str = "provable",
        margin: float = 4.0,
        action: str = "report",
        every: int = 1,
        products: str = "float32",
        forward: Forward | None = None,
    ) -> "ABFTLinear":
        """Sums of a model's present weights.

        Args:
            model: without errors.
            rows: of `calibrated`: training rows, as `data.train`, Batches or a list of batches; some 20,000 suffice.
            mode: `"provable"` or `"calibrated"`.
            margin: of `calibrated`.
            action: `"report"`, `"recompute"`, `"zero"` (the row of the layer's output) or `"restore"` (the layer), see `ABFT`.
            every: checks every n-th batch.
            products: how factors are rounded before they are multiplied: `"float32"` (not at all), or `"tf32"` or `"bfloat16"`
                where `torch.set_float32_matmul_precision` allows it.
            forward: of `calibrated`: forward(model, batch), as of `Evaluator`.

        Raises:
            ValueError: an unknown option, no layer to check, weights that are not finite, errors in the model, or no rows for
                `calibrated`.

        Example:
            >>> model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 1))
            >>> abft = ABFTLinear.fit(model)
            >>> with torch.no_grad(), abft.attach(model) as detection:
            ...     _ = model(torch.randn(100, 20))
            ...     before = detection.detected
            ...     model[0].weight.data[3, 7] += 0.01
            ...     _ = model(torch.randn(100, 20))
            >>> before, detection.detected
            (False, True)
        """
        check_options(action, every)
        check_choice("mode", mode, BOUND_KINDS)
        check_choice("rounding of products", products, OPERANDS)
        margin = check_number("margin", margin, "over 0", lambda margin: margin > 0)
        if mode == "calibrated" and rows is None:
            raise ValueError("mode 'calibrated' needs rows to learn thresholds from, as data.train")
        refuse_errors(model)
        layers = {
            name: module
            for name, module in named_modules(model)
            if isinstance(module, nn.Linear) and module.weight.dtype in _CHECKED
        }
        if not layers:
            raise ValueError("the model has no nn.Linear of float32 or float64 weights")
        checks = {}
        for name, layer in layers.items():
            try:
                checks[name] = LinearCheck.of(name, layer, OPERANDS[products])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        if mode == "calibrated":
            checks = _calibrated(model, layers, checks, rows, margin, forward)
        golden = None
        if action == "restore":
            golden = GoldenCopy({n: t for name, layer in layers.items() for n, t in _in_memory(name, layer).items()})
        margin = margin if mode == "calibrated" else None
        return cls(checks, mode=mode, margin=margin, products=products, action=action, every=every, golden=golden)

    def settings(self) -> Any:
        return super().settings() | {"mode": self.mode, "margin": self.margin, "products": self.products}

    def register_hooks(self, model: nn.Module, active: ActiveMitigation) -> Iterator[Handle]:
        allowed = torch.get_float32_matmul_precision()
        if allowed != "highest" and self.products == "float32":
            raise ValueError(
                f"torch.set_float32_matmul_precision is {allowed!r}, so products may be less exact than float32; fit with "
                "products='tf32' or 'bfloat16'"
            )
        yield from super().register_hooks(model, active)


class ThresholdRule(NamedTuple):
    """Turns the bound tau_i = |x_i|.t + t_0 into the threshold min(tau_i, max(least, share * tau_i)).

    Attributes:
        share: of the bound; 1: the bound itself.
        least: the lowest threshold, except where the bound is lower.
        slope, start: tau_i >= slope * |x_i.c + s| + start for any x: a cheap lower bound, without another product.
    """

    share: float
    least: float
    slope: float
    start: float


@dataclass(frozen=True, eq=False)
class LinearCheck(Check):
    """Checksums and threshold of one layer.

    Attributes:
        name: of the layer.
        sums: checksums and bound.
        rule: of the threshold.
        outputs: n.
    """

    name: str
    sums: LinearSums
    rule: ThresholdRule
    outputs: int

    @classmethod
    def of(cls, name: str, layer: nn.Linear, operand: float = 0.0) -> "LinearCheck":
        """The check with the bound as threshold, see `linear_sums`.

        Since t_l >= slope' |c_l| for each l, with the smallest of the ratios as slope', |x|.t >= slope' |x.c|, and
        |x.c| >= |x.c + s| - |s|. One per cent is subtracted for the rounding of compared values.
        """
        sums = linear_sums(layer.weight, layer.bias, operand)
        (c, t), (s, t0) = sums.columns.double().abs(), sums.offsets.double().abs().tolist()
        ratios = (t / c)[c > 0]
        slope = 0.99 * float(ratios.min()) if len(ratios) else 0.0
        rule = ThresholdRule(1.0, 0.0, slope, 0.99 * t0 - slope * s)
        return cls(name, LinearSums(sums.columns.cpu(), sums.offsets.cpu()), rule, layer.out_features)

    @property
    def inputs(self) -> int:
        """k."""
        return self.sums.columns.shape[1]

    def tightened(self, share: float, least: float) -> "LinearCheck":
        """The same check with a lower threshold."""
        return replace(self, rule=self.rule._replace(share=share, least=least))

    def tensors(self) -> dict[str, torch.Tensor]:
        rule = torch.tensor(self.rule, dtype=self.sums.columns.dtype)
        return {"columns": self.sums.columns, "offsets": self.sums.offsets, "levels": rule}

    @property
    def multiply_adds(self) -> int:
        """An inner product of k terms and a sum of n outputs, with one call per sample (AFM calls the layers of its attention
        once for each pair of fields)."""
        return self.inputs + self.outputs

    @property
    def bytes_touched(self) -> int:
        return self.sums.columns.element_size() * (self.inputs + self.outputs)

    def on(self, module: nn.Module) -> FindWrongRows:
        weight = getattr(module, "weight", None)
        if not isinstance(module, nn.Linear) or tuple(weight.shape) != (self.outputs, self.inputs):
            raise ValueError(
                f"{self.name} is {module}; the checksums are of a Linear of {self.inputs} inputs, {self.outputs} outputs"
            )
        if weight.dtype != self.sums.columns.dtype:
            raise ValueError(f"{self.name} is {weight.dtype}; the checksums are of {self.sums.columns.dtype}")
        return Differences(self, weight.device).find_wrong

    def zeroed(self, output: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        copy = output.clone()
        copy.view(-1, output.shape[-1])[rows] = 0.0
        return copy

    def reload(self, module: nn.Module, golden: GoldenCopy, args: tuple, kwargs: dict, rows: torch.Tensor) -> None:
        for name, tensor in _in_memory(self.name, module).items():
            golden.reload_tensor(name, tensor)


def _in_memory(name: str, layer: nn.Linear) -> dict[str, torch.Tensor]:
    """Weight and bias as they are stored, which may be in another format than the layer computes with."""
    return {f"{name}.{key}": layer._parameters[key] for key in ("weight", "bias") if layer._parameters[key] is not None}


class Differences:
    """Compares sums of a layer's outputs with their expected value: |sum_j y_j - x.c - s| with the threshold.

    |x|.t is computed only for rows that exceed a cheap lower bound of the threshold (`ThresholdRule`): hardly any without
    errors. A sum may overflow where y does not, so rows that fail are checked again in float64.
    """

    def __init__(self, check: LinearCheck, device: torch.device) -> None:
        columns, offsets = (part.to(device) for part in check.sums)
        self._c, self._t = (row.contiguous() for row in columns)
        self._s, self._t0 = offsets
        self._rule = check.rule
        share, least, slope, start = check.rule
        self._absolute = least > share * start  # the lowest threshold decides for most rows
        self._slope, self._start = (slope, start) if self._absolute else (share * slope, share * start)
        bound = 0.99 * float(self._t0)
        self._lowest, self._middle = min(bound, max(least, share * bound)), float(self._s)

    def find_wrong(self, args: tuple, kwargs: dict[str, Any], output: torch.Tensor) -> torch.Tensor | None:
        """The wrong rows of an output."""
        x, y = self._rows(args[0] if args else kwargs["input"], output)
        if not len(y) or self._all_below_lowest(x, y):
            return None
        difference, expected = self._difference(x, y)
        if self._absolute:
            right = float(difference.max()) < self._rule.least
            if right and self._rule.least <= self._start:
                return None
        else:
            right = True
        # Faster than comparing each row; the maximum is NaN if any row is.
        excess = torch.sub(difference, expected.abs_(), alpha=self._slope)
        if right and float(excess.max()) < self._start:
            return None
        right = excess < self._start
        if self._absolute:
            right &= difference < self._rule.least
        rows = (~right).nonzero().squeeze(1)
        x, y = x[rows], y[rows]
        suspects = (~(difference[rows] < self._threshold(x))).nonzero().squeeze(1)
        suspects = suspects[~self._right_in_float64(x[suspects], y[suspects])]
        return rows[suspects] if len(suspects) else None

    def _all_below_lowest(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        """Whether no difference reaches the lowest threshold, that of x = 0: the usual case in a layer with biases.

        Each operation takes longer than its arithmetic, so there are few. The difference is rounded in another order than in
        `_difference`, sum_j y_j - x.c before s, which the bound of `linear_sums` covers too: by u |s| instead of
        gamma_(k+1) |s|.
        """
        if not self._lowest:
            return False
        smallest, largest = torch.aminmax(y.sum(1).sub_(torch.mv(x, self._c)))
        if smallest.item() - self._middle > -self._lowest and largest.item() - self._middle < self._lowest:
            return True
        if bool(smallest.isfinite() & largest.isfinite()):
            self._lowest = 0.0  # clean rows exceed it too, so it is not tried again
        return False

    def largest(self, args: tuple, kwargs: dict[str, Any], output: torch.Tensor) -> tuple[float, float]:
        """The largest difference in the rows of a call, absolute and relative to the bound; 0 without rows."""
        x, y = self._rows(args[0] if args else kwargs["input"], output)
        if not len(y):
            return 0.0, 0.0
        difference, _ = self._difference(x, y)
        bound = torch.mv(x.abs(), self._t).add_(self._t0)
        return float(difference.max()), float((difference / bound).max())

    def _rows(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [B, k] and outputs [B, n] from any number of dimensions."""
        if torch.is_grad_enabled():
            x, y = x.detach(), y.detach()
        if y.dtype != self._c.dtype or x.dtype != self._c.dtype:
            raise TypeError(f"a layer of {self._c.dtype} got {x.dtype} and gave {y.dtype}; autocast is not supported")
        return (x, y) if y.dim() == 2 else (x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]))

    def _difference(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """|sum_j y_j - x.c - s|, and x.c + s; [B] each."""
        expected = torch.mv(x, self._c).add_(self._s)
        return y.sum(1).sub_(expected).abs_(), expected

    def _threshold(self, x: torch.Tensor) -> torch.Tensor:
        """[B], in the precision of x."""
        bound = torch.mv(x.abs(), self._t.to(x.dtype)).add_(self._t0.to(x.dtype))
        return torch.minimum(bound, (bound * self._rule.share).clamp(min=self._rule.least))

    def _right_in_float64(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Which rows are right in float64, bool [m]."""
        x, y = x.double(), y.double()
        difference = y.sum(1) - x @ self._c.double() - self._s.double()
        return difference.abs() < self._threshold(x)


def _calibrated(
    model: nn.Module,
    layers: Mapping[str, nn.Linear],
    checks: Mapping[str, LinearCheck],
    rows: Any,
    margin: float,
    forward: Forward | None,
) -> dict[str, LinearCheck]:
    """The checks with thresholds learnt from rows."""
    largest = dict.fromkeys(layers, (0.0, 0.0))

    def observer(name: str, layer: nn.Linear) -> Callable[..., None]:
        differences = Differences(checks[name], layer.weight.device)

        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: torch.Tensor) -> None:
            if not can_check(module, output):
                return
            difference, share = differences.largest(args, kwargs, output)
            if not share < 1:  # NaN included
                raise ValueError(f"{name}: outputs on these rows do not match its weights, or are not finite")
            largest[name] = (max(largest[name][0], difference), max(largest[name][1], share))

        return hook

    handles = []
    try:
        for name, layer in layers.items():
            handles.append(layer.register_forward_hook(observer(name, layer), with_kwargs=True))
        batches = sum(1 for _ in run(model, rows, forward))
    finally:
        for handle in handles:
            handle.remove()
    if not batches:
        raise ValueError("mode 'calibrated' needs rows to learn thresholds from, got none")
    calibrated = {}
    for name, (difference, share) in largest.items():
        # At least one rounding of |x|.a, of the 2 k + n in the bound: a layer with one output may be computed as its check is,
        # and show no difference on training rows.
        share = max(share, 1.0 / (2 * checks[name].inputs + checks[name].outputs + 8))
        calibrated[name] = checks[name].tightened(min(1.0, margin * share), margin * difference)
    return calibrated
