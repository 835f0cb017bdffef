"""TorchRec models: forward(dense_features, sparse_features) -> logits [B]; components named alike in all of them."""

from drsrobust.models.registry import MODELS, Entry, build_model, default_sizes, describe, model_name
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
