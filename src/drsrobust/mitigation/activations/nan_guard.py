"""NaN/Inf guard: no score that is served is NaN or infinite."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from drsrobust.mitigation.activations.sites import on_output
from drsrobust.mitigation.base import Cost, Current, Handle, Mitigation, Watch, shown


class NaNGuard(Mitigation):
    """Scores that are NaN or infinite become one that is harmless: ln(p / (1 - p)), the logit of the click rate p of the
    training rows, or a given one. The rest keeps its bits.

    It tells whether it found any. A score that was replaced is not the right one: such a trial is detected and not repaired
    (`repaired` false), whatever its AUC then is.

    Args:
        prior: click rate of the training rows, as `data.train.prior`; between 0 and 1.
        value: a logit, instead of it.

    Raises:
        ValueError: neither or both are given, a prior not between 0 and 1, or a value that is not finite.

    Example:
        >>> model, guard = nn.Linear(1, 1), NaNGuard(prior=0.2)
        >>> with torch.no_grad(), guard.attach(model) as watch:
        ...     _ = model.bias.fill_(torch.nan)
        ...     print(round(model(torch.ones(1, 1)).item(), 4), watch.detected, watch.repaired)
        -1.3863 True False
    """

    def __init__(self, prior: float | None = None, *, value: float | None = None) -> None:
        if (prior is None) == (value is None):
            raise ValueError(
                "a NaN guard needs a prior, as NaNGuard(data.train.prior), or a value, as NaNGuard(value=0.0)"
            )
        if prior is not None and not 0 < prior < 1:
            raise ValueError(f"prior is {prior!r}; it must be a click rate between 0 and 1")
        if value is not None and not math.isfinite(value):
            raise ValueError(f"value is {value!r}; it must be a finite logit")
        self.value = float(value) if prior is None else math.log(prior / (1 - prior))
        self.name = "NaN guard" if prior is not None else f"NaN guard to {shown(self.value)}"

    def settings(self) -> Any:
        return {"value": self.value}

    def tells(self) -> Watch:
        return Watch(detected=False)

    def put_on(self, model: nn.Module, watch: Current) -> Iterator[Handle]:
        def guarded(scores: torch.Tensor, fresh: bool) -> torch.Tensor:
            finite = scores.isfinite()
            if bool(finite.all()):
                return scores
            watch.now.note(repaired=False)
            return scores.masked_fill(~finite, self.value)

        yield on_output(model, guarded)

    def cost(self, model: nn.Module) -> Cost:
        """One number of 32 bits; one comparison per sample, counted as a multiply-add; the score read once."""
        return Cost(stored_bits=32, multiply_adds=1, bytes_touched=4)
