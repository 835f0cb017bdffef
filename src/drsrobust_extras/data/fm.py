"""Factorization machine (Rendle, ICDM 2010, "Factorization Machines"), DeepFM (Guo et al., arXiv:1703.04247) and Wide & Deep
(Cheng et al., arXiv:1606.07792), the latter two with the sizes of arXiv:2307.10244.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from drsrobust.data import Schema
from drsrobust.extend import torchrec
from drsrobust.models import check_sizes, embedding_tables, mlp
from drsrobust_extras.data.fields import Fields, FirstOrderModel

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor


class SecondOrder(torchrec().modules.deepfm.FactorizationMachine):
    """sum_{i<j} <v_i, v_j>, as half of (sum_i v_i)^2 - sum_i v_i^2, summed over the coordinates (Rendle, lemma 3.1).

    TorchRec's module flattens [B, fields, dim], so it also multiplies different coordinates. With one row per coordinate it
    computes the paper's term.
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


class DeepFM(FM):
    """logit = factorization machine + MLP of the same vectors, concatenated (equations 1, 2 and 4).

    Args:
        schema: of the data.
        embedding_dim: of the vectors.
        deep_mlp: hidden widths; each layer is Linear, BatchNorm, ReLU, Dropout. A projection to 1 follows.
        dropout: probability of dropping a hidden unit while training.
        std: standard deviation of the tables' first values.
    """

    COMPONENTS = FM.COMPONENTS | {"deep_mlp": ("deep.*",)}
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
        super().__init__(schema, embedding_dim=embedding_dim, std=std)
        deep = mlp(self.fields.number * embedding_dim, deep_mlp, dropout)
        self.deep = torchrec().modules.deepfm.DeepFM(dense_module=deep)

    def forward(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        """Logits [B] of dense features [B, D] and B rows of ids."""
        vectors = self.fields(dense_features, sparse_features)
        logit = self.first_order_logit(dense_features, sparse_features) + self.second_order(vectors)
        return logit + self.deep([vectors]).squeeze(1)


class WideDeep(FirstOrderModel):
    """logit = first-order terms + MLP of the dense columns and embeddings, concatenated.

    Args:
        schema: of the data.
        embedding_dim, deep_mlp, dropout, std: as in `DeepFM`.
    """

    COMPONENTS = DeepFM.COMPONENTS | {"embedding": ("embeddings.*",)}
    GROUPS = DeepFM.GROUPS

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
