"""Parts of several models: checks of sizes, MLPs, embedding tables."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from drsrobust._arguments import check_items, check_number, check_whole, wrong
from drsrobust.data.dataset import Schema
from drsrobust.introspection.embedding_modules import table_names, torchrec

if TYPE_CHECKING:
    from torchrec import EmbeddingBagCollection

LARGEST_TABLE = 16 << 30  # bytes: a larger one is mostly of ids that are no row numbers


def check_sizes(**sizes: object) -> None:
    """Raises ArgumentError unless `*_mlp` is one or more widths, `dropout` is in [0, 1), `std` is positive, and every other
    size is a whole number from 1."""
    for name, value in sizes.items():
        if name.endswith("_mlp"):
            right = "one or more layer widths, each a whole number from 1"
            if not (widths := check_items(name, value, right)):
                raise wrong(name, right, value)
            for width in widths:
                check_whole(f"each width of {name}", width, 1)
        elif name == "dropout":
            check_number(name, value, "in [0, 1)", lambda dropout: 0 <= dropout < 1)
        elif name == "std":
            check_number(name, value, "over 0", lambda std: std > 0)
        else:
            check_whole(name, value, 1)


@contextmanager
def empty_layers() -> Iterator[None]:
    """Silences torch's warning about layers without input columns; their bias still works."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        yield


def mlp(width: int, hidden: Sequence[int], dropout: float, *, project: bool = True) -> nn.Sequential:
    """The MLP of arXiv:2307.10244 on inputs [B, width]: each hidden layer is Linear, BatchNorm, ReLU, Dropout.

    Args:
        width: of the input.
        hidden: widths of the hidden layers.
        dropout: probability of dropping a hidden unit while training.
        project: whether a Linear to [B, 1] follows; else the output is [B, hidden[-1]].
    """
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Dropout(dropout)]
        width = size
    return nn.Sequential(*layers, *([nn.Linear(width, 1)] if project else []))


def embedding_tables(
    schema: Schema, dim: int, std: float, *, multi_hot: str = "mean", weighted: bool = False
) -> "EmbeddingBagCollection":
    """One table per feature, named like it (see `table_names`), with rows from N(0, std). The forward gives values
    [B, features * dim].

    Args:
        schema: of the data.
        dim: width of the tables.
        std: standard deviation of the rows.
        multi_hot: pooling of a multi-hot feature's rows, `mean` or `sum`.
        weighted: whether each looked-up row is multiplied by the KeyedJaggedTensor's weight (then `sum` pools).

    Raises:
        ValueError: a table of over `LARGEST_TABLE` bytes.
    """
    for feature in schema.features:
        if (size := 4 * feature.cardinality * dim) > LARGEST_TABLE:
            raise ValueError(
                f"the table of feature {feature.name!r} has {feature.cardinality:,} rows of {dim} numbers, {size / 2**30:.1f} "
                f"GiB; the most is {LARGEST_TABLE >> 30} GiB. Number its ids with vocabulary= of from_frame, or give "
                "the number of its rows with cardinalities="
            )
    names = table_names([feature.name for feature in schema.features])
    pooling = torchrec().PoolingType
    return torchrec().EmbeddingBagCollection(
        tables=[
            torchrec().EmbeddingBagConfig(
                name=names[feature.name],
                embedding_dim=dim,
                num_embeddings=feature.cardinality,
                feature_names=[feature.name],
                pooling=pooling.MEAN if feature.multi_hot and multi_hot == "mean" else pooling.SUM,
                init_fn=partial(torch.nn.init.normal_, std=std),
            )
            for feature in schema.features
        ],
        is_weighted=weighted,
    )
