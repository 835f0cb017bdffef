"""Where activations can be bounded: the places of a model, found in its module tree."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from drsrobust._names import unknown
from drsrobust.mitigation.layers import layer_count
from drsrobust.tensors import component_of, named_modules, unwrapped

if TYPE_CHECKING:
    import pandas as pd

KINDS = {
    "embedding": "pooled embeddings: outputs of tables (of a collection of tables: side by side)",
    "first_order": "first-order terms: outputs of tables of width 1, and of a Linear of the model's component `linear`",
    "linear": "outputs of every other nn.Linear but the last",
    "last": "outputs of the last of these, by the order of registration: the last projection",
    "norm": "outputs of batch normalisation",
    "cross": "each layer of TorchRec's cross networks, and of ours",
    "interaction": "products: second-order terms, DLRM's InteractionArch, AFM's attention, AFN's logarithmic layer",
    "logit": "the model's own output",
}

_FLAT = (nn.BatchNorm1d, nn.LayerNorm)
_FM = ("torchrec.modules.deepfm", "FactorizationMachine")
_DOTS = ("torchrec.models.dlrm", "InteractionArch")
_PROJECTED = ("torchrec.models.dlrm", "InteractionProjectionArch")
_AFM = ("drsrobust.models.afm", "AttentionalPooling")
_AFN = ("drsrobust.models.afn", "LogarithmicLayer")


@dataclass(frozen=True)
class Place:
    """An output that can be bounded.

    Attributes:
        kind: one of `KINDS`.
        module: the name of the module that gives it; "" for the model itself.
        layer: of a cross network, which of its layers, from 0; else None.
        component: that the module's tensors belong to; where it has none, the top-level child it is in.
        width: how many numbers it is for a sample, as far as the module's sizes say; None where they do not.
    """

    kind: str
    module: str
    layer: int | None = None
    component: str = field(default="", compare=False)
    width: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        layer = "" if self.layer is None else f"[{self.layer}]"
        return f"{self.kind} {(self.module or 'the model') + layer}"


def places(model: nn.Module) -> "pd.DataFrame":
    """The places of a model at which activations can be bounded.

    Args:
        model: any module. nn.Linear, BatchNorm, LayerNorm and tables are found in all; cross networks and interactions by
            their classes (TorchRec's, this library's, and what derives from them).
            Not found, so never clipped: TorchRec's quantized collections (`make_room`, checks of rows and protected memory work
            there) and `EmbeddingCollection`, which gives sequences; what is computed of their outputs is.

    Returns:
        columns `place` (a kind of `KINDS`), `module` ("" for the model itself), `layer` (of a cross network; else missing),
        `component`, `width` (numbers per sample, as far as sizes say).

    Example:
        >>> mlp = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> places(mlp)[["place", "module", "width"]].values.tolist()
        [['linear', '0', 8], ['last', '2', 1], ['logit', '', 1]]
    """
    import pandas as pd

    found = find(model)
    return pd.DataFrame(
        {
            "place": [place.kind for place in found],
            "module": [place.module for place in found],
            "layer": pd.array([place.layer for place in found], dtype="Int64"),
            "component": [place.component for place in found],
            "width": pd.array([place.width for place in found], dtype="Int64"),
        }
    )


def check_kinds(kinds: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Kinds in the order of `KINDS`, each once; None stays None.

    Raises:
        ValueError: none, or an unknown one.
    """
    if kinds is None:
        return None
    given = {kinds} if isinstance(kinds, str) else set(kinds)
    for kind in sorted(given, key=str):
        if kind not in KINDS:
            raise unknown("place", kind, KINDS)
    if not given:
        raise ValueError(f"places is empty; there are {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in given)


def chosen(model: nn.Module, kinds: Sequence[str] | None) -> list[Place]:
    """The places of a model of some kinds (None: all). Kinds that it does not have are simply not there.

    Raises:
        ValueError: it has none of them.
    """
    there = find(model)
    found = [place for place in there if kinds is None or place.kind in kinds]
    if not found:
        kinds_there = dict.fromkeys(place.kind for place in there)
        raise ValueError(
            f"{type(unwrapped(model)).__name__} has no place of the kind {', '.join(kinds or ())}; it has: "
            f"{', '.join(kinds_there)}"
        )
    return found


def find(model: nn.Module) -> list[Place]:
    """The places of a model, in the order of its modules; the logit last."""
    modules = named_modules(model)
    home = component_of(model)
    declared = "linear" in getattr(type(unwrapped(model)), "COMPONENTS", {})
    dim = next((width for _, module in modules if (width := _dim(module))), None)
    found: list[Place] = []
    tables: list[str] = []
    for name, module in modules:
        if any(name.startswith(f"{table}.") for table in tables):
            continue  # a collection's own tables: bounded as a whole
        component = _component(name, home)
        if (one := _embedding(module)) is not None:
            first, width = one
            tables.append(name)
            found.append(Place("first_order" if first else "embedding", name, None, component, width))
        elif isinstance(module, nn.Linear):
            first = declared and component == "linear"
            found.append(Place("first_order" if first else "linear", name, None, component, module.out_features))
        elif isinstance(module, _FLAT):
            width = module.num_features if isinstance(module, nn.BatchNorm1d) else module.normalized_shape[-1]
            found.append(Place("norm", name, None, component, width))
        elif layers := layer_count(module):
            width = module.bias[0].numel()
            found += [Place("cross", name, layer, component, width) for layer in range(layers)]
        elif _is(module, _FM) or _is(module, _AFM):
            found.append(Place("interaction", name, None, component, 1))
        elif _is(module, _DOTS):
            width = None if dim is None else dim + module.triu_indices.shape[1]
            found.append(Place("interaction", name, None, component, width))
        elif _is(module, _AFN):
            width = None if dim is None else dim * module.orders.out_features
            found.append(Place("interaction", name, None, component, width))
        elif _is(module, _PROJECTED):
            found.append(Place("interaction", name, None, component))
    linear = [number for number, place in enumerate(found) if place.kind == "linear"]
    if linear:
        last = found[linear[-1]]
        found[linear[-1]] = Place("last", last.module, None, last.component, last.width)
    return [*found, Place("logit", "", None, "", 1)]


def _is(module: nn.Module, named: tuple[str, str]) -> bool:
    """Whether a module is of a class, or one derived from it, by (Python module, class); nothing is imported for it."""
    return any((one.__module__, one.__name__) == named for one in type(module).__mro__)


def _component(name: str, home: dict[str, str]) -> str:
    """The component of a module."""
    start = f"{name}." if name else ""
    return next((home[tensor] for tensor in home if tensor.startswith(start)), name.split(".")[0])


def _configs(module: nn.Module) -> Sequence[Any] | None:
    """The tables of a collection that pools; None for anything else."""
    configs = getattr(module, "embedding_bag_configs", None)
    return configs() if callable(configs) else None


def _embedding(module: nn.Module) -> tuple[bool, int | None] | None:
    """Whether tables are of width 1, and numbers per sample; None for what is no table or collection of tables that pools."""
    if isinstance(module, nn.EmbeddingBag | nn.Embedding):
        return module.embedding_dim == 1, module.embedding_dim
    if (configs := _configs(module)) is None:
        return None
    widths = [config.embedding_dim for config in configs]
    return set(widths) == {1}, sum(w * len(c.feature_names) for w, c in zip(widths, configs, strict=True))


def _dim(module: nn.Module) -> int | None:
    """The width of a module's tables."""
    if isinstance(module, nn.EmbeddingBag | nn.Embedding):
        return module.embedding_dim
    configs = _configs(module)
    return configs[0].embedding_dim if configs else None
