"""The sites of a model where activations can be bounded, and hooks on their outputs.

A cross network computes all of its layers in one call, so no hook sees the values between them. While a layer is bounded, its
forward is replaced by one that runs the same operations in the same order, layer by layer: the results are bit-identical."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import nn

from drsrobust._arguments import check_items
from drsrobust._choices import check_choice
from drsrobust.introspection.embedding_modules import pooled_tables
from drsrobust.introspection.nested import with_tensors
from drsrobust.introspection.origin import OWN_PACKAGES
from drsrobust.introspection.tensors import component_of, core, declared_components, named_modules, unwrapped
from drsrobust.introspection.wrappers import add_forward_hook, check_module, has_replaced_forward, intercepted
from drsrobust.mitigation.base import Handle

if TYPE_CHECKING:
    import pandas as pd

# (an output, whether it may be written to) -> its replacement
Function = Callable[[torch.Tensor, bool], torch.Tensor]
# part of an output ("" if it is one tensor, else as "[0]" or "[scores]") -> its function; None: it stays
Functions = Callable[[str], Function | None]

KINDS = {
    "embedding": "pooled embeddings: outputs of tables (of a collection of tables: all of them at once)",
    "first_order": "first-order terms: outputs of tables of width 1, and of a Linear of the model's component `linear`",
    "linear": "outputs of every other nn.Linear but the last",
    "last": "outputs of the last of these, by the order of registration: the last projection",
    "norm": "outputs of batch normalisation",
    "cross": "each layer of TorchRec's cross networks, and of ours",
    "interaction": "products: second-order terms, DLRM's InteractionArch, AFM's attention, AFN's logarithmic layer",
    "logit": "the model's own output",
}

_FM = ("torchrec.modules.deepfm", "FactorizationMachine")
_DOTS = ("torchrec.models.dlrm", "InteractionArch")
_PROJECTED = ("torchrec.models.dlrm", "InteractionProjectionArch")


@dataclass(frozen=True)
class ClipSite:
    """An output that can be bounded.

    Attributes:
        kind: one of `KINDS`.
        module: name of the module that returns it; "" for the model itself.
        layer: layer of a cross network, from 0; else None.
        component: of the module's tensors; of a module without tensors, its top-level child.
        width: numbers per sample, if the sizes of modules determine it; else None.
        part: which tensor of the output, as `[0]` of a tuple; "" for an output that is one tensor.
    """

    kind: str
    module: str
    layer: int | None = None
    component: str = field(default="", compare=False)
    width: int | None = field(default=None, compare=False)
    part: str = ""

    def __str__(self) -> str:
        layer = "" if self.layer is None else f"[{self.layer}]"
        return f"{self.kind} {(self.module or 'the model') + layer}{self.part and f', output{self.part}'}"

    @property
    def whole(self) -> "ClipSite":
        """The site with all parts of its output."""
        return replace(self, part="") if self.part else self


def clip_sites(model: nn.Module) -> "pd.DataFrame":
    """The sites of a model where activations can be bounded.

    Args:
        model: any module. nn.Linear, BatchNorm, LayerNorm and tables are found in every model; cross networks and interactions
            by class (TorchRec's and subclasses), or by a method `interaction_width(dim)` of the module: numbers per sample
            of its output, from the width of tables. Never found and so never clipped: TorchRec's quantized
            collections (use `reserve_bits`, checks of rows, protected memory) and `EmbeddingCollection`, which returns
            sequences; layers behind them are found.

    Returns:
        columns `site` (a kind of `KINDS`), `module` ("" for the model itself), `layer` (of a cross network; else missing),
        `component`, `width` (numbers per sample, if sizes determine it).

    Example:
        >>> mlp = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> clip_sites(mlp)[["site", "module", "width"]].values.tolist()
        [['linear', '0', 8], ['last', '2', 1], ['logit', '', 1]]
    """
    import pandas as pd

    rows = [(site.kind, site.module, site.layer, site.component, site.width) for site in find_sites(model)]
    frame = pd.DataFrame(rows, columns=["site", "module", "layer", "component", "width"])
    return frame.astype({"layer": "Int64", "width": "Int64"})


def check_sites(kinds: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Kinds in the order of `KINDS`, each once; None stays None.

    Raises:
        ValueError: no kind, or an unknown one.
    """
    if kinds is None:
        return None
    kinds = check_items("sites", kinds, "a list of kinds of sites", str)
    for kind in sorted(kinds, key=str):
        check_choice("site", kind, KINDS)
    if not kinds:
        raise ValueError(f"sites is empty; known: {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in kinds)


def select_sites(model: nn.Module, kinds: Sequence[str] | None) -> list[ClipSite]:
    """The sites of a model of some kinds (None: all).

    Raises:
        ValueError: the model has none of these kinds.
    """
    sites = find_sites(model)
    selected = [site for site in sites if kinds is None or site.kind in kinds]
    if not selected:
        raise ValueError(
            f"{type(unwrapped(model)).__name__} has no site of the kind {', '.join(kinds or ())}; it has: "
            f"{', '.join(dict.fromkeys(site.kind for site in sites))}"
        )
    return selected


def find_sites(model: nn.Module) -> list[ClipSite]:
    """The sites of a model, in the order of its modules; the logit last."""
    check_module(model)
    modules = named_modules(model)
    home = component_of(model)
    declares_linear = "linear" in declared_components(type(core(model)[1]))
    dim = next((widths[0] for _, module in modules if (widths := _table_widths(module))), None)
    sites: list[ClipSite] = []
    tables: list[str] = []

    def add(kind: str, width: int | None = None, layer: int | None = None) -> None:
        start = f"{name}." if name else ""
        component = next((home[tensor] for tensor in home if tensor.startswith(start)), name.split(".")[0])
        if kind == "linear" and declares_linear and component == "linear":
            kind = "first_order"
        sites.append(ClipSite(kind, name, layer, component, width))

    for name, module in modules:
        if any(name.startswith(f"{table}.") for table in tables):
            continue  # a collection is bounded as a whole
        if (widths := _table_widths(module)) is not None:
            tables.append(name)
            add("first_order" if set(widths) == {1} else "embedding", sum(widths))
        elif isinstance(module, nn.Linear):
            add("linear", module.out_features)
        elif isinstance(module, nn.BatchNorm1d | nn.LayerNorm):
            add("norm", module.num_features if isinstance(module, nn.BatchNorm1d) else module.normalized_shape[-1])
        elif layers := layer_count(module):
            for layer in range(layers):
                add("cross", module.bias[0].numel(), layer)
        elif (width_of := getattr(module, "interaction_width", None)) is not None:
            add("interaction", width_of(dim))
        elif _is(module, _FM):
            add("interaction", 1)
        elif _is(module, _DOTS):
            add("interaction", None if dim is None else dim + module.triu_indices.shape[1])
        elif _is(module, _PROJECTED):
            add("interaction")
    linear = [number for number, site in enumerate(sites) if site.kind == "linear"]
    if linear:
        sites[linear[-1]] = replace(sites[linear[-1]], kind="last")
    return [*sites, ClipSite("logit", "", None, "", 1)]


def _is(module: nn.Module, named: tuple[str, str]) -> bool:
    """Whether a module's class is, or derives from, one given by (Python module, class), without importing it."""
    return any((base.__module__, base.__name__) == named for base in type(module).__mro__)


def _table_widths(module: nn.Module) -> list[int] | None:
    """Vector widths of a table or of all features of a pooling collection, in the order of tables; None for other modules."""
    if isinstance(module, nn.EmbeddingBag | nn.Embedding):
        return [module.embedding_dim]
    configs = pooled_tables(module)
    return None if configs is None else [config.embedding_dim for config in configs for _ in config.feature_names]


def by_part(functions: Mapping[ClipSite, Function]) -> dict[ClipSite, Functions]:
    """The functions of sites by whole sites; one without a part is that of all parts that have no other."""
    parts: dict[ClipSite, dict[str, Function]] = {}
    for site, function in functions.items():
        parts.setdefault(site.whole, {})[site.part] = function
    return {site: lambda part, known=known: known.get(part, known.get("")) for site, known in parts.items()}


@contextmanager
def hooked_sites(model: nn.Module, functions: Mapping[ClipSite, Functions]) -> Iterator[None]:
    """Inside the block, the output of each site is a function of it."""
    with ExitStack() as stack:
        for handle in hook_sites(model, functions):
            stack.callback(handle.remove)
        yield


def hook_sites(model: nn.Module, functions: Mapping[ClipSite, Functions]) -> Iterator[Handle]:
    """As `hooked_sites`, by handles."""
    modules = dict(named_modules(model))
    by_network: dict[str, dict[int, Function]] = {}
    for site, of_part in functions.items():
        if site.layer is not None:
            by_network.setdefault(site.module, {})[site.layer] = of_part("")
        else:  # the logit of a wrapped model is the wrapper's output
            yield hook_parts(model if site.kind == "logit" else modules[site.module], of_part)
    for name, layers in by_network.items():
        yield from hook_layers(modules[name], layers)


# Forwards whose output is new memory without another owner: it may be written to.
_FRESH = {
    "torch.nn.modules.linear.Linear",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.normalization.LayerNorm",
    "torch.nn.modules.sparse.Embedding",
    "torch.nn.modules.sparse.EmbeddingBag",
    "torchrec.modules.embedding_modules.EmbeddingBagCollection",
    "torchrec.models.dlrm.InteractionArch",
    "drsrobust.models.dlrm.FlatInteractionArch",
}


def hook_output(module: nn.Module, function: Function) -> Handle:
    """As `hook_parts`, with one function for all parts."""
    return hook_parts(module, lambda part: function)


def hook_parts(module: nn.Module, of_part: Functions) -> Handle:
    """Replaces a module's output by a function of it: of a tensor, of the values [B, sum of widths] of a KeyedTensor, which
    stays one with the same keys, or of each floating-point tensor in a tuple, a mapping, a dataclass or another object.

    The function may write to an output without another owner. Where the module's forward is replaced, for example by an
    evaluator that keeps outputs, it may not.

    An output in which no such tensor is found stays, with a warning, once for each module.
    """
    forward = getattr(type(module), "forward", None)
    name = f"{getattr(forward, '__module__', '')}.{getattr(forward, '__qualname__', '')}".removesuffix(".forward")
    is_fresh = name in _FRESH

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        fresh = is_fresh and not has_replaced_forward(module)
        found = False

        def replaced(part: str, tensor: torch.Tensor, _: Any) -> torch.Tensor:
            nonlocal found
            if part and not tensor.is_floating_point():
                return tensor
            found, function = True, of_part(part)
            return tensor if function is None else function(tensor, fresh and not part)

        output = with_tensors(output, replaced)
        if not found and module not in _WITHOUT_TENSORS:
            _WITHOUT_TENSORS.add(module)
            kind = type(output).__name__
            warnings.warn(f"{type(module).__name__} gave a {kind} without a tensor that could be bounded", stacklevel=2)
        return output

    return add_forward_hook(module, hook)


_WITHOUT_TENSORS: WeakSet[nn.Module] = WeakSet()  # modules whose outputs had their warning


class _Removable(ExitStack):
    """Contexts that are exited by `remove`."""

    remove = ExitStack.close


def hook_layers(module: nn.Module, functions: Mapping[int, Function]) -> Iterator[Handle]:
    """Replaces the outputs [B, N] of some layers of a cross network by functions of them.

    Args:
        module: with known layers (`layer_count`).
        functions: layer -> function.
    """
    step = _cross_step(module)

    def forward(input: torch.Tensor) -> torch.Tensor:
        x = input
        for layer in range(len(module.bias)):
            x = step(module, layer, input, x)
            if layer in functions:
                x = functions[layer](x, True)
        return x

    handle = _Removable()
    yield handle  # before anything changes, so that an interrupt cannot lose it
    handle.enter_context(intercepted({"": module}, lambda name, original: forward))


def layer_count(module: nn.Module) -> int:
    """The layers of a known cross network; 0 for other modules."""
    return 0 if _cross_step(module) is None else len(module.bias)


Step = Callable[[nn.Module, int, torch.Tensor, torch.Tensor], torch.Tensor]


def _vector(module: nn.Module, layer: int, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x_0 <x_l, w_l> + b_l + x_l (arXiv:1708.05123, equation 3), [B, N]."""
    return first * (x @ module.kernels[layer]) + module.bias[layer].squeeze(1) + x


def _low_rank(module: nn.Module, layer: int, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x_0 * (W_l (V_l x_l) + b_l) + x_l (arXiv:2008.13535, equation 2), [B, N]."""
    inner = nn.functional.linear(x, module.V_kernels[layer])
    return first * (nn.functional.linear(inner, module.W_kernels[layer]) + module.bias[layer]) + x


_STEPS: dict[str, Step] = {"VectorCrossNet": _vector, "LowRankCrossNet": _low_rank}


def _cross_step(module: nn.Module) -> Step | None:
    """One layer of a cross network; None for other modules, and for other people's subclasses, which may compute otherwise."""
    if type(module).__module__.split(".")[0] not in ("torchrec", *OWN_PACKAGES):
        return None
    for base in type(module).__mro__:
        if base.__module__ == "torchrec.modules.crossnet" and base.__name__ in _STEPS:
            return _STEPS[base.__name__]
    return None
