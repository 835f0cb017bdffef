"""The injection methods that are measured side by side: ours, and a dense error map.

The dense error map has a random value for each bit of each parameter, whatever the rate. It is written from the description of
the study's tool (arXiv:2307.10244): a float32 table of ones, 32 per parameter, of which dropout keeps the share of the error
rate; kept values represent powers of two, whose sum is the parameter's XOR mask. Published tools are called in
`benchmarks/peers.py`.
"""

from typing import ClassVar, Protocol

import torch
from torch import nn
from torch.nn.functional import dropout

from drsrobust.injection import BitFlip, Injection


class DenseErrorMap:
    """One XOR mask per parameter, drawn over all bits.

    The published tool cuts the kept value, rate * (1 / rate), down to an integer, which is 0 at some rates (7e-3, 1e-10);
    here it is rounded. Tensors are worked on one after the other and in place where that is possible, so it takes no more
    time than it must: about a third of what was measured of the published tool, on a slower machine.

    Args:
        model: of float32 parameters.
    """

    name = "dense error map"
    dtypes = ("float32",)
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
        scaled = dropout(torch.ones(n, 32), 1 - rate)  # [n, 32]: 1 / rate or 0
        bits = scaled.mul_(rate).round_().int()
        bits *= torch.ones(32, dtype=torch.int32) << torch.arange(32, dtype=torch.int32)
        return bits.sum(1, dtype=torch.int32)


OURS = "drsrobust"


class Method(Protocol):
    """A way to inject errors into all parameters of a model.

    Attributes:
        name: in the table.
        dtypes: of parameters that it can hit; None: any.
        about: what a reader must know of its numbers.
        undo: takes the errors out again; None where the method has no such thing.
    """

    name: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...] | None]
    about: ClassVar[str]

    def __init__(self, model: nn.Module) -> None: ...

    def inject(self, rate: float, seed: int) -> nn.Module:
        """One injection at a bit error rate; gives the model that has the errors."""


class Sparse:
    """This package: resolves the target, draws the errors by the error clock, applies them. `dr.inject` does the same."""

    name = OURS
    dtypes = None
    about = ""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def inject(self, rate: float, seed: int) -> nn.Module:
        """The whole way from the model to errors in it."""
        self._injection = Injection(self.model, [(BitFlip(rate), "all")], seed=seed)
        self._injection.apply()
        return self.model

    def undo(self) -> None:
        """Writes the original words back."""
        self._injection.undo()


METHODS: dict[str, type[Method]] = {method.name: method for method in (Sparse, DenseErrorMap)}


def cannot(method: str, dtype: str) -> str | None:
    """Why a method cannot hit parameters of a dtype; None when it can."""
    dtypes = METHODS[method].dtypes
    return f"it hits {' and '.join(dtypes)} only" if dtypes and dtype not in dtypes else None
