"""torchfm 0.7.0 (github.com/rixwew/pytorch-fm): the five models of the study in its classes, and its way of feeding them."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from drsrobust.data import Schema, Split

NAME = "torchfm"
NOT_INSTALLED = "torchfm is not installed (pip install -e '.[benchmark]')"
MODELS = ("fm", "dcn", "afm", "wide_deep", "deepfm")
_DIM, _ATTENTION, _MLP, _DROPOUT, _CROSS = 16, 16, (16, 16), 0.2, 3  # the study's sizes (arXiv:2307.10244)


def installed() -> bool:
    """Whether it can be imported."""
    return find_spec("torchfm") is not None


def torchfm_model(name: str, schema: "Schema") -> nn.Module:
    """An untrained model of its own, with the study's sizes: ids int64 [B, F] -> probabilities [B].

    Args:
        name: one of `MODELS`.
        schema: single-hot features only, no dense columns: its models know no others.

    Raises:
        ValueError: a schema with other columns.
    """
    from torchfm.model.afm import AttentionalFactorizationMachineModel
    from torchfm.model.dcn import DeepCrossNetworkModel
    from torchfm.model.dfm import DeepFactorizationMachineModel
    from torchfm.model.fm import FactorizationMachineModel
    from torchfm.model.wd import WideAndDeepModel

    if schema.dense or any(feature.multi_hot for feature in schema.features):
        raise ValueError("torchfm's models take single-hot ids alone; this schema has dense or multi-hot columns")
    sizes = [feature.cardinality for feature in schema.features]
    return {
        "fm": lambda: FactorizationMachineModel(sizes, _DIM),
        "dcn": lambda: DeepCrossNetworkModel(sizes, _DIM, num_layers=_CROSS, mlp_dims=_MLP, dropout=_DROPOUT),
        "afm": lambda: AttentionalFactorizationMachineModel(sizes, _DIM, _ATTENTION, dropouts=(_DROPOUT, _DROPOUT)),
        "wide_deep": lambda: WideAndDeepModel(sizes, _DIM, mlp_dims=_MLP, dropout=_DROPOUT),
        "deepfm": lambda: DeepFactorizationMachineModel(sizes, _DIM, mlp_dims=_MLP, dropout=_DROPOUT),
    }[name]()


class Rows(torch.utils.data.Dataset):
    """A map-style data set as its own `MovieLens1MDataset`: item i is (ids of row i [F], label of row i)."""

    def __init__(self, split: "Split") -> None:
        self.items = ids_of(split)
        self.targets = np.array(split.labels)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        return self.items[index], self.targets[index]


def ids_of(split: "Split") -> np.ndarray:
    """Ids int64 [n, F] of a split without multi-hot features."""
    return np.stack([np.asarray(column.values, np.int64) for column in split.sparse.values()], axis=1)


def set_dropout(model: nn.Module, on: bool) -> None:
    """Training or evaluation mode. Its AFM calls `F.dropout` without regard to the mode, so that in evaluation mode it still
    drops; here that is switched off, to judge the model and not the accident."""
    model.train(on)
    if hasattr(model, "afm"):
        model.afm.dropouts = (_DROPOUT, _DROPOUT) if on else (0.0, 0.0)
