"""Models whose tensors are spread over several processes: each rank holds other words, so errors and scores of one rank are not
those of the model. They are refused by name; a process group of one rank holds everything."""

from collections.abc import Iterator

import torch
from torch import nn

from drsrobust.introspection.wrappers import named_modules, plain_name

_SHARDS = {"ShardedTensor", "DTensor"}


def ranks() -> int:
    """Processes of the default process group; 1 without."""
    group = torch.distributed
    return group.get_world_size() if group.is_available() and group.is_initialized() else 1


def refuse_sharded(model: nn.Module) -> None:
    """Refuses a model of which each rank holds other words. Replicas, as of DistributedDataParallel, pass.

    Raises:
        ValueError: the process group has more than one rank, and the model has a ShardedTensor or a DTensor, a TorchRec module
            with sharded tables or an FSDP module.
    """
    if (world := ranks()) == 1:
        return
    names = list(dict.fromkeys(sharded_tensors(model)))
    if names:
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise ValueError(
            f"{type(model).__name__} is sharded over {world} ranks ({some}): each rank would draw errors of its own words and "
            "miss those of the others; take the model before it is sharded, or a process group of one rank"
        )


def sharded_tensors(model: nn.Module) -> Iterator[str]:
    """Names of the tensors that are spread over the ranks; for FSDP modules, which hide them, their class."""
    for prefix, module in named_modules(model):
        start = f"{prefix}." if prefix else ""
        tensors = {**module._parameters, **module._buffers}
        if "ShardedModule" in _kinds(module):  # TorchRec's: its state shows what its parameters, local ones, do not
            tensors |= type(module).state_dict(module)
        yield from (
            plain_name(start + name) for name, tensor in tensors.items() if not _SHARDS.isdisjoint(_kinds(tensor))
        )
    if any("FullyShardedDataParallel" in _kinds(module) for module in model.modules()):
        yield "FullyShardedDataParallel"


def _kinds(value: object) -> set[str]:
    return {kind.__name__ for kind in type(value).__mro__}
