"""The dense error map: a random value for each bit of each parameter, whatever the rate. Written anew from what is published
of the study's tool (arXiv:2307.10244): a float32 table of ones, 32 per parameter, of which dropout keeps the share of the
error rate; what is kept stands for powers of two, whose sum is the parameter's XOR mask."""

import torch
from torch import nn
from torch.nn.functional import dropout


class DenseErrorMap:
    """One XOR mask per parameter, drawn over all bits.

    The published tool cuts the kept value, rate * (1 / rate), down to an integer, which is 0 at some rates (7e-3, 1e-10);
    here it is rounded. Tensors are worked on one after the other and in place where that is possible, so it takes no more
    time than it must: about a third of what was measured of the published tool, on a slower machine.

    Args:
        model: of float32 parameters.
    """

    name = "dense error map"
    needs = None
    dtypes = ("float32",)
    limit = float("inf")
    about = "no undo: the model is loaded again"
    undo = None

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.masks: dict[str, torch.Tensor] = {}  # kept, as the error map of this injection

    def inject(self, rate: float, seed: int) -> nn.Module:
        """Draws a map at a rate over 0 and applies it."""
        self.masks = {}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # dropout takes no generator
            for name, parameter in self.model.named_parameters():
                self.masks[name] = self._mask(parameter.numel(), rate)
                parameter.view(-1).view(torch.int32).bitwise_xor_(self.masks[name])
        return self.model

    @staticmethod
    def _mask(n: int, rate: float) -> torch.Tensor:
        """XOR masks int32 [n]."""
        kept = dropout(torch.ones(n, 32), 1 - rate)  # [n, 32]: 1 / rate or 0
        bits = kept.mul_(rate).round_().int()
        bits *= torch.ones(32, dtype=torch.int32) << torch.arange(32, dtype=torch.int32)
        return bits.sum(1, dtype=torch.int32)
