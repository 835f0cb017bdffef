"""Which component every tensor of a model belongs to.

Our models say so themselves, by a class attribute `COMPONENTS` (component -> glob patterns on tensor names). In a model
we do not know, weights of embedding modules are `embedding` and every other tensor belongs to its top-level child.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parameter import is_lazy

if TYPE_CHECKING:
    import pandas as pd

# Names for several components at once: each stands for the components whose names end so.
GROUPS = {"mlp": "_mlp"}


def named_tensors(model: nn.Module, *, buffers: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, and buffers if asked for, by their first name; what shares all of its memory once."""
    seen = set()
    tensors = list(model.named_parameters()) + (list(model.named_buffers()) if buffers else [])
    for name, tensor in tensors:
        place = address(tensor)
        memory = name if place is None else (place, tensor.dtype, tensor.shape, tensor.stride())
        if memory not in seen:
            seen.add(memory)
            yield name, tensor


def address(tensor: torch.Tensor) -> int | None:
    """Where a tensor's memory begins; None when it has no plain memory of its own (uninitialised, sparse, on meta, empty,
    a wrapper around other tensors)."""
    if is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return None
    return tensor.data_ptr() or None


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte and end of the memory that a tensor reaches over; gaps between its words count."""
    start = address(tensor)
    if start is None:
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two spans have a byte in common."""
    return one[0] < other[1] and other[0] < one[1]


def component_of(model: nn.Module, components: Mapping[str, str] | None = None) -> dict[str, str]:
    """Tensor name -> component, for every parameter and buffer.

    Args:
        model: any module.
        components: component -> glob on tensor names; goes before what the model or the rule says.

    Raises:
        ValueError: a glob that matches no tensor, or a tensor that two of them match.
    """
    names = [name for name, _ in named_tensors(model, buffers=True)]
    found: dict[str, str] = {}
    for component, pattern in (components or {}).items():
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            raise ValueError(f"component {component!r}: no tensor matches {pattern!r}; there are: {', '.join(names)}")
        for name in matches:
            if name in found:
                raise ValueError(f"tensor {name!r} belongs to two components: {found[name]!r} and {component!r}")
            found[name] = component
    declared = getattr(type(model), "COMPONENTS", {})
    for component, patterns in declared.items():
        for name in names:
            if name not in found and any(fnmatchcase(name, pattern) for pattern in patterns):
                found[name] = component
    embeddings = _embedding_weights(model)
    for name in names:
        found.setdefault(name, "embedding" if name in embeddings else name.split(".")[0])
    return found


def _embedding_weights(model: nn.Module) -> set[str]:
    """Names of the tensors that embedding modules (of PyTorch, TorchRec or FBGEMM) own."""
    weights = set()
    for prefix, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) or "EmbeddingBagCollection" in type(module).__name__:
            weights |= {f"{prefix}.{name}" if prefix else name for name, _ in named_tensors(module, buffers=True)}
    return weights


def components(model: nn.Module, components: Mapping[str, str] | None = None) -> "pd.DataFrame":
    """The components of a model with their sizes.

    Returns:
        columns `component`, `parameters` and `buffers` (how many numbers), `bits` (of the parameters) and `share` (of all
        parameter bits). A component as a target means its parameters, or its buffers when it has no others.

    Example:
        >>> components(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))[["component", "parameters", "buffers"]].values
        array([['0', 8, 0],
               ['1', 4, 5]], dtype=object)
    """
    import pandas as pd

    home = component_of(model, components)
    parameters = {name for name, _ in named_tensors(model, buffers=False)}
    rows = [
        {
            "component": home[name],
            "parameters": tensor.numel() * (name in parameters),
            "buffers": tensor.numel() * (name not in parameters),
            "bits": 8 * tensor.numel() * tensor.element_size() * (name in parameters),
        }
        for name, tensor in named_tensors(model, buffers=True)
    ]
    frame = pd.DataFrame(rows).groupby("component", sort=False, as_index=False).sum()
    return frame.assign(share=frame["bits"] / frame["bits"].sum())
