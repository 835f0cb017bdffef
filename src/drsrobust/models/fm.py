"""Factorization machine (Rendle, ICDM 2010, "Factorization Machines"), on TorchRec's embedding tables."""

from typing import TYPE_CHECKING

import torch

from drsrobust._torchrec import torchrec
from drsrobust.data import Schema
from drsrobust.models.fields import Fields
from drsrobust.models.first_order import FirstOrderModel
from drsrobust.models.sizes import check_sizes

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor


class SecondOrder(torchrec().modules.deepfm.FactorizationMachine):
    """sum_{i<j} <v_i, v_j>, as half of (sum_i v_i)^2 - sum_i v_i^2, summed over the coordinates (Rendle, lemma 3.1).

    TorchRec's module flattens [B, fields, dim] and so multiplies every number with every other, also those of different
    coordinates and of one and the same vector. Given a row for each coordinate, what it computes is the paper's.
    """

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """The term [B] of vectors [B, fields, dim]."""
        rows, _, dim = vectors.shape
        coordinates = vectors.transpose(1, 2).flatten(0, 1)  # [B * dim, fields]
        return super().forward([coordinates]).view(rows, dim).sum(dim=1)


class FM(FirstOrderModel):
    """logit = w_0 + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j (equation 1). A multi-hot feature counts as one i, with the
    mean of its ids' vectors.

    Args:
        schema: of the data.
        embedding_dim: of the vectors v.
        std: standard deviation of the tables' first values.
    """

    COMPONENTS = {"embedding": ("fields.*",), "linear": FirstOrderModel.LINEAR}
    GROUPS = {"as_released": FirstOrderModel.LINEAR_WEIGHTS}

    def __init__(self, schema: Schema, *, embedding_dim: int = 16, std: float = 0.01) -> None:
        check_sizes(embedding_dim=embedding_dim, std=std)
        super().__init__()
        self.fields = Fields(schema, embedding_dim, std)
        self.add_first_order(schema, std)
        self.second_order = SecondOrder()

    def forward(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        """Logits [B] of dense features [B, D] and B rows of ids."""
        second_order = self.second_order(self.fields(dense_features, sparse_features))
        return self.first_order_logit(dense_features, sparse_features) + second_order
