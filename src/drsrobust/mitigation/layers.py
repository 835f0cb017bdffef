"""Functions on a module's outputs, put on and taken off; in cross networks on the output of each layer.

A cross network computes all of its layers in one call, so no hook sees what is between them. There a forward of the same
arithmetic stands in, layer by layer: the same operations in the same order, so the same bits.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from drsrobust.mitigation.base import Handle

# (an output, whether it may be written to) -> what stands in its place
Function = Callable[[torch.Tensor, bool], torch.Tensor]
Step = Callable[[nn.Module, int, torch.Tensor, torch.Tensor], torch.Tensor]


def _vector(module: nn.Module, layer: int, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x_0 <x_l, w_l> + b_l + x_l (arXiv:1708.05123, equation 3), [B, N]."""
    return first * (x @ module.kernels[layer]) + module.bias[layer].squeeze(1) + x


def _matrix(module: nn.Module, layer: int, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x_0 * (W_l x_l + b_l) + x_l (arXiv:2008.13535, equation 1), as columns [B, N, 1], like TorchRec."""
    column = x.unsqueeze(2)
    return (first.unsqueeze(2) * (torch.matmul(module.kernels[layer], column) + module.bias[layer]) + column).squeeze(2)


def _low_rank(module: nn.Module, layer: int, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x_0 * (W_l (V_l x_l) + b_l) + x_l (arXiv:2008.13535, equation 2), [B, N]."""
    inner = nn.functional.linear(x, module.V_kernels[layer])
    return first * (nn.functional.linear(inner, module.W_kernels[layer]) + module.bias[layer]) + x


_STEPS: dict[str, Step] = {"VectorCrossNet": _vector, "CrossNet": _matrix, "LowRankCrossNet": _low_rank}


def _step(module: nn.Module) -> Step | None:
    """One layer of a cross network; None where it is none, or a class of somebody else, who may compute something else."""
    if type(module).__module__.split(".")[0] not in ("torchrec", "drsrobust"):
        return None
    for one in type(module).__mro__:
        if one.__module__ == "torchrec.modules.crossnet" and one.__name__ in _STEPS:
            return _STEPS[one.__name__]
    return None


def layer_count(module: nn.Module) -> int:
    """How many layers a cross network has whose layers are known here; 0 for anything else."""
    return 0 if _step(module) is None else len(module.bias)


# Forwards whose output is memory of its own, which nobody else holds: it may be written to.
_FRESH = {
    "torch.nn.modules.linear.Linear",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.normalization.LayerNorm",
    "torch.nn.modules.sparse.Embedding",
    "torch.nn.modules.sparse.EmbeddingBag",
    "torchrec.modules.embedding_modules.EmbeddingBagCollection",
    "torchrec.models.dlrm.InteractionArch",
    "drsrobust.models.interaction.FlatInteractionArch",
}


def _gives_its_own(module: nn.Module) -> bool:
    """Whether a module's class gives a new tensor at each call."""
    forward = type(module).forward
    return f"{forward.__module__}.{forward.__qualname__}".removesuffix(".forward") in _FRESH


def on_output(module: nn.Module, function: Function) -> Handle:
    """A module's output becomes `function` of it while the handle is on: of a tensor, or of the values [B, sum of widths] of a
    KeyedTensor, which stays one with the same keys.

    The function may write to it where nobody else can hold it. Where something stands in for the module's forward, as when an
    evaluator follows, keeps or hands out outputs, it may not.

    When called, the module raises TypeError where its output is neither.
    """
    own = _gives_its_own(module)

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        fresh = own and "forward" not in module.__dict__
        if isinstance(output, torch.Tensor):
            return function(output, fresh)
        if type(output).__name__ != "KeyedTensor":
            raise TypeError(
                f"{type(module).__name__} gave a {type(output).__name__}; only a tensor or a KeyedTensor can be bounded"
            )
        before = output.values()
        after = function(before, fresh)
        if after is before:
            return output
        return type(output)(output.keys(), output.length_per_key(), after, output.key_dim(), output.offset_per_key())

    return module.register_forward_hook(hook)


def on_layers(module: nn.Module, functions: Mapping[int, Function]) -> Iterator[Handle]:
    """The outputs [B, N] of some layers of a cross network become functions of them while the handle is on.

    Args:
        module: one with layers (`layer_count`).
        functions: layer -> function.
    """
    step = _step(module)

    def forward(input: torch.Tensor) -> torch.Tensor:
        x = input
        for layer in range(len(module.bias)):
            x = step(module, layer, input, x)
            if layer in functions:
                x = functions[layer](x, True)
        return x

    handle = _Forward(module)
    yield handle  # known before anything is changed
    module.__dict__["forward"] = forward


class _Forward:
    """A module whose forward is replaced, and what it had of its own before."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._own = module, module.__dict__.get("forward")

    def remove(self) -> None:
        if self._own is None:
            self._module.__dict__.pop("forward", None)
        else:
            self._module.__dict__["forward"] = self._own
