"""FBGEMM's row-wise quantized tables (int8, int4, int2, fp16, fp32), found in any model as plain tensors of their memory.

TorchRec's quantized `EmbeddingBagCollection` and `EmbeddingCollection` keep their lookup modules outside of PyTorch's module
tree and show packed codes as wrappers without memory of their own; a lookup module by itself shows no table at all.

TorchRec, imported at first use and without its noise.

Importing TorchRec logs on the root logger, which would install a handler and turn a user's later
`logging.basicConfig` into a silent no-op; its first forward logs one more line."""

import logging
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import chain
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

_LOOKUP = "IntNBitTableBatchedEmbeddingBagsCodegen"
_VALUES = {"int8": "int8", "int4": "int4", "int2": "int2", "fp16": "float16", "fp32": "float32"}


class QuantizedTable(NamedTuple):
    """One table: its name in the model, its memory [rows, words of a row] (bytes, or the floats of fp16 and fp32 rows), what
    its values are (`int8`, ..., `float32`), how many a row has, bytes of scale and bias, bytes of a row."""

    name: str
    tensor: torch.Tensor
    values: str
    dim: int
    header: int
    row_bytes: int


def quantized_tables(modules: list[tuple[str, nn.Module]]) -> Iterator[QuantizedTable]:
    """The quantized tables of a model.

    Args:
        modules: as `model.named_modules()`.

    Raises:
        ValueError: a table in a format that is not known here.
    """
    for prefix, module in modules:
        if type(module).__name__ == _LOOKUP:
            yield from _tables(prefix, module)
        elif type(getattr(module, "_emb_modules", None)) is list:
            bags = "embedding_bags" if hasattr(module, "embedding_bags") else "embeddings"
            for lookup in module._emb_modules:
                if type(lookup).__name__ == _LOOKUP:
                    yield from _tables(f"{prefix}.{bags}" if prefix else bags, lookup)


def _tables(prefix: str, lookup: nn.Module) -> Iterator[QuantizedTable]:
    memory = lookup.split_embedding_weights(split_scale_shifts=False)
    for number, (spec, (table, _)) in enumerate(zip(lookup.embedding_specs, memory, strict=True)):
        name, _, dim, kind, *_ = spec
        name = ".".join(filter(None, (prefix, name or f"table_{number}", "weight")))
        values = _VALUES.get(kind.value)
        if values is None:
            raise ValueError(f"{name} has rows of {kind.value}; known are {', '.join(_VALUES)}")
        row_bytes = table.shape[1]
        header = 0
        if values.startswith("float"):
            table = table.view(getattr(torch, values))
        else:
            header = lookup.scale_bias_size_in_bytes
        yield QuantizedTable(name, table, values, dim, header, row_bytes)


@cache
def torchrec() -> ModuleType:
    """The `torchrec` package.

    Raises:
        ImportError: TorchRec or FBGEMM cannot be imported; the message holds the command that installs them.
    """
    root, silent = logging.getLogger(), logging.NullHandler()
    root.addHandler(silent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            import torchrec
            import torchrec.datasets.utils
            import torchrec.models.dlrm
    except (ImportError, OSError) as error:
        raise ImportError(
            f"drsrobust needs TorchRec here, and importing it failed: {error}. Install the pinned versions with "
            "`pip install -r requirements/cpu.txt` from the repository root (requirements/gpu.txt with an NVIDIA GPU)"
        ) from error
    finally:
        root.removeHandler(silent)
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    return torchrec


def is_collection(module: nn.Module) -> bool:
    """Whether a module is one of TorchRec's embedding collections (plain, fused, quantized or sharded)."""
    return type(module).__name__.endswith(("EmbeddingBagCollection", "EmbeddingCollection"))


def table_configs(module: nn.Module) -> list[Any] | None:
    """The configurations (`name`, `num_embeddings`, `feature_names`) of a TorchRec collection's tables, else None."""
    for method in ("embedding_bag_configs", "embedding_configs"):
        configs = getattr(module, method, None)
        if callable(configs):
            return list(configs())
    return None


def sparse_type(value: Any) -> str | None:
    """`KeyedTensor`, `JaggedTensor` or `KeyedJaggedTensor` for a value of that TorchRec class, else None."""
    name = type(value).__name__
    return name if name in ("KeyedTensor", "JaggedTensor", "KeyedJaggedTensor") else None


def with_values(sparse: Any, values: torch.Tensor) -> Any:
    """A KeyedTensor, JaggedTensor or KeyedJaggedTensor like `sparse` with other values."""
    if sparse_type(sparse) == "KeyedTensor":
        layout = {"keys": sparse.keys(), "length_per_key": sparse.length_per_key(), "key_dim": sparse.key_dim()}
    else:
        layout = {"weights": sparse.weights_or_none(), "lengths": sparse.lengths()}
        if sparse_type(sparse) == "KeyedJaggedTensor":
            layout |= {"keys": sparse.keys(), "stride": sparse.stride()}
    return type(sparse)(values=values, **layout)


def pooled_tables(module: nn.Module) -> list[Any] | None:
    """The table configurations of a TorchRec collection that pools (plain or quantized); None for other modules."""
    configs = getattr(module, "embedding_bag_configs", None)
    return list(configs()) if callable(configs) else None


def is_quantized_collection(module: nn.Module) -> bool:
    """Whether a module is a quantized TorchRec collection, with its lookup modules outside of the module tree."""
    return type(getattr(module, "_emb_modules", None)) is list


def tables_in_output_order(collection: nn.Module) -> list[Any]:
    """The table configurations of a quantized TorchRec collection, in the order of its output."""
    return list(chain(*collection._key_to_tables.values()))
