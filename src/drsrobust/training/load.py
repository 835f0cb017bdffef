"""`load_model`: trains once, then comes from the checkpoint cache."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust._names import unknown
from drsrobust._processes import threads
from drsrobust._storage import cache_folder, digest, exclusive
from drsrobust._versions import commit, machine, versions
from drsrobust.data import Dataset
from drsrobust.metrics import auc, log_loss, normalised_entropy
from drsrobust.models import MODELS, build_model, default_sizes, padded_batches, score
from drsrobust.training.checkpoint import MANIFEST, read_checkpoint, save_checkpoint
from drsrobust.training.fit import Epoch, fit, warn_if_hardly_learned
from drsrobust.training.settings import Settings

FORMAT = 3  # of checkpoints and of what training does: raise it when either changes


def load_model(
    name: str,
    data: Dataset,
    *,
    settings: Settings | None = None,
    sizes: dict[str, Any] | None = None,
    device: str | None = None,
    show: bool = True,
) -> nn.Module:
    """A trained model in evaluation mode; its manifest (AUC, settings, versions, hashes) is `model.manifest`.

    The first call trains and stores a checkpoint; it is named by model, sizes, settings and the data's fingerprint, so
    that other ones train anew. Two processes that ask for the same model train it once. Training that was stopped, even by
    `kill -9`, goes on where it was (within a minute) at the next call. Each call warns where the model has hardly learned,
    as `fit` does.

    Args:
        name: one of `dr.models.MODELS`.
        data: what to train on.
        settings: how; None: the defaults for this model on this data (`default_settings`).
        sizes: keyword arguments of the model's class; None: the defaults for this data.
        device: where to train; None: on the GPU if there is one. The model that is returned is on the CPU.
        show: a progress bar while training.

    Raises:
        ValueError: an unknown name.
        CheckpointError: the cached checkpoint is damaged.

    Example:
        >>> from drsrobust.data import load_dataset
        >>> data = load_dataset("synthetic-movielens", rows=20_000)
        >>> model = load_model("dlrm", data, settings=Settings(epochs=2), show=False)
        >>> 0.5 < model.manifest["test_auc"] < 0.9
        True
    """
    folder, identity = checkpoint_of(name, data, settings, sizes)
    with exclusive(folder):
        cached = (folder / MANIFEST).exists()
        if not cached:
            _train(folder, name, data, settings or default_settings(name, data.name), identity, device, show)
    model = read_checkpoint(folder, identity)
    if cached:  # else `fit` has warned
        warn_if_hardly_learned([Epoch(**epoch) for epoch in model.manifest["curve"]], stacklevel=2)
    return model


def checkpoint_of(
    name: str, data: Dataset, settings: Settings | None = None, sizes: dict[str, Any] | None = None
) -> tuple[Path, dict[str, Any]]:
    """The folder of a model's checkpoint, which is there (with its manifest) once the model is trained, and its identity.

    Raises:
        ValueError: an unknown name.
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    settings = settings or default_settings(name, data.name)
    sizes = default_sizes(name, data.name) if sizes is None else {key: _plain(size) for key, size in sizes.items()}
    identity = {"format": FORMAT, "model": name, "sizes": sizes, "settings": asdict(settings), "data": data.fingerprint}
    identity |= {"train": data.train.fingerprint, "valid": data.valid.fingerprint}
    return cache_folder("checkpoints", f"{name}-{data.name.replace('/', '-')}-{digest(identity)[:16]}"), identity


def default_settings(name: str, dataset: str) -> Settings:
    """Those of arXiv:2307.10244, except where validation rows asked for others (found by `search`):
    DLRM's tables on MovieLens need a stronger weight decay, and all models do on `criteo-sample`, which has few rows for many
    categories."""
    if dataset.startswith("criteo-sample"):
        rate = 3e-3 if name == "afm" else 1e-3
        decay = 1e-2 if name in ("dcn", "wide_deep", "deepfm") else 3e-3
        return Settings(rate, batch_size=1024, weight_decay=1e-4, table_weight_decay=decay)
    if name in ("dlrm", "dlrm_dcn"):
        return Settings(batch_size=2048, table_weight_decay=3e-5)
    return Settings()


def training_device(device: str | None) -> torch.device:
    """Where to train: as asked for, else on the GPU if there is one."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _train(
    folder: Path,
    name: str,
    data: Dataset,
    settings: Settings,
    identity: dict[str, Any],
    device: str | None,
    show: bool,
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = build_model(name, data.schema, **identity["sizes"])
    place = training_device(device)
    unfinished = folder.with_name(f"{folder.name}.training")
    curve = fit(model.to(place), data, settings, show=show, snapshot=unfinished / "snapshot.safetensors")
    model.cpu()
    labels, prior = data.test.labels, data.test.prior
    with threads(1):  # the test AUC, as the weights, does not depend on the number of threads
        scores = score(model, padded_batches(data.test), len(labels))
    measured = {
        "test_auc": auc(labels, scores),
        "test_log_loss": log_loss(labels, scores, prior),
        "test_ne": normalised_entropy(labels, scores, prior),
    }
    save_checkpoint(
        model,
        folder,
        identity
        | {
            name: None if math.isnan(value) else value for name, value in measured.items()
        }  # rows of one class have none
        | {
            "dataset": data.name,
            "schema": asdict(data.schema),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "curve": [asdict(epoch) for epoch in curve],
            "seconds": sum(epoch.seconds for epoch in curve),
            "device": place.type,
            "versions": versions(),
            "commit": commit(),
            "machine": machine(),
        },
    )
    shutil.rmtree(unfinished, ignore_errors=True)


def _plain(size: Any) -> Any:
    """A size as JSON has it: numbers of Python, sequences as lists."""
    if isinstance(size, Sequence | np.ndarray) and not isinstance(size, str):
        return [_plain(one) for one in size]
    return size.item() if isinstance(size, np.generic) else size
