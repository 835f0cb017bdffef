"""Training, checkpoints and the cache of trained models."""

from drsrobust._names import face
from drsrobust.training.checkpoint import CheckpointError, read_checkpoint, save_checkpoint
from drsrobust.training.fit import Epoch, fit
from drsrobust.training.load import default_settings, load_model, load_models
from drsrobust.training.settings import Settings

__getattr__, __dir__, __all__ = face(__name__)
