"""Gradients of a model's scores with respect to its tensors."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from drsrobust.introspection.wrappers import evaluating, requiring_gradients
from drsrobust.models import Scoring


def gradients(
    model: nn.Module, scoring: Scoring, tensors: Sequence[torch.Tensor], batches: Iterable[tuple[Any, int]]
) -> Iterator[tuple[torch.Tensor | None, ...]]:
    """For each batch the gradients of a sum of scores, with random weights so that those of several rows do not cancel; None of
    a tensor that no differentiable operation leads from to the scores.

    Args:
        model: without errors.
        scoring: makes scores of outputs.
        tensors: floating-point leaves.
        batches: each with the number of its rows that count.

    Raises:
        ValueError: inference tensors.
    """
    random = torch.Generator().manual_seed(0)
    with requiring_gradients(tensors):
        for batch, rows in batches:
            with evaluating(model), torch.enable_grad():
                scores = scoring(model, batch)[:rows]
                weights = torch.rand(scores.shape, generator=random).to(scores) + 0.5
                yield torch.autograd.grad((scores * weights).sum(), tensors, allow_unused=True)
