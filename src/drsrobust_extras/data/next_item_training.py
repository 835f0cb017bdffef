"""Training of models of the next item: a softmax over the true item and sampled ones, for all positions of the histories.

The weights of the epoch with the highest validation AUC are kept, as in `drsrobust.training.fit`; AUC is that of each row's
item against all others that the row offers, the mean over rows. An interrupted training begins again.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from drsrobust.data import Dataset, Split
from drsrobust.extend import evaluating, progress_bar, threads
from drsrobust.training import Epoch, Settings
from drsrobust_extras.data.sequences import HISTORY, PADDING

NEGATIVES = 128  # sampled items of a softmax, as in the public configurations of arXiv:2402.17152
POOLED = 20  # batches whose histories are sorted by length, so that a batch has histories of similar lengths
VALIDATED = 1_000  # validation rows after each epoch
TESTED = 5_000  # test rows of the manifest
SCORED = 512  # histories that are scored at once
LENGTH = 10  # of the lists of the metrics


@dataclass(frozen=True)
class Quality:
    """How a model ranks the next items of n rows, among the items that each row offers.

    Attributes:
        ranks: of each row's item, from 0, int64 [n]; ties by item, and a NaN comes last.
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
        """NDCG of lists of 10."""
        return float(np.where(self.ranks < LENGTH, 1 / np.log2(self.ranks + 2.0), 0.0).mean())

    @property
    def auc(self) -> float:
        """Mean share of the other offered items that come after the row's."""
        return float((1 - self.ranks / np.maximum(self.offered - 1, 1)).mean())


def score_parts(model: Any, rows: Split) -> Iterator[tuple[slice, np.ndarray]]:
    """The scores [m, items] of some rows after others, and which rows they are."""
    with evaluating(model):
        for start in range(0, len(rows), SCORED):
            part = slice(start, min(start + SCORED, len(rows)))
            batch = rows.batch(part)
            scores = model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
            yield part, scores.cpu().numpy()


def quality(model: Any, rows: Split) -> Quality:
    """The ranks of the rows' items by a model's scores."""
    items, parts = rows.labels_of(slice(None)), []
    for part, scores in score_parts(model, rows):
        own = items[part][:, None]
        score, numbers = np.take_along_axis(scores, own, axis=1), np.arange(scores.shape[1])
        ranks = np.count_nonzero(scores > score, axis=1)
        ranks += np.count_nonzero((scores == score) & (numbers < own), axis=1)
        ranks[np.isnan(score[:, 0])] = scores.shape[1]
        losses = torch.logsumexp(torch.from_numpy(scores), 1).numpy() - score[:, 0]
        parts.append((ranks, np.count_nonzero(np.isfinite(scores), axis=1), losses.astype(np.float64)))
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


def loss_of(model: Any, items: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the next items in a batch [B, T + 1] against `NEGATIVES` items that are drawn for the batch,
    each with the same probability."""
    table = model.items.weight
    is_known = items[:, :-1] != PADDING
    states, targets = model.states(model.items(items[:, :-1]), is_known)[is_known], items[:, 1:][is_known]
    drawn = torch.randint(1, len(table), (NEGATIVES,))
    true = (states * table[targets]).sum(1, keepdim=True)
    others = (states @ table[drawn].T).masked_fill(drawn == targets[:, None], -math.inf)
    return cross_entropy(torch.cat((true, others), dim=1), targets.new_zeros(len(targets)))


def popularity_loss(rows: Split, validation: Split, cardinality: int) -> float:
    """The mean loss of the validation rows' items by the shares of items in the training rows, each counted once more."""
    counts = np.ones(cardinality)
    np.add.at(counts, rows.sparse[HISTORY].values, 1)
    np.add.at(counts, rows.labels.values, 1)
    return float(-np.log(counts[validation.labels.values] / counts[1:].sum()).mean())


def fit(
    model: Any, data: Dataset, settings: Settings, *, progress: bool = True
) -> tuple[list[Epoch], dict[str, float]]:
    """Trains a model in place, by Adam, on one thread: one seed gives one model on one CPU type.

    Args:
        model: ends with the weights of the epoch of the highest validation AUC.
        data: of next items.
        settings: `batch_size` counts predictions, of which a history has as many as items; `table_optimizer` and `precision`
            must be the defaults, and `table_weight_decay` that of all. Training ends after `patience` epochs without a better
            AUC.
        progress: whether to show a progress bar.

    Returns:
        the learning curve, of validation rows; `valid_ne` is the loss over that of items by their frequency. And the metrics of
        the manifest, of the first `TESTED` test rows.

    Raises:
        ValueError: a setting that does not apply, or no training rows.
        RuntimeError: training diverged.
    """
    plain = Settings()
    for name in ("table_optimizer", "precision"):
        if getattr(settings, name) != getattr(plain, name):
            raise ValueError(
                f"{name} must be {getattr(plain, name)!r} for models of the next item, got {getattr(settings, name)!r}"
            )
    if not len(data.train):
        raise ValueError(f"{data.name} has 0 training rows; a user of four items, or of two, gives one")
    valid, curve, best = data.valid.head(VALIDATED), [], {}
    base = popularity_loss(data.train, valid, data.schema.features[0].cardinality)
    with (
        threads(1),
        torch.random.fork_rng(devices=[]),
        progress_bar(settings.epochs, "training", progress=progress) as bar,
    ):
        torch.manual_seed(settings.seed)
        order = np.random.default_rng(settings.seed)
        optimizer = torch.optim.Adam(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        for number in range(1, settings.epochs + 1):
            start, cpu_start = time.perf_counter(), time.process_time()
            loss = _train_epoch(model, data.train, settings, optimizer, order)
            found = quality(model, valid)
            _check_finite(float(found.losses.mean()), settings)
            measured = {"train_loss": loss, "valid_loss": float(found.losses.mean()), "valid_auc": found.auc}
            measured |= {"valid_ne": measured["valid_loss"] / base, "seconds": time.perf_counter() - start}
            curve.append(Epoch(number, **measured, cpu_seconds=time.process_time() - cpu_start))
            leader = max(curve, key=lambda epoch: epoch.valid_auc).epoch
            if leader == number:
                best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            bar.set_postfix_str(f"HR@10 {found.hit_rate:.4f}, AUC {found.auc:.4f}", refresh=False)
            bar.update()
            if number - leader >= settings.patience:
                break
        model.load_state_dict(best)
        model.cpu().eval()
        tested = quality(model, data.test.head(TESTED))
    metrics = {"test_auc": tested.auc, "test_log_loss": float(tested.losses.mean())}
    return curve, metrics | {"test_hit_rate@10": tested.hit_rate, "test_ndcg@10": tested.ndcg}


def _train_epoch(
    model: Any, rows: Split, settings: Settings, optimizer: torch.optim.Optimizer, order: np.random.Generator
) -> float:
    """The mean loss of an epoch's batches."""
    model.train()
    losses, device = [], model.items.weight.device
    for items in batches(rows, settings.batch_size, model.length, order):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, items.to(device))
        _check_finite(loss.item(), settings)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses))


def _check_finite(loss: float, settings: Settings) -> None:
    """Raises RuntimeError for a loss that is not; the last step of an epoch shows in the validation rows alone."""
    if not math.isfinite(loss):
        raise RuntimeError(f"training diverged: the loss is {loss}. Use a learning_rate below {settings.learning_rate}")
