"""Embedding tables of a schema as one TorchRec `EmbeddingBagCollection`."""

from functools import partial
from typing import TYPE_CHECKING

import torch

from drsrobust._torchrec import torchrec
from drsrobust.data import Schema

if TYPE_CHECKING:
    from torchrec import EmbeddingBagCollection


def embedding_tables(
    schema: Schema, dim: int, std: float, *, multi_hot: str = "mean", weighted: bool = False
) -> "EmbeddingBagCollection":
    """One table per feature, named like it. Rows are drawn from N(0, std).

    Its forward takes a KeyedJaggedTensor and gives a KeyedTensor whose `values()` are [B, features * dim].

    Args:
        schema: of the data.
        dim: width of the tables.
        std: standard deviation of the rows.
        multi_hot: how a multi-hot feature's rows are pooled, `mean` or `sum`.
        weighted: whether each looked-up row is multiplied by the KeyedJaggedTensor's weight (then `sum` pools).
    """
    pooling = torchrec().PoolingType
    return torchrec().EmbeddingBagCollection(
        tables=[
            torchrec().EmbeddingBagConfig(
                name=feature.name,
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
