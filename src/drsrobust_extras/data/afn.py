"""Adaptive factorization network (Cheng et al., arXiv:1909.03276), the single network (not AFN+)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from drsrobust.data import Schema
from drsrobust.models import check_sizes, mlp
from drsrobust_extras.data.fields import Fields, FirstOrderModel

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor

_MIN_MAGNITUDE = 1e-5  # lower bound of magnitudes: the logarithm of 0 would be infinite


class LogarithmicLayer(nn.Module):
    """y_j = exp(sum_i w_ij ln |v_i| + b_j) = e^b_j * prod_i |v_i|^w_ij by coordinate: products of learnt orders (equation 6),
    with BatchNorm of the logarithms (per field) and of the products (per neuron).

    Args:
        fields: number of vectors v.
        neurons: number of products.
    """

    def __init__(self, fields: int, neurons: int) -> None:
        super().__init__()
        self.log_norm = nn.BatchNorm1d(fields)
        self.orders = nn.Linear(fields, neurons)
        self.product_norm = nn.BatchNorm1d(neurons)

    def interaction_width(self, dim: int | None) -> int | None:
        """Numbers per sample of the output; `dim` of the vectors."""
        return None if dim is None else dim * self.orders.out_features

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Products [B, dim * neurons] of vectors [B, fields, dim]."""
        magnitudes = vectors.transpose(1, 2).flatten(0, 1).abs()  # [B * dim, fields]: a row for each coordinate
        logarithms = self.log_norm(torch.log(magnitudes.clamp(min=_MIN_MAGNITUDE)))
        products = self.product_norm(torch.exp(self.orders(logarithms)))  # [B * dim, neurons]
        return products.view(len(vectors), -1)


class AFN(FirstOrderModel):
    """logit = w_0 + sum_i w_i x_i + MLP(products of learnt orders of the fields' vectors).

    The first-order part is not in the paper, but in torchfm's model, which arXiv:2307.10244 used.

    Args:
        schema: of the data.
        embedding_dim: of the vectors.
        neurons: logarithmic neurons; the MLP's input is embedding_dim * neurons wide.
        deep_mlp: hidden widths; each layer is Linear, BatchNorm, ReLU, Dropout. A projection to 1 follows.
        dropout: probability of dropping a hidden unit while training.
        std: standard deviation of the tables' first values.
    """

    COMPONENTS = {
        "embedding": ("fields.*",),
        "linear": FirstOrderModel.LINEAR,
        "logarithmic": ("logarithmic.*",),
        "deep_mlp": ("deep.*",),
    }
    GROUPS = {"as_released": (*FirstOrderModel.LINEAR_WEIGHTS, "deep.*")}

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int = 16,
        neurons: int = 1500,
        deep_mlp: Sequence[int] = (400, 400, 400),
        dropout: float = 0.2,
        std: float = 0.01,
    ) -> None:
        check_sizes(embedding_dim=embedding_dim, neurons=neurons, deep_mlp=deep_mlp, dropout=dropout, std=std)
        super().__init__()
        self.fields = Fields(schema, embedding_dim, std)
        self.add_first_order(schema, std)
        self.logarithmic = LogarithmicLayer(self.fields.number, neurons)
        self.deep = mlp(embedding_dim * neurons, deep_mlp, dropout)

    def forward(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        """Logits [B] of dense features [B, D] and B rows of ids."""
        products = self.logarithmic(self.fields(dense_features, sparse_features))
        return self.first_order_logit(dense_features, sparse_features) + self.deep(products).squeeze(1)
