"""Hierarchical sequential transduction units (Zhai et al., arXiv:2402.17152)."""

import torch
from torch import nn
from torch.nn.functional import silu

from drsrobust.data import Schema
from drsrobust.models import check_sizes
from drsrobust_extras.data.next_items import NextItems, present_alone


class PointwiseAttention(nn.Module):
    """U, V, Q, K = SiLU(f1(x)); then SiLU(Q K^T + b) V / length, where b is a number for each distance of two positions
    (equations 1 and 2). There is no softmax.

    Args:
        dim: of the states, and of U, V, Q and K together for each head.
        heads: number of heads; it divides `dim`.
        length: longest history.
    """

    def __init__(self, dim: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.length = heads, length
        self.norm = nn.LayerNorm(dim)
        self.projection = nn.Linear(dim, 4 * dim)  # f1
        self.bias = nn.Parameter(torch.zeros(length))  # by distance

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What is attended to, and the gate U, both [B, T, dim], of states [B, T, dim] and the mask [B, T, T]."""
        rows, n, dim = states.shape
        u, v, q, k = silu(self.projection(self.norm(states))).chunk(4, dim=2)
        v = present_alone(v, mask)
        v, q, k = (part.view(rows, n, self.heads, -1).transpose(1, 2) for part in (v, q, k))
        places = torch.arange(n, device=states.device)
        distance = (places[:, None] - places).clamp(min=0)  # later positions are masked
        weights = (silu(q @ k.transpose(2, 3) + self.bias[distance]) / self.length).masked_fill(~mask[:, None], 0.0)
        return (weights @ v).transpose(1, 2).reshape(rows, n, dim), u


class Transformation(nn.Module):
    """f2(Norm(attended) * U) (equation 3), in the place of a feed-forward network.

    Args:
        dim: of the states.
        dropout: probability of dropping a coordinate while training.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.projection = nn.Linear(dim, dim)  # f2
        self.dropout = nn.Dropout(dropout)

    def forward(self, attended: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """States [B, T, dim] of what was attended to and the gate U, both [B, T, dim]."""
        return self.projection(self.dropout(self.norm(attended) * gate))


class Unit(nn.Module):
    """x + transformation(attention(x))."""

    def __init__(self, dim: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.feed_forward = PointwiseAttention(dim, heads, length), Transformation(dim, dropout)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """States [B, T, dim] of states [B, T, dim] and the mask [B, T, T]."""
        return states + self.feed_forward(*self.attention(states, mask))


class HSTU(NextItems):
    """Items, units of pointwise attention with a gate, and products with the same items. Positions enter by their distance
    alone; times, which the data may not have, do not.

    Args:
        schema: of the data.
        dim, length, dropout, std: as of `NextItems`.
        blocks: number of units.
        heads: of the attention; the number divides `dim`.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        dim: int = 50,
        length: int = 50,
        blocks: int = 2,
        heads: int = 1,
        dropout: float = 0.2,
        std: float = 0.02,
    ) -> None:
        check_sizes(blocks=blocks, heads=heads)
        super().__init__(schema, dim=dim, length=length, dropout=dropout, std=std)
        if dim % heads:
            raise ValueError(f"heads must divide dim, {dim}, got {heads}")
        self.blocks = nn.ModuleList(Unit(dim, heads, length, dropout) for _ in range(blocks))
