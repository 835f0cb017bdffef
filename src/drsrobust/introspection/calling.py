"""One way to call a model on one batch of rows."""

import inspect
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

Forward = Callable[[nn.Module, Any], Any]
_KEYWORDS = ("dense_features", "sparse_features")


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's first parameter or buffer; the CPU for a model without."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def call(model: nn.Module, batch: Any, forward: Forward | None = None) -> Any:
    """The output of a model for one batch, which is moved to the model's device unless that is the CPU.

    Args:
        model: any module.
        batch: without `forward`: an object with `dense_features` and `sparse_features` (as TorchRec's `Batch`), or a tuple
            (dense features, KeyedJaggedTensor, labels); they become these keyword arguments. With `forward`: anything.
        forward: called as `forward(model, batch)`; None: `model(dense_features=..., sparse_features=...)`.

    Raises:
        TypeError: another batch, or a model with other arguments, without `forward`.
    """
    device = device_of(model)
    if device.type != "cpu":
        batch = tree_map(lambda part: part.to(device) if _movable(part) else part, batch, is_leaf=_movable)
    if forward is not None:
        return forward(model, batch)
    if hasattr(batch, "dense_features") and hasattr(batch, "sparse_features"):
        return _by_keywords(model, batch.dense_features, batch.sparse_features)
    if isinstance(batch, tuple | list) and len(batch) == 3 and _is_jagged(batch[1]):
        return _by_keywords(model, batch[0], batch[1])
    seen, part = _description(batch)
    raise TypeError(f"this batch is {seen}; pass forward=lambda model, batch: model({part})")


def _by_keywords(model: nn.Module, dense: Any, sparse: Any) -> Any:
    try:
        return model(dense_features=dense, sparse_features=sparse)
    except TypeError as error:
        takes = inspect.signature(model.forward).parameters
        known = any(one.kind is one.VAR_KEYWORD for one in takes.values()) or {*_KEYWORDS} <= set(takes)
        if known:
            raise
        raise TypeError(
            f"{type(model).__name__}.forward takes {', '.join(takes) or 'nothing'}, not dense_features and sparse_features; "
            "pass forward=lambda model, batch: model(...) that takes them from the batch"
        ) from error


def _movable(value: Any) -> bool:
    return hasattr(value, "to")


def _is_jagged(value: Any) -> bool:
    """Whether a value has the methods of a KeyedJaggedTensor."""
    methods = (getattr(value, name, None) for name in ("keys", "values"))
    return not isinstance(value, Mapping) and all(map(callable, methods))


def _description(batch: Any) -> tuple[str, str]:
    """What a batch is, and the expression of the part that a model most likely takes."""
    if isinstance(batch, torch.Tensor):
        return f"a tensor {list(batch.shape)}", "batch"
    if isinstance(batch, Mapping) and batch:
        return f"a dict with the keys {', '.join(map(repr, batch))}", f"batch[{next(iter(batch))!r}]"
    if isinstance(batch, tuple | list) and batch:
        kind = "tuple" if isinstance(batch, tuple) else "list"
        if all(isinstance(part, torch.Tensor) for part in batch):
            return f"a {kind} of {len(batch)} tensor{'s' * (len(batch) > 1)}", "batch[0]"
        return f"a {kind} ({', '.join(type(part).__name__ for part in batch)})", "batch[0]"
    return f"of type {type(batch).__name__}", "batch"
