"""Training: binary cross-entropy on logits, Adam, early stopping on validation AUC, everything from one seed."""

import copy
import math
import time
from dataclasses import dataclass, fields
from operator import index

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from drsrobust._progress import progress
from drsrobust.data import Dataset
from drsrobust.metrics import auc, log_loss
from drsrobust.models import padded_batches, score
from drsrobust.tensors import component_of, named_tensors


@dataclass(frozen=True)
class Settings:
    """How to train. The defaults are those of arXiv:2307.10244.

    Attributes:
        learning_rate: of Adam.
        weight_decay: L2, added to the gradient; `table_weight_decay` is the same for embedding tables.
        batch_size: rows per step.
        epochs: at most.
        patience: epochs without a better validation AUC before training stops (1: at the first).
        seed: of the first weights, the order of rows and dropout.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 1e-6
    table_weight_decay: float = 1e-6
    batch_size: int = 4096
    epochs: int = 30
    patience: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            plain = float if field.type == "float" or field.type is float else index
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        least = {"batch_size": 2, "epochs": 1, "patience": 1, "seed": 0, "weight_decay": 0, "table_weight_decay": 0}
        for name, low in least.items():
            if not getattr(self, name) >= low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate is {self.learning_rate}; it must be over 0")


@dataclass(frozen=True)
class Epoch:
    """One line of the learning curve; losses in nats per row."""

    epoch: int
    train_loss: float
    valid_loss: float
    valid_auc: float
    seconds: float


def fit(model: nn.Module, data: Dataset, settings: Settings, *, show: bool = True) -> list[Epoch]:
    """Trains a model in place; it ends in evaluation mode with the weights of its best epoch.

    Args:
        model: forward(dense_features, sparse_features) -> logits [B].
        data: trained on `data.train`, judged on `data.valid`.
        settings: see there. The global random state of torch is left as it was.
        show: a progress bar.

    Raises:
        RuntimeError: training diverged (the loss is no longer a number).
        ValueError: the validation rows are all of one class, so that they have no AUC.
    """
    if len(np.unique(data.valid.labels)) < 2:
        raise ValueError(f"the {len(data.valid)} validation rows are all of one class; early stopping needs their AUC")
    optimizer = _adam(model, settings)
    order = np.random.default_rng(settings.seed)
    valid = padded_batches(data.valid)
    steps = math.ceil(len(data.train) / settings.batch_size)
    curve: list[Epoch] = []
    best, best_state = -math.inf, None
    with torch.random.fork_rng(devices=[]), progress(settings.epochs * steps, "training", show=show) as bar:
        torch.manual_seed(settings.seed)
        for epoch in range(1, settings.epochs + 1):
            start = time.perf_counter()
            loss = _train_epoch(model, data, settings, optimizer, order, bar)
            if not math.isfinite(loss):
                raise RuntimeError(
                    f"training diverged in epoch {epoch}: the loss is {loss}. A smaller learning_rate than "
                    f"{settings.learning_rate} usually helps; dense columns far outside -10..10 are the other usual cause"
                )
            scores = score(model, valid, len(data.valid))
            curve.append(
                Epoch(
                    epoch,
                    loss,
                    log_loss(data.valid.labels, scores, data.valid.prior),
                    auc(data.valid.labels, scores),
                    time.perf_counter() - start,
                )
            )
            bar.set_postfix_str(f"epoch {epoch}, AUC {curve[-1].valid_auc:.4f}", refresh=False)
            if curve[-1].valid_auc > best:
                best, best_state, best_epoch = curve[-1].valid_auc, copy.deepcopy(model.state_dict()), epoch
            elif epoch - best_epoch >= settings.patience:
                bar.total = bar.n  # stopped early: the bar ends full
                break
    model.load_state_dict(best_state)
    model.eval()
    return curve


def _train_epoch(model, data: Dataset, settings: Settings, optimizer, order: np.random.Generator, bar) -> float:
    """One pass over the training rows in a new order; the mean loss per row."""
    model.train()
    total, rows = 0.0, 0
    for batch in data.train.batches(settings.batch_size, order=order.permutation(len(data.train))):
        if len(batch.labels) < 2:
            continue  # BatchNorm has no variance of one row (another one is left over in each epoch)
        optimizer.zero_grad(set_to_none=True)
        logits = model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
        loss = binary_cross_entropy_with_logits(logits, batch.labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch.labels)
        rows += len(batch.labels)
        bar.update()
    return total / rows


def _adam(model: nn.Module, settings: Settings) -> torch.optim.Adam:
    home = component_of(model)
    tables, rest = [], []
    for name, parameter in named_tensors(model, buffers=False):
        if parameter.numel():
            (tables if home[name] == "embedding" else rest).append(parameter)
    return torch.optim.Adam(
        [
            {"params": tables, "weight_decay": settings.table_weight_decay},
            {"params": rest, "weight_decay": settings.weight_decay},
        ],
        lr=settings.learning_rate,
        fused=True,
    )
