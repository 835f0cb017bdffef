"""TorchRec models: forward(dense_features, sparse_features) -> logits [B]; components named alike in all of them."""

from importlib import import_module
from typing import TYPE_CHECKING

from drsrobust.models.registry import MODELS, Entry, build_model, default_sizes, describe, model_name

if TYPE_CHECKING:
    from drsrobust.models.scoring import (
        evaluating,
        gathered,
        logits_of,
        padded_batches,
        score,
        state_checksum,
        state_digest,
    )
    from drsrobust.tensors import components

__all__ = [
    "MODELS",
    "Entry",
    "build_model",
    "components",
    "default_sizes",
    "describe",
    "evaluating",
    "gathered",
    "logits_of",
    "model_name",
    "padded_batches",
    "score",
    "state_checksum",
    "state_digest",
]


def __getattr__(name: str):
    """Imports PyTorch at the first use of what needs it: the batch run only looks up names of models."""
    if name not in __all__:
        raise AttributeError(f"module 'drsrobust.models' has no attribute {name!r}")
    value = getattr(import_module("drsrobust.tensors" if name == "components" else "drsrobust.models.scoring"), name)
    globals()[name] = value
    return value
