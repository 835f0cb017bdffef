"""Fields: one vector for each sparse feature and each dense column of a row."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from drsrobust.data import Schema
from drsrobust.models.embedding import embedding_tables

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor


class Fields(nn.Module):
    """Vectors [B, F + D, dim]: the F sparse features' embeddings, then for each of D dense columns its value times a
    learnt vector, as factorization machines treat numbers (Rendle 2010; DeepFM, arXiv:1703.04247, section 2).

    Args:
        schema: of the data.
        dim: of the vectors.
        std: standard deviation of the tables' and the vectors' first values.
    """

    def __init__(self, schema: Schema, dim: int, std: float) -> None:
        super().__init__()
        self.dim = dim
        self.number = len(schema.features) + len(schema.dense)
        self.embeddings = embedding_tables(schema, dim, std)
        self.dense = nn.Parameter(torch.randn(len(schema.dense), dim) * std) if schema.dense else None

    def forward(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        """Vectors [B, F + D, dim] of dense features [B, D] and B rows of ids."""
        embedded = self.embeddings(sparse_features).values().unflatten(1, (-1, self.dim))
        if self.dense is None:
            return embedded
        return torch.cat((embedded, dense_features.unsqueeze(2) * self.dense), dim=1)
