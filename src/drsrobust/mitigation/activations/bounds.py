"""Bounds of activations, learnt from clean rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from drsrobust._arguments import wrong
from drsrobust.introspection.calling import Forward, call
from drsrobust.introspection.wrappers import evaluating
from drsrobust.mitigation.activations.sites import ClipSite, hooked_sites
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
        site -> bounds, without sites that are never called.

    Raises:
        ValueError: no rows, or a site with NaN or infinite values, or with vectors of several widths.
    """
    if not len(split):
        raise ValueError(f"{split!r} has no rows to learn bounds from; give training rows, or else the rows you have")
    ranges = {site: _Range(site, per_neuron) for site in sites}
    n_rows = _observe(model, split, rows, ranges, forward)
    ranges = {site: observed for site, observed in ranges.items() if observed.number}
    if quantile is None:
        ends = {
            site: (widen(observed.low, margin, low=True), widen(observed.high, margin, low=False))
            for site, observed in ranges.items()
        }
    else:
        tops = {site: _Top(site, per_neuron, observed.number, quantile) for site, observed in ranges.items()}
        _observe(model, split, rows, tops, forward)
        largest = {site: top.quantile() * margin for site, top in tops.items()}
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

    def observe(self, output: torch.Tensor, fresh: bool) -> torch.Tensor:
        """Observes one output, before anything else can write to it, and returns it."""
        values = output.detach()
        vectors = self._per_neuron and values.dim() > 1 and values.shape[-1] > 1
        values = values.reshape(-1, values.shape[-1] if vectors else 1)
        if self._width not in (None, values.shape[1]):
            raise ValueError(f"{self._site}: its outputs have several widths; bounds per neuron need one")
        self._width = values.shape[1]
        if len(values):
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
            raise ValueError(f"{self._site} has NaN or infinite values without errors; bounds need finite values")
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


def _observe(
    model: nn.Module,
    split: CleanRows,
    rows: int,
    observers: Mapping[ClipSite, _Observer],
    forward: Forward | None,
) -> int:
    """Runs a model on the first rows of a split under observers; returns how many rows these were."""
    n_rows = 0
    with evaluating(model), hooked_sites(model, {site: observer.observe for site, observer in observers.items()}):
        for number, (size, batch) in enumerate(batches(split, min(rows, len(split)))):
            call(model, batch, forward, number)
            n_rows += size
    return n_rows
