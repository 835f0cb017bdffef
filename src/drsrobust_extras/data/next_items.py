"""Models of the next item after a user's history: one table of items, which is also the output, and blocks between them."""

from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import nn

from drsrobust.data import Dataset, Schema
from drsrobust.models import check_sizes
from drsrobust_extras.data.sequences import HISTORY, PADDING

if TYPE_CHECKING:
    from pathlib import Path

    from torchrec import KeyedJaggedTensor

    from drsrobust.training import Epoch, Settings

OFFERED_NEVER = float("-inf")  # the score of an item that a row does not offer


class NextItems(nn.Module):
    """Scores of all items as the next one, of a history of items.

    A subclass has `blocks`, which take and give states [B, T, dim] with the mask [B, T, T] of who attends to whom.

    Args:
        schema: with the feature `history`, whose id 0 is no item.
        dim: of items and states.
        length: of a history that the blocks see: its last items.
        dropout: probability of dropping a coordinate while training.
        std: standard deviation of the items' first vectors.

    Raises:
        ValueError: a size out of its range, or a schema without that feature.
    """

    COMPONENTS = {
        "embedding": ("items.*",),
        "positions": ("positions.*",),
        "attention": ("blocks.*.attention.*",),
        "feed_forward": ("blocks.*.feed_forward.*",),
        "last_norm": ("last_norm.*",),
        "output": ("output.*",),
    }

    def __init__(self, schema: Schema, *, dim: int, length: int, dropout: float, std: float) -> None:
        check_sizes(dim=dim, length=length, dropout=dropout, std=std)
        super().__init__()
        feature = next((feature for feature in schema.features if feature.name == HISTORY), None)
        if feature is None or len(schema.features) > 1 or schema.dense:
            columns = [*schema.dense, *(feature.name for feature in schema.features)]
            raise ValueError(
                f"the data must have the feature {HISTORY!r} and nothing else, as amazon-games has, got {columns}"
            )
        self.length = length
        self.items = nn.Embedding(feature.cardinality, dim, padding_idx=PADDING)
        nn.init.normal_(self.items.weight, std=std)
        with torch.no_grad():
            self.items.weight[PADDING] = 0.0
        self.output: nn.Linear | None = None  # None: the items' vectors
        self.dropout = nn.Dropout(dropout)
        self.last_norm = nn.LayerNorm(dim)

    def placed(self, vectors: torch.Tensor) -> torch.Tensor:
        """The first states [B, T, dim] of items' vectors [B, T, dim], of which the last column is the latest."""
        return vectors

    def states(self, vectors: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """What is known after each of T items: [B, T, dim].

        Args:
            vectors: of the items [B, T, dim], the latest in the last column.
            present: where there is an item, bool [B, T]; false before the first.
        """
        order = torch.ones(present.shape[1], present.shape[1], dtype=torch.bool, device=present.device).tril()
        mask = order & present[:, None, :]
        # Not a product: 0 times an infinite number, which an error made, would be NaN.
        states = self.dropout(self.placed(vectors)).masked_fill(~present[:, :, None], 0.0)
        for block in self.blocks:
            states = block(states, mask)
        return self.last_norm(states)

    def scores(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [..., items] of all items by states [..., dim]: products with the items' vectors."""
        return nn.functional.linear(states, self.items.weight if self.output is None else self.output.weight)

    def forward(self, dense_features: torch.Tensor, sparse_features: "KeyedJaggedTensor") -> torch.Tensor:
        """Scores [B, items] of the item after each history; -inf for the items in it, and for no item."""
        history = sparse_features[HISTORY]
        values, lengths = history.values().long(), history.lengths().long()
        looked_up = self.items(values)  # exactly the data's ids, by which an evaluator knows who reads a wrong row
        places, present = last_places(lengths, self.length)
        scores = self.scores(self.states(looked_up[places], present)[:, -1])
        scores[:, PADDING] = OFFERED_NEVER
        rows = torch.repeat_interleave(torch.arange(len(lengths), device=values.device), lengths)
        scores[rows, values] = OFFERED_NEVER
        return scores

    def fit(
        self, data: Dataset, settings: "Settings", *, progress: bool, snapshot: "Path"
    ) -> tuple[list["Epoch"], dict[str, float]]:
        """Trains on the next items of the training rows' histories; as `load_model` asks for it."""
        from drsrobust_extras.data.next_item_training import fit

        return fit(self, data, settings, progress=progress)


def last_places(lengths: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the last items of histories are among all items, one history after the other: int64 [B, length], the latest in the
    last column; and where there is one, bool [B, length] (else the place is 0).

    Example:
        >>> last_places(torch.tensor([3, 1]), 2)
        (tensor([[1, 2],
                [0, 3]]), tensor([[ True,  True],
                [False,  True]]))
    """
    columns = torch.arange(-length, 0, device=lengths.device)
    present = columns >= -lengths[:, None]
    return torch.where(present, lengths.cumsum(0)[:, None] + columns, 0), present


def present_alone(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Values [B, T, dim] that attention sums, 0 where the mask [B, T, T] has no item: a weight of 0 times an infinite number,
    which an error made, would be NaN, and the scores would depend on the padding."""
    return values.masked_fill(~mask[:, -1, :, None], 0.0)


def untied(model: NextItems) -> NextItems:
    """A copy whose output has a table of its own with the items' vectors, as where an index of items serves the output: the
    component `output`."""
    copy = deepcopy(model)
    rows, dim = model.items.weight.shape
    copy.output = nn.Linear(dim, rows, bias=False)
    with torch.no_grad():
        copy.output.weight.copy_(model.items.weight)
    return copy.eval()
