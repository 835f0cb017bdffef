"""Embedding tables of a schema as one TorchRec `EmbeddingBagCollection`."""

from functools import partial
from typing import TYPE_CHECKING

import torch

from drsrobust._torchrec import torchrec
from drsrobust.data import Schema

if TYPE_CHECKING:
    from torchrec import EmbeddingBagCollection


def embedding_tables(schema: Schema, dim: int, std: float) -> "EmbeddingBagCollection":
    """One table per feature, named like it; multi-hot features are pooled by their mean. Rows are drawn from N(0, std).

    Its forward takes a KeyedJaggedTensor and gives a KeyedTensor whose `values()` are [B, features * dim].
    """
    pooling = torchrec().PoolingType
    return torchrec().EmbeddingBagCollection(
        tables=[
            torchrec().EmbeddingBagConfig(
                name=feature.name,
                embedding_dim=dim,
                num_embeddings=feature.cardinality,
                feature_names=[feature.name],
                pooling=pooling.MEAN if feature.multi_hot else pooling.SUM,
                init_fn=partial(torch.nn.init.normal_, std=std),
            )
            for feature in schema.features
        ]
    )
