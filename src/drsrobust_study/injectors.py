"""The injection methods that are measured side by side: ours, a loop over elements, a dense error map, published tools.

The dense error map has a random value for each bit of each parameter, whatever the rate. It is written from the description of
the study's tool (arXiv:2307.10244): a float32 table of ones, 32 per parameter, of which dropout keeps the share of the error
rate; kept values represent powers of two, whose sum is the parameter's XOR mask. MRFI 2.1.0 (github.com/fffasttime/MRFI) and
PyTorchFI 0.6.0 (github.com/pytorchfi/pytorchfi), if installed, are called as their users would call them.
"""

import random
from importlib.util import find_spec
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.functional import dropout

from drsrobust.injection import BitFlip, Injection

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ElementLoop:
    """For each parameter, for each of its bits: draw, and flip the bit when the draw is below the rate.

    A parameter is read and written only where a bit flips; a loop that takes every parameter to a text of bits and back takes
    several times longer.

    Args:
        model: any.
    """

    name = "per element loop"
    needs = None
    dtypes = None
    limit = 5.0
    about = "no undo: the model is loaded again"
    undo = None

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def inject(self, rate: float, seed: int) -> nn.Module:
        """Draws over all bits."""
        draw = random.Random(seed).random
        with torch.no_grad():
            for parameter in self.model.parameters():
                bits = range(8 * parameter.element_size())
                words = parameter.view(-1).view(_WORDS[parameter.element_size()])
                for index in range(len(words)):
                    for bit in bits:
                        if draw() < rate:
                            flip = 1 << bit if bit < bits[-1] else -(1 << bit)  # the highest bit of a signed word
                            words[index] ^= flip
        return self.model


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
        scaled = dropout(torch.ones(n, 32), 1 - rate)  # [n, 32]: 1 / rate or 0
        bits = scaled.mul_(rate).round_().int()
        bits *= torch.ones(32, dtype=torch.int32) << torch.arange(32, dtype=torch.int32)
        return bits.sum(1, dtype=torch.int32)


_LAYERS = (nn.EmbeddingBag, nn.Linear)
_INPUT = 13 + 26  # width of the model's one input


class MRFI:
    """Random values of each layer's weight and bias get one flipped bit, before each forward pass of that layer.

    The tool's rate is per value, 32 bits of which one flips: 32 times the bit error rate, at most 1, without 0.1.
    """

    name = "MRFI"
    needs = "mrfi"
    dtypes = ("float32",)
    limit = float("inf")
    about = "restores, injects and scores one sample; one bit per value, places drawn with replacement"
    undo = None  # each forward pass restores first

    def __init__(self, model: nn.Module) -> None:
        from mrfi import MRFI as Wrapped
        from mrfi import EasyConfig

        fault = {
            "type": "weight",
            "name": ["weight", "bias"],
            "enabled": True,
            "selector": {"method": "RandomPositionByRate", "poisson": True, "rate": 0},
            "error_mode": {"method": "FloatRandomBitFlip", "floattype": "float32"},
            "module_type": [layer.__name__ for layer in _LAYERS],
        }
        self.model = model
        self._wrapped = Wrapped(model, EasyConfig({"faultinject": [fault]}))
        self._selectors = [
            config for index in (0, 1) for config in self._wrapped.get_weights_configs("selector.args", weight_id=index)
        ]
        self._sample = torch.zeros(1, _INPUT)

    def inject(self, rate: float, seed: int) -> nn.Module:
        """One forward pass."""
        for selector in self._selectors:
            selector["rate"] = 32 * rate
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            np.random.seed(seed)  # the tool draws the number of errors from NumPy's global stream
            self._wrapped(self._sample)
        return self.model


class PyTorchFI:
    """A list of faults, each a place and a new value, in a copy of the model. The tool draws single faults only, so the list is
    drawn here, with a function that flips the next bit. Biases cannot be reached."""

    name = "PyTorchFI"
    needs = "pytorchfi"
    dtypes = ("float32",)
    limit = float("inf")
    about = "in a deep copy of the model; list of faults drawn by us; weights only"
    undo = None

    def __init__(self, model: nn.Module) -> None:
        from pytorchfi.core import fault_injection

        self._tool = fault_injection(model, 1, input_shape=[_INPUT], layer_types=list(_LAYERS))
        # Its layers are numbered as `modules()` gives them.
        self._layers = [module for module in model.modules() if isinstance(module, _LAYERS)]
        self._ends = np.cumsum([layer.weight.numel() for layer in self._layers])

    def inject(self, rate: float, seed: int) -> nn.Module:
        """Draws the list and gives the tool's faulted copy."""
        stream = np.random.default_rng(seed)
        bits = 32 * int(self._ends[-1])
        places = np.unique(stream.integers(0, bits, stream.binomial(bits, rate)))  # a place that is drawn twice is one
        word, bit = places // 32, iter((places % 32).tolist())
        layer = np.searchsorted(self._ends, word, side="right")
        word_in_layer = word - np.append(0, self._ends)[layer]
        width = np.array([layer.weight.shape[1] for layer in self._layers])[layer]
        nothing = [None] * len(word)
        return self._tool.declare_weight_fi(
            function=lambda weight, at: _flip(weight[at], next(bit)),
            layer_num=layer.tolist(),
            k=(word_in_layer // width).tolist(),
            dim1=(word_in_layer % width).tolist(),
            dim2=nothing,
            dim3=nothing,
        )


def _flip(value: torch.Tensor, bit: int) -> torch.Tensor:
    return (value.contiguous().view(torch.int32) ^ (1 << bit if bit < 31 else -(1 << 31))).view(torch.float32)


OURS = "drsrobust"


class Method(Protocol):
    """A way to inject errors into all parameters of a model.

    Attributes:
        name: in the table.
        needs: module that must be there; None: nothing beyond this package.
        dtypes: of parameters that it can hit; None: any.
        limit: seconds; once an injection took longer, it is not run at higher rates or on larger models.
        about: what a reader must know of its numbers.
        undo: takes the errors out again; None where the method has no such thing.
    """

    name: ClassVar[str]
    needs: ClassVar[str | None]
    dtypes: ClassVar[tuple[str, ...] | None]
    limit: ClassVar[float]
    about: ClassVar[str]

    def __init__(self, model: nn.Module) -> None: ...

    def inject(self, rate: float, seed: int) -> nn.Module:
        """One injection at a bit error rate; gives the model that has the errors."""


class Sparse:
    """This package: resolves the target, draws the errors by the error clock, applies them. `dr.inject` does the same."""

    name = OURS
    needs = None
    dtypes = None
    limit = float("inf")
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


METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Sparse, DenseErrorMap, ElementLoop, MRFI, PyTorchFI)
}


def cannot(method: str, dtype: str) -> str | None:
    """Why a method cannot hit parameters of a dtype on this machine; None when it can."""
    kind = METHODS[method]
    if kind.needs and find_spec(kind.needs) is None:
        return "not installed (pip install -e '.[benchmark]')"
    if kind.dtypes and dtype not in kind.dtypes:
        return f"it hits {' and '.join(kind.dtypes)} only"
    return None
