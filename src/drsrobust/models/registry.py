"""Models by name, with a one-line description and their default sizes on a data set."""

from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, NamedTuple

from drsrobust._arguments import check_instance
from drsrobust._choices import check_choice, unknown
from drsrobust._registrations import load_registrations
from drsrobust.introspection.wrappers import unwrapped

if TYPE_CHECKING:
    from torch import nn

    from drsrobust.data.dataset import Schema


class Entry(NamedTuple):
    """The class of a model and its description."""

    module: str
    attribute: str
    line: str


MODELS = {
    "dlrm": Entry("drsrobust.models.dlrm", "DLRM", "TorchRec's DLRM (arXiv:1906.00091)"),
    "dlrm_dcn": Entry("drsrobust.models.dlrm", "DLRM_DCN", "TorchRec's DLRM with cross layers (arXiv:2008.13535)"),
}


def register(name: str, module: str, attribute: str, line: str) -> None:
    """Adds a model to `MODELS`: a class `attribute` of a Python module, which is imported when the model is built.

    Raises:
        ValueError: another model has the name.
    """
    entry = Entry(module, attribute, line)
    if MODELS.setdefault(name, entry) != entry:
        raise ValueError(f"there is a model {name!r} already: {MODELS[name].module}.{MODELS[name].attribute}")


def build_model(name: str, schema: "Schema", **sizes: Any) -> "nn.Module":
    """An untrained model; `sizes` are the keyword arguments of its class.

    Raises:
        ValueError: an unknown name, an unknown size, or an invalid size.
    """
    from drsrobust.data.dataset import Schema

    entry = _entry(name)
    check_instance("schema", schema, Schema, "a Schema, as data.schema")
    model = getattr(import_module(entry.module), entry.attribute)
    keywords = [size.name for size in signature(model).parameters.values() if size.kind == Parameter.KEYWORD_ONLY]
    for size in sizes:
        if size not in keywords:
            raise ValueError(f"model {name!r}: {unknown('size', size, keywords)}")
    try:
        return model(schema, **sizes)
    except ValueError as error:
        raise ValueError(f"model {name!r}: {error}") from error


def describe() -> str:
    """A line `name: description` for each model."""
    return "\n".join(f"{name}: {entry.line}" for name, entry in MODELS.items())


def default_sizes(name: str, dataset: str) -> dict[str, Any]:
    """Sizes for `build_model` that differ from the classes' defaults: TorchRec's models are larger on Criteo-shaped data, and
    `dlrm_dcn` has wider tables on others (chosen on validation rows of MovieLens-1M)."""
    _entry(name)
    if name in ("dlrm", "dlrm_dcn") and "criteo" in dataset:
        sizes: dict[str, Any] = {"dense_mlp": [512, 256, 16], "over_mlp": [512, 256, 1]}
        return sizes if name == "dlrm" else sizes | {"rank": 64}
    return {"embedding_dim": 32, "dense_mlp": [64, 32]} if name == "dlrm_dcn" else {}


def model_name(model: "nn.Module") -> str:
    """The registered name of a model, else the name of its class; of a wrapped one, as by DistributedModelParallel, that of the
    model inside."""
    model = unwrapped(model)
    for name, entry in MODELS.items():
        if (type(model).__module__, type(model).__qualname__) == (entry.module, entry.attribute):
            return name
    return type(model).__qualname__


def _entry(name: str) -> Entry:
    check_choice("model", name, MODELS)
    return MODELS[name]


load_registrations("models")
