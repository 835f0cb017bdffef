"""A model in a file, for worker processes: how it is made, without its tensors' values, and how it is called.

cloudpickle writes classes and functions of a notebook or script by value, so workers need not import them.
"""

import io
import pickle
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import cloudpickle
import torch
from torch import nn

from drsrobust.data.dataset import Schema
from drsrobust.evaluation import Evaluator
from drsrobust.introspection.tensors import listed
from drsrobust.introspection.wrappers import is_compiled, is_script
from drsrobust.models import build_model, model_name


class NotPicklable(ValueError):
    """Other processes cannot make the model."""


def model_file(evaluator: Evaluator) -> bytes:
    """A factory of the evaluator's model, and its `forward`, as `read_model_file` reads them.

    Raises:
        NotPicklable: they cannot be pickled; the message says what would help.
    """
    model = evaluator.model
    if (why := getattr(evaluator.rows, "here_alone", None)) is not None:
        raise NotPicklable(f"{why}, which this process alone can make; run(workers=1) computes here")
    try:
        return cloudpickle.dumps((_factory(evaluator), evaluator.scoring.forward))
    except Exception as error:
        why = "it is compiled" if is_compiled(model) else str(error).partition("\n")[0]
        raise NotPicklable(
            f"workers cannot make this {type(model).__name__} ({why}); pass a function that makes it: Evaluator(..., "
            "factory=...)"
        ) from None


def read_model_file(content: bytes) -> tuple[nn.Module, Callable[[nn.Module, Any], Any] | None]:
    """The model, with any values in its tensors, and its `forward`."""
    factory, forward = cloudpickle.loads(content)
    return factory(), forward


def _factory(evaluator: Evaluator) -> Callable[[], nn.Module]:
    if evaluator.factory is not None:
        return evaluator.factory
    manifest = getattr(evaluator.model, "manifest", None)
    if isinstance(manifest, dict) and manifest.get("model") == model_name(evaluator.model) and "sizes" in manifest:
        return partial(_rebuilt, manifest["model"], manifest["schema"], manifest["sizes"])
    written = io.BytesIO()
    _WithoutValues(written, (entry.tensor for entry in listed(evaluator.model))).dump(evaluator.model)
    return partial(_unpickled, written.getvalue())


def _rebuilt(name: str, schema: dict[str, Any], sizes: dict[str, Any]) -> nn.Module:
    return build_model(name, Schema.of(schema), **sizes)


def _unpickled(content: bytes) -> nn.Module:
    return _Empty(io.BytesIO(content)).load()


def _script(content: bytes) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(io.BytesIO(content))


class _WithoutValues(cloudpickle.CloudPickler):
    """Writes some tensors as their kinds and shapes.

    Args:
        file: to write to.
        tensors: which.
    """

    def __init__(self, file: io.BytesIO, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = {id(tensor): tensor for tensor in tensors}

    def persistent_id(self, value: Any) -> Any:
        if id(value) not in self._tensors or type(value) not in (torch.Tensor, nn.Parameter, nn.Buffer):
            return None
        if value.layout is not torch.strided or not value.is_contiguous():
            return None
        return id(value), type(value), tuple(value.shape), value.dtype, str(value.device), value.requires_grad

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, nn.Module) and is_script(value):
            saved = io.BytesIO()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                torch.jit.save(value, saved)
            return _script, (saved.getvalue(),)
        return super().reducer_override(value)


class _Empty(pickle.Unpickler):
    """Reads what `_WithoutValues` wrote; tensors are zero."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._made: dict[int, torch.Tensor] = {}

    def persistent_load(self, entry: Any) -> torch.Tensor:
        number, kind, shape, dtype, device, requires_grad = entry
        if number not in self._made:
            values = torch.zeros(shape, dtype=dtype, device=device)
            if kind is nn.Parameter:
                values = nn.Parameter(values, requires_grad=requires_grad)
            elif kind is nn.Buffer:
                values = nn.Buffer(values)
            self._made[number] = values
        return self._made[number]
