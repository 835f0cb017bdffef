"""Detectors of errors during training: each looks at a step after its backward pass and before its update.

A detector reads a value of the step (`read`) and compares it with those of earlier steps (`alarm`). Comparisons are written
`not (x <= limit)`, so that a NaN alarms.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.extend import check_number, check_whole
from drsrobust.introspection import named_modules
from drsrobust_extras.experiments.training_errors.steps import Detector, Step
from drsrobust_extras.protection.abft.base import can_check
from drsrobust_extras.protection.abft.linear import LinearCheck
from drsrobust_extras.protection.abft.rounding_bounds import gamma, unit_roundoff

# Whether all states of Adam are possible, and the largest |gradient| so far of each parameter, weight decay included.
AdamReading = tuple[bool, dict[int, float]]
_ROUNDING = 1.001  # of float32 in sums over thousands of steps
_LEAST = 1e-12  # values of Adam below it are not compared: squares of such gradients underflow


@dataclass(frozen=True)
class GradientNorm(Detector):
    """The norm of all gradients is over `factor` times its maximum in the last `keep` steps.

    Example:
        >>> GradientNorm().alarm(4.0, [1.0, 0.9]), GradientNorm().alarm(6.0, [1.0, 0.9]), GradientNorm().alarm(math.nan, [1.0])
        (False, True, True)
    """

    name = "gradient_norm"
    is_spike = True
    factor: float = 5.0
    keep: int = 100

    def __post_init__(self) -> None:
        check_number("factor", self.factor, "a finite number over 0", lambda factor: factor > 0)
        check_whole("keep", self.keep, 1)

    def read(self, step: Step, past: Sequence[float]) -> float:
        return step.gradient_norm

    def alarm(self, reading: float, past: Sequence[float]) -> bool:
        return bool(past) and not (reading <= self.factor * max(past))


@dataclass(frozen=True)
class LossSpike(Detector):
    """The loss is over the mean of the last `keep` steps by over `deviations` of their standard deviations."""

    name = "loss_spike"
    is_spike = True
    deviations: float = 8.0
    keep: int = 50

    def __post_init__(self) -> None:
        check_number("deviations", self.deviations, "a finite number over 0", lambda deviations: deviations > 0)
        check_whole("keep", self.keep, 2)  # of one step there is no deviation

    def read(self, step: Step, past: Sequence[float]) -> float:
        return step.loss

    def alarm(self, reading: float, past: Sequence[float]) -> bool:
        with np.errstate(all="ignore"):  # of infinite losses
            return len(past) > 1 and not (reading <= np.mean(past) + self.deviations * np.std(past))


@dataclass(frozen=True)
class NonFinite(Detector):
    """The loss, or the norm of all gradients, is infinite or NaN."""

    name = "non_finite"

    def read(self, step: Step, past: Sequence[float]) -> float:
        return step.loss + step.gradient_norm

    def alarm(self, reading: float, past: Sequence[float]) -> bool:
        return not math.isfinite(reading)


@dataclass(frozen=True)
class WeightSize(Detector):
    """The largest |w| of a tensor grew by over `factor` times and `slack` in one step. Adam moves a weight by less than 7.3
    learning rates in a step."""

    name = "weight_size"
    keep = 1
    factor: float = 2.0
    slack: float = 0.01

    def __post_init__(self) -> None:
        check_number("factor", self.factor, "a finite number over 0", lambda factor: factor > 0)
        check_number("slack", self.slack, "a finite number, 0 or more", lambda slack: slack >= 0)

    def read(self, step: Step, past: Sequence[list[float]]) -> list[float]:
        parameters = [parameter.detach() for parameter in step.run.model.parameters() if parameter.numel()]
        return torch.stack(torch._foreach_norm(parameters, torch.inf)).tolist()

    def alarm(self, reading: list[float], past: Sequence[list[float]]) -> bool:
        limits = [self.factor * size + self.slack for size in past[-1]] if past else []
        return any(not (size <= limit) for size, limit in zip(reading, limits, strict=bool(past)))


def adam_bound(steps: int, beta1: float = 0.9, beta2: float = 0.999) -> float:
    """c_t of |m| <= c_t sqrt(v), which holds for Adam's raw moments after t updates whatever the gradients were.

    m = (1 - b1) sum b1^i g_i and v = (1 - b2) sum b2^i g_i^2, i updates back; by Cauchy and Schwarz
    c_t = (1 - b1) sqrt((1 - r^t) / ((1 - b2) (1 - r))) with r = b1^2 / b2. Gradients g_i = (b1 / b2)^i attain it.

    Args:
        steps: t, 1 or more.
        beta1, beta2: of the optimizer, with b1^2 < b2.

    Raises:
        ValueError: no such bound.

    Example:
        >>> [round(adam_bound(t), 2) for t in (1, 5, 10_000)]
        [3.16, 5.86, 7.27]
    """
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        check_number(name, beta, "a number, 0 or more and under 1", lambda beta: 0 <= beta < 1)
    check_whole("steps", steps, 1)
    if not beta1**2 < beta2:
        raise ValueError(f"betas are {beta1}, {beta2}; beta1^2 must be under beta2")
    ratio = beta1**2 / beta2
    return (1 - beta1) * math.sqrt((1 - ratio**steps) / ((1 - beta2) * (1 - ratio)))


@dataclass(frozen=True)
class AdamState(Detector):
    """A state of Adam that no gradients give: m or v not finite, v under 0, |m| over `adam_bound` times sqrt(v), or m or v over
    the largest gradient so far and its square. Checked before the state is used. There is no false alarm."""

    name = "adam_state"
    keep = 1

    def read(self, step: Step, past: Sequence[AdamReading]) -> AdamReading:
        peaks, possible = dict(past[-1][1]) if past else {}, True
        for number, (group, parameter, state) in enumerate(step.states("betas")):
            peak = peaks.get(number, math.inf if step.number else 0.0)
            if state:
                limit = adam_bound(max(step.number, 1), *group["betas"])
                possible &= _possible(state["exp_avg"], state["exp_avg_sq"], _ROUNDING * limit, _ROUNDING * peak)
            if parameter.grad is not None:
                gradient = parameter.grad.add(parameter.detach(), alpha=group["weight_decay"])
                peaks[number] = max(peak, float(gradient.abs().max()))
        return possible, peaks

    def alarm(self, reading: AdamReading, past: Sequence[AdamReading]) -> bool:
        return not reading[0]


def _possible(m: torch.Tensor, v: torch.Tensor, limit: float, peak: float) -> bool:
    size, least, largest = m.abs(), float(v.min()), float(v.max())
    if not (least >= 0 and largest < math.inf and largest <= peak * peak + _LEAST):
        return False
    return float(size.max()) <= peak + _LEAST and float((size - limit * v.sqrt()).max()) <= _LEAST


@dataclass(frozen=True)
class AdagradState(Detector):
    """Sums of squares of row-wise Adagrad that no gradients give: not finite, under 0, or lower than a step before."""

    name = "adagrad_state"
    keep = 1

    def read(self, step: Step, past: Sequence[list[torch.Tensor]]) -> list[torch.Tensor]:
        return [state["sum"].clone() for _, _, state in step.states("initial_accumulator_value")]

    def alarm(self, reading: list[torch.Tensor], past: Sequence[list[torch.Tensor]]) -> bool:
        before = past[-1] if past else [torch.zeros(()) for _ in reading]
        return any(
            not bool((new >= old).all() & (new >= 0).all() & new.isfinite().all())
            for new, old in zip(reading, before, strict=False)
        )


@dataclass(frozen=True)
class ABFTStep(Detector):
    """Checksums of the products of all `nn.Linear` layers in a step: of outputs as `ABFTLinear`, with sums of the weights taken
    at the start of the step, and of weight gradients dW = dY^T X by 1^T dW = (dY 1)^T X, within a bound above all rounding.
    It sees errors of computation, not of memory, and there is no false alarm."""

    name = "abft"

    @contextmanager
    def attach(self, model: nn.Module) -> Iterator["_Products"]:
        products = _Products(model)
        try:
            yield products
        finally:
            products.remove()

    def read(self, step: Step, past: Sequence[bool]) -> bool:
        return step.observed[self.name].wrong()


class _Products:
    """Observes the layers of a model in one step."""

    def __init__(self, model: nn.Module) -> None:
        self._is_wrong, self._handles = False, []
        self._sums: dict[nn.Linear, list[torch.Tensor]] = {}  # expected column sums of a gradient, and of magnitudes
        self._rows: dict[nn.Linear, int] = {}
        for name, layer in named_modules(model):
            if isinstance(layer, nn.Linear) and layer.weight.dtype == torch.float32:
                try:
                    find = LinearCheck.of(name, layer, 0.0).on(layer)
                except ValueError:  # weights that are not finite
                    self._is_wrong = True
                    continue
                self._handles.append(layer.register_forward_hook(self._hook(find), with_kwargs=True))

    def _hook(self, find: Any) -> Any:
        def hook(layer: nn.Linear, args: tuple, kwargs: dict, output: torch.Tensor) -> None:
            if not can_check(layer, output):
                return
            self._is_wrong |= find(args, kwargs, output) is not None
            x = (args[0] if args else kwargs["input"]).detach().reshape(-1, layer.in_features)
            if layer.weight.requires_grad:
                self._handles.append(output.register_hook(lambda gradient: self._add(layer, x, gradient)))

        return hook

    def _add(self, layer: nn.Linear, x: torch.Tensor, gradient: torch.Tensor) -> None:
        gradient = gradient.detach().reshape(-1, layer.out_features)
        parts = [gradient.sum(1) @ x, gradient.abs().sum(1) @ x.abs()]
        sums = self._sums.get(layer)
        self._sums[layer] = parts if sums is None else [old + new for old, new in zip(sums, parts, strict=True)]
        self._rows[layer] = self._rows.get(layer, 0) + len(x)

    def wrong(self) -> bool:
        """Whether a product differs from its checksum by more than rounding."""
        for layer, (expected, magnitude) in self._sums.items():
            # Inner products of B rows, a sum of n, and the same of the check: each at most gamma of the magnitudes.
            bound = 2.1 * gamma(self._rows[layer] + layer.out_features + 2, unit_roundoff(torch.float32))
            excess = (layer.weight.grad.sum(0) - expected).abs() - bound * magnitude
            self._is_wrong |= not bool(excess.max() <= torch.finfo(torch.float32).tiny * self._rows[layer])
        return self._is_wrong

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


@dataclass(frozen=True)
class Replay(Detector):
    """The step computed a second time from the same state gives other bits in the loss or in a gradient. It sees what strikes
    once, and takes as long as the step."""

    name = "replay"

    def read(self, step: Step, past: Sequence[bool]) -> bool:
        return step.bits_when_repeated() != step.bits()
