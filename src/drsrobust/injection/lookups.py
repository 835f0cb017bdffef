"""Ids that a table does not have: found before the look-up, in TorchRec's collections and PyTorch's embedding modules."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from drsrobust.tensors import named_modules

OUT_OF_RANGE = ("raise", "first", "wrap", "as_is")


def guard(model: nn.Module, out_of_range: str) -> Iterator[Any]:
    """Puts hooks on all look-ups of a model that treat ids out of range.

    Args:
        model: any module.
        out_of_range: `raise` (IndexError), `first` (row 0) or `wrap` (modulo the number of rows).

    Yields:
        the hooks' handles.

    Raises:
        ValueError: the model has no look-up that is known here.
    """
    found, inside = 0, []
    for name, module in named_modules(model):
        if any(name.startswith(outer) for outer in inside):
            continue  # its collection is guarded
        if (rows := _rows_by_feature(module)) is not None:
            yield module.register_forward_pre_hook(_of_collection(name, rows, out_of_range))
            inside.append(f"{name}." if name else "")
            found += 1
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
            yield module.register_forward_pre_hook(_of_module(name, module.num_embeddings, out_of_range))
            found += 1
    if not found:
        raise ValueError(
            "the model has no nn.Embedding, nn.EmbeddingBag or TorchRec collection whose ids could be checked; "
            "out_of_range='as_is' leaves ids as they are, at your own risk"
        )


def _rows_by_feature(module: nn.Module) -> dict[str, int] | None:
    """Feature -> rows of the smallest table that it reads; None for modules that are no collection."""
    for method in ("embedding_bag_configs", "embedding_configs"):
        configs = getattr(module, method, None)
        if callable(configs):
            rows: dict[str, int] = {}
            for config in configs():
                for feature in config.feature_names:
                    rows[feature] = min(config.num_embeddings, rows.get(feature, config.num_embeddings))
            return rows
    return None


def _of_collection(name: str, rows: Mapping[str, int], out_of_range: str) -> Callable:
    def hook(module: nn.Module, args: tuple) -> tuple:
        jagged, *others = args
        keys, values = jagged.keys(), jagged.values()
        sizes = [rows.get(key, 2**63 - 1) for key in keys]
        counts = torch.tensor(jagged.length_per_key(), device=values.device)
        limit = torch.repeat_interleave(torch.tensor(sizes, device=values.device), counts)
        changed = _within(name, values, limit, out_of_range)
        if changed is values:
            return args
        given = {"keys": keys, "weights": jagged.weights_or_none(), "lengths": jagged.lengths()}
        return type(jagged)(values=changed, stride=jagged.stride(), **given), *others

    return hook


def _of_module(name: str, rows: int, out_of_range: str) -> Callable:
    def hook(module: nn.Module, args: tuple) -> tuple:
        changed = _within(name, args[0], torch.tensor(rows, device=args[0].device), out_of_range)
        return changed, *args[1:]

    return hook


def _within(name: str, ids: torch.Tensor, rows: torch.Tensor, out_of_range: str) -> torch.Tensor:
    """Ids, all of which their tables have.

    Raises:
        IndexError: an id out of range, where that is asked for.
    """
    outside = (ids < 0) | (ids >= rows)
    if not outside.any():
        return ids
    if out_of_range == "raise":
        first = ids[outside][0].item()
        limit = rows.expand(ids.shape)[outside][0].item()
        raise IndexError(f"{name}: id {first} is out of range; the table has rows 0 to {limit - 1}")
    other = ids % rows if out_of_range == "wrap" else torch.zeros_like(ids)
    return torch.where(outside, other.to(ids.dtype), ids)
