"""One way to call a model on one batch of rows, and what its errors say."""

import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from drsrobust.introspection.numerics import forget_casts
from drsrobust.introspection.origin import is_installed

Forward = Callable[[nn.Module, Any], Any]
_KEYWORDS = ("dense_features", "sparse_features")
_LISTED = 8  # parts of a batch in a message, at most
_OTHER_DTYPE = re.compile(r"(same|mixed) dtype|scalar type \w+ but|type .* should be the same")


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's first parameter or buffer; the CPU for a model without."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def on_device_of(model: nn.Module, batch: Any) -> Any:
    """A batch on the model's device, unless that is the CPU."""
    device = device_of(model)
    if device.type == "cpu":
        return batch
    return tree_map(lambda part: part.to(device) if _movable(part) else part, batch, is_leaf=_movable)


def call(model: nn.Module, batch: Any, forward: Forward | None = None, number: int | None = None) -> Any:
    """The output of a model for one batch, which is moved to the model's device unless that is the CPU. It is computed from the
    present weights, also inside of `torch.autocast` and `parametrize.cached()`, which keep casts of earlier ones.

    Args:
        model: any module.
        batch: without `forward`: an object with `dense_features` and `sparse_features` (as TorchRec's `Batch`), or a tuple
            (dense features, KeyedJaggedTensor, labels); they become these keyword arguments. With `forward`: anything.
        forward: called as `forward(model, batch)`; None: `model(dense_features=..., sparse_features=...)`.
        number: of the batch, from 0, which errors of the model or of `forward` then name, with what it has and the user's
            line; None: they come as they are.

    Raises:
        TypeError: another batch, or a model with other arguments, without `forward`.
        Exception: of the model or of `forward`, of the same type; a RuntimeError where the type is not made of one text.
    """
    batch = on_device_of(model, batch)
    forget_casts()
    if forward is None:
        forward = partial(_by_keywords, *_dense_and_sparse(batch))
    try:
        return forward(model, batch)
    except Exception as error:
        if number is None:
            raise
        raise _explained(error, model, batch, number) from error


def _dense_and_sparse(batch: Any) -> tuple[Any, Any]:
    if hasattr(batch, "dense_features") and hasattr(batch, "sparse_features"):
        return batch.dense_features, batch.sparse_features
    if isinstance(batch, tuple | list) and len(batch) == 3 and _is_jagged(batch[1]):
        return batch[0], batch[1]
    description, part = _description(batch)
    raise TypeError(f"this batch is {description}; pass forward=lambda model, batch: model({part})")


def _by_keywords(dense: Any, sparse: Any, model: nn.Module, batch: Any) -> Any:
    try:
        return model(dense_features=dense, sparse_features=sparse)
    except TypeError as error:
        takes = inspect.signature(model.forward).parameters
        accepted = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()) or {*_KEYWORDS} <= set(
            takes
        )
        if accepted:
            raise
        raise TypeError(
            f"{type(model).__name__}.forward takes {', '.join(takes) or 'nothing'}, not dense_features and sparse_features; "
            "pass forward=lambda model, batch: model(...) that takes them from the batch"
        ) from error


class _Text(str):
    """A text that a KeyError shows as it is, and not as a key in quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _explained(error: Exception, model: nn.Module, batch: Any, number: int) -> Exception:
    """An error of `forward` with what the batch has and the user's line, of its type where that is made of one text."""
    try:
        content = _content(batch)
    except Exception:
        content = type(batch).__name__
    text = f"forward failed on {f'batch {number}' if number else 'the first batch'}, which has {content}"
    text += f"{_line(error)}: {type(error).__name__}: {error}".rstrip(": ")
    dtypes = {
        str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters() if parameter.is_floating_point()
    }
    if _OTHER_DTYPE.search(str(error)) and set(re.findall(r"b?float\d+", content)) - dtypes:
        text += f"; parameters are {', '.join(sorted(dtypes))}: forward must cast, as x.to(torch.{min(dtypes)})"
    try:
        explained = type(error)(_Text(text))
    except Exception:
        return RuntimeError(text)
    return explained if explained.args == (text,) else RuntimeError(text)


def _line(error: Exception) -> str:
    """The innermost line of the user's code that an error passed: file, number and text."""
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        text = linecache.getline(file, number, frame.f_globals).strip()
        if text and not is_installed(frame.f_globals.get("__name__", "")):
            return f", in {file}:{number} `{text}`"
    return ""


def _content(value: Any, depth: int = 0) -> str:
    """The fields of a batch, their dtypes and shapes."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if _is_jagged(value):
        return f"({_first(value.keys())}; values() {_content(value.values())})"
    name = type(value).__name__
    if isinstance(value, Mapping):
        parts = [f"{key!r} {_content(part, depth + 1)}" for key, part in value.items()]
    elif isinstance(value, tuple | list):
        parts = [_content(part, depth + 1) for part in value]
    else:
        fields = {key: part for key, part in getattr(value, "__dict__", {}).items() if key[0] != "_"}
        parts = [f"{key} {_content(part, depth + 1)}" for key, part in fields.items()] if depth < 2 else []
        name = name if depth or not parts else ""
    if not parts:
        return name
    return f"{name} ({_first(parts)})" if name else _first(parts)


def _first(names: Iterable[Any]) -> str:
    names = list(map(str, names))
    return ", ".join(names[:_LISTED]) + (f", ... ({len(names)})" if len(names) > _LISTED else "")


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
