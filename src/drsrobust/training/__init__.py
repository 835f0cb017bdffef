"""Training, checkpoints and the cache of trained models."""

from drsrobust.training.checkpoint import CheckpointError, read_checkpoint, save_checkpoint
from drsrobust.training.fit import Epoch, fit
from drsrobust.training.load import default_settings, load_model, load_models
from drsrobust.training.settings import Settings

__all__ = [
    "CheckpointError",
    "Epoch",
    "Settings",
    "default_settings",
    "fit",
    "load_model",
    "load_models",
    "read_checkpoint",
    "save_checkpoint",
]
