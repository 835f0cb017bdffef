"""One form for all look-ups: which rows each bag reads, and with what weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding_bag


@dataclass
class Lookup:
    """A call of one module, as bags of rows of all its tables one below the other. Bags go feature by feature.

    Attributes:
        ids: [N], ascending by bag.
        offsets: [bags + 1], where bags begin; None: each id is a bag.
        weights: [N]; None: 1 each.
        bags: how many.
    """

    ids: torch.Tensor
    offsets: torch.Tensor | None
    weights: torch.Tensor | None
    bags: int

    @property
    def lengths(self) -> torch.Tensor | None:
        """How many ids each bag has, [bags]; None: one each."""
        return None if self.offsets is None else self.offsets.diff()

    def pooled(self, rows: torch.Tensor) -> torch.Tensor:
        """Checksums and thresholds of rows [all rows, 2], summed with their weights, of the latter the magnitudes: [bags, 2], a
        new tensor."""
        if self.offsets is not None and self.weights is None:
            return embedding_bag(self.ids, rows, self.offsets, mode="sum", include_last_offset=True)
        # A complex number is both at once: to gather such is several times as quick as rows of two.
        pairs = torch.view_as_real(torch.view_as_complex(rows).index_select(0, self.ids))
        if self.weights is not None:
            weights = self.weights.to(rows.dtype)
            pairs.mul_(torch.stack((weights, weights.abs()), dim=1))
        if self.offsets is None:
            return pairs
        places = torch.arange(len(self.ids), dtype=self.offsets.dtype, device=rows.device)
        return embedding_bag(places, pairs, self.offsets, mode="sum", include_last_offset=True)

    def bag_of(self, places: torch.Tensor) -> torch.Tensor:
        """The bags that ids at some places belong to, int64 [m], ascending, each once."""
        if self.offsets is None:
            return places
        return torch.searchsorted(self.offsets.to(places.dtype), places, right=True).sub_(1).unique()

    def ids_of(self, bags: torch.Tensor) -> torch.Tensor:
        """The ids in some bags, int64 [m]."""
        if self.offsets is None:
            return self.ids[bags].long()
        chosen = torch.zeros(self.bags, dtype=torch.bool, device=self.ids.device)
        chosen[bags] = True
        return self.ids[chosen.repeat_interleave(self.lengths.long())].long()


def of_keyed(
    jagged: Any, features: Sequence[str], first: torch.Tensor, weighted: bool, last: torch.Tensor | None = None
) -> Lookup:
    """Of a KeyedJaggedTensor.

    Args:
        jagged: ids, feature by feature.
        features: which, in the order of the output.
        first: [features]: the number that each feature's table begins at.
        weighted: whether weights count.
        last: [features]: the last row of each table; ids beyond are taken for the nearest that there is. None: there are none.
    """
    keys = jagged.keys()
    if list(keys) != list(features):
        jagged = jagged.permute([keys.index(feature) for feature in features])
    values, bags = jagged.values(), jagged.lengths().numel()
    weights = jagged.weights() if weighted else None
    first = first.to(values.dtype)
    # As many ids as bags, and nowhere more than one: quicker than to compare all lengths with 1.
    if bags and values.numel() == bags and int(jagged.lengths().max()) == 1:
        ids = values.view(len(features), -1)
        if last is not None:
            ids = ids.clamp(min=0).minimum(last.to(ids.dtype).unsqueeze(1))
        return Lookup((ids + first.unsqueeze(1)).view(-1), None, weights, bags)
    count = torch.tensor(jagged.length_per_key(), device=values.device)
    if last is not None:
        values = values.clamp(min=0).minimum(last.to(values.dtype).repeat_interleave(count))
    return Lookup(values + first.repeat_interleave(count), jagged.offsets().to(values.dtype), weights, bags)


def of_bag(
    module: nn.EmbeddingBag,
    input: torch.Tensor,
    offsets: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
) -> Lookup:
    """Of a call of an `nn.EmbeddingBag`."""
    if offsets is None:
        bags, length = input.shape
        offsets = torch.arange(0, (bags + 1) * length, length, device=input.device) if length != 1 else None
    else:
        if not module.include_last_offset:
            offsets = torch.cat((offsets, offsets.new_tensor([len(input)])))
        bags = len(offsets) - 1
    ids = input.reshape(-1)
    weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)
    if module.padding_idx is not None:  # such ids are no part of their bag
        kept = ids != module.padding_idx
        before = torch.cat((kept.new_zeros(1, dtype=ids.dtype), kept.cumsum(0).to(ids.dtype)))
        offsets = torch.arange(bags + 1, device=ids.device) if offsets is None else offsets
        offsets = before[offsets.long()]
        ids, weights = ids[kept], None if weights is None else weights[kept]
    if offsets is not None:
        offsets = offsets.to(ids.dtype)
    return Lookup(ids, offsets, weights, bags)


def of_embedding(input: torch.Tensor) -> Lookup:
    """Of a call of an `nn.Embedding`: each id is a bag."""
    return Lookup(input.reshape(-1), None, None, input.numel())
