"""Wide & Deep (Cheng et al., arXiv:1606.07792), with the sizes of arXiv:2307.10244."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from drsrobust.data import Schema
from drsrobust.models.embedding import embedding_tables

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor


class WideDeep(nn.Module):
    """logit = first-order terms + MLP(dense columns and embeddings side by side).

    Args:
        schema: of the data.
        embedding_dim: of every table.
        deep_mlp: hidden widths; each layer is Linear, BatchNorm, ReLU, Dropout. A projection to 1 follows.
        dropout: probability of dropping a hidden unit while training.
        std: standard deviation of the tables' first values.
    """

    COMPONENTS = {
        "embedding": ("embeddings.*",),
        "linear": ("first_order.*", "first_order_dense.*", "bias"),
        "deep_mlp": ("deep.*",),
    }

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int = 16,
        deep_mlp: Sequence[int] = (16, 16),
        dropout: float = 0.2,
        std: float = 0.01,
    ) -> None:
        super().__init__()
        n_dense = len(schema.dense)
        self.embeddings = embedding_tables(schema, embedding_dim, std)
        self.first_order = embedding_tables(schema, 1, std)
        self.first_order_dense = nn.Linear(n_dense, 1, bias=False) if n_dense else None
        self.bias = nn.Parameter(torch.zeros(1))
        layers: list[nn.Module] = []
        width = n_dense + len(schema.features) * embedding_dim
        for hidden in deep_mlp:
            layers += [nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(dropout)]
            width = hidden
        self.deep = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        """Logits [B] of dense features [B, D] and B rows of ids."""
        logit = self.first_order(sparse_features).values().sum(dim=1) + self.bias
        if self.first_order_dense is not None:
            logit = logit + self.first_order_dense(dense_features).squeeze(1)
        embedded = self.embeddings(sparse_features).values()  # [B, features * embedding_dim]
        return logit + self.deep(torch.cat((dense_features, embedded), dim=1)).squeeze(1)
