"""NaN guard: every score is finite."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from drsrobust._arguments import check_number
from drsrobust.mitigation.activations.sites import hook_output
from drsrobust.mitigation.base import ActiveMitigation, Cost, Detection, Handle, Mitigation, format_number


class NaNGuard(Mitigation):
    """Replaces NaN and infinite scores by ln(p / (1 - p)), the logit of the click rate p of the training rows, or by a given
    logit. Other scores keep their bits. Of a model that gives several tensors, the floating-point ones are its scores.

    A replaced score counts as detected and not repaired, whatever the AUC of the trial.

    Args:
        prior: click rate of the training rows, as `data.train.prior`; between 0 and 1.
        value: a logit, instead of `prior`.

    Raises:
        ValueError: neither or both, a prior not between 0 and 1, or a value that is not finite.

    Example:
        >>> model, guard = nn.Linear(1, 1), NaNGuard(prior=0.2)
        >>> with torch.no_grad(), guard.attach(model) as detection:
        ...     _ = model.bias.fill_(torch.nan)
        ...     print(round(model(torch.ones(1, 1)).item(), 4), detection.detected, detection.repaired)
        -1.3863 True False
    """

    def __init__(self, prior: float | None = None, *, value: float | None = None) -> None:
        if (prior is None) == (value is None):
            raise ValueError("pass a prior, as NaNGuard(data.train.prior), or a value, as NaNGuard(value=0.0)")
        if prior is None:
            self.value = check_number("value", value, "a finite logit")
        else:
            prior = check_number("prior", prior, "a click rate between 0 and 1", lambda prior: 0 < prior < 1)
            self.value = math.log(prior / (1 - prior))
        self.name = "NaN guard" if prior is not None else f"NaN guard to {format_number(self.value)}"

    def settings(self) -> Any:
        return {"value": self.value}

    def new_detection(self) -> Detection:
        return Detection(detected=False)

    def register_hooks(self, model: nn.Module, active: ActiveMitigation) -> Iterator[Handle]:
        def guarded(scores: torch.Tensor, fresh: bool) -> torch.Tensor:
            finite = scores.isfinite()
            if bool(finite.all()):
                return scores
            active.detection.record(repaired=False)
            return scores.masked_fill(~finite, self.value)

        yield hook_output(model, guarded)

    def cost(self, model: nn.Module) -> Cost:
        """One number of 32 bits; per sample one comparison, counted as a multiply-add, and the score read once."""
        return Cost(stored_bits=32, multiply_adds=1, bytes_touched=4)
