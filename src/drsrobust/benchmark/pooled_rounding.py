"""Which errors in rows of embedding tables change a pooled value beyond what rounding may."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from drsrobust.data import Split
from drsrobust.mitigation import ABFTEmbeddingBag
from drsrobust.mitigation.abft import run
from drsrobust.mitigation.bag_check import BagCheck
from drsrobust.mitigation.checksum_bounds import unit_roundoff
from drsrobust.tensors import named_modules


def beyond_rounding(model: nn.Module, split: Split, found: pd.DataFrame) -> pd.Series:
    """Of each error in a table whether it changes a pooled value of some row of the split by more than the sum of that bag's
    values may be off by rounding: (d + 3 (L + 2) + 3) u sum |T|, with L rows of d values and u the unit roundoff (N. J. Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2; each row is pooled once, with weight 1 or as a mean).

    Args:
        model: without errors; tables of floats.
        split: the rows that errors are judged on.
        found: of `single_errors`, errors in tables alone.

    Returns:
        bool, with the index of `found`.
    """
    least = _least(model, split)
    width = {name: model.get_parameter(name).shape[1] for name in found["tensor"].unique()}
    row = found["word"] // found["tensor"].map(width)
    bound = np.array([least[name][number] for name, number in zip(found["tensor"], row, strict=True)])
    return pd.Series(found["change"].to_numpy() > bound, found.index)


def _least(model: nn.Module, split: Split) -> dict[str, np.ndarray]:
    """By table, for each of its rows the smallest rounding bound of a bag that reads it; infinite where none does."""
    checks, modules = ABFTEmbeddingBag.fit(model).checks, dict(named_modules(model))
    bounds, handles = {}, []
    try:
        for name, check in checks.items():
            tables = list(check.memory(modules[name]).values())
            bounds[name] = torch.full((sum(len(table) for table in tables),), torch.inf, dtype=torch.float64)
            looks = _noting(check, tables, bounds[name])
            handles.append(modules[name].register_forward_pre_hook(looks, with_kwargs=True))
        for _ in run(model, split):
            pass
    finally:
        for handle in handles:
            handle.remove()
    found: dict[str, np.ndarray] = {}
    for name, check in checks.items():
        parts = bounds[name].split([table.rows for table in check.tables])
        found |= {table.name: part.numpy() for table, part in zip(check.tables, parts, strict=True)}
    return found


def _noting(check: BagCheck, tables: list[torch.Tensor], bounds: torch.Tensor) -> Callable[..., None]:
    """A hook that lowers the bounds of the rows that a call reads."""
    magnitudes = torch.cat([table.detach().double().abs().sum(1) for table in tables])
    dims = torch.tensor(check.dims, dtype=torch.float64)
    u = unit_roundoff(tables[0].dtype)

    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        lookup = check.lookup(module, args, kwargs)
        lengths = torch.ones(lookup.bags, dtype=torch.int64) if lookup.lengths is None else lookup.lengths.long()
        bag, ids = torch.arange(lookup.bags).repeat_interleave(lengths), lookup.ids.long()
        pooled = torch.zeros(lookup.bags, dtype=torch.float64).index_add_(0, bag, magnitudes[ids])
        terms = dims.repeat_interleave(lookup.bags // len(dims)) + 3 * (lengths + 2) + 3
        bounds.scatter_reduce_(0, ids, (terms * u * pooled)[bag], "amin")

    return hook
