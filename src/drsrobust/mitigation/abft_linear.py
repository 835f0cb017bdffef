"""Checksums of linear layers (Huang & Abraham 1984)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from drsrobust._names import unknown
from drsrobust.mitigation.abft import ABFT, Check, check_options, refuse_errors, run
from drsrobust.mitigation.base import Cost, Current, Handle
from drsrobust.mitigation.checksum_bounds import OPERANDS, LinearSums
from drsrobust.mitigation.golden_copy import GoldenCopy
from drsrobust.mitigation.linear_check import Differences, LinearCheck, floor_share
from drsrobust.tensors import named_modules

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
