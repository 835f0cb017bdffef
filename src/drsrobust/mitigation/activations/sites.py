"""Functions on a module's outputs, put on and taken off; in cross networks on the output of each layer.

A cross network computes all of its layers in one call, so no hook sees what is between them. There a forward of the same
arithmetic stands in, layer by layer: the same operations in the same order, so the same bits.

Where activations can be bounded: the places of a model, found in its module tree."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drsrobust._environment import unknown
from drsrobust.introspection.tensors import component_of, named_modules, unwrapped
from drsrobust.mitigation.base import Handle

if TYPE_CHECKING:
    import pandas as pd

# (an output, whether it may be written to) -> what stands in its place
Function = Callable[[torch.Tensor, bool], torch.Tensor]
Step = Callable[[nn.Module, int, torch.Tensor, torch.Tensor], torch.Tensor]


def _vector(module: nn.Module, layer: int, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x_0 <x_l, w_l> + b_l + x_l (arXiv:1708.05123, equation 3), [B, N]."""
    return first * (x @ module.kernels[layer]) + module.bias[layer].squeeze(1) + x


def _low_rank(module: nn.Module, layer: int, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x_0 * (W_l (V_l x_l) + b_l) + x_l (arXiv:2008.13535, equation 2), [B, N]."""
    inner = nn.functional.linear(x, module.V_kernels[layer])
    return first * (nn.functional.linear(inner, module.W_kernels[layer]) + module.bias[layer]) + x


_STEPS: dict[str, Step] = {"VectorCrossNet": _vector, "LowRankCrossNet": _low_rank}


def _step(module: nn.Module) -> Step | None:
    """One layer of a cross network; None where it is none, or a class of somebody else, who may compute something else."""
    if type(module).__module__.split(".")[0] not in ("torchrec", "drsrobust"):
        return None
    for one in type(module).__mro__:
        if one.__module__ == "torchrec.modules.crossnet" and one.__name__ in _STEPS:
            return _STEPS[one.__name__]
    return None


def layer_count(module: nn.Module) -> int:
    """How many layers a cross network has whose layers are known here; 0 for anything else."""
    return 0 if _step(module) is None else len(module.bias)


# Forwards whose output is memory of its own, which nobody else holds: it may be written to.
_FRESH = {
    "torch.nn.modules.linear.Linear",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.normalization.LayerNorm",
    "torch.nn.modules.sparse.Embedding",
    "torch.nn.modules.sparse.EmbeddingBag",
    "torchrec.modules.embedding_modules.EmbeddingBagCollection",
    "torchrec.models.dlrm.InteractionArch",
    "drsrobust.models.layers.FlatInteractionArch",
}


def _gives_its_own(module: nn.Module) -> bool:
    """Whether a module's class gives a new tensor at each call."""
    forward = type(module).forward
    return f"{forward.__module__}.{forward.__qualname__}".removesuffix(".forward") in _FRESH


def on_output(module: nn.Module, function: Function) -> Handle:
    """A module's output becomes `function` of it while the handle is on: of a tensor, or of the values [B, sum of widths] of a
    KeyedTensor, which stays one with the same keys.

    The function may write to it where nobody else can hold it. Where something stands in for the module's forward, as when an
    evaluator follows, keeps or hands out outputs, it may not.

    When called, the module raises TypeError where its output is neither.
    """
    own = _gives_its_own(module)

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        fresh = own and "forward" not in module.__dict__
        if isinstance(output, torch.Tensor):
            return function(output, fresh)
        if type(output).__name__ != "KeyedTensor":
            raise TypeError(
                f"{type(module).__name__} gave a {type(output).__name__}; only a tensor or a KeyedTensor can be bounded"
            )
        before = output.values()
        after = function(before, fresh)
        if after is before:
            return output
        return type(output)(output.keys(), output.length_per_key(), after, output.key_dim(), output.offset_per_key())

    return module.register_forward_hook(hook)


def on_layers(module: nn.Module, functions: Mapping[int, Function]) -> Iterator[Handle]:
    """The outputs [B, N] of some layers of a cross network become functions of them while the handle is on.

    Args:
        module: one with layers (`layer_count`).
        functions: layer -> function.
    """
    step = _step(module)

    def forward(input: torch.Tensor) -> torch.Tensor:
        x = input
        for layer in range(len(module.bias)):
            x = step(module, layer, input, x)
            if layer in functions:
                x = functions[layer](x, True)
        return x

    handle = _Forward(module)
    yield handle  # known before anything is changed
    module.__dict__["forward"] = forward


class _Forward:
    """A module whose forward is replaced, and what it had of its own before."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._own = module, module.__dict__.get("forward")

    def remove(self) -> None:
        if self._own is None:
            self._module.__dict__.pop("forward", None)
        else:
            self._module.__dict__["forward"] = self._own


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


def clip_sites(model: nn.Module) -> "pd.DataFrame":
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
        >>> clip_sites(mlp)[["place", "module", "width"]].values.tolist()
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
