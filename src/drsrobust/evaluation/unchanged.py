"""Whether a model is still put together as it was, so that what was recorded of its operations holds."""

from itertools import chain
from operator import is_

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from drsrobust.tensors import address


class Unchanged:
    """Remembers a model's modules, the tensors in them and where these lie.

    Args:
        model: any module.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._plain = not any(isinstance(module, torch.jit.ScriptModule) for module in self._modules)
        self._parts = self._now()
        self._tensors = [part for part in self._parts if isinstance(part, torch.Tensor)]
        self._places = self._lie()

    def __call__(self) -> bool:
        """Whether all is as it was, and no code of its user's runs besides the modules' own: no hook, no forward that was
        replaced, nothing compiled."""
        parts = self._now()
        return (
            self._plain
            and not _has_any_global_hook()
            and not any(_hooked(module) for module in self._modules)
            and len(parts) == len(self._parts)
            and all(map(is_, parts, self._parts))
            and self._places == self._lie()
        )

    def _lie(self) -> list:
        return [(address(tensor), tensor.dtype) for tensor in self._tensors]

    def _now(self) -> list:
        parts = (
            chain(module._modules.values(), module._parameters.values(), module._buffers.values())
            for module in self._modules
        )
        return list(chain.from_iterable(parts))


def _hooked(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or "forward" in module.__dict__
        or module._compiled_call_impl is not None
    )
