"""Words of a model that no target holds, and words whose errors change little: a warning, once for each model."""

import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from drsrobust.introspection.tensors import is_sparse, named_modules, named_tensors
from drsrobust.introspection.wrappers import is_frozen

LISTED = 8  # names in a message, at most
_WARNED: WeakSet[nn.Module] = WeakSet()
_INTERNAL = frozenset(vars(nn.Module()))  # PyTorch's own attributes of every module
_METRIC = ("update", "compute", "reset")  # what makes a metric, as of torchmetrics
_LIBRARIES = ("torch.", "torchrec.", "fbgemm_gpu.")  # whose modules register their weights, or pack them


def warn_of_hidden_words(model: nn.Module) -> None:
    """Warns once of a model's weights that no target can name: weights packed for a quantized kernel (`torch.ao` keeps them in
    a script object), and parameters in a plain list or dict. Also of its sparse tensors, which targets leave out, and of
    weights that a fake-quantize module rounds in each forward pass."""
    if model in _WARNED:
        return
    _WARNED.add(model)
    elsewhere = "No target holds them; shares and rates refer to the other words"
    if names := list(_hidden(model)):
        _warn(
            f"errors cannot hit the weights of {', '.join(names)}: they are packed for a quantized kernel, frozen into "
            f"TorchScript, or not registered as parameters. {elsewhere}"
        )
    if names := list(dict.fromkeys(_unregistered(model))):
        shown = ", ".join(names[:LISTED]) + f" and {len(names) - LISTED} more" * (len(names) > LISTED)
        _warn(
            f"errors cannot hit {shown}: modules in a plain list, dictionary or object, or tensors that are attributes; "
            f"nn.ModuleList, nn.ModuleDict, nn.Parameter or register_buffer registers them. {elsewhere}"
        )
    if names := [name for name, tensor in named_tensors(model, buffers=True) if is_sparse(tensor)]:
        _warn(f"errors cannot hit {', '.join(names)}: sparse tensors (an adjacency, say). {elsewhere}")
    if names := list(fake_quantized(model)):
        _warn(
            f"forward rounds {', '.join(names)} to codes (fake quantization), so most errors in their float words change "
            "nothing. What is deployed are the codes: inject into the converted model"
        )


_INTEGERS: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()  # globs that had their warning


def warn_of_integers(model: nn.Module, glob: str, names: list[str]) -> None:
    """Warns once, for a model and a glob, of buffers of integers that the glob leaves out."""
    if glob not in _INTEGERS.setdefault(model, set()):
        _INTEGERS[model].add(glob)
        some = ", ".join(names[:LISTED]) + (f", ... ({len(names)})" if len(names) > LISTED else "")
        _warn(
            f"{glob!r} leaves out {some}: buffers of integers, booleans or complex numbers (indices, masks). Exact names, and "
            "globs that match no parameter, hit integers"
        )


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=5)


def _hidden(model: nn.Module) -> Iterator[str]:
    """Names of modules with weights that are packed, or that are not registered."""
    parameters = {id(parameter) for parameter in model.parameters()}

    def is_hidden(value: Any) -> bool:
        if isinstance(value, torch.ScriptObject) and not isinstance(value, torch._C.ScriptModule):
            return ".fbgemm." not in value._type().qualified_name()  # counters of FBGEMM's look-ups are no weights
        return isinstance(value, nn.Parameter) and id(value) not in parameters

    for name, module in named_modules(model):
        attributes = [
            value for key, value in vars(module).items() if key not in ("_parameters", "_buffers", "_modules")
        ]
        if is_frozen(module) or any(map(is_hidden, tree_leaves(attributes))):
            yield name or type(module).__name__


def _unregistered(model: nn.Module) -> Iterator[str]:
    """Paths of modules with tensors, and of tensors, that an attribute holds and the model does not know. What shares memory
    with a tensor of the model is known; what a layer computes from parameters of its own, as the old `weight_norm`, and the
    states of metrics are no weights."""
    modules = named_modules(model)
    ours = {id(module) for _, module in modules}
    known = {place for _, module in modules for place in map(_memory, _own_tensors(module))} - {None}

    def is_unknown(tensor: torch.Tensor) -> bool:
        return tensor.is_leaf and tensor.dtype is not torch.bool and _memory(tensor) not in (known | {None})

    for name, module in modules:
        kind = type(module)
        if kind.__module__.startswith(_LIBRARIES) or all(callable(getattr(kind, verb, None)) for verb in _METRIC):
            continue
        for key, value in vars(module).items():
            if key in _INTERNAL or any(other.startswith(f"{key}_") for other in module._parameters):
                continue
            for path, leaf in _leaves(value, f"{name}.{key}" if name else key):
                if isinstance(leaf, nn.Module):
                    held = (tensor for part in leaf.modules() for tensor in _own_tensors(part))
                    if id(leaf) not in ours and any(map(is_unknown, held)):
                        yield path
                elif type(leaf) is torch.Tensor and is_unknown(leaf):
                    yield path


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Modules and tensors in lists, tuples, dictionaries and dataclasses, with their paths."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _leaves(part, f"{path}[{number}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name, None), f"{path}.{field.name}")
    elif isinstance(value, nn.Module | torch.Tensor):
        yield path, value


def _own_tensors(module: nn.Module) -> list[torch.Tensor]:
    return [tensor for tensor in (*module._parameters.values(), *module._buffers.values()) if tensor is not None]


def _memory(tensor: torch.Tensor) -> int | None:
    """Where the memory begins of which a tensor is a view; None if it has none of its own."""
    if tensor.layout is not torch.strided or tensor.is_meta or is_lazy(tensor) or not tensor.numel():
        return None
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):  # a wrapper around other tensors
        return None


def fake_quantized(model: nn.Module) -> Iterator[str]:
    """Names of the weights that `torch.ao`'s or torchao's fake-quantize modules round: their modules for quantization-aware
    training, and parametrizations. Rounding that a forward of another class does is not seen."""
    for name, module in named_modules(model):
        start = f"{name}." if name else ""
        for child_name, child in module.named_children():
            kinds = {kind.__name__ for kind in type(child).__mro__}
            if kinds.isdisjoint({"FakeQuantizeBase", "FakeQuantizerBase", "FakeQuantizer"}) or _is_off(child):
                continue
            weight = "original" if isinstance(module, nn.utils.parametrize.ParametrizationList) else "weight"
            if (weight == "original" or child_name.startswith("weight")) and weight in module._parameters:
                yield start + weight


def _is_off(fake_quantize: nn.Module) -> bool:
    enabled = getattr(fake_quantize, "fake_quant_enabled", getattr(fake_quantize, "enabled", True))
    return not bool(enabled)
