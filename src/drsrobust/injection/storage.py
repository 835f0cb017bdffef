"""What a model, and an optimizer beside it, keeps in memory: every tensor that errors can lie in, with its format."""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from drsrobust.injection.formats import Format, plain, quantized_rows
from drsrobust.tensors import address, component_of, listed, named_modules, named_tensors

OPTIMIZER = "optimizer."  # what names of optimizer states begin with
_WARNED: WeakSet[nn.Module] = WeakSet()  # models of which `warn_of_hidden_words` has warned


class Stored(NamedTuple):
    """A tensor in memory, the layout of its rows if they are quantized, and whether it is what "all" means: a parameter or a
    quantized table."""

    tensor: torch.Tensor
    rows: Format | None = None
    parameter: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Of its words."""
        return self.tensor.dtype if self.rows is None else self.rows.dtype

    @property
    def format(self) -> Format:
        """The format of its words.

        Raises:
            ValueError: a dtype whose bits are not known here.
        """
        return self.rows or plain(self.tensor.dtype)

    @property
    def format_name(self) -> str:
        """The name of that format, or of the dtype."""
        return str(self.tensor.dtype).removeprefix("torch.") if self.rows is None else self.rows.name


class Memory(dict[str, Stored]):
    """Tensor name -> what is stored there. `component` says which component each name belongs to, `first` the name that
    further names of a tied tensor stand for."""

    component: dict[str, str]
    first: dict[str, str]


def stored(model: nn.Module, optimizer: Any = None, components: Mapping[str, str] | None = None) -> Memory:
    """Parameters, buffers and, of an optimizer, the states of the model's parameters (`optimizer.<parameter>.<state>`).

    Raises:
        TypeError: `model` is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    found, everything = Memory(), listed(model)
    for name, tensor, parameter, table, _ in everything:
        rows = table and quantized_rows(table.values, table.dim, table.header, table.row_bytes)
        found[name] = Stored(tensor, rows, parameter)
    found.first = {alias: one.name for one in everything for alias in one.aliases}
    found.component = component_of(model, components, everything)
    if optimizer is not None:
        for name, tensor in optimizer_states(model, optimizer).items():
            found[name] = Stored(tensor)
            parameter = name.removeprefix(OPTIMIZER).rpartition(".")[0]
            found.component[name] = found.component.get(parameter, "optimizer")
    return found


def warn_of_hidden_words(model: nn.Module) -> None:
    """Warns once of a model's modules with weights that no target can name: weights packed for a quantized kernel
    (`torch.ao` keeps them in a script object), and parameters in a plain list or dict."""
    if model in _WARNED:
        return
    _WARNED.add(model)
    known = {id(parameter) for parameter in model.parameters()}
    hidden = []
    for name, module in named_modules(model):
        own = [value for key, value in vars(module).items() if key not in ("_parameters", "_buffers", "_modules")]
        if any(_packs_weights(value) or _is_unknown(value, known) for value in tree_leaves(own)):
            hidden.append(name or type(module).__name__)
    if hidden:
        warnings.warn(
            f"errors cannot hit the weights of {', '.join(hidden)}: they are packed for a quantized kernel, or not registered "
            "as parameters; no target holds them, and shares and rates are of the other words alone",
            stacklevel=4,
        )


def _packs_weights(value: Any) -> bool:
    """Whether it is a script object, other than a scripted module itself and the counters of FBGEMM's look-ups."""
    if isinstance(value, torch._C.ScriptModule):
        return False
    return isinstance(value, torch.ScriptObject) and ".fbgemm." not in value._type().qualified_name()


def _is_unknown(value: Any, known: set[int]) -> bool:
    return isinstance(value, nn.Parameter) and id(value) not in known


def optimizer_states(model: nn.Module, optimizer: Any) -> dict[str, torch.Tensor]:
    """The optimizer's state tensors by name: those of the model's parameters, once `step` has made them.

    Args:
        optimizer: a `torch.optim.Optimizer`, or one of TorchRec's keyed optimizers (also of fused tables).

    Raises:
        TypeError: it is no optimizer.
    """
    if not isinstance(getattr(optimizer, "state", None), Mapping):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}; it must be a torch.optim.Optimizer or one of TorchRec's"
        )
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


def hittable(tensor: torch.Tensor) -> bool:
    """Whether its words have bits: all but complex numbers and booleans."""
    return not (tensor.dtype.is_complex or tensor.dtype == torch.bool)


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
    if not hittable(tensor):
        raise ValueError(f"{name} is {tensor.dtype}, which has no bit positions to hit")
    try:
        plain(tensor.dtype)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
