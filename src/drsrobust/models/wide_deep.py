"""Wide & Deep (Cheng et al., arXiv:1606.07792), with the sizes of arXiv:2307.10244."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from drsrobust.data import Schema
from drsrobust.models.embedding import embedding_tables
from drsrobust.models.first_order import FirstOrderModel
from drsrobust.models.mlp import mlp
from drsrobust.models.sizes import check_sizes

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor


class WideDeep(FirstOrderModel):
    """logit = first-order terms + MLP(dense columns and embeddings side by side).

    Args:
        schema: of the data.
        embedding_dim: of every table.
        deep_mlp: hidden widths; each layer is Linear, BatchNorm, ReLU, Dropout. A projection to 1 follows.
        dropout: probability of dropping a hidden unit while training.
        std: standard deviation of the tables' first values.
    """

    COMPONENTS = {"embedding": ("embeddings.*",), "linear": FirstOrderModel.LINEAR, "deep_mlp": ("deep.*",)}
    GROUPS = {"as_released": (*FirstOrderModel.LINEAR_WEIGHTS, "deep.*")}

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int = 16,
        deep_mlp: Sequence[int] = (16, 16),
        dropout: float = 0.2,
        std: float = 0.01,
    ) -> None:
        check_sizes(embedding_dim=embedding_dim, deep_mlp=deep_mlp, dropout=dropout, std=std)
        super().__init__()
        self.embeddings = embedding_tables(schema, embedding_dim, std)
        self.add_first_order(schema, std)
        self.deep = mlp(len(schema.dense) + len(schema.features) * embedding_dim, deep_mlp, dropout)

    def forward(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        """Logits [B] of dense features [B, D] and B rows of ids."""
        logit = self.first_order_logit(dense_features, sparse_features)
        embedded = self.embeddings(sparse_features).values()  # [B, features * embedding_dim]
        return logit + self.deep(torch.cat((dense_features, embedded), dim=1)).squeeze(1)
