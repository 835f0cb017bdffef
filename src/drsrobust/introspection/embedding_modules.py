"""What the package knows of TorchRec's and FBGEMM's embedding modules: collections, table configurations, quantized tables.

TorchRec is imported at first use, without its log output. Its quantized collections keep their lookup modules outside of
PyTorch's module tree and show packed codes as wrappers without memory of their own; here their tables are plain tensors.
"""

import gc
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

# FBGEMM's kernels, which TorchRec needs, load with the PyTorch alone that they were built for; no metadata says so. PyTorch and
# TorchRec as tested.
PAIRS = (("2.13", "1.8"), ("2.14", "1.9"))
_LOOKUP = "IntNBitTableBatchedEmbeddingBagsCodegen"
_VALUES = {"int8": "int8", "int4": "int4", "int2": "int2", "fp16": "float16", "fp32": "float32"}


class QuantizedTable(NamedTuple):
    """A row-wise quantized FBGEMM table (int8, int4, int2, fp16, fp32).

    Attributes:
        name: in the model.
        tensor: its memory [rows, words of a row]: bytes, or the floats of fp16 and fp32 rows.
        values: number format, `int8`, ..., `float32`.
        dim: values per row.
        header: bytes of scale and bias per row.
        row_bytes: bytes per row.
    """

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
        ValueError: a table in another format.
    """
    for prefix, module in modules:
        if type(module).__name__ == _LOOKUP:
            yield from _tables(prefix, module)
        elif is_quantized_collection(module):
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


def _wrong_pair() -> str:
    """Says that the installed PyTorch or TorchRec is of one of `PAIRS` and the other is not; empty where neither is known."""
    try:
        torch_version, torchrec_version = version("torch"), version("torchrec")
    except PackageNotFoundError:
        return ""
    pair = tuple(".".join(re.findall(r"\d+", text)[:2]) for text in (torch_version, torchrec_version))
    if pair in PAIRS or not any(one in known for one, known in zip(pair, zip(*PAIRS, strict=True), strict=True)):
        return ""
    fitting = " or ".join(f"TorchRec {recommender} with PyTorch {base}" for base, recommender in PAIRS)
    return f"TorchRec {torchrec_version} does not fit PyTorch {torch_version}: install {fitting}"


@cache
def torchrec() -> ModuleType:
    """The `torchrec` package. Its import logs on the root logger, which would install a handler and make a user's later
    `logging.basicConfig` ineffective; its first forward logs once more. Both are silenced.

    Raises:
        ImportError: TorchRec or FBGEMM cannot be imported, or TorchRec is of another PyTorch; the message says what to install.
    """
    if problem := _wrong_pair():
        raise ImportError(problem)
    root, silent = logging.getLogger(), logging.NullHandler()
    root.addHandler(silent)
    collects = gc.isenabled()
    gc.disable()  # it would go through a growing heap again and again, for 0.9 of 3.1 seconds
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            import torchrec
            import torchrec.datasets.utils
            import torchrec.models.dlrm
    except (ImportError, OSError) as error:
        raise ImportError(
            f"drsrobust needs TorchRec here, and importing it failed: {error}. Install it with "
            "pip install 'drsrobust[torchrec]' (without a GPU: `make setup` in a checkout, or "
            "`pip install -r requirements/cpu.txt` there); a model of your own needs no TorchRec"
        ) from error
    finally:
        root.removeHandler(silent)
        if collects:
            gc.enable()
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    return torchrec


def table_configs(module: nn.Module) -> list[Any] | None:
    """The configurations (`name`, `num_embeddings`, `feature_names`) of a TorchRec collection's tables, else None."""
    for method in ("embedding_bag_configs", "embedding_configs"):
        configs = getattr(module, method, None)
        if callable(configs):
            return list(configs())
    return vars(module).get("_embedding_bag_configs")  # of a sharded collection


def table_names(features: Sequence[str]) -> dict[str, str]:
    """Feature -> the name of its table: the feature's own, unless PyTorch refuses it as the name of a module (an empty one,
    a dot, an attribute of modules as `type` or `keys`). Then dots become `_`, and `_` is added until the name is free.

    Example:
        >>> table_names(["user", "type", "item.title", "item_title"])
        {'user': 'user', 'type': 'type_', 'item.title': 'item_title_', 'item_title': 'item_title'}
    """
    names: dict[str, str] = {}
    empty = nn.ModuleDict()
    for feature in features:
        name = feature.replace(".", "_")
        taken = {*features, *names.values()} - {feature}
        while not name or hasattr(empty, name) or name in taken:
            name += "_"
        names[feature] = name
    return names


def features_tables(modules: list[tuple[str, nn.Module]]) -> dict[str, str]:
    """Tables of which `table_names` changed the name: the name with the feature's own -> the tensor's.

    Args:
        modules: as `model.named_modules()`.
    """
    names = {}
    for prefix, module in modules:
        if not (configs := pooled_tables(module)):
            continue
        expected = table_names([config.feature_names[0] for config in configs])
        for config in configs:
            feature = config.feature_names[0]
            if config.name != feature and config.name == expected[feature]:
                names[pooled_table_name(prefix, feature)] = pooled_table_name(prefix, config.name)
    return names


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
    """As `table_configs`, only of collections that pool."""
    return table_configs(module) if hasattr(type(module), "embedding_bag_configs") else None


def pooled_table_name(collection: str, table: str) -> str:
    """The name of the weight of a pooling collection's table."""
    return f"{collection}{'.' * bool(collection)}embedding_bags.{table}.weight"


def output_names(collection: nn.Module) -> list[str]:
    """The features of a pooling collection, in the order of its output."""
    return list(collection._embedding_names)


def pooled_weight(collection: nn.Module, table: str) -> torch.Tensor | None:
    """The weight of a pooling collection's table in the module tree; None for quantized and sharded collections."""
    bags = getattr(collection, "embedding_bags", {})
    return getattr(bags[table], "weight", None) if table in bags else None


def is_quantized_collection(module: nn.Module) -> bool:
    """Whether a module is a quantized TorchRec collection, with its lookup modules outside of the module tree."""
    return type(vars(module).get("_emb_modules")) is list


def tables_in_output_order(collection: nn.Module) -> list[Any]:
    """The table configurations of a quantized TorchRec collection, in the order of its output."""
    return list(chain(*collection._key_to_tables.values()))
