"""Bounds of activations, learnt from clean rows."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import floor
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from drsrobust._arguments import wrong
from drsrobust.introspection.calling import Forward, call
from drsrobust.introspection.wrappers import evaluating
from drsrobust.mitigation.activations.sites import ClipSite, Function, Functions, hooked_sites
from drsrobust.mitigation.base import FIT_BATCH, widen


class CleanRows(Protocol):
    """Rows to learn bounds from: a `drsrobust.data.Split`, or `drsrobust.data.Batches`, which has `batches` and `sizes` in
    place of `batch`."""

    def __len__(self) -> int: ...

    def batch(self, rows: np.ndarray) -> Any: ...


def check_rows(name: str, rows: Any) -> None:
    """Raises ArgumentError for what is no `CleanRows`."""
    if isinstance(rows, type) or not hasattr(rows, "__len__") or not (hasattr(rows, "batch") or hasattr(rows, "sizes")):
        raise wrong(name, "training rows: a Split, as data.train, or Batches", rows)


@dataclass(frozen=True, eq=False)
class Bounds:
    """The range of one site.

    Attributes:
        low, high: float64, [] (one pair for all numbers) or [width of the last dimension].
        values: numbers per sample.
    """

    low: torch.Tensor
    high: torch.Tensor
    values: float

    @property
    def number(self) -> int:
        """How many numbers are stored."""
        return 2 * self.low.numel()


def learn(
    model: nn.Module,
    split: CleanRows,
    sites: Sequence[ClipSite],
    *,
    rows: int,
    quantile: float | None,
    margin: float,
    per_neuron: bool,
    forward: Forward | None = None,
) -> dict[ClipSite, Bounds]:
    """The bounds of some sites from their outputs for the first rows of a split.

    Without a quantile: the smallest and the largest value, each moved outwards by (margin - 1) times its magnitude. With one:
    -m and m, where m is the quantile of |x| (linear between order statistics, as NumPy's) times the margin. It is exact, in two
    passes: the first counts values, the second keeps as many of the largest |x| of each site as the quantile leaves above it
    (of 0.999: one in a thousand), batch by batch.

    Returns:
        site -> bounds, without sites that are never called. Of an output of several tensors each has bounds of its own.

    Warns:
        UserWarning: a tensor among several in an output is not bounded, since it has NaN or infinite values or several widths.

    Raises:
        ValueError: no rows, or a site with NaN or infinite values, or with vectors of several widths.
    """
    if not len(split):
        raise ValueError(f"{split!r} has no rows to learn bounds from; give training rows, or else the rows you have")
    observers = _Observers(sites, lambda site: _Range(site, per_neuron))
    n_rows = _observe(model, split, rows, observers, forward)
    ranges = {site: observed for site, observed in observers.usable().items() if observed.number}
    if quantile is None:
        ends = {
            site: (widen(observed.low, margin, low=True), widen(observed.high, margin, low=False))
            for site, observed in ranges.items()
        }
    else:
        tops = _Observers(sites, lambda site: _Top(site, per_neuron, ranges[site].number, quantile), among=ranges)
        _observe(model, split, rows, tops, forward)
        largest = {site: top.quantile() * margin for site, top in tops.usable().items()}
        ends = {site: (-high, high) for site, high in largest.items()}
    bounds = {}
    for site, (low, high) in ends.items():
        low, high = (end.double().cpu() for end in (low, high))
        scalar = len(low) == 1
        values = ranges[site].number * len(low) / n_rows
        bounds[site] = Bounds(low.squeeze() if scalar else low, high.squeeze() if scalar else high, values)
    return bounds


def batches(split: CleanRows, number: int) -> Iterator[tuple[int, Any]]:
    """The first rows of a split in batches of multiples of 32 rows, from 64 up, as evaluators use them: with other sizes matrix
    products may round otherwise, and a clean value could be just outside of the bounds. Up to 31 last rows are dropped; fewer
    than 64 rows are padded with the last row. `Batches` are taken as they are, until there are enough rows.

    Yields:
        number of rows, and the batch.
    """
    if not hasattr(split, "batch"):
        starts = np.cumsum(split.sizes) - split.sizes
        for size, start, batch in zip(split.sizes.tolist(), starts.tolist(), split.batches, strict=True):
            if start < number:
                yield size, batch
        return
    number = number // 32 * 32 if number >= 64 else number
    ends = [*range(FIT_BATCH, number - 63, FIT_BATCH), number] if number > FIT_BATCH else [number]
    start = 0
    for end in ends:
        rows = np.arange(start, max(end, start + 64)).clip(max=end - 1)
        yield len(rows), split.batch(rows)
        start = end


class _Observer(ABC):
    """Observes the outputs of a site."""

    def __init__(self, site: ClipSite, per_neuron: bool) -> None:
        self._site, self._per_neuron = site, per_neuron
        self._width: int | None = None
        self.problem: str | None = None  # why it cannot be bounded

    def observe(self, output: torch.Tensor, fresh: bool) -> torch.Tensor:
        """Observes one output, before anything else can write to it, and returns it."""
        values = output.detach()
        vectors = self._per_neuron and values.dim() > 1 and values.shape[-1] > 1
        values = values.reshape(-1, values.shape[-1] if vectors else 1)
        if self._width not in (None, values.shape[1]):
            self.problem = f"{self._site}: its outputs have several widths; bounds per neuron need one"
        self._width = values.shape[1]
        if len(values) and self.problem is None:
            self.add(values)
        return output

    @abstractmethod
    def add(self, values: torch.Tensor) -> None:
        """Adds numbers [n, width]."""


class _Range(_Observer):
    """Smallest and largest values (`low`, `high`, [width]), and how many there were per neuron (`number`)."""

    def __init__(self, site: ClipSite, per_neuron: bool) -> None:
        super().__init__(site, per_neuron)
        self.low: torch.Tensor | None = None
        self.high: torch.Tensor | None = None
        self.number = 0

    def add(self, values: torch.Tensor) -> None:
        low, high = torch.aminmax(values, dim=0)
        if not bool((low.isfinite() & high.isfinite()).all()):
            self.problem = f"{self._site} has NaN or infinite values without errors; bounds need finite values"
            return
        self.low = low if self.low is None else torch.minimum(self.low, low)
        self.high = high if self.high is None else torch.maximum(self.high, high)
        self.number += len(values)


class _Top(_Observer):
    """A quantile of |x|, from the largest values only."""

    def __init__(self, site: ClipSite, per_neuron: bool, number: int, quantile: float) -> None:
        super().__init__(site, per_neuron)
        at = quantile * (number - 1)
        self._n_kept = number - floor(at)  # the two order statistics around `at` are the lowest of these
        self._fraction = at - floor(at)
        self._largest: torch.Tensor | None = None

    def add(self, values: torch.Tensor) -> None:
        values = values.abs()
        if self._largest is not None:
            values = torch.cat((self._largest, values))
        if len(values) > self._n_kept:
            values = values.topk(self._n_kept, dim=0, sorted=False).values
        self._largest = values

    def quantile(self) -> torch.Tensor:
        """The quantile [width], float64."""
        lowest = self._largest.topk(min(2, self._n_kept), dim=0, largest=False).values.double()
        return lowest[0] + self._fraction * (lowest[-1] - lowest[0])


class _Observers:
    """Observers of sites, one for each tensor in their outputs, made when it is first seen.

    Args:
        sites: in order.
        make: an observer of a site.
        among: the sites, with parts, that are observed; None: all.
    """

    def __init__(
        self,
        sites: Sequence[ClipSite],
        make: Callable[[ClipSite], _Observer],
        among: Container[ClipSite] | None = None,
    ) -> None:
        self._sites, self._make, self._among = sites, make, among
        self._by_part: dict[ClipSite, dict[str, _Observer]] = {site: {} for site in sites}

    def functions(self) -> dict[ClipSite, Functions]:
        """For `hooked_sites`."""
        return {site: partial(self._observe, site) for site in self._sites}

    def _observe(self, site: ClipSite, part: str) -> Function | None:
        observers = self._by_part[site]
        if part not in observers:
            at = replace(site, part=part)
            if self._among is not None and at not in self._among:
                return None
            observers[part] = self._make(at)
        return observers[part].observe

    def check(self) -> None:
        """Raises ValueError if a whole output cannot be bounded. Not in the hook, whose errors look like the model's."""
        for observers in self._by_part.values():
            if "" in observers and (problem := observers[""].problem):
                raise ValueError(problem)

    def usable(self) -> dict[ClipSite, Any]:
        """The observers by site, in order, with a warning for tensors that cannot be bounded."""
        usable = {}
        for site, observers in self._by_part.items():
            for part, observer in observers.items():
                if observer.problem:
                    warnings.warn(f"{observer.problem}, so this tensor is not bounded", stacklevel=5)
                else:
                    usable[replace(site, part=part)] = observer
        return usable


def _observe(
    model: nn.Module,
    split: CleanRows,
    rows: int,
    observers: _Observers,
    forward: Forward | None,
) -> int:
    """Runs a model on the first rows of a split under observers; returns how many rows these were."""
    n_rows = 0
    with evaluating(model), hooked_sites(model, observers.functions()):
        for number, (size, batch) in enumerate(batches(split, min(rows, len(split)))):
            call(model, batch, forward, number)
            observers.check()
            n_rows += size
    return n_rows
