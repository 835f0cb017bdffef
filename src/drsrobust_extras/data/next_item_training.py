"""Training of models of the next item: a softmax over the true item and sampled ones, for all positions of the histories."""

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from drsrobust.data import Dataset, Split
from drsrobust.extend import evaluating, progress_bar, threads
from drsrobust.training import Epoch, Settings
from drsrobust_extras.data.next_items import HISTORY, PADDING, last_items

if TYPE_CHECKING:
    from drsrobust_extras.data.next_items import NextItems

NEGATIVES = 128  # sampled items of a softmax, as in the configurations of arXiv:2402.17152
POOLED = 20  # batches whose histories are sorted by length, so that a batch has histories of similar lengths
VALIDATED = 2_000  # validation rows after each epoch
SCORED = 512  # histories that are scored at once
LENGTH = 10  # of the lists of the metrics


@dataclass(frozen=True)
class Quality:
    """How models rank the next items of some rows, all items but those of the history offered.

    Attributes:
        ranks: of each row's item, from 0, int64 [n]; ties by item.
        offered: items of each row, int64 [n].
        losses: of a softmax over the offered items, nats, float64 [n].
    """

    ranks: np.ndarray
    offered: np.ndarray
    losses: np.ndarray

    @property
    def hit_rate(self) -> float:
        """Share of rows whose item is among the first 10."""
        return float((self.ranks < LENGTH).mean())

    @property
    def ndcg(self) -> float:
        """NDCG of lists of 10, of one relevant item each."""
        return float(np.where(self.ranks < LENGTH, 1 / np.log2(self.ranks + 2.0), 0.0).mean())

    @property
    def auc(self) -> float:
        """Mean share of the other offered items that score below the row's."""
        return float((1 - self.ranks / np.maximum(self.offered - 1, 1)).mean())


@torch.no_grad()
def quality(model: "NextItems", rows: Split) -> Quality:
    """The ranks of the rows' items by a model's scores."""
    parts: list[list[np.ndarray]] = []
    with evaluating(model):
        for batch in rows.batches(SCORED):
            scores = model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
            item = batch.labels.long()[:, None]
            own, numbers = scores.gather(1, item), torch.arange(scores.shape[1])
            ranks = (scores > own).sum(1) + ((scores == own) & (numbers < item)).sum(1)
            losses = torch.logsumexp(scores, 1) - own[:, 0]
            parts.append([ranks.numpy(), scores.isfinite().sum(1).numpy(), losses.double().numpy()])
    return Quality(*map(np.concatenate, zip(*parts, strict=True)))


def batches(rows: Split, predictions: int, length: int, order: np.random.Generator) -> Iterator[torch.Tensor]:
    """The histories with their next items, in random batches of about so many predictions: items int64 [B, T], 0 before the
    first. Those of similar lengths are together.

    Args:
        rows: of training.
        predictions: of a batch, about.
        length: items of a history that count, the last ones; the next item follows.
        order: draws the order.
    """
    history, label = rows.sparse[HISTORY], rows.labels
    lengths = np.minimum(history.lengths, length)
    ends, shuffled, made = history.ends(), order.permutation(len(rows)), []
    pool = max(1, round(POOLED * predictions * len(rows) / lengths.sum()))
    for start in range(0, len(shuffled), pool):
        chosen = shuffled[start : start + pool]
        chosen = chosen[np.argsort(lengths[chosen], kind="stable")]
        number = np.cumsum(lengths[chosen]) // predictions
        made += np.split(chosen, np.flatnonzero(np.diff(number)) + 1)
    for batch in order.permutation(len(made)):
        chosen = made[batch]
        columns = np.arange(-lengths[chosen].max(), 0)
        places = ends[chosen][:, None] + columns
        items = np.where(columns >= -lengths[chosen][:, None], history.values[np.maximum(places, 0)], PADDING)
        yield torch.from_numpy(np.concatenate((items, label.values[chosen][:, None]), axis=1).astype(np.int64))


def loss_of(model: "NextItems", items: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the next items in a batch [B, T + 1] against `NEGATIVES` items that are drawn for the batch,
    each with the same probability."""
    table = model.items.weight
    states, targets = model.states(items[:, :-1]), items[:, 1:]
    is_known = items[:, :-1] != PADDING
    states, targets = states[is_known], targets[is_known]
    drawn = torch.randint(1, len(table), (NEGATIVES,))
    true = (states * table[targets]).sum(1, keepdim=True)
    others = (states @ table[drawn].T).masked_fill(drawn == targets[:, None], -math.inf)
    return cross_entropy(torch.cat((true, others), dim=1), targets.new_zeros(len(targets)))


def fit(
    model: "NextItems", data: Dataset, settings: Settings, *, progress: bool = True
) -> tuple[list[Epoch], dict[str, float]]:
    raise NotImplementedError
