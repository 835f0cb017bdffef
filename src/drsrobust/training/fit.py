"""Training: binary cross-entropy on logits, early stopping on validation rows, everything from one seed."""

import math
import time
import warnings
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from tqdm import tqdm

from drsrobust._hashing import digest
from drsrobust._processes import threads
from drsrobust._progress import progress_bar
from drsrobust.data import Dataset
from drsrobust.introspection.numerics import forget_casts
from drsrobust.introspection.tensors import component_of, named_tensors
from drsrobust.metrics import auc, log_loss, normalised_entropy
from drsrobust.models import padded_batches, score, state_digest
from drsrobust.training.checkpoint import (
    load_optimizer,
    optimizer_tensors,
    random_state,
    read_snapshot,
    save_snapshot,
    set_random_state,
)
from drsrobust.training.fused import FusedTables, fused_tables
from drsrobust.training.settings import Settings

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch


SAVE_EVERY = 60.0  # seconds of training between snapshots
HARDLY_LEARNED = 0.98  # normalised entropy; predicting the click rate for every row has 1
_COUNTERS = ("epoch", "step", "total", "rows", "seconds", "cpu_seconds")  # of `_Run`, kept in a snapshot


class Trainer:
    """One step of training: forward, loss, backward, update; by Adam, except for the tables that FBGEMM updates.

    Args:
        model: forward(dense_features, sparse_features) -> logits [B] or [B, 1].
        settings: of training.
        fused: from `fused_tables(model, settings)`, inside its block.
    """

    def __init__(self, model: nn.Module, settings: Settings, fused: list[FusedTables]) -> None:
        self.model, self.settings = model, settings
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        components = component_of(model)
        fused_parameters = {id(parameter) for tables in fused for parameter in tables.parameters}
        tables, others = [], []
        for name, parameter in named_tensors(model, buffers=False):
            if parameter.numel() and id(parameter) not in fused_parameters:
                (tables if components[name] == "embedding" else others).append(parameter)
        rate, decay = settings.learning_rate, settings.weight_decay
        table_rate, table_decay = rate, decay  # of tables that FBGEMM cannot update
        if settings.table_optimizer == "adam":
            table_rate, table_decay = settings.table_learning_rate or rate, settings.table_weight_decay
        groups = [
            {"params": tables, "weight_decay": table_decay, "lr": table_rate},
            {"params": others, "weight_decay": decay},
        ]
        self.optimizer = torch.optim.Adam(groups, lr=rate, fused=True)

    def step(self, batch: "Batch") -> float:
        """Updates the model by a batch; returns the mean loss of its rows before the update, in nats."""
        loss = self.backward(batch)
        self.optimizer.step()
        return loss

    def backward(self, batch: "Batch") -> float:
        """Computes the gradients of a batch; returns the mean loss of its rows, in nats. Autocast is what `precision` says,
        whatever it is around the training."""
        if self.device.type != "cpu":
            batch = batch.to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        precision = self.settings.precision
        forget_casts()  # an autocast around the training would keep those of the last step
        dtype = getattr(torch, precision) if precision != "float32" else None
        with torch.autocast(self.device.type, dtype, enabled=dtype is not None):
            logits = self.model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
        loss = binary_cross_entropy_with_logits(logits.float().reshape(-1), batch.labels)
        loss.backward()
        return loss.item()


@dataclass(frozen=True)
class Epoch:
    """One epoch of the learning curve; losses in nats per row, `valid_ne` the normalised entropy; `cpu_seconds` of the process
    (None in older checkpoints)."""

    epoch: int
    train_loss: float
    valid_loss: float
    valid_auc: float
    valid_ne: float
    seconds: float
    cpu_seconds: float | None = None


def last_epoch(curve: list[Epoch], settings: Settings) -> int:
    """The last epoch of training if no later one is better.

    Training ends when the validation AUC has not risen for `patience` epochs and the last validation loss is not the lowest:
    on few rows AUC can stay level for many epochs while the loss falls.
    """
    best = max(curve, key=lambda epoch: epoch.valid_auc).epoch if curve else 0
    lowest = min(curve, key=lambda epoch: epoch.valid_loss).epoch if curve else 0
    return min(settings.epochs, max(best + settings.patience, lowest + 1))


def warn_if_hardly_learned(curve: list[Epoch], stacklevel: int) -> None:
    """Warns if the normalised entropy on validation rows never fell to `HARDLY_LEARNED`."""
    if (lowest := min(epoch.valid_ne for epoch in curve)) > HARDLY_LEARNED:
        warnings.warn(
            f"after epoch {len(curve)} the model has hardly learned: its lowest normalised entropy on validation rows is "
            f"{lowest:.3f}, over {HARDLY_LEARNED}, and a constant prediction has 1. More epochs, a higher learning_rate, a "
            "smaller batch_size or more rows may help",
            stacklevel=stacklevel + 1,
        )


def fit(
    model: nn.Module, data: Dataset, settings: Settings, *, progress: bool = True, snapshot: Path | None = None
) -> list[Epoch]:
    """Trains a model in place, on its device. The model ends in evaluation mode with the weights of the epoch of the highest
    validation AUC; `last_epoch` defines when training ends. Warns if the model has hardly learned.

    Training uses one thread, since sums over a batch depend on the number of threads. One seed gives the same weights, bit for
    bit, on one CPU type and with the same library versions, also after an interruption. Another CPU may round differently.

    Args:
        model: forward(dense_features, sparse_features) -> logits [B].
        data: trains on `data.train`, validates on `data.valid`.
        settings: of training. The global random state of torch does not change.
        progress: whether to show a progress bar.
        snapshot: file that stores the state of training about once a minute, from which the same training resumes. The caller
            deletes it.

    Raises:
        RuntimeError: training diverged (the loss is not finite).
        ValueError: the validation rows are all of one class, so that they have no AUC.
    """
    if len(np.unique(data.valid.labels)) < 2:
        raise ValueError(
            f"early stopping needs validation rows of both classes; all {len(data.valid)} are of one class"
        )
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    cuda = [device] if device.type == "cuda" else []
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device.type, enabled=False))  # one around it would choose other weights
        stack.enter_context(threads(1))
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        fused = stack.enter_context(fused_tables(model, settings))
        torch.manual_seed(settings.seed)
        run = _Run(model, data, settings, fused, snapshot)
        with progress_bar(last_epoch(run.curve, settings) * run.steps, "training", progress=progress) as bar:
            bar.update((run.epoch - 1) * run.steps + run.step)
            while run.epoch <= last_epoch(run.curve, settings):
                run.train_epoch(bar)
                run.validate(bar)
                bar.total = last_epoch(run.curve, settings) * run.steps  # later after a better epoch
        model.load_state_dict(run.best_state)
    model.eval()
    warn_if_hardly_learned(run.curve, stacklevel=2)
    return run.curve


def _clocks() -> tuple[float, float]:
    """Seconds on the wall clock, and CPU seconds of this process."""
    return time.perf_counter(), time.process_time()


class _Run:
    """The state of one training run."""

    def __init__(
        self, model: nn.Module, data: Dataset, settings: Settings, fused: list[FusedTables], snapshot: Path | None
    ) -> None:
        self.model, self.data, self.settings, self.fused = model, data, settings, fused
        self.trainer = Trainer(model, settings, fused)
        self.device = self.trainer.device
        self.order = np.random.default_rng(settings.seed)
        self.valid = padded_batches(data.valid)
        self.steps = math.ceil(len(data.train) / settings.batch_size)
        self.curve: list[Epoch] = []
        self.best, self.best_state = -math.inf, {}
        self.epoch, self.step = 1, 0  # of the next batch
        self.total, self.rows, self.seconds, self.cpu_seconds = 0.0, 0, 0.0, 0.0  # of the epoch so far
        self.snapshot = snapshot
        if snapshot is not None:
            rows = [data.train.fingerprint, data.valid.fingerprint]
            self.identity = digest([asdict(settings), *rows, state_digest(model), self.device.type])
            if (stored := read_snapshot(snapshot, self.identity)) is not None:
                self._resume(*stored)

    def train_epoch(self, bar: tqdm) -> None:
        """Trains on the remaining rows of this epoch, in an order of its own."""
        self.model.train()
        before = self.order.bit_generator.state  # a resumed epoch draws its order again
        order = self.order.permutation(len(self.data.train))
        rows = order[self.step * self.settings.batch_size :]
        (start, cpu_start), saved = _clocks(), time.perf_counter()
        for batch in self.data.train.batches(self.settings.batch_size, order=rows):
            if len(batch.labels) > 1:  # BatchNorm needs two rows for a variance
                loss = self.trainer.step(batch)
                if not math.isfinite(loss):
                    raise RuntimeError(
                        f"training diverged in epoch {self.epoch}, step {self.step + 1} of {self.steps}: the loss is {loss}. "
                        f"Use a learning_rate below {self.settings.learning_rate}, or scale dense columns to about -10..10"
                    )
                self.total, self.rows = self.total + loss * len(batch.labels), self.rows + len(batch.labels)
            self.step += 1
            bar.update()
            now, cpu_now = _clocks()
            self.seconds, start = self.seconds + now - start, now
            self.cpu_seconds, cpu_start = self.cpu_seconds + cpu_now - cpu_start, cpu_now
            if self.snapshot is not None and now - saved > SAVE_EVERY:
                self._save(before)
                saved = time.perf_counter()

    def validate(self, bar: tqdm) -> None:
        """Ends an epoch: extends the learning curve and keeps the best weights so far."""
        start, cpu_start = _clocks()
        labels, prior = self.data.valid.labels, self.data.valid.prior
        scores = score(self.model, self.valid, len(labels))
        measured = {
            "train_loss": self.total / self.rows,
            "valid_loss": log_loss(labels, scores, prior),
            "valid_auc": auc(labels, scores),
            "valid_ne": normalised_entropy(labels, scores, prior),
        }
        now, cpu_now = _clocks()
        measured |= {"seconds": self.seconds + now - start, "cpu_seconds": self.cpu_seconds + cpu_now - cpu_start}
        self.curve.append(Epoch(self.epoch, **measured))
        if self.curve[-1].valid_auc > self.best:
            self.best = self.curve[-1].valid_auc
            self.best_state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        bar.set_postfix_str(f"AUC {self.curve[-1].valid_auc:.4f}, best {self.best:.4f}", refresh=False)
        self.epoch, self.step = self.epoch + 1, 0
        self.total, self.rows, self.seconds, self.cpu_seconds = 0.0, 0, 0.0, 0.0

    def _save(self, order: dict[str, Any]) -> None:
        """Writes a snapshot; `order` is the state of the row order's generator at the start of the epoch."""
        tensors = dict(optimizer_tensors(self.trainer.optimizer)) | random_state(self.device)
        tensors |= {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best_state.items()}
        tensors |= {f"tables.{i}.{j}": t for i, kernels in enumerate(self.fused) for j, t in enumerate(kernels.state())}
        state = {name: getattr(self, name) for name in _COUNTERS} | {"order": order}
        state |= {"curve": [asdict(epoch) for epoch in self.curve], "best": self.best if self.curve else None}
        save_snapshot(self.snapshot, self.identity, tensors, state)

    def _resume(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        def part(prefix: str) -> dict[str, torch.Tensor]:
            return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

        self.model.load_state_dict(part("model."))
        self.best_state = {name: tensor.to(self.device) for name, tensor in part("best.").items()}
        load_optimizer(self.trainer.optimizer, tensors)
        for i, kernels in enumerate(self.fused):
            for j, tensor in enumerate(kernels.state()):
                tensor.copy_(tensors[f"tables.{i}.{j}"])
        set_random_state(self.device, tensors)
        self.order.bit_generator.state = state["order"]
        for name in _COUNTERS:
            setattr(self, name, state.get(name, 0.0))  # snapshots of older versions have no CPU seconds
        self.curve = [Epoch(**epoch) for epoch in state["curve"]]
        self.best = -math.inf if state["best"] is None else state["best"]
