"""The first-order part that many models share: a weight for each id and each dense column, and a bias."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from drsrobust.data import Schema
from drsrobust.models.embedding import embedding_tables

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor


class FirstOrderModel(nn.Module):
    """A model that has the first-order part w_0 + sum_i w_i x_i: linear in one-hot ids and dense columns.

    The weights of ids lie in tables of width 1, one per feature (of a multi-hot one the mean counts).
    """

    LINEAR = ("first_order.*", "first_order_dense.*", "bias")  # its tensors: the component `linear`
    LINEAR_WEIGHTS = ("first_order.*", "first_order_dense.*")

    def add_first_order(self, schema: Schema, std: float) -> None:
        """Makes its tensors. (No submodule, so that they are named alike in all models.)

        Args:
            schema: of the data.
            std: standard deviation of the ids' first weights.
        """
        self.first_order = embedding_tables(schema, 1, std)
        self.first_order_dense = nn.Linear(len(schema.dense), 1, bias=False) if schema.dense else None
        self.bias = nn.Parameter(torch.zeros(1))

    def first_order_logit(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        """w_0 + sum_i w_i x_i [B] of dense features [B, D] and B rows of ids."""
        logit = self.first_order(sparse_features).values().sum(dim=1) + self.bias
        if self.first_order_dense is not None:
            logit = logit + self.first_order_dense(dense_features).squeeze(1)
        return logit
