"""Self-attentive sequential recommendation (Kang and McAuley, arXiv:1808.09781)."""

import torch
from torch import nn

from drsrobust.data import Schema
from drsrobust.models import check_sizes
from drsrobust_extras.data.next_items import NextItems, present_alone


class SelfAttention(nn.Module):
    """Dropout(softmax(Q K^T / sqrt(d)) V) of normalized states, one head, with the causal mask (equations 2 and 3)."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """States [B, T, dim] of states [B, T, dim] and the mask [B, T, T]."""
        states = self.norm(states)
        weights = torch.bmm(self.query(states), self.key(states).transpose(1, 2)) * states.shape[2] ** -0.5
        weights = torch.softmax(weights.masked_fill(~mask, -torch.inf), dim=2)
        weights = weights.masked_fill(~mask, 0.0)  # a row without any item has only masked places, whose softmax is NaN
        return self.dropout(torch.bmm(self.dropout(weights), present_alone(self.value(states), mask)))


class FeedForward(nn.Module):
    """Dropout(W2 ReLU(W1 x + b1) + b2) of normalized states, point by point (equation 4)."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.hidden, self.projection = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States [B, T, dim] of states [B, T, dim]."""
        return self.dropout(self.projection(self.dropout(torch.relu(self.hidden(self.norm(states))))))


class Block(nn.Module):
    """x + attention(x), then x + feed-forward(x) (section III-C)."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.feed_forward = SelfAttention(dim, dropout), FeedForward(dim, dropout)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """States [B, T, dim] of states [B, T, dim] and the mask [B, T, T]."""
        states = states + self.attention(states, mask)
        return states + self.feed_forward(states)


class Positions(nn.Module):
    """Adds a learned vector for each place before the next item (section III-A).

    Args:
        length: places.
        dim: of the vectors.
        std: standard deviation of their first values.
    """

    def __init__(self, length: int, dim: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(length, dim) * std)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Vectors [B, T, dim] of vectors [B, T, dim], of which the last column has the last place."""
        return vectors + self.weight[-vectors.shape[1] :]


class SASRec(NextItems):
    """Items times sqrt(d) plus learned positions, blocks of causal self-attention and a point-wise feed-forward network, and
    products with the same items (section III). The sizes are those of the paper for sparse data.

    Args:
        schema: of the data.
        dim, length, dropout, std: as of `NextItems`.
        blocks: number of blocks.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        dim: int = 50,
        length: int = 50,
        blocks: int = 2,
        dropout: float = 0.5,
        std: float = 0.02,
    ) -> None:
        check_sizes(blocks=blocks)
        super().__init__(schema, dim=dim, length=length, dropout=dropout, std=std)
        self.positions = Positions(length, dim, std)
        self.blocks = nn.ModuleList(Block(dim, dropout) for _ in range(blocks))

    def placed(self, vectors: torch.Tensor) -> torch.Tensor:
        """The first states [B, T, dim] of items' vectors [B, T, dim], of which the last column is the latest."""
        return self.positions(vectors * vectors.shape[2] ** 0.5)
