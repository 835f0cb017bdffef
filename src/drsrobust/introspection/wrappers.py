"""Wrapped models and the names of what is inside; evaluation mode and replaced forwards for a block."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from drsrobust._arguments import check_instance

# Attributes in which wrappers (torch.compile, TorchRec's DistributedModelParallel, FSDP, checkpointing) keep the module they
# wrap. Names leave them out, so that a tensor has one name whether its model is wrapped or not.
_WRAPPERS = {"_orig_mod", "_dmp_wrapped_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def check_module(model: object, name: str = "model") -> None:
    """Raises ArgumentError for what is no module."""
    check_instance(name, model, nn.Module, "a torch.nn.Module")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile`, DistributedModelParallel, DistributedDataParallel or DataParallel."""
    while True:
        inner = next((model._modules[name] for name in _WRAPPERS if name in model._modules), None)
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def plain_name(name: str) -> str:
    """A tensor's or module's name without the attributes of wrappers."""
    if "_orig_mod" not in name and "_wrapped_module" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def named_modules(model: nn.Module, *, repeats: bool = False) -> list[tuple[str, nn.Module]]:
    """All modules with their names, as if nothing were wrapped; `repeats`: a module in two places by each of its names.

    The order is that of `nn.Module.named_modules`, whose generators take ten times as long."""
    modules: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()
    waiting = [("", unwrapped(model))]
    while waiting:
        name, module = waiting.pop()
        if id(module) in seen and not repeats:
            continue
        seen.add(id(module))
        if type(module).named_modules is not nn.Module.named_modules:  # as of TorchRec's sharded modules
            inner = module.named_modules(prefix=name, remove_duplicate=not repeats)
            modules += [(plain_name(path), other) for path, other in inner]
            continue
        modules.append((name, module))
        for key, child in reversed(module._modules.items()):
            if child is not None:
                waiting.append((name if key in _WRAPPERS else f"{name}.{key}" if name else key, child))
    return modules


def add_forward_hook(module: nn.Module, hook: Callable[..., Any], **options: Any) -> Any:
    """As `module.register_forward_hook`, also of a TorchScript module, which runs hooks where Python calls it."""
    if is_script(module):  # which refuses hooks of its own methods
        return nn.Module.register_forward_hook(module, hook, **options)
    return module.register_forward_hook(hook, **options)


def add_forward_pre_hook(module: nn.Module, hook: Callable[..., Any], **options: Any) -> Any:
    """As `module.register_forward_pre_hook`, also of a TorchScript module."""
    if is_script(module):
        return nn.Module.register_forward_pre_hook(module, hook, **options)
    return module.register_forward_pre_hook(hook, **options)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients while the block runs; then each module has its earlier mode."""
    training = [module for module in model.modules() if not is_frozen(module) and module.training]
    if training:
        to_evaluation(model)
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def to_evaluation(model: nn.Module) -> None:
    """As `model.eval()`; where that raises, as of `torch.export`'s modules, each module's flag is set, as `nn.Module.eval` does
    it."""
    try:
        model.eval()
    except Exception:
        for module in model.modules():
            if not is_frozen(module) and module.training:
                module.training = False


def is_script(module: nn.Module) -> bool:
    """Whether a module is TorchScript: scripted, traced or loaded. Its parts are not called by Python, so they run no hooks."""
    return isinstance(module, torch.jit.ScriptModule)


def is_frozen(module: nn.Module) -> bool:
    """Whether a module is frozen TorchScript: it has no mode, and its weights are constants of its code."""
    return is_script(module) and hasattr(module, "_c") and not module._c.hasattr("training")


ModuleForward = Callable[..., Any]


@contextmanager
def intercepted(
    modules: Mapping[str, nn.Module], replacement: Callable[[str, ModuleForward], ModuleForward]
) -> Iterator[None]:
    """Replaces `module.forward` by `replacement(name, forward)` while the block runs. A module's hooks still run.

    Args:
        modules: name -> module. TorchScript modules keep their forward, which cannot be replaced.
        replacement: returns the function that is called in place of a forward.
    """
    replaced: list[tuple[nn.Module, ModuleForward | None]] = []
    try:
        for name, module in modules.items():
            if is_script(module):
                continue
            replaced.append((module, module.__dict__.get("forward")))
            module.__dict__["forward"] = replacement(name, module.forward)
        yield
    finally:
        for module, original in reversed(replaced):
            if original is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = original


def is_compiled(module: nn.Module) -> bool:
    """Whether a module was compiled, by `torch.compile(module)` or `module.compile()`: hooks added later do not run in it."""
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


def has_replaced_forward(module: nn.Module) -> bool:
    """Whether the module has a forward other than its class, as under `intercepted`."""
    return "forward" in module.__dict__


@contextmanager
def requiring_gradients(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Tensors of a model require gradients while the block runs.

    Raises:
        ValueError: they, or what they are computed with, are inference tensors, which have no gradients.
    """
    needed = [tensor.requires_grad for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.requires_grad_(True)
        with torch.inference_mode(False):
            yield
    except RuntimeError as error:
        if "nference tensor" not in str(error) and "InferenceMode" not in str(error):
            raise
        raise ValueError(
            "gradients are needed, and the model or its rows hold inference tensors, which have none; make them outside of "
            "torch.inference_mode(), or clone them there"
        ) from error
    finally:
        for tensor, need in zip(tensors, needed, strict=True):
            if tensor.requires_grad != need:
                tensor.requires_grad_(need)
