"""Parts of several models of the study: vectors of all fields, and first-order terms."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from drsrobust.data import Schema
from drsrobust.models import embedding_tables

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor


class Fields(nn.Module):
    """Vectors [B, F + D, dim]: the F sparse features' embeddings, then for each of D dense columns its value times a
    learnt vector, as in factorization machines (Rendle 2010; DeepFM, arXiv:1703.04247, section 2). Tables and vectors are
    drawn from N(0, std).
    """

    def __init__(self, schema: Schema, dim: int, std: float) -> None:
        super().__init__()
        self.dim = dim
        self.number = len(schema.features) + len(schema.dense)
        self.embeddings = embedding_tables(schema, dim, std)
        self.dense = nn.Parameter(torch.randn(len(schema.dense), dim) * std) if schema.dense else None

    def forward(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        embedded = self.embeddings(sparse_features).values().unflatten(1, (-1, self.dim))
        if self.dense is None:
            return embedded
        return torch.cat((embedded, dense_features.unsqueeze(2) * self.dense), dim=1)


class FirstOrderModel(nn.Module):
    """A model with the first-order part w_0 + sum_i w_i x_i, linear in one-hot ids (of a multi-hot feature, their mean) and
    dense columns. The weights of ids are tables of width 1.
    """

    LINEAR = ("first_order.*", "first_order_dense.*", "bias")  # its tensors: the component `linear`
    LINEAR_WEIGHTS = ("first_order.*", "first_order_dense.*")

    def add_first_order(self, schema: Schema, std: float) -> None:
        """Makes its tensors, with the same names in all models; weights of ids are drawn from N(0, std)."""
        self.first_order = embedding_tables(schema, 1, std)
        self.first_order_dense = nn.Linear(len(schema.dense), 1, bias=False) if schema.dense else None
        self.bias = nn.Parameter(torch.zeros(1))

    def first_order_logit(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        """w_0 + sum_i w_i x_i [B] of dense features [B, D] and B rows of ids."""
        logit = self.first_order(sparse_features).values().sum(dim=1) + self.bias
        if self.first_order_dense is not None:
            logit = logit + self.first_order_dense(dense_features).squeeze(1)
        return logit
