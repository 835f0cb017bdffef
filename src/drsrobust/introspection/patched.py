"""Functions of installed packages that are not the installed ones: set from outside on a class, or on a module as
`torch.nn.functional`, as guards and instrumentation do. The digest of installed code, its name and version, does not see them.
"""

import functools
import math
import types
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.modules import module as module_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from drsrobust.introspection.origin import is_installed

# What models call, whether their own code names it or an installed module does.
_NAMESPACES = (torch, torch.Tensor, functional, torch.nn.Module, torch.linalg, torch.special, torch.fft, torch.sparse)
_NAMESPACES += (torch._C._nn, np, np.linalg, np.ndarray, math)
_DEPTH = 3  # decorators around a function
_KNOWN: dict[type | types.ModuleType, dict[str, Any]] = {}  # members of classes and modules that are not the user's


def patched_members(kind: type) -> dict[str, Any]:
    """Functions of an installed class and of its installed bases that are the user's, by name; and a `forward` of another
    class."""
    found, mro = {}, {base.__qualname__ for base in kind.__mro__}
    for base in reversed(kind.__mro__):
        if is_installed(base.__module__):
            found |= _own(base)
            owner, _, last = _qualified(vars(base).get("forward")).rpartition(".")
            if last == "forward" and "<locals>" not in owner and owner not in mro:
                found["forward"] = vars(base)["forward"]
    return found


def patched_in(module: types.ModuleType, names: Iterable[str]) -> dict[str, Any]:
    """The functions of the user that an installed module has under some names."""
    present = {name: vars(module)[name] for name in names if name in vars(module)}
    return {name: value for name, value in present.items() if _is_own(value)}


def surroundings() -> dict[str, Any]:
    """What acts on every model of this process, where there is any: `global hooks` of modules, `torch modes`
    (TorchFunctionMode and TorchDispatchMode), and `patched functions` of PyTorch, NumPy and `math`, by name."""
    hooks = {
        name: list(value.values()) if isinstance(value, dict) else value
        for name, value in vars(module_hooks).items()
        if name.startswith("_global_") and name.endswith("_hooks") and value
    }
    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    modes = [mode for mode in modes if not isinstance(mode, DeviceContext)]  # of `numerics`
    patched = {f"{space.__name__}.{name}": value for space in _NAMESPACES for name, value in _own(space).items()}
    parts = {"global hooks": hooks, "torch modes": modes, "patched functions": patched}
    return {name: part for name, part in parts.items() if part}


def _own(space: type | types.ModuleType) -> dict[str, Any]:
    """The functions of the user in an installed class or module, and those of `functional` under another's name. What was found
    to be neither is not looked at again as long as it is the same object."""
    known = _KNOWN.setdefault(space, {})
    found = {}
    for name, value in vars(space).items():
        if known.get(name) is value:
            continue
        if _is_own(value) or (space is functional and _is_other(name, value)):
            found[name] = value
        else:
            known[name] = value
    return found


def _is_own(value: Any, depth: int = _DEPTH) -> bool:
    """Whether something that can be called is, or wraps, a function of the user."""
    if isinstance(value, types.FunctionType):
        if not is_installed(value.__globals__.get("__name__", "")):
            return True
        inner = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        inner.append(value.__dict__.get("__wrapped__"))
    elif isinstance(value, staticmethod | classmethod | types.MethodType):
        inner = [value.__func__]
    elif isinstance(value, property):
        inner = [value.fget, value.fset]
    elif isinstance(value, functools.partial):
        inner = [value.func]
    elif isinstance(value, type | types.ModuleType) or not callable(value):
        return False
    else:
        return not is_installed(type(value).__module__)
    return depth > 0 and any(_is_own(part, depth - 1) for part in inner if part is not None)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _qualified(value: Any) -> str:
    """Where the code of a function was defined; empty for anything else."""
    value = getattr(value, "__func__", value)
    return value.__code__.co_qualname if isinstance(value, types.FunctionType) else ""


def _is_other(name: str, value: Any) -> bool:
    """Whether a function of `torch.nn.functional` is not the one of its name; `threshold` is called `_threshold`."""
    if name.startswith("_") or isinstance(value, type) or not callable(value):
        return False
    own = getattr(value, "__name__", name)
    return not own.replace("_", "").endswith(name.replace("_", ""))
