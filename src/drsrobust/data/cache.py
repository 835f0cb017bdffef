"""Encoded data sets and splits in folders, as memory-mapped arrays in split order (training, validation, test rows), with a
manifest."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from drsrobust.data.dataset import SKIPPED, Dataset, Ids, Schema, Split

DATA_MANIFEST, SPLIT = "manifest.json", "split.json"
_ARRAYS = ("dense", "labels", "users", "rows")
_FACTS = ("dataset", "part", "prior", "source", "whole", "tasks")
_RELEVANT = "relevant"  # lists of items as labels: their lengths


def open_folder(folder: Path) -> Dataset:
    """The data set of a finished folder (`Dataset.folder`), memory-mapped; hashes are not checked."""
    manifest = json.loads((folder / DATA_MANIFEST).read_text())
    arrays = {key: np.load(folder / f"{key}.npy", mmap_mode="r", allow_pickle=False) for key in manifest["arrays"]}
    schema = Schema.of(manifest["schema"])
    split = Split(
        dense=arrays["dense"],
        sparse={f.name: Ids(arrays[f"ids.{f.name}"], arrays.get(f"lengths.{f.name}")) for f in schema.features},
        labels=arrays["labels"],
        users=arrays.get("users"),
        rows=arrays["rows"],
        dataset=manifest["name"],
        part="all",
        prior=manifest["prior"],
        source=manifest["fingerprint"],
        whole=len(arrays["labels"]),
    )
    ends = np.cumsum((0, *manifest["sizes"])).tolist()
    parts = {
        part: replace(split.take(slice(start, end)), part=part, whole=end - start)
        for part, start, end in zip(("train", "valid", "test"), ends, ends[1:], strict=False)
    }
    log = folder / SKIPPED if manifest["skipped"] else None
    return Dataset(
        manifest["name"],
        schema,
        **parts,
        fingerprint=manifest["fingerprint"],
        facts=manifest["facts"],
        log=log,
        folder=folder,
    )


def write_split(split: Split, folder: Path) -> None:
    """Writes a split into a new folder, for other processes to map."""
    folder.mkdir(parents=True)
    for name in _ARRAYS:
        array = getattr(split, name)
        if isinstance(array, Ids):
            np.save(folder / f"{_RELEVANT}.npy", np.asarray(array.lengths))
            array = array.values
        if array is not None:
            np.save(folder / f"{name}.npy", np.asarray(array))
    multi_hot = []
    for number, ids in enumerate(split.sparse.values()):
        np.save(folder / f"values-{number}.npy", np.asarray(ids.values))
        if ids.lengths is not None:
            np.save(folder / f"lengths-{number}.npy", np.asarray(ids.lengths))
            multi_hot.append(number)
    facts = {name: getattr(split, name) for name in _FACTS}
    (folder / SPLIT).write_text(json.dumps(facts | {"features": list(split.sparse), "multi_hot": multi_hot}))


def read_split(folder: Path) -> Split:
    """The split that `write_split` wrote, memory-mapped."""
    facts = json.loads((folder / SPLIT).read_text())
    features, multi_hot = facts.pop("features"), set(facts.pop("multi_hot"))

    def mapped(name: str) -> np.ndarray:
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    sparse = {
        feature: Ids(mapped(f"values-{number}"), mapped(f"lengths-{number}") if number in multi_hot else None)
        for number, feature in enumerate(features)
    }
    arrays = {name: mapped(name) if (folder / f"{name}.npy").exists() else None for name in _ARRAYS}
    if (folder / f"{_RELEVANT}.npy").exists():
        arrays["labels"] = Ids(arrays["labels"], mapped(_RELEVANT))
    return Split(sparse=sparse, **arrays, **facts | {"tasks": tuple(facts["tasks"])})
