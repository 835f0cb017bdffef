"""Bounds of activations, learnt from clean rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import nn

from drsrobust.introspection.tensors import named_modules
from drsrobust.introspection.wrappers import evaluating
from drsrobust.mitigation.activations.sites import Function, Place, on_layers, on_output

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

    from drsrobust.mitigation.base import Handle


class CleanRows(Protocol):
    """Rows to learn bounds from, such as a `drsrobust.data.Split`."""

    def __len__(self) -> int: ...

    def batch(self, rows: np.ndarray) -> "Batch": ...


BATCH = 2048  # rows; a multiple of 32, see `batches`


@dataclass(frozen=True, eq=False)
class Bounds:
    """The range of one place.

    Attributes:
        low, high: float64, [] (all numbers alike) or [width of the last dimension].
        values: how many numbers there are for a sample.
    """

    low: torch.Tensor
    high: torch.Tensor
    values: float

    @property
    def number(self) -> int:
        """How many numbers are to be stored."""
        return 2 * self.low.numel()


def learn(
    model: nn.Module,
    split: CleanRows,
    places: Sequence[Place],
    *,
    rows: int,
    quantile: float | None,
    margin: float,
    per_neuron: bool,
) -> dict[Place, Bounds]:
    """The bounds of some places: what they give for the first rows of a split.

    Without a quantile: the smallest and the largest value, each moved outwards by (margin - 1) times its magnitude. With one:
    -m and m, where m is the quantile of |x| (linear between order statistics, as NumPy's) times the margin. That is exact, in
    two passes: the first counts, the second keeps of each place as many of the largest |x| as the quantile leaves above it (of
    0.999: one in a thousand), batch by batch.

    Returns:
        place -> bounds; of places that are never called, none.

    Raises:
        ValueError: a place that gives NaN or infinite values, or vectors of several widths.
    """
    ranges = {place: _Range(place, per_neuron) for place in places}
    seen = _watch(model, split, rows, ranges)
    ranges = {place: one for place, one in ranges.items() if one.number}
    if quantile is None:
        ends = {
            place: (widened(one.low, margin, low=True), widened(one.high, margin, low=False))
            for place, one in ranges.items()
        }
    else:
        tops = {place: _Top(place, per_neuron, one.number, quantile) for place, one in ranges.items()}
        _watch(model, split, rows, tops)
        largest = {place: one.quantile() * margin for place, one in tops.items()}
        ends = {place: (-one, one) for place, one in largest.items()}
    return {
        place: Bounds(_plain(low), _plain(high), ranges[place].number * len(low) / seen)
        for place, (low, high) in ends.items()
    }


def _plain(ends: torch.Tensor) -> torch.Tensor:
    """Ends [width] as `Bounds` holds them."""
    ends = ends.double().cpu()
    return ends.squeeze() if len(ends) == 1 else ends


def widened(ends: torch.Tensor, margin: float, *, low: bool) -> torch.Tensor:
    """Ends of ranges moved outwards by (margin - 1) times their magnitude."""
    return ends - (margin - 1) * ends.abs() if low else ends + (margin - 1) * ends.abs()


@contextmanager
def attached(model: nn.Module, functions: dict[Place, Function]) -> Iterator[None]:
    """While the block runs, the output of each place is a function of it."""
    with ExitStack() as stack:
        for handle in put_on(model, functions):
            stack.callback(handle.remove)
        yield


def put_on(model: nn.Module, functions: dict[Place, Function]) -> "Iterator[Handle]":
    """As `attached`, by handles."""
    modules = dict(named_modules(model))
    crossed: dict[str, dict[int, Function]] = {}
    for place, function in functions.items():
        if place.layer is not None:
            crossed.setdefault(place.module, {})[place.layer] = function
        elif place.kind == "logit":
            yield on_output(model, function)  # of a wrapped model what the wrapper gives
        else:
            yield on_output(modules[place.module], function)
    for name, layers in crossed.items():
        yield from on_layers(modules[name], layers)


def batches(split: CleanRows, number: int) -> Iterator[tuple[int, "Batch"]]:
    """The first rows of a split as batches whose sizes are multiples of 32, from 64 up, as evaluators have them: for other
    sizes matrix products may round otherwise, and a clean value could lie a rounding outside of the bounds. Rows that are left
    over (up to 31) are left out; fewer than 64 rows are filled up by the last one.

    Yields:
        how many rows, and the batch.
    """
    number = number // 32 * 32 if number >= 64 else number
    ends = [*range(BATCH, number - 63, BATCH), number] if number > BATCH else [number]
    start = 0
    for end in ends:
        rows = np.arange(start, max(end, start + 64)).clip(max=end - 1)
        yield len(rows), split.batch(rows)
        start = end


class _Observer(ABC):
    """Sees what a place gives."""

    def __init__(self, place: Place, per_neuron: bool) -> None:
        self._place, self._per_neuron = place, per_neuron
        self._width: int | None = None

    def observe(self, output: torch.Tensor, fresh: bool) -> torch.Tensor:
        """Looks at one call's output at once, as it may be written to later, and gives it back."""
        values = output.detach()
        several = self._per_neuron and values.dim() > 1 and values.shape[-1] > 1
        values = values.reshape(-1, values.shape[-1] if several else 1)
        if self._width not in (None, values.shape[1]):
            raise ValueError(f"{self._place}: its outputs have several widths; bounds per neuron need one")
        self._width = values.shape[1]
        if len(values):
            self.take(values)
        return output

    @abstractmethod
    def take(self, values: torch.Tensor) -> None:
        """Looks at numbers [n, width]."""


class _Range(_Observer):
    """Smallest and largest value, and how many there were.

    Attributes:
        low, high: [width].
        number: how many values (per neuron).
    """

    def __init__(self, place: Place, per_neuron: bool) -> None:
        super().__init__(place, per_neuron)
        self.low: torch.Tensor | None = None
        self.high: torch.Tensor | None = None
        self.number = 0

    def take(self, values: torch.Tensor) -> None:
        low, high = torch.aminmax(values, dim=0)
        if not bool((low.isfinite() & high.isfinite()).all()):
            raise ValueError(
                f"{self._place} gives NaN or infinite values without errors; no bounds can be learnt from them"
            )
        self.low = low if self.low is None else torch.minimum(self.low, low)
        self.high = high if self.high is None else torch.maximum(self.high, high)
        self.number += len(values)


class _Top(_Observer):
    """The quantile of |x|, from the largest values alone."""

    def __init__(self, place: Place, per_neuron: bool, number: int, quantile: float) -> None:
        super().__init__(place, per_neuron)
        at = quantile * (number - 1)
        self._kept = number - floor(at)  # the two order statistics around `at` are the lowest of so many
        self._share = at - floor(at)
        self._largest: torch.Tensor | None = None

    def take(self, values: torch.Tensor) -> None:
        values = values.abs()
        if self._largest is not None:
            values = torch.cat((self._largest, values))
        if len(values) > self._kept:
            values = values.topk(self._kept, dim=0, sorted=False).values
        self._largest = values

    def quantile(self) -> torch.Tensor:
        """The quantile [width], float64."""
        lowest = self._largest.topk(min(2, self._kept), dim=0, largest=False).values.double()
        return lowest[0] + self._share * (lowest[-1] - lowest[0])


def _watch(model: nn.Module, split: CleanRows, rows: int, observers: Mapping[Place, _Observer]) -> int:
    """Shows observers what the model gives for the first rows of a split, and says how many rows these were."""
    seen = 0
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with evaluating(model), attached(model, {place: one.observe for place, one in observers.items()}):
        for number, batch in batches(split, min(rows, len(split))):
            batch = batch if device.type == "cpu" else batch.to(device)
            model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
            seen += number
    return seen
