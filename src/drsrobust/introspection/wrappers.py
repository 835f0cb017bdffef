"""Evaluation mode for a block, replaced forwards for a block, compiled modules."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients while the block runs; then each module has its earlier mode."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


Forward = Callable[..., Any]


@contextmanager
def intercepted(modules: Mapping[str, nn.Module], replacement: Callable[[str, Forward], Forward]) -> Iterator[None]:
    """Replaces `module.forward` by `replacement(name, forward)` while the block runs. A module's hooks still run.

    Args:
        modules: name -> module. TorchScript modules keep their forward, which cannot be replaced.
        replacement: returns the function that is called in place of a forward.
    """
    replaced: list[tuple[nn.Module, Forward | None]] = []
    try:
        for name, module in modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            replaced.append((module, module.__dict__.get("forward")))
            module.__dict__["forward"] = replacement(name, module.forward)
        yield
    finally:
        for module, own in reversed(replaced):
            if own is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = own


def is_compiled(module: nn.Module) -> bool:
    """Whether a module was compiled, by `torch.compile(module)` or `module.compile()`: hooks added later do not run in it."""
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


def has_replaced_forward(module: nn.Module) -> bool:
    """Whether the module has a forward other than its class, as under `intercepted`."""
    return "forward" in module.__dict__
