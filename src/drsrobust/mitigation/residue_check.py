"""The check of quantized tables by residues of the rows that are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from drsrobust.mitigation.abft import Suspicion
from drsrobust.mitigation.bag_check import BagCheck
from drsrobust.mitigation.row_sums import as_bytes, as_words, live_bytes
from drsrobust.quantized import QuantizedTable, quantized_tables


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
