"""What a model, and an optimizer beside it, keeps in memory: every tensor that errors can lie in, with its format."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from drsrobust.injection.formats import Format, plain, quantized_rows
from drsrobust.tensors import address, listed, named_tensors

OPTIMIZER = "optimizer."  # what names of optimizer states begin with


class Stored(NamedTuple):
    """A tensor in memory, the layout of its rows if they are quantized, whether it is what "all" means (a parameter or a
    quantized table), and the module's own dictionary that holds it, where one does."""

    tensor: torch.Tensor
    rows: Format | None = None
    parameter: bool = False
    owner: dict[str, torch.Tensor | None] | None = None

    @property
    def format(self) -> Format:
        """The format of its words."""
        return self.rows or plain(self.tensor.dtype)


def stored(model: nn.Module, optimizer: Any = None) -> dict[str, Stored]:
    """Parameters, buffers and, of an optimizer, the states of the model's parameters (`optimizer.<parameter>.<state>`)."""
    found = {}
    for name, tensor, parameter, table, owner in listed(model):
        rows = table and quantized_rows(table.values, table.dim, table.header, table.row_bytes)
        found[name] = Stored(tensor, rows, parameter, owner)
    if optimizer is not None:
        states = optimizer_states(model, optimizer)
        found |= {name: Stored(tensor) for name, tensor in states.items()}
    return found


def optimizer_states(model: nn.Module, optimizer: Any) -> dict[str, torch.Tensor]:
    """The optimizer's state tensors by name: those of the model's parameters, once `step` has made them.

    Args:
        optimizer: a `torch.optim.Optimizer`, or one of TorchRec's keyed optimizers (also of fused tables).
    """
    names = {id(tensor): name for name, tensor in named_tensors(model, buffers=False)}
    # TorchRec's keyed optimizers know their parameters by name themselves.
    keyed = getattr(optimizer, "params", None)
    if isinstance(keyed, Mapping):
        names = {id(tensor): name for name, tensor in keyed.items()} | names
    found = {}
    for parameter, state in optimizer.state.items():
        name = parameter if isinstance(parameter, str) else names.get(id(parameter))
        for key, value in state.items() if name else ():
            if isinstance(value, torch.Tensor):
                found[f"{OPTIMIZER}{name}.{key}"] = value
    return found


def check(name: str, tensor: torch.Tensor) -> None:
    """Raises ValueError for a tensor whose words cannot be hit."""
    if is_lazy(tensor):
        raise ValueError(f"{name} is not initialised yet: run the model once before injecting into it")
    if tensor.is_meta:
        raise ValueError(f"{name} is on the meta device and has no storage to hit")
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = tensor.dtype if tensor.is_quantized else tensor.layout
        raise ValueError(f"{name} is {kind}; only plain dense tensors can be hit")
    if tensor.numel() and address(tensor) is None:
        raise ValueError(f"{name} is a {type(tensor).__name__}, which has no memory of its own to hit")
    if tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"{name} is {tensor.dtype}, which has no bit positions to hit")
    try:
        plain(tensor.dtype)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
