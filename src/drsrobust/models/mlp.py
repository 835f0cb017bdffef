"""The multilayer perceptron of arXiv:2307.10244: each layer is Linear, BatchNorm, ReLU, Dropout."""

from collections.abc import Sequence

from torch import nn


def mlp(width: int, hidden: Sequence[int], dropout: float, *, project: bool = True) -> nn.Sequential:
    """Hidden layers on inputs [B, width], by default with a last projection to [B, 1] (else the output is [B, hidden[-1]]).

    Args:
        width: of the input.
        hidden: widths of the hidden layers.
        dropout: probability of dropping a hidden unit while training.
        project: whether a Linear to 1 follows, without BatchNorm or ReLU.
    """
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Dropout(dropout)]
        width = size
    return nn.Sequential(*layers, *([nn.Linear(width, 1)] if project else []))
