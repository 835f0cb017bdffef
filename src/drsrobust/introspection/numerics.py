"""What decides a model's numbers outside of the model: PyTorch's settings of this thread and process, and the casts of weights
that PyTorch keeps for the length of a context."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.utils import parametrize

_AUTOCAST = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla")  # types of devices
_DEFAULTS = {"default dtype": "float32", "default device": "cpu", "float32 matmul precision": "highest"}
_DENORMAL, _HALF = np.float32(1e-39), np.float32(0.5)


def forget_casts() -> None:
    """Drops what PyTorch keeps of weights until a context ends: the casts of `torch.autocast`, and the results of
    parametrizations inside of `torch.nn.utils.parametrize.cached()`. Otherwise a changed weight has no effect there."""
    torch.clear_autocast_cache()
    parametrize._cache.clear()


def numerics() -> dict[str, Any]:
    """The settings that differ from PyTorch's defaults, as JSON: `autocast` (the dtype by type of device), `default dtype`,
    `default device`, `float32 matmul precision`, and `flush denormal`."""
    found: dict[str, Any] = {}  # each evaluation asks: the common case takes a few microseconds
    if torch._C._is_any_autocast_enabled():
        enabled = [device for device in _AUTOCAST if torch.is_autocast_enabled(device)]
        found["autocast"] = {device: _name(torch.get_autocast_dtype(device)) for device in enabled}
    if (dtype := torch.get_default_dtype()) != torch.float32:
        found["default dtype"] = _name(dtype)
    if torch._C._len_torch_function_stack() and (device := str(torch.get_default_device())) != "cpu":
        found["default device"] = device
    if (precision := _matmul_precision()) != "highest":
        found["float32 matmul precision"] = precision
    with np.errstate(
        under="ignore"
    ):  # a thread's flag of the processor, which NumPy obeys too and PyTorch does not tell
        if _DENORMAL * _HALF == 0:
            found["flush denormal"] = True
    return found


@contextmanager
def under_numerics(settings: Mapping[str, Any]) -> Iterator[None]:
    """Sets what `numerics` returned elsewhere, in this thread and process, inside the block."""
    present = numerics()
    if present == settings:
        yield
        return
    with ExitStack() as stack:
        for name in ("default dtype", "default device", "float32 matmul precision", "flush denormal"):
            before, inside = (each.get(name, _DEFAULTS.get(name, False)) for each in (present, settings))
            if before != inside:
                stack.callback(_SET[name], before)
                _SET[name](inside)
        autocast = settings.get("autocast", {})
        for device in {*autocast, *present.get("autocast", {})}:
            dtype = getattr(torch, autocast[device]) if device in autocast else None
            stack.enter_context(torch.autocast(device, dtype, enabled=device in autocast))
        yield


def numerics_text(settings: Mapping[str, Any]) -> str:
    """The settings for messages."""
    return ", ".join(f"{name} {value}" for name, value in sorted(settings.items())) or "PyTorch's defaults"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _matmul_precision() -> str:
    """`torch.get_float32_matmul_precision()`; where the newer settings by backend are used, which it refuses, these."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return " ".join(f"{name}={backend.matmul.fp32_precision}" for name, backend in _BACKENDS.items())


def _set_matmul_precision(value: str) -> None:
    if "=" not in value:
        torch.set_float32_matmul_precision(value)
        return
    for part in value.split():
        name, precision = part.split("=")
        _BACKENDS[name].matmul.fp32_precision = precision


_BACKENDS = {"cuda": torch.backends.cuda, "mkldnn": torch.backends.mkldnn}
_SET = {
    "default dtype": lambda name: torch.set_default_dtype(getattr(torch, name)),
    "default device": lambda name: torch.set_default_device(None if name == "cpu" else name),
    "float32 matmul precision": _set_matmul_precision,
    "flush denormal": torch.set_flush_denormal,
}
