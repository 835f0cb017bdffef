"""The checks of modules that look up and pool rows of tables."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from drsrobust.mitigation.abft import Check, Suspicion
from drsrobust.mitigation.bag_lookups import Lookup, of_bag, of_embedding, of_keyed
from drsrobust.mitigation.checksum_bounds import FAR, bag_factor, unit_roundoff
from drsrobust.mitigation.golden_copy import GoldenCopy
from drsrobust.mitigation.row_sums import LEAST, ONE, ONE_QUANTIZED
from drsrobust.quantized import quantized_tables


@dataclass(frozen=True)
class Table:
    """A table of a module: its tensor's name in the model and in the module, its rows, and how many values a row has."""

    name: str
    within: str
    rows: int
    dim: int


@dataclass(frozen=True)
class Feature:
    """What a module looks up: with which ids, in which of its tables, and whether the mean of rows is taken (else the sum)."""

    name: str
    table: int
    mean: bool


@dataclass(frozen=True, eq=False)
class BagCheck(Check):
    """The look-ups of one module (TorchRec's `EmbeddingBagCollection`, plain or quantized; `nn.EmbeddingBag`; `nn.Embedding`).

    Attributes:
        name: of the module.
        kind: of module: `"collection"`, `"quantized"`, `"bag"` or `"rows"`.
        tables, features: what it has, in the order of its output.
        weighted: whether ids have weights.
    """

    name: str
    kind: str
    tables: tuple[Table, ...]
    features: tuple[Feature, ...]
    weighted: bool

    @cached_property
    def dims(self) -> list[int]:
        """Values of each feature's vectors."""
        return [self.tables[feature.table].dim for feature in self.features]

    @cached_property
    def names(self) -> list[str]:
        """Names of the features."""
        return [feature.name for feature in self.features]

    @cached_property
    def first(self) -> torch.Tensor:
        """Where each feature's table begins when all are put one below the other, int64 [features]."""
        starts = torch.tensor([0, *(table.rows for table in self.tables)]).cumsum(0)
        return starts[[feature.table for feature in self.features]]

    @cached_property
    def last(self) -> torch.Tensor | None:
        """Of quantized tables, the last row of each feature's: FBGEMM does not refuse ids beyond."""
        if self.kind != "quantized":
            return None
        return torch.tensor([self.tables[feature.table].rows - 1 for feature in self.features])

    def lookup(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Lookup:
        """What a call of the module read."""
        if self.kind == "bag":
            return of_bag(module, *args, **kwargs)
        given = args[0] if args else next(iter(kwargs.values()))
        if self.kind == "rows":
            return of_embedding(given)
        device = given.values().device
        last = None if self.last is None else self.last.to(device)
        return of_keyed(given, self.names, self.first.to(device), self.weighted, last)

    def memory(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """The tables' memory, by their names in the model.

        Raises:
            ValueError: the module has not these tables.
        """
        if self.kind == "quantized":
            there = {table.name: table.tensor for table in quantized_tables([("", module)])}
        else:
            there = dict(module.named_parameters())
        for table in self.tables:
            here = there.get(table.within)
            if here is None or len(here) != table.rows:
                raise ValueError(
                    f"{table.name}: sums were learnt of {table.rows} rows; the model has another table there"
                )
        return {table.name: there[table.within] for table in self.tables}

    def zeroed(self, output: Any, rows: torch.Tensor) -> Any:
        if self.kind in ("bag", "rows"):
            copy = output.clone()
            copy.view(-1, output.shape[-1])[rows] = 0.0
            return copy
        values, dims = output.values().clone(), self.dims
        batch = len(values)
        for feature in (rows // batch).unique().tolist():
            start = sum(dims[:feature])
            values[rows[rows // batch == feature] % batch, start : start + dims[feature]] = 0.0
        return type(output)(keys=output.keys(), length_per_key=output.length_per_key(), values=values)

    def restore(self, module: nn.Module, golden: GoldenCopy, args: tuple, kwargs: dict, rows: torch.Tensor) -> None:
        ids, start = self.lookup(module, args, kwargs).ids_of(rows), 0
        memory = self.memory(module)
        for table in self.tables:
            inside = ids[(ids >= start) & (ids < start + table.rows)] - start
            if len(inside):
                golden.restore_tensor(table.name, memory[table.name], inside)
            start += table.rows

    @property
    def values_read(self) -> int:
        """Values that a sample's vectors have, all features together."""
        return sum(self.dims)

    @property
    @abstractmethod
    def multiply_adds(self) -> int:
        """Of a sample whose bags have one id each."""

    @property
    @abstractmethod
    def bytes_touched(self) -> int:
        """As `multiply_adds`."""


@dataclass(frozen=True, eq=False)
class SumCheck(BagCheck):
    """Sums of pooled values against pooled row sums.

    Attributes:
        rows: checksums and thresholds of all tables' rows, one table below the other, [all rows, 2].
    """

    rows: torch.Tensor

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"rows": self.rows}

    @property
    def multiply_adds(self) -> int:
        return self.values_read + 2 * len(self.features)

    @property
    def bytes_touched(self) -> int:
        width = self.rows.element_size()
        return width * (self.values_read + 2 * len(self.features))

    def on(self, module: nn.Module) -> Suspicion:
        rows = self.rows.to(next(iter(self.memory(module).values())).device)
        number, dims = len(self.features), self.dims
        ones = torch.ones(dims[0], dtype=rows.dtype, device=rows.device)

        def suspicious(args: tuple, kwargs: dict[str, Any], output: Any) -> torch.Tensor | None:
            lookup = self.lookup(module, args, kwargs)
            if not lookup.bags:
                return None
            values = (output if isinstance(output, torch.Tensor) else output.values()).detach()
            expected, threshold = lookup.pooled(rows).view(number, -1, 2).unbind(2)  # [features, B] each
            lengths = lookup.lengths
            if lengths is not None:
                expected, threshold = self._of_many(expected, threshold, lengths.view(number, -1))
            difference = torch.sub(expected, sums_of(values, dims, ones).t()).abs_()
            excess = difference.sub_(threshold)
            # Quicker than to compare each and join what comes out; the largest is NaN where any is.
            return None if float(excess.max()) < 0 else (~(excess < 0)).view(-1).nonzero().squeeze(1)

        return suspicious

    def _of_many(
        self, expected: torch.Tensor, threshold: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Means where these are taken, and thresholds of bags of so many rows; [features, B] each."""
        u, one = unit_roundoff(self.rows.dtype), ONE_QUANTIZED if self.kind == "quantized" else ONE
        alone, more = ([bag_factor(terms, dim, u) for dim in self.dims] for terms in (one, 2 * one))
        alone = torch.tensor(alone, dtype=expected.dtype, device=expected.device).unsqueeze(1)
        rest = (
            torch.tensor(more, dtype=expected.dtype, device=expected.device).unsqueeze(1) - alone
        )  # for each row more
        factor = alone + rest * (lengths - 1)
        threshold = (threshold * (factor / alone)).add_(LEAST).masked_fill_(factor > FAR, torch.inf)
        means = torch.tensor([feature.mean for feature in self.features], device=expected.device)
        if not means.any():
            return expected, threshold
        divisor = torch.where(means.unsqueeze(1), lengths.clamp(min=1), 1)
        return expected / divisor, (threshold / divisor).add_(LEAST)


def sums_of(values: torch.Tensor, dims: Sequence[int], ones: torch.Tensor) -> torch.Tensor:
    """Sums of each feature's vectors, [B, features], of vectors side by side [B, sum of dims].

    Args:
        values: the vectors; of one feature, of any shape [..., d].
        dims: of each feature's vectors.
        ones: [d] of the first feature.
    """
    if len(set(dims)) > 1:
        return torch.stack([part.sum(1) for part in values.split(list(dims), dim=1)], dim=1)
    if dims[0] == 1:
        return values.reshape(-1, len(dims))
    # Quicker than a sum along so short a dimension.
    return torch.mv(values.reshape(-1, dims[0]), ones).view(-1, len(dims))
