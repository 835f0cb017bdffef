"""A split as a folder of .npy files, for other processes to map into their memory."""

import json
from pathlib import Path

import numpy as np

from drsrobust.data.dataset import Ids, Split

_ARRAYS = ("dense", "labels", "users", "rows")
_FACTS = ("dataset", "part", "prior", "source", "whole")
_ABOUT = "split.json"


def write_split(split: Split, folder: Path) -> None:
    """Writes all arrays of a split and what is known of it into a new folder."""
    folder.mkdir(parents=True)
    for name in _ARRAYS:
        if (array := getattr(split, name)) is not None:
            np.save(folder / f"{name}.npy", np.asarray(array))
    multi_hot = []
    for number, ids in enumerate(split.sparse.values()):
        np.save(folder / f"values-{number}.npy", np.asarray(ids.values))
        if ids.lengths is not None:
            np.save(folder / f"lengths-{number}.npy", np.asarray(ids.lengths))
            multi_hot.append(number)
    facts = {name: getattr(split, name) for name in _FACTS}
    (folder / _ABOUT).write_text(json.dumps(facts | {"features": list(split.sparse), "multi_hot": multi_hot}))


def read_split(folder: Path) -> Split:
    """The split of a folder that `write_split` made; its arrays are mapped, not read."""
    about = json.loads((folder / _ABOUT).read_text())
    features, multi_hot = about.pop("features"), set(about.pop("multi_hot"))

    def mapped(name: str) -> np.ndarray:
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    sparse = {
        feature: Ids(mapped(f"values-{number}"), mapped(f"lengths-{number}") if number in multi_hot else None)
        for number, feature in enumerate(features)
    }
    arrays = {name: mapped(name) if (folder / f"{name}.npy").exists() else None for name in _ARRAYS}
    return Split(sparse=sparse, **arrays, **about)
