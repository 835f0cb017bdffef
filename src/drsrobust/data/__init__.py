"""Raw files to encoded, split, memory-mapped data sets: MovieLens, Criteo, and generated ones of both shapes."""

from drsrobust.data.dataset import Dataset, Feature, Ids, Schema, Split
from drsrobust.data.load import load_dataset
from drsrobust.data.registry import SOURCES, describe
from drsrobust.data.text_files import DataError

__all__ = ["SOURCES", "DataError", "Dataset", "Feature", "Ids", "Schema", "Split", "describe", "load_dataset"]
