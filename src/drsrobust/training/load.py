"""`load_model`: trains once, then comes from the checkpoint cache.

`load_models`: several models at once, on as many cores as there are."""

import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust._environment import commit, cores, machine, pool, progress_bar, threads, unknown, versions
from drsrobust._files import cache_folder, exclusive
from drsrobust._hashing import digest
from drsrobust.data import Dataset
from drsrobust.data.cache import open_folder
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
    progress: bool = True,
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
        progress: a progress bar while training.

    Raises:
        ValueError: an unknown name.
        CheckpointError: the cached checkpoint is damaged.

    Example:
        >>> from drsrobust.data import load_dataset
        >>> data = load_dataset("synthetic-movielens", rows=20_000)
        >>> model = load_model("dlrm", data, settings=Settings(epochs=2), progress=False)
        >>> 0.5 < model.manifest["test_auc"] < 0.9
        True
    """
    folder, identity = checkpoint_of(name, data, settings, sizes)
    with exclusive(folder):
        cached = (folder / MANIFEST).exists()
        if not cached:
            _train(folder, name, data, settings or default_settings(name, data.name), identity, device, progress)
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
    progress: bool,
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = build_model(name, data.schema, **identity["sizes"])
    place = training_device(device)
    unfinished = folder.with_name(f"{folder.name}.training")
    curve = fit(model.to(place), data, settings, progress=progress, snapshot=unfinished / "snapshot.safetensors")
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


LARGE = ("dlrm_dcn", "dlrm")  # the models of the most dense weights, at their default sizes


def load_models(
    wanted: Iterable[Mapping[str, Any]], *, workers: int | None = None, device: str | None = None, progress: bool = True
) -> list[nn.Module]:
    """As `load_model` for each, in their order; those that are not in the cache yet are trained side by side.

    Every worker is a fresh process. As `fit` trains on one thread, the weights are the same, bit for bit, as trained one after
    another. What is stopped goes on at the next call, each model where it was. In a script, the call must stand under
    `if __name__ == "__main__":`, as Python's `spawn` asks.

    Args:
        wanted: of each model the arguments of `load_model`: `name` and `data`, perhaps `settings` and `sizes`.
        workers: processes: 1 trains here, one after another. None: as many as there are cores; 1 on a GPU.
        device, show: as in `load_model`.

    Raises:
        TypeError: an argument that `load_model` does not have.
        ValueError: no model, an unknown name, or a number of workers under 1.
        RuntimeError: a worker process died.

    Example:
        >>> from drsrobust.data import load_dataset
        >>> from drsrobust.training import Settings
        >>> data, quick = load_dataset("synthetic-movielens", rows=2000), Settings(epochs=1)
        >>> wanted = [{"name": name, "data": data, "settings": quick} for name in ("fm", "dlrm")]
        >>> [model.manifest["model"] for model in load_models(wanted, workers=1, progress=False)]
        ['fm', 'dlrm']
    """
    wanted = [dict(one) for one in wanted]
    if not wanted:
        raise ValueError("no model is wanted: give a list of mappings with name and data")
    if workers is not None and index(workers) < 1:
        raise ValueError(f"workers is {workers!r}; it must be 1 or more")
    for one in wanted:
        if strange := sorted(set(one) - {"name", "data", "settings", "sizes"}) or sorted({"name", "data"} - set(one)):
            raise TypeError(
                f"a wanted model has name, data, settings and sizes, the first two always; see {strange[0]!r}"
            )
    missing = {}
    for one in wanted:
        folder, _ = checkpoint_of(**one)
        if not (folder / MANIFEST).exists() and _as_cached(one["data"]):
            missing[folder] = one
    workers = min(len(missing), workers or (1 if training_device(device).type == "cuda" else cores()))
    if workers > 1:
        _train_side_by_side(list(missing.values()), workers, device, progress)
    return [load_model(**one, device=device, progress=progress) for one in wanted]


def _as_cached(data: Dataset) -> bool:
    """Whether other processes can map the same rows: whether they are those of the data's folder."""
    if data.folder is None:
        return False
    there = open_folder(data.folder)
    return all(
        getattr(there, part).fingerprint == getattr(data, part).fingerprint for part in ("train", "valid", "test")
    )


def _train_side_by_side(missing: list[dict[str, Any]], workers: int, device: str | None, progress: bool) -> None:
    # Those that take longest first, so that none of them is the last: of many features, then of large layers.
    missing.sort(key=lambda one: (-len(one["data"].schema.features), one["name"] not in LARGE))
    with progress_bar(len(missing), "training models", progress=progress) as bar, pool(workers) as executor:
        running = [executor.submit(_train_one, one | {"data": one["data"].folder}, device) for one in missing]
        try:
            for done in as_completed(running):
                done.result()
                bar.update()
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a process that trained a model ended (killed, out of memory, or started by a script without "
                '`if __name__ == "__main__":`?); what is trained is stored, and workers=1 trains the rest in this process'
            ) from error


def _train_one(wanted: dict[str, Any], device: str | None) -> None:
    """In a worker: trains and stores one model, of which the data come as their folder."""
    folder: Path = wanted.pop("data")
    load_model(**wanted, data=open_folder(folder), device=device, progress=False)
