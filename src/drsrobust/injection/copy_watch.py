"""A warning where a module is copied while errors are in it."""

import warnings
from typing import Any

import torch
from torch import nn


class _CopyWatch:
    """Warns if a module with errors is copied, pickled or saved, because the copy keeps the errors.

    Replaces the module's `state_dict` and its `__getstate__`, which `copy.deepcopy`, `pickle` and `torch.save` call, also for
    a parent. (A hook of `state_dict` takes 10 us to register, and would be copied.)
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.warned = False
        module.__dict__ |= {"__getstate__": self, "state_dict": self._state_dict}

    def __call__(self) -> Any:
        self._warn("copied or pickled")
        state = type(self._module).__getstate__(self._module)
        if isinstance(state, dict):
            state = {name: value for name, value in state.items() if name not in ("__getstate__", "state_dict")}
        return state

    def _state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self._warn("read by state_dict()")
        return type(self._module).state_dict(self._module, *args, **kwargs)

    def _warn(self, action: str) -> None:
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"{type(self._module).__name__} was {action} while errors are in it: the copy has these errors, and undo does "
                "not reach it. Copy a model before injecting into it",
                stacklevel=4,
            )


def watch_copies(module: nn.Module) -> None:
    """Warns of the next copy of a module; TorchScript's modules cannot be watched."""
    watch = module.__dict__.get("__getstate__")
    if isinstance(watch, _CopyWatch):
        watch.warned = False
    elif not isinstance(module, torch.jit.ScriptModule):
        _CopyWatch(module)


def unwatch_copies(module: nn.Module) -> None:
    """Undoes `watch_copies`; may run twice."""
    if isinstance(module.__dict__.get("__getstate__"), _CopyWatch):
        for name in ("__getstate__", "state_dict"):
            module.__dict__.pop(name, None)
