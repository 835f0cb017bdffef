"""DLRM's pairwise products, with a quicker choice of the pairs."""

import torch

from drsrobust._torchrec import torchrec


class FlatInteractionArch(torchrec().models.dlrm.InteractionArch):
    """TorchRec's `InteractionArch`, the same numbers in the same order, forwards and backwards.

    TorchRec picks the pairs by two index vectors; the gradient of that adds up element by element. Here one index picks them
    from the flattened products. The buffer `triu_indices` still decides which pairs are read.
    """

    def forward(self, dense_features: torch.Tensor, sparse_features: torch.Tensor) -> torch.Tensor:
        """The dense vector and all pairwise products [B, D + F + F (F - 1) / 2] of a dense vector [B, D] and F embeddings
        [B, F, D].

        Raises:
            RuntimeError: an error made the buffer name a vector that is not there (a negative number counts from the end).
        """
        vectors = torch.cat((dense_features.unsqueeze(1), sparse_features), dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)  # [B, n * n]
        n = self.F + 1
        pairs = torch.where(self.triu_indices < 0, self.triu_indices + n, self.triu_indices)
        there = ((pairs >= 0) & (pairs < n)).all(dim=0)
        flat = torch.where(there, pairs[0] * n + pairs[1], n * n)  # n * n is refused by index_select
        return torch.cat((dense_features, products.index_select(1, flat)), dim=1)
