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
    """Where a tensor's memory begins; None when it has none of its own (uninitialised, sparse, on meta, empty)."""
    if is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return None
    return tensor.data_ptr()


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
    """The components of a model with their sizes: columns `component`, `tensors`, `parameters`, `bits`, `share` (of all
    parameter bits). Buffers are not counted: they are targeted by `"everything"` alone.

    Example:
        >>> components(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))[["component", "parameters"]].values
        array([['0', 8],
               ['2', 3]], dtype=object)
    """
    import pandas as pd

    home = component_of(model, components)
    sizes: dict[str, list[int]] = {}
    for name, tensor in named_tensors(model, buffers=False):
        row = sizes.setdefault(home[name], [0, 0, 0])
        for column, amount in enumerate((1, tensor.numel(), 8 * tensor.numel() * tensor.element_size())):
            row[column] += amount
    frame = pd.DataFrame(
        [(component, *row) for component, row in sizes.items()],
        columns=["component", "tensors", "parameters", "bits"],
    )
    return frame.assign(share=frame["bits"] / frame["bits"].sum())
