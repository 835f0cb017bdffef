"""One form for all look-ups: which rows each bag reads, and with what weights.

The checks of modules that look up and pool rows of tables.

The check of quantized tables by residues of the rows that are read."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding_bag

from drsrobust.introspection.embedding_modules import QuantizedTable, quantized_tables
from drsrobust.mitigation.abft.base import Check, Suspicion
from drsrobust.mitigation.abft.quantized_rows import LEAST, ONE, ONE_QUANTIZED, as_bytes, as_words, live_bytes
from drsrobust.mitigation.abft.rounding_bounds import FAR, bag_factor, unit_roundoff
from drsrobust.mitigation.memory.golden_copy import GoldenCopy


@dataclass
class Lookup:
    """A call of one module, as bags of rows of all its tables one below the other. Bags go feature by feature.

    Attributes:
        ids: [N], ascending by bag.
        offsets: [bags + 1], where bags begin; None: each id is a bag.
        weights: [N]; None: 1 each.
        bags: how many.
    """

    ids: torch.Tensor
    offsets: torch.Tensor | None
    weights: torch.Tensor | None
    bags: int

    @property
    def lengths(self) -> torch.Tensor | None:
        """How many ids each bag has, [bags]; None: one each."""
        return None if self.offsets is None else self.offsets.diff()

    def pooled(self, rows: torch.Tensor) -> torch.Tensor:
        """Checksums and thresholds of rows [all rows, 2], summed with their weights, of the latter the magnitudes: [bags, 2], a
        new tensor."""
        if self.offsets is not None and self.weights is None:
            return embedding_bag(self.ids, rows, self.offsets, mode="sum", include_last_offset=True)
        # A complex number is both at once: to gather such is several times as quick as rows of two.
        pairs = torch.view_as_real(torch.view_as_complex(rows).index_select(0, self.ids))
        if self.weights is not None:
            weights = self.weights.to(rows.dtype)
            pairs.mul_(torch.stack((weights, weights.abs()), dim=1))
        if self.offsets is None:
            return pairs
        places = torch.arange(len(self.ids), dtype=self.offsets.dtype, device=rows.device)
        return embedding_bag(places, pairs, self.offsets, mode="sum", include_last_offset=True)

    def bag_of(self, places: torch.Tensor) -> torch.Tensor:
        """The bags that ids at some places belong to, int64 [m], ascending, each once."""
        if self.offsets is None:
            return places
        return torch.searchsorted(self.offsets.to(places.dtype), places, right=True).sub_(1).unique()

    def ids_of(self, bags: torch.Tensor) -> torch.Tensor:
        """The ids in some bags, int64 [m]."""
        if self.offsets is None:
            return self.ids[bags].long()
        chosen = torch.zeros(self.bags, dtype=torch.bool, device=self.ids.device)
        chosen[bags] = True
        return self.ids[chosen.repeat_interleave(self.lengths.long())].long()


def of_keyed(
    jagged: Any, features: Sequence[str], first: torch.Tensor, weighted: bool, last: torch.Tensor | None = None
) -> Lookup:
    """Of a KeyedJaggedTensor.

    Args:
        jagged: ids, feature by feature.
        features: which, in the order of the output.
        first: [features]: the number that each feature's table begins at.
        weighted: whether weights count.
        last: [features]: the last row of each table; ids beyond are taken for the nearest that there is. None: there are none.
    """
    keys = jagged.keys()
    if list(keys) != list(features):
        jagged = jagged.permute([keys.index(feature) for feature in features])
    values, bags = jagged.values(), jagged.lengths().numel()
    weights = jagged.weights() if weighted else None
    first = first.to(values.dtype)
    # As many ids as bags, and nowhere more than one: quicker than to compare all lengths with 1.
    if bags and values.numel() == bags and int(jagged.lengths().max()) == 1:
        ids = values.view(len(features), -1)
        if last is not None:
            ids = ids.clamp(min=0).minimum(last.to(ids.dtype).unsqueeze(1))
        return Lookup((ids + first.unsqueeze(1)).view(-1), None, weights, bags)
    count = torch.tensor(jagged.length_per_key(), device=values.device)
    if last is not None:
        values = values.clamp(min=0).minimum(last.to(values.dtype).repeat_interleave(count))
    return Lookup(values + first.repeat_interleave(count), jagged.offsets().to(values.dtype), weights, bags)


def of_bag(
    module: nn.EmbeddingBag,
    input: torch.Tensor,
    offsets: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
) -> Lookup:
    """Of a call of an `nn.EmbeddingBag`."""
    if offsets is None:
        bags, length = input.shape
        offsets = torch.arange(0, (bags + 1) * length, length, device=input.device) if length != 1 else None
    else:
        if not module.include_last_offset:
            offsets = torch.cat((offsets, offsets.new_tensor([len(input)])))
        bags = len(offsets) - 1
    ids = input.reshape(-1)
    weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)
    if module.padding_idx is not None:  # such ids are no part of their bag
        kept = ids != module.padding_idx
        before = torch.cat((kept.new_zeros(1, dtype=ids.dtype), kept.cumsum(0).to(ids.dtype)))
        offsets = torch.arange(bags + 1, device=ids.device) if offsets is None else offsets
        offsets = before[offsets.long()]
        ids, weights = ids[kept], None if weights is None else weights[kept]
    if offsets is not None:
        offsets = offsets.to(ids.dtype)
    return Lookup(ids, offsets, weights, bags)


def of_embedding(input: torch.Tensor) -> Lookup:
    """Of a call of an `nn.Embedding`: each id is a bag."""
    return Lookup(input.reshape(-1), None, None, input.numel())


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


@dataclass(frozen=True, eq=False)
class ResidueCheck(BagCheck):
    """Residues of the memory of the rows that are read, against trusted ones.

    Attributes:
        residues: of all tables, one below the other.
        modulus: 2^k - 1.
    """

    residues: torch.Tensor
    modulus: int

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"residues": self.residues}

    @property
    def multiply_adds(self) -> int:
        return sum(-(-dim // 4) + 1 for dim in self.dims)

    @property
    def bytes_touched(self) -> int:
        return self.values_read + len(self.features) * (4 + self.residues.element_size())

    def on(self, module: nn.Module) -> Suspicion:
        self.memory(module)
        there = {table.name: table for table in quantized_tables([("", module)])}
        mine = [there[table.within] for table in self.tables]
        trusted = self.residues.to(mine[0].tensor.device)
        first = self.first.tolist()

        def suspicious(args: tuple, kwargs: dict[str, Any], output: Any) -> torch.Tensor | None:
            lookup = self.lookup(module, args, kwargs)
            if not lookup.ids.numel():
                return None
            batch = lookup.bags // len(self.features)
            ends = [
                batch * number if lookup.offsets is None else int(lookup.offsets[batch * number])
                for number in range(len(self.features) + 1)
            ]
            read = [lookup.ids[begin:end] - start for start, begin, end in zip(first, ends[:-1], ends[1:], strict=True)]
            sums = sums_of_words([mine[feature.table] for feature in self.features], read)
            # Sums of words are whole numbers far below 2^53, so a difference is a multiple of the modulus or not, exactly.
            off = sums.sub_(trusted.index_select(0, lookup.ids))
            off.sub_((off * (1 / self.modulus)).round_(), alpha=self.modulus)
            return lookup.bag_of(off.nonzero().squeeze(1)) if off.any() else None

        return suspicious


def sums_of_words(tables: Sequence[QuantizedTable], read: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sums, not yet reduced, whose residues are compared: of rows as they are now, float64 [all ids].

    Args:
        tables: one for each feature.
        read: ids of each feature.
    """
    memory, live = [as_bytes(table) for table in tables], [live_bytes(table) for table in tables]
    alike = len({(table.shape[1], count) for table, count in zip(memory, live, strict=True)}) == 1
    if not alike:
        return torch.cat([sums_of_words([table], [ids]) for table, ids in zip(tables, read, strict=True)])
    # By words of four bytes, where rows have such: gathered quicker than bytes.
    memory = [table.view(torch.int32) if table.shape[1] % 4 == 0 else table for table in memory]
    rows = memory[0].new_empty((sum(map(len, read)), memory[0].shape[1]))
    start = 0
    for table, ids in zip(memory, read, strict=True):
        torch.index_select(table, 0, ids, out=rows[start : start + len(ids)])
        start += len(ids)
    words = as_words(rows.view(torch.uint8), live[0]).double()
    return torch.mv(words, words.new_ones(words.shape[1]))
