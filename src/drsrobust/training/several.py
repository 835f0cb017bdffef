"""`load_models`: several models at once, on as many cores as there are."""

from collections.abc import Iterable, Mapping
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from operator import index
from pathlib import Path
from typing import Any

from torch import nn

from drsrobust._processes import cores, pool
from drsrobust._progress import progress
from drsrobust.data import Dataset
from drsrobust.data.store import open_folder
from drsrobust.training.checkpoint import MANIFEST
from drsrobust.training.load import checkpoint_of, load_model, training_device

LARGE = ("dlrm_dcn", "dlrm")  # the models of the most dense weights, at their default sizes


def load_models(
    wanted: Iterable[Mapping[str, Any]], *, workers: int | None = None, device: str | None = None, show: bool = True
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
        >>> [model.manifest["model"] for model in load_models(wanted, workers=1, show=False)]
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
        _train_side_by_side(list(missing.values()), workers, device, show)
    return [load_model(**one, device=device, show=show) for one in wanted]


def _as_cached(data: Dataset) -> bool:
    """Whether other processes can map the same rows: whether they are those of the data's folder."""
    if data.folder is None:
        return False
    there = open_folder(data.folder)
    return all(
        getattr(there, part).fingerprint == getattr(data, part).fingerprint for part in ("train", "valid", "test")
    )


def _train_side_by_side(missing: list[dict[str, Any]], workers: int, device: str | None, show: bool) -> None:
    # Those that take longest first, so that none of them is the last: of many features, then of large layers.
    missing.sort(key=lambda one: (-len(one["data"].schema.features), one["name"] not in LARGE))
    with progress(len(missing), "training models", show=show) as bar, pool(workers) as executor:
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
    load_model(**wanted, data=open_folder(folder), device=device, show=False)
