"""DeepFM (Guo et al., arXiv:1703.04247), with the sizes of arXiv:2307.10244."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from drsrobust._torchrec import torchrec
from drsrobust.data import Schema
from drsrobust.models.fields import Fields
from drsrobust.models.first_order import FirstOrderModel
from drsrobust.models.fm import SecondOrder
from drsrobust.models.mlp import mlp
from drsrobust.models.sizes import check_sizes

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor


class DeepFM(FirstOrderModel):
    """logit = factorization machine + MLP of the same vectors side by side (equations 1, 2 and 4).

    Args:
        schema: of the data.
        embedding_dim: of the vectors.
        deep_mlp: hidden widths; each layer is Linear, BatchNorm, ReLU, Dropout. A projection to 1 follows.
        dropout: probability of dropping a hidden unit while training.
        std: standard deviation of the tables' first values.
    """

    COMPONENTS = {"embedding": ("fields.*",), "linear": FirstOrderModel.LINEAR, "deep_mlp": ("deep.*",)}
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
        self.fields = Fields(schema, embedding_dim, std)
        self.add_first_order(schema, std)
        self.second_order = SecondOrder()
        deep = mlp(self.fields.number * embedding_dim, deep_mlp, dropout)
        self.deep = torchrec().modules.deepfm.DeepFM(dense_module=deep)

    def forward(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        """Logits [B] of dense features [B, D] and B rows of ids."""
        vectors = self.fields(dense_features, sparse_features)
        logit = self.first_order_logit(dense_features, sparse_features) + self.second_order(vectors)
        return logit + self.deep([vectors]).squeeze(1)
