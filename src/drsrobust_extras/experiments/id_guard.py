"""Hooks on the look-ups of a model that replace or refuse ids which a table does not have, after errors hit the ids."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from drsrobust.extend import with_values
from drsrobust.introspection import named_modules, sparse_type, table_configs


def id_guards(model: nn.Module, out_of_range: str) -> dict[str, Callable]:
    """Forward pre-hooks for all look-ups of a model (TorchRec's collections, PyTorch's embedding modules), by module name, that
    replace or refuse ids out of range.

    Raises:
        ValueError: the model has no known look-up.
    """
    modules = dict(reversed(named_modules(model)))
    configs = {name: table_configs(module) for name, module in modules.items()}
    collections = [f"{name}." if name else "" for name, tables in configs.items() if tables is not None]
    lookups = {}
    for name, module in modules.items():
        if any(name.startswith(outer) and name != outer[:-1] for outer in collections):
            continue
        if configs[name] is not None:
            rows: dict[str, int] = {}  # of the smallest table that reads each feature
            for config in configs[name]:
                for feature in config.feature_names:
                    rows[feature] = min(config.num_embeddings, rows.get(feature, config.num_embeddings))
            lookups[name] = _collection_hook(name, rows, out_of_range)
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
            lookups[name] = _module_hook(name, module.num_embeddings, out_of_range)
    if not lookups:
        raise ValueError(
            "the model has no nn.Embedding, nn.EmbeddingBag or TorchRec collection whose ids could be checked; "
            "out_of_range='as_is' leaves ids as they are, at your own risk"
        )
    return lookups


def _collection_hook(name: str, rows: Mapping[str, int], out_of_range: str) -> Callable:
    def within(value: Any) -> Any:
        if sparse_type(value) != "KeyedJaggedTensor":
            return value
        ids, features = value.values(), value.keys()
        counts = torch.tensor(value.length_per_key(), device=ids.device)
        limit = torch.tensor(
            [rows.get(feature, -1) for feature in features], device=ids.device
        )  # -1: no table reads it
        changed = _within(name, ids, torch.repeat_interleave(limit, counts), out_of_range)
        return value if changed is ids else with_values(value, changed)

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return tuple(within(value) for value in args), {key: within(value) for key, value in kwargs.items()}

    return hook


def _module_hook(name: str, rows: int, out_of_range: str) -> Callable:
    def within(ids: torch.Tensor) -> torch.Tensor:
        return _within(name, ids, torch.tensor(rows, device=ids.device), out_of_range)

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args:
            return (within(args[0]), *args[1:]), kwargs
        return args, kwargs | {"input": within(kwargs["input"])}

    return hook


def _within(name: str, ids: torch.Tensor, rows: torch.Tensor, out_of_range: str) -> torch.Tensor:
    """Ids, with those replaced that are not below their table's rows (-1 rows: any id is kept).

    Raises:
        IndexError: an id out of range, for `out_of_range="raise"`.
    """
    is_outside = ((ids < 0) | (ids >= rows)) & (rows >= 0)
    if not is_outside.any():
        return ids
    if out_of_range == "raise":
        first = ids[is_outside][0].item()
        limit = rows.expand(ids.shape)[is_outside][0].item()
        raise IndexError(f"{name}: id {first} is out of range; the table has rows 0 to {limit - 1}")
    other = ids % rows if out_of_range == "wrap" else torch.zeros_like(ids)
    return torch.where(is_outside, other.to(ids.dtype), ids)
