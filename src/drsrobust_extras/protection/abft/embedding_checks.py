"""Checks of modules that look up and pool rows of embedding tables: by sums of values, or by residues of memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding_bag

from drsrobust.introspection import QuantizedTable, quantized_tables
from drsrobust_extras.protection.abft.base import Check, FindWrongRows
from drsrobust_extras.protection.abft.quantized_rows import ONE, ONE_QUANTIZED, THRESHOLD_FLOOR, as_words, live_bytes
from drsrobust_extras.protection.abft.rounding_bounds import MAX_FIRST_ORDER, bag_factor, unit_roundoff
from drsrobust_extras.protection.golden_copy import GoldenCopy


@dataclass
class Lookup:
    """A call of one module, as bags of rows of its concatenated tables. Bags are ordered feature by feature.

    Attributes:
        ids: [N], ordered by bag.
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
        """Ids per bag, [bags]; None: one each."""
        return None if self.offsets is None else self.offsets.diff()

    def pooled(self, rows: torch.Tensor) -> torch.Tensor:
        """Sums over bags of weighted checksums, and of thresholds by |weight|, from rows [all rows, 2]: new, [bags, 2]."""
        if self.offsets is not None and self.weights is None:
            return embedding_bag(self.ids, rows, self.offsets, mode="sum", include_last_offset=True)
        # Gathering complex numbers, which hold both, is several times as fast as gathering rows of two.
        pairs = torch.view_as_real(torch.view_as_complex(rows).index_select(0, self.ids))
        if self.weights is not None:
            weights = self.weights.to(rows.dtype)
            pairs.mul_(torch.stack((weights, weights.abs()), dim=1))
        if self.offsets is None:
            return pairs
        places = torch.arange(len(self.ids), dtype=self.offsets.dtype, device=rows.device)
        return embedding_bag(places, pairs, self.offsets, mode="sum", include_last_offset=True)

    def bag_of(self, places: torch.Tensor) -> torch.Tensor:
        """The bags of the ids at some places, int64 [m], ascending, distinct."""
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


def _lookup_of_keyed(
    jagged: Any, features: Sequence[str], first: torch.Tensor, weighted: bool, last: torch.Tensor | None
) -> Lookup:
    """The lookup of a KeyedJaggedTensor.

    Args:
        jagged: ids, feature by feature.
        features: in the order of the output.
        first: [features]: the first row of each feature's table.
        weighted: whether weights are used.
        last: [features]: the last id of each table, to which ids are clamped; None: ids are in range.
    """
    keys = jagged.keys()
    if list(keys) != list(features):
        jagged = jagged.permute([keys.index(feature) for feature in features])
    values, bags = jagged.values(), jagged.lengths().numel()
    weights = jagged.weights() if weighted else None
    first = first.to(values.dtype)
    # One id per bag: as many ids as bags and a longest bag of 1, which is faster than comparing all lengths with 1.
    if bags and values.numel() == bags and int(jagged.lengths().max()) == 1:
        ids = values.view(len(features), -1)
        if last is not None:
            ids = ids.clamp(min=0).minimum(last.to(ids.dtype).unsqueeze(1))
        return Lookup((ids + first.unsqueeze(1)).view(-1), None, weights, bags)
    count = torch.tensor(jagged.length_per_key(), device=values.device)
    if last is not None:
        values = values.clamp(min=0).minimum(last.to(values.dtype).repeat_interleave(count))
    return Lookup(values + first.repeat_interleave(count), jagged.offsets().to(values.dtype), weights, bags)


def _lookup_of_bag(
    module: nn.EmbeddingBag,
    input: torch.Tensor,
    offsets: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
) -> Lookup:
    """The lookup of a call of an `nn.EmbeddingBag`."""
    if offsets is None:
        bags, length = input.shape
        offsets = torch.arange(0, (bags + 1) * length, length, device=input.device) if length != 1 else None
    else:
        if not module.include_last_offset:
            offsets = torch.cat((offsets, offsets.new_tensor([len(input)])))
        bags = len(offsets) - 1
    ids = input.reshape(-1)
    weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)
    if module.padding_idx is not None:  # padding ids are not part of their bag
        is_looked_up = ids != module.padding_idx
        before = torch.cat((is_looked_up.new_zeros(1, dtype=ids.dtype), is_looked_up.cumsum(0).to(ids.dtype)))
        offsets = torch.arange(bags + 1, device=ids.device) if offsets is None else offsets
        offsets = before[offsets.long()]
        ids, weights = ids[is_looked_up], None if weights is None else weights[is_looked_up]
    if offsets is not None:
        offsets = offsets.to(ids.dtype)
    return Lookup(ids, offsets, weights, bags)


@dataclass(frozen=True)
class CheckedTable:
    """A table of a module: its tensor's name in the model (`name`) and in the module (`within`), rows and row width."""

    name: str
    within: str
    rows: int
    dim: int


@dataclass(frozen=True)
class CheckedFeature:
    """A feature of a module: its key, the number of its table, and whether rows are pooled by mean (else by sum)."""

    name: str
    table: int
    mean: bool


@dataclass(frozen=True, eq=False)
class BagCheck(Check):
    """The lookups of one module (TorchRec's `EmbeddingBagCollection`, plain or quantized; `nn.EmbeddingBag`; `nn.Embedding`).

    Attributes:
        name: of the module.
        kind: of module: `"collection"`, `"quantized"`, `"bag"` or `"rows"`.
        tables, features: in the order of its output.
        weighted: whether ids have weights.
    """

    name: str
    kind: str
    tables: tuple[CheckedTable, ...]
    features: tuple[CheckedFeature, ...]
    weighted: bool

    @cached_property
    def dims(self) -> list[int]:
        """Width of each feature's vectors."""
        return [self.tables[feature.table].dim for feature in self.features]

    @cached_property
    def first(self) -> torch.Tensor:
        """The first row of each feature's table among the concatenated tables, int64 [features]."""
        starts = torch.tensor([0, *(table.rows for table in self.tables)]).cumsum(0)
        return starts[[feature.table for feature in self.features]]

    @cached_property
    def last(self) -> torch.Tensor | None:
        """The last id of each feature's quantized table, since FBGEMM does not refuse larger ids; None for other modules."""
        if self.kind != "quantized":
            return None
        return torch.tensor([self.tables[feature.table].rows - 1 for feature in self.features])

    def lookup(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Lookup:
        """The rows that a call of the module reads."""
        if self.kind == "bag":
            return _lookup_of_bag(module, *args, **kwargs)
        ids = args[0] if args else next(iter(kwargs.values()))
        if self.kind == "rows":  # each id is a bag
            return Lookup(ids.reshape(-1), None, None, ids.numel())
        device = ids.values().device
        last = None if self.last is None else self.last.to(device)
        names = [feature.name for feature in self.features]
        return _lookup_of_keyed(ids, names, self.first.to(device), self.weighted, last)

    def memory(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """The memory of the tables, by their names in the model.

        Raises:
            ValueError: the module has other tables.
        """
        if self.kind == "quantized":
            tensors = {table.name: table.tensor for table in quantized_tables([("", module)])}
        else:
            tensors = dict(module.named_parameters())
        for table in self.tables:
            tensor = tensors.get(table.within)
            if tensor is None or len(tensor) != table.rows:
                raise ValueError(f"{table.name}: the checksums are of {table.rows} rows; the model has another table")
        return {table.name: tensors[table.within] for table in self.tables}

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

    def reload(self, module: nn.Module, golden: GoldenCopy, args: tuple, kwargs: dict, rows: torch.Tensor) -> None:
        ids, start = self.lookup(module, args, kwargs).ids_of(rows), 0
        memory = self.memory(module)
        for table in self.tables:
            local = ids[(ids >= start) & (ids < start + table.rows)] - start
            if len(local):
                golden.reload_tensor(table.name, memory[table.name], local)
            start += table.rows


@dataclass(frozen=True, eq=False)
class SumCheck(BagCheck):
    """Compares sums of pooled values with pooled row sums.

    Attributes:
        rows: checksums and thresholds of the rows of the concatenated tables, [all rows, 2].
    """

    rows: torch.Tensor

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"rows": self.rows}

    @property
    def multiply_adds(self) -> int:
        """The sums of pooled values, with one checksum and one threshold per bag of one id."""
        return sum(self.dims) + 2 * len(self.features)

    @property
    def bytes_touched(self) -> int:
        return self.rows.element_size() * self.multiply_adds

    def on(self, module: nn.Module) -> FindWrongRows:
        rows = self.rows.to(next(iter(self.memory(module).values())).device)
        ones = torch.ones(self.dims[0], dtype=rows.dtype, device=rows.device)

        def find_wrong(args: tuple, kwargs: dict[str, Any], output: Any) -> torch.Tensor | None:
            lookup = self.lookup(module, args, kwargs)
            if not lookup.bags:
                return None
            values = (output if isinstance(output, torch.Tensor) else output.values()).detach()
            expected, threshold = lookup.pooled(rows).view(len(self.features), -1, 2).unbind(2)  # [features, B] each
            lengths = lookup.lengths
            if lengths is not None:
                expected, threshold = self._scaled(expected, threshold, lengths.view(len(self.features), -1))
            difference = torch.sub(expected, _vector_sums(values, self.dims, ones).t()).abs_()
            excess = difference.sub_(threshold)
            # Faster than comparing each; the maximum is NaN if any is.
            return None if float(excess.max()) < 0 else (~(excess < 0)).view(-1).nonzero().squeeze(1)

        return find_wrong

    def _scaled(
        self, expected: torch.Tensor, threshold: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Thresholds of bags of several rows, and means where rows are pooled so; [features, B] each."""
        u, terms = unit_roundoff(self.rows.dtype), ONE_QUANTIZED if self.kind == "quantized" else ONE
        one_row, two_rows = (
            torch.tensor([bag_factor(n * terms, dim, u) for dim in self.dims], dtype=expected.dtype).unsqueeze(1)
            for n in (1, 2)
        )
        one_row, two_rows = one_row.to(expected.device), two_rows.to(expected.device)
        factor = one_row + (two_rows - one_row) * (lengths - 1)
        threshold = (
            (threshold * (factor / one_row)).add_(THRESHOLD_FLOOR).masked_fill_(factor > MAX_FIRST_ORDER, torch.inf)
        )
        means = torch.tensor([feature.mean for feature in self.features], device=expected.device)
        if not means.any():
            return expected, threshold
        divisor = torch.where(means.unsqueeze(1), lengths.clamp(min=1), 1)
        return expected / divisor, (threshold / divisor).add_(THRESHOLD_FLOOR)


def _vector_sums(values: torch.Tensor, dims: Sequence[int], ones: torch.Tensor) -> torch.Tensor:
    """Sums of each feature's vectors, [B, features], of concatenated vectors [B, sum of dims].

    Args:
        values: the vectors; of one feature, of any shape [..., d].
        dims: widths of the features.
        ones: [d] of the first feature.
    """
    if len(set(dims)) > 1:
        return torch.stack([part.sum(1) for part in values.split(list(dims), dim=1)], dim=1)
    if dims[0] == 1:
        return values.reshape(-1, len(dims))
    # Faster than a sum along so short a dimension.
    return torch.mv(values.reshape(-1, dims[0]), ones).view(-1, len(dims))


@dataclass(frozen=True, eq=False)
class ResidueCheck(BagCheck):
    """Compares residues of the memory of the rows that are read with trusted ones.

    Attributes:
        residues: of the rows of the concatenated tables.
        modulus: 2^k - 1.
    """

    residues: torch.Tensor
    modulus: int

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"residues": self.residues}

    @property
    def multiply_adds(self) -> int:
        """The memory of the rows that are read, once more."""
        return sum(-(-dim // 4) + 1 for dim in self.dims)

    @property
    def bytes_touched(self) -> int:
        return sum(self.dims) + len(self.features) * (4 + self.residues.element_size())

    def on(self, module: nn.Module) -> FindWrongRows:
        self.memory(module)
        by_name = {table.name: table for table in quantized_tables([("", module)])}
        tables = [by_name[self.tables[feature.table].within] for feature in self.features]
        trusted = self.residues.to(tables[0].tensor.device)
        first, number = self.first.tolist(), len(self.features)

        def find_wrong(args: tuple, kwargs: dict[str, Any], output: Any) -> torch.Tensor | None:
            lookup = self.lookup(module, args, kwargs)
            if not lookup.ids.numel():
                return None
            ends = range(0, lookup.bags + 1, lookup.bags // number)
            if lookup.offsets is not None:
                ends = lookup.offsets[list(ends)].tolist()
            read = [lookup.ids[begin:end] - start for start, begin, end in zip(first, ends[:-1], ends[1:], strict=True)]
            # Sums of words are whole numbers far below 2^53, so a difference is exactly a multiple of the modulus or not.
            difference = _word_sums(tables, read).sub_(trusted.index_select(0, lookup.ids))
            difference.sub_((difference * (1 / self.modulus)).round_(), alpha=self.modulus)
            return lookup.bag_of(difference.nonzero().squeeze(1)) if difference.any() else None

        return find_wrong


def _word_sums(tables: Sequence[QuantizedTable], read: Sequence[torch.Tensor]) -> torch.Tensor:
    """Unreduced residues of the present rows, float64 [all ids].

    Args:
        tables: one for each feature.
        read: ids of each feature.
    """
    memory, live = [table.tensor.view(torch.uint8) for table in tables], [live_bytes(table) for table in tables]
    if len({(table.shape[1], count) for table, count in zip(memory, live, strict=True)}) > 1:
        return torch.cat([_word_sums([table], [ids]) for table, ids in zip(tables, read, strict=True)])
    # Words of four bytes, where rows consist of them, are gathered faster than bytes.
    memory = [table.view(torch.int32) if table.shape[1] % 4 == 0 else table for table in memory]
    rows = memory[0].new_empty((sum(map(len, read)), memory[0].shape[1]))
    start = 0
    for table, ids in zip(memory, read, strict=True):
        torch.index_select(table, 0, ids, out=rows[start : start + len(ids)])
        start += len(ids)
    words = as_words(rows.view(torch.uint8), live[0]).double()
    return torch.mv(words, words.new_ones(words.shape[1]))
