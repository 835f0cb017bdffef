"""What a model stores: its tensors by name, each with its words, their format and its component; which of them can be hit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from drsrobust.injection.number_formats import Format, plain, quantized_rows
from drsrobust.injection.words import WordView
from drsrobust.introspection.embedding_modules import features_tables
from drsrobust.introspection.spread import SpreadTensor
from drsrobust.introspection.tensors import component_of, listed, named_modules, named_tensors, span, why_wordless

OPTIMIZER = "optimizer."  # prefix of the names of optimizer states


@dataclass(frozen=True)
class Stored:
    """A tensor in memory.

    Attributes:
        tensor: the tensor.
        rows: the format of its rows, if they are quantized.
        parameter: whether the target "all" holds it: a parameter or a quantized table.
        embedding: whether it is an embedding table.
        spread: its parts, if it is spread over ranks; then `tensor` has its shape, and no memory.
    """

    tensor: torch.Tensor
    rows: Format | None = None
    parameter: bool = False
    embedding: bool = False
    spread: SpreadTensor | None = None

    def words(self) -> WordView | Any:
        """Its words, read and written by flat index."""
        return WordView(self.tensor) if self.spread is None else self.spread.words()

    def values(self) -> torch.Tensor:
        """All of it."""
        return self.tensor if self.spread is None else self.spread.whole()

    def memory(self) -> list[torch.Tensor]:
        """What this process holds of it."""
        return [self.tensor] if self.spread is None else self.spread.memory()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its words."""
        return self.tensor.dtype if self.rows is None else self.rows.dtype

    @property
    def format(self) -> Format:
        """The format of its words.

        Raises:
            ValueError: an unsupported dtype.
        """
        return self.rows or plain(self.tensor.dtype)

    @property
    def format_name(self) -> str:
        """The name of that format, or of the dtype."""
        return str(self.tensor.dtype).removeprefix("torch.") if self.rows is None else self.rows.name


class Memory(dict[str, Stored]):
    """The tensors of a model by name. `component` maps every name, also further names (of tied tensors, and of tables by their
    features), to its component; `first` maps these further names to the tensor's first one."""

    component: dict[str, str]
    first: dict[str, str]


def stored(model: nn.Module, optimizer: Any = None, components: Mapping[str, str] | None = None) -> Memory:
    """Parameters, buffers and, of an optimizer, the states of the model's parameters (`optimizer.<parameter>.<state>`).

    Raises:
        ArgumentError: `model` is not a module.
        ValueError: as `listed`, or an optimizer's state of a sharded model.
    """
    entries = listed(model)
    component = component_of(model, components, entries)
    memory = Memory()
    memory.component, memory.first = component, {}
    for name, tensor, parameter, table, aliases, embedding, spread in entries:
        rows = table and quantized_rows(table.values, table.dim, table.header, table.row_bytes)
        memory[name] = Stored(tensor, rows, parameter, embedding, spread)
        memory.first |= dict.fromkeys(aliases, name)
    for alias, name in features_tables(named_modules(model)).items():
        if name in component and alias not in component:
            memory.first[alias], component[alias] = memory.first.get(name, name), component[name]
    if optimizer is not None:
        if any(entry.spread for entry in entries):
            raise ValueError(
                "the optimizer's state of a sharded model cannot be hit; take the model before it is sharded"
            )
        for name, tensor in optimizer_states(model, optimizer).items():
            memory[name] = Stored(tensor)
            of_parameter = name.removeprefix(OPTIMIZER).rpartition(".")[0]
            component[name] = component.get(of_parameter, "optimizer")
    return memory


def optimizer_states(model: nn.Module, optimizer: Any) -> dict[str, torch.Tensor]:
    """The optimizer's state tensors by name: the states of the model's parameters, which exist after the first `step`.

    Args:
        optimizer: a `torch.optim.Optimizer`, or one of TorchRec's keyed optimizers (also of fused tables).

    Raises:
        TypeError: not an optimizer.
    """
    if not isinstance(getattr(optimizer, "state", None), Mapping):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}; it must be a torch.optim.Optimizer or one of TorchRec's"
        )
    names = {id(tensor): name for name, tensor in named_tensors(model, buffers=False)}
    keyed = getattr(optimizer, "params", None)  # TorchRec's keyed optimizers have names of their own for parameters
    if isinstance(keyed, Mapping):
        names = {id(tensor): name for name, tensor in keyed.items()} | names
    states = {}
    for parameter, state in optimizer.state.items():
        name = parameter if isinstance(parameter, str) else names.get(id(parameter))
        for key, value in state.items() if name else ():
            if isinstance(value, torch.Tensor):
                states[f"{OPTIMIZER}{name}.{key}"] = value
    return states


def hittable(tensor: torch.Tensor) -> bool:
    """Whether its words have bit positions: all dtypes but complex numbers and booleans."""
    return not (tensor.dtype.is_complex or tensor.dtype == torch.bool)


def check(name: str, tensor: torch.Tensor) -> None:
    """Raises ValueError for a tensor whose words cannot be hit."""
    if is_lazy(tensor):
        raise ValueError(f"{name} is not initialised yet: run the model once before injecting into it")
    if tensor.is_meta:
        raise ValueError(f"{name} is on the meta device and has no storage to hit")
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = tensor.dtype if tensor.is_quantized else tensor.layout
        raise ValueError(f"{name} is {kind}; only plain dense tensors can be hit")
    if why := why_wordless(tensor):
        raise ValueError(f"{name} {why}")
    if not hittable(tensor):
        raise ValueError(f"{name} is {tensor.dtype}, which has no bit positions to hit")
    try:
        plain(tensor.dtype)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def distinct_spans(tensors: Mapping[str, torch.Tensor]) -> list[tuple[int, int]]:
    """First byte and end of each tensor's memory.

    Raises:
        ValueError: words of one tensor, or of two, share memory: they would be hit twice and restored wrongly.
    """
    spans = list(map(span, tensors.values()))
    open_spans: list[tuple[int, str]] = []
    for (start, end), name in sorted(zip(spans, tensors, strict=True)):
        if not (tensors[name].is_contiguous() or _has_distinct_words(tensors[name])):
            raise ValueError(f"{name} repeats words of its memory (it was expanded); it cannot be hit word by word")
        open_spans = [(other_end, other) for other_end, other in open_spans if other_end > start]
        for _, other in open_spans:
            if len(np.intersect1d(_word_addresses(tensors[other]), _word_addresses(tensors[name]))):
                raise ValueError(f"{other} and {name} share a part of their memory; target one of them by its name")
        open_spans.append((end, name))
    return spans


def _has_distinct_words(tensor: torch.Tensor) -> bool:
    if not tensor.numel():
        return True
    reach = 1  # words that the smaller dimensions span
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride < reach:  # dimensions are interleaved: compare the addresses of all words
            return len(np.unique(_word_addresses(tensor))) == tensor.numel()
        reach += stride * (size - 1)
    return True


def _word_addresses(tensor: torch.Tensor) -> np.ndarray:
    address = np.full(1, tensor.data_ptr(), np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        address = (address[:, None] + tensor.element_size() * stride * np.arange(size)).ravel()
    return address
