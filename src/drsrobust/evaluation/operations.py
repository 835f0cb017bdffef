"""What is seen of the operations of a forward pass: the memory that each writes to, and values that leave PyTorch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_TO_PYTHON = {"numpy", "tolist", "__array__", "data_ptr", "__dlpack__"}  # leave PyTorch unseen by the dispatcher


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in what an operation is given or gives: lists, tuples and dictionaries within each other."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for one in value for tensor in tensors_in(one)]


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The memory of a tensor, which its views share.

    Raises:
        TypeError: it has none of its own (a sparse tensor, a wrapper around others).
    """
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError) as error:
        raise TypeError(f"a {type(tensor).__name__} has no memory of its own") from error


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether there is plain memory that values lie in: not so for tensors that are empty, sparse or on the meta device."""
    return tensor.layout is torch.strided and not tensor.is_meta and bool(tensor.numel())


def written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operation writes to, as its schema says."""
    if not func._schema.is_mutable:
        return
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(args[i] if i < len(args) else kwargs.get(argument.name))


class Escapes(TorchFunctionMode):
    """Sees values that leave PyTorch where the dispatcher does not: from then on nothing is known of them.

    Args:
        seen: is told of each tensor of which values leave.
    """

    def __init__(self, seen: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in _TO_PYTHON and args and isinstance(args[0], torch.Tensor):
            self._seen(args[0])
        return func(*args, **(kwargs or {}))
