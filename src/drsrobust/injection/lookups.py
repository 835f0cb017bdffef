"""Ids that a table does not have: found before the look-up, in TorchRec's collections and PyTorch's embedding modules."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from drsrobust.tensors import named_modules, plain_name, unwrapped

OUT_OF_RANGE = ("raise", "first", "wrap", "as_is")


def guard(model: nn.Module, out_of_range: str) -> Iterator[Any]:
    """Puts hooks on all look-ups of a model that treat ids out of range.

    Args:
        model: any module.
        out_of_range: `raise` (IndexError), `first` (row 0) or `wrap` (modulo the number of rows).

    Yields:
        the hooks' handles.

    Raises:
        ValueError: the model has no look-up that is known here, or it is compiled.
    """
    lookups, inside = [], []
    for name, module in dict(reversed(named_modules(model))).items():
        if (rows := _rows_by_feature(module)) is not None:
            lookups.append((name, module, _of_collection(name, rows, out_of_range)))
            inside.append(f"{name}." if name else "")
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
            lookups.append((name, module, _of_module(name, module.num_embeddings, out_of_range)))
    lookups = [one for one in lookups if not any(one[0].startswith(outer) and one[0] != outer[:-1] for outer in inside)]
    if not lookups:
        raise ValueError(
            "the model has no nn.Embedding, nn.EmbeddingBag or TorchRec collection whose ids could be checked; "
            "out_of_range='as_is' leaves ids as they are, at your own risk"
        )
    refuse_compiled(model, [name for name, *_ in lookups])
    for _, module, hook in lookups:
        yield module.register_forward_pre_hook(hook, with_kwargs=True)


def refuse_compiled(model: nn.Module, names: list[str]) -> None:
    """Raises ValueError when one of these modules is compiled, or inside a compiled one: hooks put on after compiling are
    silently left out there."""
    inner = unwrapped(model)
    for outer, module in [("", model), *((plain_name(name), module) for name, module in inner.named_modules())]:
        compiled = "_orig_mod" in module._modules or module._compiled_call_impl is not None
        inside = [name for name in names if not outer or name == outer or name.startswith(f"{outer}.")]
        if compiled and inside:
            place = inside[0] or type(inner).__name__
            raise ValueError(
                f"{place} is compiled, which leaves out hooks; inject into the module before torch.compile"
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
    def within(jagged: Any) -> Any:
        if type(jagged).__name__ != "KeyedJaggedTensor":
            return jagged
        keys, values = jagged.keys(), jagged.values()
        counts = torch.tensor(jagged.length_per_key(), device=values.device)
        limit = torch.tensor([rows.get(key, -1) for key in keys], device=values.device)  # -1: no table reads it
        changed = _within(name, values, torch.repeat_interleave(limit, counts), out_of_range)
        if changed is values:
            return jagged
        given = {"keys": keys, "weights": jagged.weights_or_none(), "lengths": jagged.lengths()}
        return type(jagged)(values=changed, stride=jagged.stride(), **given)

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return tuple(within(value) for value in args), {key: within(value) for key, value in kwargs.items()}

    return hook


def _of_module(name: str, rows: int, out_of_range: str) -> Callable:
    def within(ids: torch.Tensor) -> torch.Tensor:
        return _within(name, ids, torch.tensor(rows, device=ids.device), out_of_range)

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args:
            return (within(args[0]), *args[1:]), kwargs
        return args, kwargs | {"input": within(kwargs["input"])}

    return hook


def _within(name: str, ids: torch.Tensor, rows: torch.Tensor, out_of_range: str) -> torch.Tensor:
    """Ids, all of which their tables have (those of tables with -1 rows are left alone).

    Raises:
        IndexError: an id out of range, where that is asked for.
    """
    outside = ((ids < 0) | (ids >= rows)) & (rows >= 0)
    if not outside.any():
        return ids
    if out_of_range == "raise":
        first = ids[outside][0].item()
        limit = rows.expand(ids.shape)[outside][0].item()
        raise IndexError(f"{name}: id {first} is out of range; the table has rows 0 to {limit - 1}")
    other = ids % rows if out_of_range == "wrap" else torch.zeros_like(ids)
    return torch.where(outside, other.to(ids.dtype), ids)
