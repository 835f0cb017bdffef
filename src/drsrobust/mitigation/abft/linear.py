"""The check of one `nn.Linear`.

Checksums of linear layers (Huang & Abraham 1984)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from drsrobust._environment import unknown
from drsrobust.introspection.tensors import named_modules
from drsrobust.mitigation.abft.base import ABFT, Check, Suspicion, check_options, refuse_errors, run
from drsrobust.mitigation.abft.rounding_bounds import OPERANDS, LinearSums, linear_sums
from drsrobust.mitigation.base import Cost, Current, Handle
from drsrobust.mitigation.memory.golden_copy import GoldenCopy


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


MODES = ("provable", "calibrated")
_CHECKED = (torch.float32, torch.float64)


class ABFTLinear(ABFT):
    """Checks every `nn.Linear` by its column sums, made of trusted weights: for each row of a layer's output Y = X W^T + b,

        | sum_j Y_ij - (x_i . c + sum b) | < tau_i,    c = W^T 1.

    An error in a weight, a bias, or in the product itself breaks it; sums of the weights as they are now would not show errors
    in weights. A difference that is not finite counts as detected. Inputs that are wrong already, but finite, pass: they are
    for the check of what made them. Source: K.-H. Huang and J. A. Abraham, "Algorithm-based fault tolerance for matrix
    operations", IEEE Transactions on Computers C-33 (1984).

    - `provable`: tau_i = |x_i| . t + t_0, a running error bound that rounding cannot reach (derived in `linear_sums`), so there
      is no false alarm, whatever the inputs, the batch size or the order of summation.
    - `calibrated`: tau_i is `margin` times the largest difference on training rows, layer by layer; for rows of larger numbers
      `margin` times the largest share of the bound that a difference takes there (of which one rounding of |x_i| . |W|^T 1
      counts at least); never more than the bound. Lower, so it finds smaller errors; that clean rows stay below it is a matter
      of experience.

    Covered are layers of float32 and float64 weights, by themselves or inside of others (TorchRec's MLP). Not covered: every
    other product (TorchRec's cross nets, BatchNorm, parameters that a model multiplies with itself). `covered` names layers.

    Stored are c, t and six numbers for each layer. In a sum of mitigations it stands before what changes outputs of layers:
    `abft + clipping`. Make it by `fit`.
    """

    name = "ABFT Linear"

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
        super().__init__(checks, action=action, every=every, golden=golden)
        self.mode, self.margin, self.products = mode, margin, products
        about = [mode] + ([] if action == "report" else [action]) + ([] if every == 1 else [f"every {every}"])
        self.name = f"ABFT Linear ({', '.join(about)})"

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
    ) -> "ABFTLinear":
        """Sums of the weights of a model as it is.

        Args:
            model: without errors.
            rows: of `calibrated`: what differences are learnt from, as `data.train` or a list of batches; some 20,000 do.
            mode: `"provable"` or `"calibrated"`.
            margin: of `calibrated`.
            action: `"report"`, `"recompute"`, `"zero"` (the row of the layer's output) or `"restore"` (the layer), see `ABFT`.
            every: batches that pass from one check to the next.
            products: how factors are rounded before they are multiplied: `"float32"` (not at all), or `"tf32"` or `"bfloat16"`
                where `torch.set_float32_matmul_precision` allows it.

        Raises:
            ValueError: an unknown option, no layer to check, weights that are not finite, errors in the model, or no rows where
                they are needed.

        Example:
            >>> model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 1))
            >>> abft = ABFTLinear.fit(model)
            >>> with torch.no_grad(), abft.attach(model) as watch:
            ...     _ = model(torch.randn(100, 20))
            ...     before = watch.detected
            ...     model[0].weight.data[3, 7] += 0.01
            ...     _ = model(torch.randn(100, 20))
            >>> before, watch.detected
            (False, True)
        """
        check_options(action, every)
        if mode not in MODES:
            raise unknown("mode", mode, MODES)
        if products not in OPERANDS:
            raise unknown("way to multiply", products, OPERANDS)
        if not margin > 0:
            raise ValueError(f"margin is {margin}; it must be over 0")
        if mode == "calibrated" and rows is None:
            raise ValueError("a calibrated threshold is learnt from rows: give some, as data.train")
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
            checks = _tightened(model, layers, checks, rows, margin)
        golden = None
        if action == "restore":
            weights = {f"{name}.weight": layer.weight for name, layer in layers.items()}
            biases = {f"{name}.bias": layer.bias for name, layer in layers.items() if layer.bias is not None}
            golden = GoldenCopy(weights | biases)
        margin = margin if mode == "calibrated" else None
        return cls(checks, mode=mode, margin=margin, products=products, action=action, every=every, golden=golden)

    def settings(self) -> Any:
        return super().settings() | {"mode": self.mode, "margin": self.margin, "products": self.products}

    def put_on(self, model: nn.Module, watch: Current) -> Iterator[Handle]:
        allowed = torch.get_float32_matmul_precision()
        if allowed != "highest" and self.products == "float32":
            raise ValueError(
                f"float32 products may be less exact here (torch.set_float32_matmul_precision is {allowed!r}): fit with "
                "products='tf32' or 'bfloat16'"
            )
        yield from super().put_on(model, watch)

    def cost(self, model: nn.Module) -> Cost:
        """An inner product of k terms and a sum of n outputs per sample, and the values read for them, each layer counted as
        called once per sample (AFM calls its attention's layers once for each pair of fields). Divided by `every`."""
        checks = self.checks.values()
        work = sum(check.inputs + check.outputs for check in checks)
        touched = sum(check.sums.columns.element_size() * (check.inputs + check.outputs) for check in checks)
        return Cost(self.stored_bits(), -(-work // self.every), -(-touched // self.every))


def _tightened(
    model: nn.Module, layers: Mapping[str, nn.Linear], checks: Mapping[str, LinearCheck], rows: Any, margin: float
) -> dict[str, LinearCheck]:
    """The checks with thresholds learnt from rows."""
    largest = {name: (0.0, 0.0) for name in layers}

    def watching(name: str, check: LinearCheck, layer: nn.Linear) -> Callable[..., None]:
        look = Differences(LinearSums(*(part.to(layer.weight.device) for part in check.sums)), check.levels)

        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: torch.Tensor) -> None:
            difference, share = look.largest(args, kwargs, output)
            if not share < 1:  # NaN included
                raise ValueError(f"{name}: its outputs on these rows are not those of its weights, or not finite")
            largest[name] = (max(largest[name][0], difference), max(largest[name][1], share))

        return hook

    handles = []
    try:
        for name, layer in layers.items():
            handles.append(layer.register_forward_hook(watching(name, checks[name], layer), with_kwargs=True))
        batches = sum(1 for _ in run(model, rows))
    finally:
        for handle in handles:
            handle.remove()
    if not batches:
        raise ValueError("a calibrated threshold is learnt from rows: there are none")
    found = {}
    for name, (difference, share) in largest.items():
        share = max(share, floor_share(checks[name].inputs, checks[name].outputs))
        found[name] = checks[name].tightened(min(1.0, margin * share), margin * difference)
    return found
