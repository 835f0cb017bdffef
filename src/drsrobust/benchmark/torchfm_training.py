"""torchfm's models trained well: the study's settings, index batches, early stopping on validation AUC."""

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from drsrobust._progress import progress
from drsrobust.benchmark.torchfm_models import ids_of, set_dropout, torchfm_model
from drsrobust.data import Dataset
from drsrobust.metrics import auc

if TYPE_CHECKING:
    from drsrobust.training.settings import Settings

_SCORED = 8192  # rows at once


def train_torchfm(
    name: str, data: Dataset, settings: "Settings", *, show: bool = True
) -> tuple[np.ndarray, float, float]:
    """Trains one of its models and scores the test rows by the weights of the best epoch.

    Batches are cut from one tensor of ids by an index, not fed row by row: its quality is the question here, not its loader.

    Args:
        name: of the model.
        data: single-hot features only.
        settings: learning rate, weight decay, batch size, epochs, patience and seed are used.
        show: a progress bar.

    Returns:
        logits [test rows], the best validation AUC, and the seconds that training took.
    """
    start = time.perf_counter()
    parts = {part: torch.from_numpy(ids_of(getattr(data, part))) for part in ("train", "valid", "test")}
    labels = torch.from_numpy(np.array(data.train.labels))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = torchfm_model(name, data.schema)
        optimizer = torch.optim.Adam(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        loss = torch.nn.BCELoss()
        best, kept, waited = -1.0, {}, 0
        with progress(settings.epochs, f"torchfm {name}", show=show) as bar:
            for _ in range(settings.epochs):
                set_dropout(model, True)
                for rows in torch.randperm(len(labels)).split(settings.batch_size):
                    optimizer.zero_grad()
                    loss(model(parts["train"][rows]), labels[rows]).backward()
                    optimizer.step()
                found = auc(data.valid.labels, _scores(model, parts["valid"]))
                bar.update()
                waited += 1
                if found > best:
                    best, waited = found, 0
                    kept = {key: tensor.clone() for key, tensor in model.state_dict().items()}
                elif waited == settings.patience:
                    break
            bar.total = bar.n
        model.load_state_dict(kept)
    return _scores(model, parts["test"]), best, time.perf_counter() - start


def _scores(model: torch.nn.Module, ids: torch.Tensor) -> np.ndarray:
    """Logits [n] of what the model gives as probabilities."""
    set_dropout(model, False)
    with torch.no_grad():
        found = torch.cat([model(some) for some in ids.split(_SCORED)])
    return torch.logit(found.double(), eps=1e-12).numpy()
