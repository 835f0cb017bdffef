"""`load_model` and `load_models`: train once, then load from the cache of checkpoints."""

import math
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust._arguments import check_instance, check_items, check_truth, check_whole, wrong
from drsrobust._choices import check_choice
from drsrobust._files import cache_folder
from drsrobust._hashing import digest
from drsrobust._locks import exclusive
from drsrobust._processes import UnguardedScript, check_script, cores, pool, threads
from drsrobust._progress import count_done, progress_bar
from drsrobust._provenance import commit, machine, versions
from drsrobust.data import Dataset
from drsrobust.data.cache import open_folder
from drsrobust.metrics import auc, log_loss, normalised_entropy
from drsrobust.models import MODELS, build_model, default_sizes, padded_batches, score
from drsrobust.training.checkpoint import MANIFEST, read_checkpoint, save_checkpoint
from drsrobust.training.fit import Epoch, fit, warn_if_hardly_learned
from drsrobust.training.settings import Settings

CHECKPOINT_FORMAT = 3  # of checkpoints and of training: raise it when either changes
_SLOWEST_MODELS = ("dlrm_dcn", "dlrm")  # the models with the most dense weights, at their default sizes


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

    The first call trains and stores a checkpoint, identified by model, sizes, settings and the data's fingerprint. Processes
    that request the same model at once train it once. After an interruption, even by `kill -9`, the next call resumes from at
    most a minute before. Each call warns if the model has hardly learned.

    Args:
        name: one of `dr.models.MODELS`.
        data: trains on `data.train`, with early stopping on `data.valid`; the manifest's AUC is of `data.test`.
        settings: of training; None: the defaults for this model on this data (`default_settings`).
        sizes: keyword arguments of the model's class; None: the defaults for this data.
        device: of training; None: the GPU if there is one. The returned model is on the CPU.
        progress: whether to show a progress bar.

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
    check_truth("progress", progress)
    training_device(device)  # raises
    folder, identity = checkpoint_of(name, data, settings, sizes)
    with exclusive(folder):
        cached = (folder / MANIFEST).exists()
        if not cached:
            _train(folder, identity, data, device, progress)
    model = read_checkpoint(folder, identity)
    if cached:  # else `fit` has warned
        warn_if_hardly_learned([Epoch(**epoch) for epoch in model.manifest["curve"]], stacklevel=2)
    return model


def checkpoint_of(
    name: str, data: Dataset, settings: Settings | None = None, sizes: dict[str, Any] | None = None
) -> tuple[Path, dict[str, Any]]:
    """The folder of a model's checkpoint, which holds a manifest once the model is trained, and its identity."""
    check_choice("model", name, MODELS)
    check_instance("data", data, Dataset, "a Dataset, as of load_dataset")
    if settings is not None:
        check_instance("settings", settings, Settings, "a Settings, as Settings(epochs=2)")
    if sizes is not None:
        check_instance("sizes", sizes, Mapping, "a dictionary of the model's sizes")
    settings = settings or default_settings(name, data.name)
    sizes = default_sizes(name, data.name) if sizes is None else {key: _plain(size) for key, size in sizes.items()}
    identity = {"format": CHECKPOINT_FORMAT, "model": name, "sizes": sizes, "settings": asdict(settings)}
    identity |= {"data": data.fingerprint, "train": data.train.fingerprint, "valid": data.valid.fingerprint}
    return cache_folder("checkpoints", f"{name}-{data.name.replace('/', '-')}-{digest(identity)[:16]}"), identity


def default_settings(name: str, dataset: str, seed: int = 0) -> Settings:
    """Settings of arXiv:2307.10244, except where others are better on validation rows: a stronger weight decay for DLRM's
    tables on MovieLens, and for all models on `criteo-sample`, which has few rows for many categories.

    Args:
        name: of a model.
        dataset: with its variant, as `movielens-1m/ids`.
        seed: of the training.
    """
    if dataset.startswith("criteo-sample"):
        rate = 3e-3 if name == "afm" else 1e-3
        decay = 1e-2 if name in ("dcn", "wide_deep", "deepfm") else 3e-3
        return Settings(rate, batch_size=1024, weight_decay=1e-4, table_weight_decay=decay, seed=seed)
    if name in ("dlrm", "dlrm_dcn"):
        return Settings(batch_size=2048, table_weight_decay=3e-5, seed=seed)
    return Settings(seed=seed)


def training_device(device: str | None) -> torch.device:
    """The requested device, else the GPU if there is one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(check_instance("device", device, (str, torch.device), "a device, as 'cpu' or 'cuda'"))
    except RuntimeError:
        raise wrong("device", "a device, as 'cpu' or 'cuda'", device) from None


def _train(folder: Path, identity: dict[str, Any], data: Dataset, device: str | None, progress: bool) -> None:
    settings = Settings(**identity["settings"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = build_model(identity["model"], data.schema, **identity["sizes"])
    torch_device = training_device(device)
    unfinished = folder.with_name(f"{folder.name}.training")
    train = getattr(type(model), "fit", _fit_clicks)  # a model may bring its own training
    snapshot = unfinished / "snapshot.safetensors"
    curve, measured = train(model.to(torch_device), data, settings, progress=progress, snapshot=snapshot)
    measured = {key: None if math.isnan(value) else value for key, value in measured.items()}  # NaN: one class
    manifest = identity | measured
    manifest |= {
        "dataset": data.name,
        "schema": asdict(data.schema),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "curve": [asdict(epoch) for epoch in curve],
        "seconds": sum(epoch.seconds for epoch in curve),
        "cpu_seconds": sum(epoch.cpu_seconds or 0.0 for epoch in curve),
        "device": torch_device.type,
        "versions": versions(),
        "commit": commit(),
        "machine": machine(),
    }
    save_checkpoint(model, folder, manifest)
    shutil.rmtree(unfinished, ignore_errors=True)
    count_done("models")


def _fit_clicks(
    model: nn.Module, data: Dataset, settings: Settings, *, progress: bool, snapshot: Path
) -> tuple[list[Epoch], dict[str, float]]:
    """Trains on clicks: the learning curve, and the metrics of the test rows."""
    curve = fit(model, data, settings, progress=progress, snapshot=snapshot)
    model.cpu()
    labels, prior = data.test.labels, data.test.prior
    with threads(1):  # so the test AUC does not depend on the number of threads
        scores = score(model, padded_batches(data.test), len(labels))
    measured = {"test_auc": auc(labels, scores), "test_log_loss": log_loss(labels, scores, prior)}
    return curve, measured | {"test_ne": normalised_entropy(labels, scores, prior)}


def _plain(size: Any) -> Any:
    """A size as a JSON value: Python numbers, and lists."""
    if isinstance(size, Sequence | np.ndarray) and not isinstance(size, str):
        return [_plain(element) for element in size]
    return size.item() if isinstance(size, np.generic) else size


def load_models(
    requests: Iterable[Mapping[str, Any]],
    *,
    workers: int | None = None,
    device: str | None = None,
    progress: bool = True,
) -> list[nn.Module]:
    """As `load_model` for each request, in their order; models that are not in the cache are trained in parallel.

    Every worker is a fresh process that trains on one thread, so the weights equal those of `load_model` bit for bit. A script
    must call it under `if __name__ == "__main__":`, as Python's `multiprocessing` requires; elsewhere models are trained in
    this process, with a warning.

    Args:
        requests: arguments of `load_model` for each model: `name` and `data`, optionally `settings` and `sizes`.
        workers: number of processes; 1 trains in this process. None: number of cores, or 1 on a GPU.
        device, progress: as in `load_model`.

    Raises:
        TypeError: a request with a missing or an unknown argument.
        ValueError: no model, an unknown name, or `workers` under 1.
        RuntimeError: a worker process died; or `workers` over 1, called by a script outside of that `if`.

    Example:
        >>> from drsrobust.data import load_dataset
        >>> from drsrobust.training import Settings
        >>> data, quick = load_dataset("synthetic-movielens", rows=2000), Settings(epochs=1)
        >>> requests = [{"name": name, "data": data, "settings": quick} for name in ("fm", "dlrm")]
        >>> [model.manifest["model"] for model in load_models(requests, workers=1, progress=False)]
        ['fm', 'dlrm']
    """
    requests = check_items("requests", requests, "a list of mappings with name and data")
    requests = [
        dict(check_instance("each of requests", one, Mapping, "a mapping with name and data")) for one in requests
    ]
    check_truth("progress", progress)
    if not requests:
        raise ValueError("requests must hold at least one mapping with name and data, got none")
    if workers is not None:
        workers = check_whole("workers", workers, 1)
    missing = {}
    for request in requests:
        keys, needed = set(request), {"name", "data"}
        if wrong := sorted(keys - needed - {"settings", "sizes"}) or sorted(needed - keys):
            raise TypeError(f"a request needs name and data and may have settings and sizes; see {wrong[0]!r}")
        folder, _ = checkpoint_of(**request)
        if not (folder / MANIFEST).exists() and _is_cached(request["data"]):
            missing[folder] = request
    requested = workers
    workers = min(len(missing), workers or (1 if training_device(device).type == "cuda" else cores()))
    if workers > 1:
        try:
            check_script()
        except UnguardedScript as error:
            if requested is not None:
                raise
            warnings.warn(f"models are trained one by one, in this process: {error}", stacklevel=2)
            workers = 1
    if workers > 1:
        _train_in_parallel(list(missing.values()), workers, device, progress)
    return [load_model(**request, device=device, progress=progress) for request in requests]


def _is_cached(data: Dataset) -> bool:
    """Whether the rows are those of the data's folder, which other processes can map."""
    if data.folder is None:
        return False
    cached = open_folder(data.folder)
    return all(
        getattr(cached, part).fingerprint == getattr(data, part).fingerprint for part in ("train", "valid", "test")
    )


def _train_in_parallel(requests: list[dict[str, Any]], workers: int, device: str | None, progress: bool) -> None:
    # The slowest first, so that none of them starts last: many features, then large layers.
    requests.sort(key=lambda request: (-len(request["data"].schema.features), request["name"] not in _SLOWEST_MODELS))
    with progress_bar(len(requests), "training models", progress=progress) as bar, pool(workers) as executor:
        futures = [
            executor.submit(_train_one, request | {"data": request["data"].folder}, device) for request in requests
        ]
        try:
            for future in as_completed(futures):
                future.result()
                bar.update()
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a process that trained a model ended (killed, out of memory, or started by a script without "
                '`if __name__ == "__main__":`?); trained models are stored, and workers=1 trains the others in this process'
            ) from error


def _train_one(request: dict[str, Any], device: str | None) -> None:
    """In a worker: trains and stores one model; `data` is the folder of the data set."""
    load_model(**request | {"data": open_folder(request["data"])}, device=device, progress=False)
