"""Tensors in what modules take and return: tuples, dictionaries, dataclasses, other objects, TorchRec's sparse types."""

import copy
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import SUPPORTED_NODES

from drsrobust.introspection.embedding_modules import sparse_type, with_values

# (path of a tensor in the value, as "[0]" or "[scores]"; the tensor; the TorchRec object whose values it is, or else the
# tensor) -> its replacement
Replacement = Callable[[str, torch.Tensor, Any], torch.Tensor]

DEPTH = 10  # levels of objects in objects
_OPAQUE = (nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType)


def with_tensors(value: Any, replacement: Replacement, path: str = "", around: tuple[Any, ...] = ()) -> Any:
    """A value with other tensors: it itself if none of them changed, else a copy of what holds the changed ones.

    Args:
        value: a tensor; a KeyedTensor, JaggedTensor or KeyedJaggedTensor, of which the values count; or tuples, lists,
            mappings, dataclasses and objects with attributes that hold such, up to `DEPTH` levels of them.
        replacement: called with each tensor, in their order.
        path: of the value.
        around: the objects that hold it.
    """
    if isinstance(value, torch.Tensor):
        return replacement(path, value, value)
    if sparse_type(value):
        values = value.values()
        changed = replacement(path, values, value)
        return value if changed is values else with_values(value, changed)
    if len(around) == DEPTH or any(value is outer for outer in around):
        return value
    parts = dict(_parts(value))
    changed = {
        key: new
        for key, (place, part) in parts.items()
        if (new := with_tensors(part, replacement, path + place, (*around, value))) is not part
    }
    return _copied(value, changed) if changed else value


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a value, as `with_tensors` finds them."""
    found: list[torch.Tensor] = []

    def keep(_: str, tensor: torch.Tensor, __: Any) -> torch.Tensor:
        found.append(tensor)
        return tensor

    with_tensors(value, keep)
    return found


def _parts(value: Any) -> Iterator[tuple[Any, tuple[str, Any]]]:
    """What a value holds: its key, number or attribute -> (end of its path, the part)."""
    if isinstance(value, Mapping) and not is_dataclass(value):
        return ((key, (f"[{key}]", part)) for key, part in value.items())
    if isinstance(value, tuple | list):
        return ((number, (f"[{number}]", part)) for number, part in enumerate(value))
    if isinstance(value, _OPAQUE):
        return iter(())
    if is_dataclass(value):
        names = [field.name for field in fields(value) if hasattr(value, field.name)]
        return ((name, (f"[{name}]", getattr(value, name))) for name in names)
    if node := SUPPORTED_NODES.get(type(value)):
        return ((number, (f"[{number}]", part)) for number, part in enumerate(node.flatten_fn(value)[0]))
    return ((name, (f"[{name}]", part)) for name, part in getattr(value, "__dict__", {}).items())


def _copied(value: Any, changed: Mapping[Any, Any]) -> Any:
    """A copy of a value with some other parts."""
    if isinstance(value, tuple | list):
        parts = [changed.get(number, part) for number, part in enumerate(value)]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    if is_dataclass(value) or isinstance(value, Mapping) or type(value) not in SUPPORTED_NODES:
        copied = copy.copy(value)
        for key, part in changed.items():
            if isinstance(value, Mapping) and not is_dataclass(value):
                copied[key] = part
            else:
                _set(copied, key, part)
        return copied
    node = SUPPORTED_NODES[type(value)]
    parts, context = node.flatten_fn(value)
    return node.unflatten_fn([changed.get(number, part) for number, part in enumerate(parts)], context)


def _set(value: Any, name: str, part: Any) -> None:
    try:
        setattr(value, name, part)
    except AttributeError:  # frozen
        object.__setattr__(value, name, part)
