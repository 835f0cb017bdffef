"""TorchRec's DLRM (Naumov et al., arXiv:1906.00091) and DLRM with cross layers (Wang et al., arXiv:2008.13535)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from drsrobust.data.dataset import Schema
from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.models.layers import check_sizes, embedding_tables, empty_layers

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor


class FlatInteractionArch(torchrec().models.dlrm.InteractionArch):
    """TorchRec's `InteractionArch` with the same outputs and gradients, faster.

    TorchRec selects the pairs by two index vectors, whose gradient is summed element by element; here one index selects them
    from the flattened products. The buffer `triu_indices` still determines the pairs.
    """

    def forward(self, dense_features: torch.Tensor, sparse_features: torch.Tensor) -> torch.Tensor:
        """The dense vector and all pairwise products [B, D + F + F (F - 1) / 2] of a dense vector [B, D] and F embeddings
        [B, F, D].

        Raises:
            RuntimeError: an error made the buffer name a vector out of range (negative numbers count from the end).
        """
        vectors = torch.cat((dense_features.unsqueeze(1), sparse_features), dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)  # [B, n * n]
        n = self.F + 1
        pairs = torch.where(self.triu_indices < 0, self.triu_indices + n, self.triu_indices)
        valid = ((pairs >= 0) & (pairs < n)).all(dim=0)
        flat = torch.where(valid, pairs[0] * n + pairs[1], n * n)  # index_select refuses n * n
        return torch.cat((dense_features, products.index_select(1, flat)), dim=1)


class _FlatLogits:
    def forward(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        """Logits [B] of dense features [B, D] and B rows of ids."""
        return super().forward(dense_features, sparse_features).squeeze(1)


def _arguments(
    schema: Schema, embedding_dim: int, dense_mlp: Sequence[int], over_mlp: Sequence[int], std: float
) -> dict[str, Any]:
    check_sizes(embedding_dim=embedding_dim, dense_mlp=dense_mlp, over_mlp=over_mlp, std=std)
    if dense_mlp[-1] != embedding_dim:
        raise ValueError(
            f"the last width of dense_mlp must be embedding_dim, {embedding_dim}, since its output is multiplied with the "
            f"embeddings, got {list(dense_mlp)}"
        )
    if len(over_mlp) < 2 or over_mlp[-1] != 1:
        raise ValueError(f"over_mlp must have at least two widths, the last one 1 (the logit), got {list(over_mlp)}")
    return {
        "embedding_bag_collection": embedding_tables(schema, embedding_dim, std),
        "dense_in_features": len(schema.dense),
        "dense_arch_layer_sizes": list(dense_mlp),
        "over_arch_layer_sizes": list(over_mlp),
    }


class DLRM(_FlatLogits, torchrec().models.dlrm.DLRM):
    """Bottom MLP on the dense columns, pairwise dot products of its output and all embeddings, top MLP.

    Args:
        schema: of the data.
        embedding_dim: of every table, and the width of the bottom MLP's output.
        dense_mlp: widths of the bottom MLP (ReLU after each); the last is `embedding_dim`.
        over_mlp: widths of the top MLP (at least two); the last is 1.
        std: standard deviation of the tables' first values.

    Tensor names are those of TorchRec: `sparse_arch.*`, `dense_arch.*`, `inter_arch.*`, `over_arch.*`.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int = 16,
        dense_mlp: Sequence[int] = (64, 16),
        over_mlp: Sequence[int] = (64, 32, 1),
        std: float = 0.01,
    ) -> None:
        arguments = _arguments(schema, embedding_dim, dense_mlp, over_mlp, std)
        with empty_layers():
            super().__init__(**arguments)
        self.inter_arch = FlatInteractionArch(len(schema.features))


class DLRM_DCN(_FlatLogits, torchrec().models.dlrm.DLRM_DCN):
    """Bottom MLP on the dense columns; low-rank cross layers x_{l+1} = x_0 * (W_l (V_l x_l) + b_l) + x_l on its output and all
    embeddings, concatenated (arXiv:2008.13535, equation 2); top MLP.

    Args:
        schema: of the data.
        embedding_dim, dense_mlp, over_mlp, std: as in `DLRM`.
        layers: number of cross layers.
        rank: of the matrices W_l [(features + 1) * embedding_dim, rank] and V_l (its transpose's shape).

    Tensor names are those of TorchRec: `sparse_arch.*`, `dense_arch.*`, `inter_arch.crossnet.*`, `over_arch.*`.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int = 16,
        dense_mlp: Sequence[int] = (64, 16),
        over_mlp: Sequence[int] = (64, 32, 1),
        layers: int = 3,
        rank: int = 16,
        std: float = 0.01,
    ) -> None:
        check_sizes(layers=layers, rank=rank)
        arguments = _arguments(schema, embedding_dim, dense_mlp, over_mlp, std)
        with empty_layers():
            super().__init__(**arguments, dcn_num_layers=layers, dcn_low_rank_dim=rank)
