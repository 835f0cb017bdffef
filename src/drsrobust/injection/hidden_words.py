"""Words of a model that no target holds, and words whose errors change little: a warning, once for each model."""

import warnings
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from drsrobust.introspection.tensors import is_sparse, named_modules, named_tensors
from drsrobust.introspection.wrappers import is_frozen

LISTED = 8  # names in a message, at most
_WARNED: WeakSet[nn.Module] = WeakSet()


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
