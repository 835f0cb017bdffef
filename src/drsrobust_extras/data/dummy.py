"""The untrained dummy recommender of arXiv:2307.10244; the study measures how far errors move its outputs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from drsrobust.data import Schema
from drsrobust.extend import torchrec
from drsrobust.models import check_sizes, embedding_tables, empty_layers

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor

DENSE_OUT = 32  # width of the dense MLP's output


class Dummy(nn.Module):
    """logit = predictor MLP of (dense MLP of the dense columns, sum of the looked-up rows), concatenated.

    Dense MLP: D -> h [-> h] -> 32, ReLU after each layer. Predictor: 32 + features * e -> h [-> h] -> 1, ReLU between layers.
    Parameters of more than one dimension are drawn by Kaiming uniform, biases by torch's default. In the study D = 128 and the
    only feature is multi-hot, of 8192 ids.

    Args:
        schema: of the data.
        width: h.
        depth: hidden layers of width h in each MLP, 1 or 2.
        embedding_dim: e.
        as_released: look up rows as the published code did, see `released_lookups`.
    """

    COMPONENTS = {"embedding": ("embeddings.*",), "dense_mlp": ("dense.*",), "deep_mlp": ("predictor.*",)}

    def __init__(
        self,
        schema: Schema,
        *,
        width: int = 64,
        depth: int = 1,
        embedding_dim: int = 64,
        as_released: bool = False,
    ) -> None:
        check_sizes(width=width, depth=depth, embedding_dim=embedding_dim)
        if as_released and (small := [f.name for f in schema.features if f.cardinality < 2]):
            raise ValueError(f"as_released reads rows 0 and 1, so features need at least two ids; {small[0]!r} has one")
        super().__init__()
        hidden = [width] * depth
        self.cardinalities = {f.name: f.cardinality for f in schema.features} if as_released else None
        self.embeddings = embedding_tables(schema, embedding_dim, 1.0, multi_hot="sum", weighted=as_released)
        with empty_layers():
            self.dense = _relu_mlp([len(schema.dense), *hidden, DENSE_OUT])
            predictor = _relu_mlp([DENSE_OUT + len(schema.features) * embedding_dim, *hidden, 1])
            self.predictor = predictor[:-1]  # no ReLU at the end
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.kaiming_uniform_(parameter)

    def forward(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        """Logits [B] of dense features [B, D] and B rows of ids."""
        if self.cardinalities is not None:
            sparse_features = released_lookups(sparse_features, self.cardinalities)
        pooled = self.embeddings(sparse_features).values()
        return self.predictor(torch.cat((self.dense(dense_features), pooled), dim=1)).squeeze(1)


def released_lookups(sparse_features: "KeyedJaggedTensor", cardinalities: dict[str, int]) -> "KeyedJaggedTensor":
    """The lookups of the published code, which passed each bag's 0/1 vector, with an entry for each possible id, as the ids.

    For k different ids out of C, that sums row 0 C - k times and row 1 k times. Here each of the two rows is looked up once,
    weighted by that number, and not at all if it is 0, since an infinite row times 0 would be NaN.

    Args:
        sparse_features: the ids of a bag are distinct.
        cardinalities: feature -> C.
    """
    keys, stride = sparse_features.keys(), sparse_features.stride()
    ones = sparse_features.lengths().to(torch.float32)  # [features * B]
    all_ids = torch.tensor([cardinalities[key] for key in keys], device=ones.device).repeat_interleave(stride)
    weights = torch.stack((all_ids - ones, ones), dim=1)  # of rows 0 and 1
    rows = torch.arange(2, device=ones.device).expand(len(ones), 2)
    read = weights > 0
    return torchrec().KeyedJaggedTensor(
        keys=keys, values=rows[read], weights=weights[read], lengths=read.sum(dim=1, dtype=torch.int32)
    )


def _relu_mlp(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)
