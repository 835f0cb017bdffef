"""A model as it is evaluated, for a while.

Standing in for the forward of a model's modules for a while, and leaving no trace."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model is in evaluation mode, without gradients, while the block runs; each module then has the mode it had."""
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
def intercepted(modules: Mapping[str, nn.Module], stand_in: Callable[[str, Forward], Forward]) -> Iterator[None]:
    """While the block runs, `module.forward` is `stand_in(name, forward)` for each of some modules. A module's hooks still run
    around it.

    Args:
        modules: name -> module. TorchScript's modules, whose forward cannot be replaced, are left as they are.
        stand_in: gives what is called in place of a forward.
    """
    replaced: list[tuple[nn.Module, Forward | None]] = []
    try:
        for name, module in modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            replaced.append((module, module.__dict__.get("forward")))
            module.__dict__["forward"] = stand_in(name, module.forward)
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
    """Whether something else is called in place of the forward of a module's class, as `intercepted` does."""
    return "forward" in module.__dict__
