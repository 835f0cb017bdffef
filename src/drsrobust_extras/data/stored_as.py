"""Models whose weights are stored in narrow number formats, and computed with in float32 as before.

A dense parameter keeps its name. What it holds are words of the format; a module that reads it gets them converted to float32
(times their scale), so an error in a stored word is exactly an error in the value that the layer computes with. Tables of
TorchRec's collections become FBGEMM's rows: codes, scale and bias of each row, as its inference kernels read them."""

import copy
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from drsrobust.extend import check_choice, check_module, is_compiled, is_script, output_names, torchrec
from drsrobust.introspection import is_sharded, listed, named_modules

DENSE = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
TABLES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "int8": torch.qint8,
    "int4": torch.quint4x2,
    "int2": torch.quint2x4,
}
SCALES = ("none", "tensor", "row")
SCALED = ("fp16", "fp8_e4m3", "fp8_e5m2")  # formats with less of a range than float32
_SCALE = "_scale"  # ends the name of a parameter's scale


def stored_as(
    model: nn.Module, *, dense: str | None = None, tables: str | None = None, scale: str = "none"
) -> nn.Module:
    """A copy of a model with its weights stored in other number formats, rounded to nearest.

    Everything else takes it as any model: errors, evaluators, protections and plans see the stored words.

    Args:
        model: of float32 weights, without errors.
        dense: of all float32 parameters outside of embedding tables: `fp32`, `bf16`, `fp16`, `fp8_e4m3`, `fp8_e5m2` (OCP's
            8-bit formats); None: as they are. Buffers, as BatchNorm's means, stay float32.
        tables: of the tables of TorchRec's `EmbeddingBagCollection`, as rows of FBGEMM: `fp32`, `fp16`, `int8`, `int4`, `int2`
            (integers with a scale and a bias of float16 in each row); None: as they are.
        scale: of `fp16` and 8 bits: `none`; `tensor` or `row`, a factor of float32 for each parameter, or each row of one, that
            brings its largest number to the format's largest, as 8-bit formats are served. Factors are parameters
            `<name>_scale`, which errors may hit too.

    Returns:
        the copy, in the mode of the model; it has no `manifest`.

    Raises:
        ValueError: an unknown format; numbers over the format's range; a model without such tables, or with embedding modules
            of another kind; a compiled, scripted or sharded model, or one whose modules refer to a parameter twice.

    Example:
        >>> layer = torch.nn.Linear(64, 32)
        >>> narrow = stored_as(layer, dense="bf16")
        >>> narrow._parameters["weight"].dtype, narrow.weight.dtype  # stored; what the layer computes with
        (torch.bfloat16, torch.float32)
        >>> bool((narrow.weight - layer.weight).abs().max() <= layer.weight.abs().max() / 256)
        True
    """
    check_module(model)
    if dense is None and tables is None:
        raise ValueError(
            "pass dense= or tables=, a number format, as dense='bf16'; without one nothing would be stored in it"
        )
    if dense is not None:
        check_choice("dense format", dense, DENSE)
    if tables is not None:
        check_choice("table format", tables, TABLES)
    check_choice("scale", scale, SCALES)
    if scale != "none" and dense not in SCALED:
        raise ValueError(f"scale={scale!r} is of the dense formats {', '.join(SCALED)}, not of {dense}")
    _refuse(model)
    converted = copy.deepcopy(model)
    vars(converted).pop("manifest", None)
    if dense is not None:
        _store_dense(converted, DENSE[dense], scale)
    return converted if tables is None else _store_tables(converted, tables)


def _refuse(model: nn.Module) -> None:
    name = type(model).__name__
    if is_sharded(model):
        raise ValueError(f"{name} is sharded over ranks; store it in another format before it is sharded")
    for module in model.modules():
        if is_script(module) or is_compiled(module):
            raise ValueError(f"{name} is compiled; store it in another format before it is compiled")


def _store_dense(model: nn.Module, dtype: torch.dtype, scale: str) -> None:
    """Rounds the float32 parameters outside of embedding modules to a format, in place."""
    chosen = {
        id(entry.tensor): entry.name
        for entry in listed(model)
        if entry.parameter and entry.table is None and not entry.embedding and entry.tensor.dtype == torch.float32
    }
    made: dict[int, tuple[nn.Parameter, nn.Parameter | None]] = {}  # a tied parameter stays one
    for _, module in named_modules(model):
        names = [name for name, value in module._parameters.items() if value is not None and id(value) in chosen]
        for name in names:
            original = module._parameters[name]
            _refuse_references(module, original, chosen[id(original)])
            if id(original) not in made:
                made[id(original)] = _rounded(original, dtype, scale, chosen[id(original)])
            values, factor = made[id(original)]
            module._parameters[name] = values
            if factor is not None:
                module.register_parameter(name + _SCALE, factor)
        if names:
            module.__class__ = _stored_class(type(module), tuple(names))


def _refuse_references(module: nn.Module, parameter: nn.Parameter, name: str) -> None:
    """Refuses a module that refers to a parameter by another attribute, as nn.LSTM: it would compute with unrounded numbers."""
    for attribute, value in vars(module).items():
        items = value if isinstance(value, list | tuple) else [value]
        if any(item is parameter for item in items):
            raise ValueError(
                f"{name}: {type(module).__name__} refers to it by {attribute!r} too, so it cannot be stored in another format"
            )


def _rounded(
    parameter: nn.Parameter, dtype: torch.dtype, scale: str, name: str
) -> tuple[nn.Parameter, nn.Parameter | None]:
    """A parameter in another format, and its scale."""
    values, factor = parameter.detach(), None
    largest = torch.finfo(dtype).max
    if scale != "none" and values.numel():
        rows = tuple(range(1, values.dim())) if scale == "row" and values.dim() > 1 else tuple(range(values.dim()))
        most = values.abs().amax(dim=rows, keepdim=True) if values.dim() else values.abs()
        factor = torch.where(most > 0, most / largest, 1.0)
        values = values / factor
    elif values.numel() and not values.abs().max() <= largest:
        raise ValueError(
            f"{name} has numbers to {values.abs().max():.4g}, and the largest of {dtype} is {largest:g}: scale='tensor'"
        )
    stored = nn.Parameter(values.clamp(-largest, largest).to(dtype), requires_grad=parameter.requires_grad)
    return stored, None if factor is None else nn.Parameter(factor, requires_grad=False)


class _Stored(nn.Module):
    """A module that reads some of its parameters as float32."""

    def __reduce__(self) -> tuple[Any, ...]:
        base, names = type(self).stored
        return _empty, (base, names), vars(self).copy()


def _empty(base: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    kind = _stored_class(base, names)
    return kind.__new__(kind)


@cache
def _stored_class(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """A class as `base`, whose instances read these parameters as float32. It has the name of `base`, by which models and
    layers are known."""
    members: dict[str, Any] = {name: _as_float32(name) for name in names}
    members |= {"__module__": base.__module__, "__qualname__": base.__qualname__, "stored": (base, names)}
    return type(base.__name__, (_Stored, base), members)


def _as_float32(name: str) -> property:
    def values(module: nn.Module) -> torch.Tensor:
        parameters: Mapping[str, torch.Tensor] = module._parameters
        stored = parameters[name].float()
        return stored * parameters[name + _SCALE] if name + _SCALE in parameters else stored

    return property(values)


def _store_tables(model: nn.Module, tables: str) -> nn.Module:
    """The model with its collections' tables as rows of FBGEMM, changed in place."""
    collections = {
        name: module for name, module in named_modules(model) if type(module) is torchrec().EmbeddingBagCollection
    }
    inside = tuple(f"{name}." if name else "" for name in collections)
    others = [e.name for e in listed(model) if (e.embedding or e.table) and not (inside and e.name.startswith(inside))]
    if not collections or others:
        what = f"{others[0]} is none" if others else f"{type(model).__name__} has none"
        raise ValueError(f"tables={tables!r} is of tables of TorchRec's EmbeddingBagCollection; {what}")
    for name, module in collections.items():
        configs = module.embedding_bag_configs()
        odd = [config.name for config in configs if config.embedding_dim % 2]
        if odd and tables.startswith("int"):  # FBGEMM's codes fill whole words of float16
            warnings.warn(
                f"tables of {name} stay as they are: {odd[0]} has an odd width, which {tables} rows cannot have",
                stacklevel=3,
            )
            continue
        rows = _as_rows(module, TABLES[tables])
        if output_names(rows) != output_names(module):
            raise ValueError(
                f"{name}: TorchRec groups quantized tables by pooling, so their outputs would come in another order; list all "
                "tables that sum before those that take means"
            )
        if not name:
            return rows
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, rows)
    return model


def _as_rows(collection: nn.Module, dtype: torch.dtype) -> nn.Module:
    from torchrec.inference.modules import quantize_embeddings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", message="torch.ao.quantization")
        return quantize_embeddings(nn.Sequential(collection), dtype=dtype, inplace=True)[0]
