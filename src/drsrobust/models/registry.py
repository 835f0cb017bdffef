"""Models by name, and the sizes they have by default on a data set."""

from importlib import import_module
from typing import Any

from torch import nn

from drsrobust._names import unknown
from drsrobust.data import Schema

MODELS = {
    "dlrm": ("drsrobust.models.dlrm", "DLRM"),
    "wide_deep": ("drsrobust.models.wide_deep", "WideDeep"),
}


def build_model(name: str, schema: Schema, **sizes: Any) -> nn.Module:
    """An untrained model; `sizes` are the keyword arguments of its class.

    Raises:
        ValueError: an unknown name.
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    module, attribute = MODELS[name]
    return getattr(import_module(module), attribute)(schema, **sizes)


def default_sizes(name: str, dataset: str) -> dict[str, Any]:
    """What to pass to `build_model` beyond the classes' own defaults: DLRM is larger on Criteo-shaped data."""
    if name == "dlrm" and "criteo" in dataset:
        return {"dense_mlp": [512, 256, 16], "over_mlp": [512, 256, 1]}
    return {}


def model_name(model: nn.Module) -> str:
    """The registered name of a model, else the name of its class."""
    for name, (module, attribute) in MODELS.items():
        if (type(model).__module__, type(model).__qualname__) == (module, attribute):
            return name
    return type(model).__qualname__
