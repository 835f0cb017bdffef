"""Raw files to encoded, split, memory-mapped data sets: MovieLens, Criteo, and generated ones of both shapes."""

from drsrobust.data.dataset import Dataset, Feature, Ids, Schema, Split
from drsrobust.data.load import load_dataset
from drsrobust.data.own_batches import Batches, from_batches
from drsrobust.data.own_rows import from_frame, from_tensors
from drsrobust.data.registry import SOURCES, describe
from drsrobust.data.text_files import DataError

__all__ = [
    "SOURCES",
    "Batches",
    "DataError",
    "Dataset",
    "Feature",
    "Ids",
    "Schema",
    "Split",
    "describe",
    "from_batches",
    "from_frame",
    "from_tensors",
    "load_dataset",
]
