"""The tensors of a model: names, memory, components.

A model may have a class attribute `COMPONENTS` (component -> glob patterns on tensor names); `GROUPS`, of the same form, names
sets of parameters across components. TorchRec's DLRMs have the components of the library's own. In other models weights of
embedding modules are `embedding`, and every other tensor belongs to its top-level child. Components of a model that only wraps
another one are those of the inner one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from drsrobust._arguments import check_instance, check_text
from drsrobust.introspection.embedding_modules import QuantizedTable, quantized_tables
from drsrobust.introspection.spread import SpreadTensor, is_sharded_module, process_group
from drsrobust.introspection.wrappers import check_module, is_frozen, named_modules, unwrapped

if TYPE_CHECKING:
    import pandas as pd

# Groups of components: name -> ending of their names.
GROUPS = {"mlp": "_mlp"}

# Of TorchRec's models (module and class), as of the library's.
_DLRM = {
    "embedding": ("sparse_arch.*",),
    "dense_mlp": ("dense_arch.*",),
    "interaction": ("inter_arch.*",),
    "over_mlp": ("over_arch.*",),
}
_CROSS = {("cross" if name == "interaction" else name): globs for name, globs in _DLRM.items()}
TORCHREC_COMPONENTS = {
    ("torchrec.models.dlrm", "DLRM"): _DLRM,
    ("torchrec.models.dlrm", "DLRM_Projection"): _DLRM,
    ("torchrec.models.dlrm", "DLRM_DCN"): _CROSS,
}

_LISTS = nn.Sequential | nn.ModuleList | nn.ModuleDict
_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)
_LOOKUP = "TableBatchedEmbedding"  # in the names of FBGEMM's modules
_COLLECTION = re.compile(f"Embedding(Bag)?Collection|{_LOOKUP}")  # TorchRec's and FBGEMM's modules

# Methods of sparse tensors that give their indices.
_INDICES = {
    torch.sparse_coo: ("indices",),
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


class TensorEntry(NamedTuple):
    """A tensor of a model: its name, whether it is a parameter or a quantized table (else a buffer), that table, its further
    names (tied weights, a module in two places), whether an embedding module looks rows of it up, and its parts if it is
    spread over ranks (then the tensor has a shape, and no memory)."""

    name: str
    tensor: torch.Tensor
    parameter: bool
    table: QuantizedTable | None
    aliases: list[str]
    embedding: bool = False
    spread: SpreadTensor | None = None


def listed(model: nn.Module) -> list[TensorEntry]:
    """Parameters, quantized tables (as their memory, see `embedding_modules`) and buffers, in this order, by their first name.

    Tensors that share all of their memory are listed once. FBGEMM's bookkeeping buffers are not listed.

    Raises:
        ArgumentError: no module.
        ValueError: as `Group.check` and `Group.tensors`; or a model without tensors that is frozen TorchScript.
    """
    check_module(model)
    modules = named_modules(model, repeats=True)
    of_collections = _spread_tensors(model, modules)
    tables = {table.name: table for table in quantized_tables(modules)}
    parameters, buffers, looked_up, spread, collections = [], [], set(), {}, ()
    for prefix, module in modules:
        if prefix.startswith(collections):
            continue  # a rank's own view of tables that are listed whole
        if (of_ranks := of_collections.get(prefix)) is not None:
            collections = (*collections, f"{prefix}." if prefix else "")
            looked_up.update(of_ranks)
            for name, value in of_ranks.items():
                if isinstance(value, SpreadTensor):
                    spread[name] = value
                    value = torch.empty(value.shape, dtype=value.dtype, device="meta")
                parameters.append((name, value, True, None))
            continue
        start = f"{prefix}." if prefix else ""
        parameters += [(start + n, t, True, None) for n, t in module._parameters.items() if t is not None]
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) or _LOOKUP in type(module).__name__:
            looked_up.update(start + n for n in module._parameters)
        members = {start + n: t for n, t in module._buffers.items() if t is not None}
        if _LOOKUP in type(module).__name__:
            # Offsets, types and counters of FBGEMM's kernels, which trust them: errors there end the process.
            members = {name: tensor for name, tensor in members.items() if tensor.is_floating_point()}
        buffers += [(name, tensor, False, None) for name, tensor in members.items() if name not in tables]
    quantized = [(table.name, table.tensor, True, table) for table in tables.values()]
    by_memory: dict[int, list[TensorEntry]] = {}
    once = []
    for name, tensor, parameter, table in (*parameters, *quantized, *buffers):
        place = address(tensor)
        candidates = [] if place is None else by_memory.setdefault(place, [])
        entry = next((candidate for candidate in candidates if _same_memory(candidate.tensor, tensor)), None)
        if entry is None:
            is_table = table is not None or name in looked_up
            once.append(TensorEntry(name, tensor, parameter, table, [], is_table, spread.get(name)))
            candidates.append(once[-1])
        elif entry.name != name:
            entry.aliases.append(name)
    if not once and (frozen := next((module for _, module in modules if is_frozen(module)), None)) is not None:
        raise ValueError(
            f"{frozen.original_name} is frozen TorchScript: its weights are constants of its code, which nothing can read or "
            "hit; take the module before torch.jit.freeze"
        )
    return once


def _spread_tensors(
    model: nn.Module, modules: list[tuple[str, nn.Module]]
) -> dict[str, dict[str, SpreadTensor | torch.Tensor]]:
    """As `Group.tensors`."""
    if (group := process_group()) is not None:
        group.check(model)
        return group.tensors(modules)
    if (name := next((name for name, module in modules if is_sharded_module(module)), None)) is not None:
        raise ValueError(f"{name} is sharded, and there is no process group: call torch.distributed.init_process_group")
    return {}


def _same_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors that begin at one address are the same words."""
    return tensor is other or (tensor.dtype, tensor.shape, tensor.stride()) == (
        other.dtype,
        other.shape,
        other.stride(),
    )


def named_tensors(model: nn.Module, *, buffers: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of what `listed` gives, buffers if asked for."""
    return ((entry.name, entry.tensor) for entry in listed(model) if entry.parameter or buffers)


def address(tensor: torch.Tensor) -> int | None:
    """Where a tensor's memory begins; None when it has no plain memory of its own (uninitialised, sparse, on meta, empty,
    a wrapper around other tensors)."""
    if type(tensor) in _PLAIN and tensor.layout is torch.strided:  # nearly all: no need to ask further
        return (tensor.data_ptr() or None) if tensor.numel() else None
    if is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested or not tensor.numel():
        return None
    return None if is_wrapper(tensor) else tensor.data_ptr() or None


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a class that keeps its words in other tensors (DTensor, torchao's, FakeTensor)."""
    if type(tensor) in _PLAIN or is_lazy(tensor) or tensor.layout is not torch.strided:
        return False
    try:
        return bool(tensor.numel()) and not tensor.is_meta and tensor.untyped_storage().data_ptr() == 0
    except (RuntimeError, NotImplementedError):
        return True


def inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold a wrapper's words, by its `__tensor_flatten__`; of any other tensor, and of a wrapper without that
    method, the tensor itself."""
    if not (is_wrapper(tensor) and hasattr(tensor, "__tensor_flatten__")):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in inner_tensors(getattr(tensor, name))]


def why_wordless(tensor: torch.Tensor) -> str | None:
    """Why a tensor has no words of its own, and what to do; None if it has, or is sparse."""
    if is_lazy(tensor):
        return "is not initialised yet: run the model once on a batch"
    if tensor.is_nested:
        return "is a nested tensor: keep its values in a plain one"
    if tensor.layout not in SPARSE_LAYOUTS and tensor.layout is not torch.strided:
        return f"is {tensor.layout}: take the model before it is converted"
    if "FakeTensor" in _classes(tensor) or tensor.is_meta:
        return "has no values (fake tensors, the meta device): load its weights first"
    if not is_wrapper(tensor):
        return None
    how = "fully_shard or parallelize_module" if "DTensor" in _classes(tensor) else "it is converted"
    return f"is a {type(tensor).__name__}, which has no memory of its own to hit: take the model before {how}"


def _classes(tensor: torch.Tensor) -> set[str]:
    return {kind.__name__ for kind in type(tensor).__mro__}


SPARSE_LAYOUTS = frozenset(_INDICES)  # of tensors that are stored as indices and values


def is_sparse(tensor: torch.Tensor) -> bool:
    """Whether a tensor is stored as indices and values: COO, CSR, CSC, BSR or BSC."""
    return tensor.layout in SPARSE_LAYOUTS


def sparse_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The indices and, as the last one, the values of a sparse tensor; any other is its own part. COO entries of the same place
    are added up first."""
    if not is_sparse(tensor):
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
    return [getattr(tensor, part)() for part in (*_INDICES[tensor.layout], "values")]


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte and end of the memory that a tensor reaches over; gaps between its words count."""
    start = address(tensor)
    if start is None:
        return 0, 0
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def overlap(tensor: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two spans have a byte in common."""
    return tensor[0] < other[1] and other[0] < tensor[1]


def component_of(
    model: nn.Module, components: Mapping[str, str] | None = None, everything: Sequence[TensorEntry] | None = None
) -> dict[str, str]:
    """Tensor name -> component, for every parameter and buffer. Each name of a tied tensor has the component
    of that name.

    Args:
        model: any module.
        components: component -> glob on tensor names; goes before what the model or the rule says.
        everything: what `listed` gives, where it is at hand.

    Raises:
        ValueError: a glob that matches no tensor, or a tensor that two of them match.
    """
    everything = listed(model) if everything is None else everything
    names = [name for entry in everything for name in (entry.name, *entry.aliases)]
    by_name: dict[str, str] = {}
    components = {} if components is None else components
    check_instance("components", components, Mapping, "a dictionary from components to globs on tensor names")
    for component, pattern in components.items():
        check_text("each glob of components", pattern, "a glob on tensor names")
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            raise ValueError(f"component {component!r}: no tensor matches {pattern!r}; there are: {', '.join(names)}")
        for name in matches:
            if name in by_name:
                raise ValueError(f"tensor {name!r} belongs to two components: {by_name[name]!r} and {component!r}")
            by_name[name] = component
    for entry in everything:  # an override of any name goes for the tensor
        if overridden := [by_name[name] for name in (entry.name, *entry.aliases) if name in by_name]:
            by_name |= dict.fromkeys((entry.name, *entry.aliases), overridden[0])
    start, inner = core(model)
    for component, patterns in declared_components(type(inner)).items():
        for name in names:
            if name not in by_name and any(fnmatchcase(name, start + pattern) for pattern in patterns):
                by_name[name] = component
    embeddings = _embedding_modules(model) if len(by_name) < len(names) else set()
    for name in names:
        if name not in by_name:
            parent = name
            while parent and parent not in embeddings:
                parent = parent.rpartition(".")[0]
            is_embedding = parent in embeddings
            by_name[name] = "embedding" if is_embedding else name.removeprefix(start).partition(".")[0]
    return by_name


def core(model: nn.Module) -> tuple[str, nn.Module]:
    """The module that names the components: inside of modules that hold nothing but one child with tensors, as TorchRec's
    `DLRMTrain` does; and the beginning of its tensors' names."""
    start, module = "", unwrapped(model)
    while not declared_components(type(module)):
        children = [(name, child) for name, child in module.named_children() if any(map(_has_tensors, child.modules()))]
        if len(children) != 1 or _has_tensors(module):
            break
        name, child = children[0]
        child = unwrapped(child)
        if isinstance(child, _LISTS) or not any(child.children()):
            break  # its name says more than numbers, or than the names of a layer's parameters
        start, module = f"{start}{name}.", child
    return start, module


def _has_tensors(module: nn.Module) -> bool:
    """Whether a module itself has a parameter or a buffer."""
    return any(tensor is not None for tensor in (*module._parameters.values(), *module._buffers.values()))


def declared_components(model: type[nn.Module]) -> Mapping[str, Sequence[str]]:
    """The components that a class declares, its own or TorchRec's: name -> globs on tensor names."""
    declared = getattr(model, "COMPONENTS", None)
    if declared is not None:
        return declared
    by_class = (TORCHREC_COMPONENTS.get((base.__module__, base.__qualname__)) for base in model.__mro__)
    return next((components for components in by_class if components), {})


def _embedding_modules(model: nn.Module) -> set[str]:
    """Names of the embedding modules of PyTorch, TorchRec or FBGEMM; the model itself is ""."""
    return {name for name, module in named_modules(model) if _is_embedding(type(module))}


@cache
def _is_embedding(kind: type[nn.Module]) -> bool:
    return issubclass(kind, nn.Embedding | nn.EmbeddingBag) or bool(_COLLECTION.search(kind.__name__))


def group_of(component: str) -> set[str]:
    """The groups that a component belongs to."""
    return {group for group, end in GROUPS.items() if component.endswith(end)}


def declared_groups(model: nn.Module) -> Mapping[str, Sequence[str]]:
    """The groups that a model itself declares, by a class attribute `GROUPS`: name -> globs on the names of parameters."""
    start, inner = core(model)
    declared = getattr(type(inner), "GROUPS", {})
    if not isinstance(declared, Mapping):
        return {}
    return {name: tuple(start + pattern for pattern in patterns) for name, patterns in declared.items()}


def components(model: nn.Module, components: Mapping[str, str] | None = None) -> "pd.DataFrame":
    """The components of a model with their sizes.

    Returns:
        columns `component`, `parameters` (quantized tables among them) and `buffers` (how many numbers; of sparse
        tensors their values), `bits` (of the parameters, as they are stored) and `share` (of all these bits). A component as a
        target means its parameters, or its buffers when it has no others.

    Raises:
        ValueError: a model that is sharded over several ranks in a way that is not supported.

    Example:
        >>> components(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))[["component", "parameters", "buffers"]].values
        array([['0', 8, 0],
               ['1', 4, 5]], dtype=object)
    """
    import pandas as pd

    everything = listed(model)
    home = component_of(model, components, everything)
    rows = []
    for name, tensor, parameter, table, *_ in everything:
        numbers = sparse_parts(tensor)[-1].numel()
        rows.append(
            {
                "component": home[name],
                "parameters": (tensor.shape[0] * table.dim if table else numbers) * parameter,
                "buffers": numbers * (not parameter),
                "bits": 8 * numbers * tensor.element_size() * parameter,
            }
        )
    frame = pd.DataFrame(rows, columns=["component", "parameters", "buffers", "bits"])
    frame = frame.groupby("component", sort=False, as_index=False).sum()
    return frame.assign(share=frame["bits"] / frame["bits"].sum())


def has_group(model: "nn.Module", name: str) -> bool:
    """Whether a model declares a group of parameters (`GROUPS`)."""
    return name in declared_groups(model)
