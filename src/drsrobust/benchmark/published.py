"""Two published tools that can be installed beside this package (`pip install -e ".[benchmark]"`), as their users would
call them: MRFI 2.1.0 (github.com/fffasttime/MRFI) and PyTorchFI 0.6.0 (github.com/pytorchfi/pytorchfi)."""

import numpy as np
import torch
from torch import nn

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
        inside = word - np.append(0, self._ends)[layer]
        width = np.array([layer.weight.shape[1] for layer in self._layers])[layer]
        nothing = [None] * len(word)
        return self._tool.declare_weight_fi(
            function=lambda weight, at: _flip(weight[at], next(bit)),
            layer_num=layer.tolist(),
            k=(inside // width).tolist(),
            dim1=(inside % width).tolist(),
            dim2=nothing,
            dim3=nothing,
        )


def _flip(value: torch.Tensor, bit: int) -> torch.Tensor:
    return (value.contiguous().view(torch.int32) ^ (1 << bit if bit < 31 else -(1 << 31))).view(torch.float32)
