"""Rounding behind checksums: which errors in tables exceed it, and how far thresholds lie above it (notebook 07)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from drsrobust.data import Split
from drsrobust.introspection import named_modules
from drsrobust_extras.protection.abft.base import run
from drsrobust_extras.protection.abft.embedding import ABFTEmbeddingBag
from drsrobust_extras.protection.abft.embedding_checks import BagCheck
from drsrobust_extras.protection.abft.linear import ABFTLinear
from drsrobust_extras.protection.abft.rounding_bounds import unit_roundoff


def thresholds_over_rounding(model: nn.Module, rows: Split) -> pd.DataFrame:
    """How many times the largest difference of clean rows the provable threshold of a linear layer is. Both are compared row by
    row, since the threshold depends on the row.

    Args:
        model: without errors.
        rows: that are scored.

    Returns:
        one row: `value` (the median over layers), `low`, `high` (the range), `n` layers, and `interval`.
    """
    checks = ABFTLinear.fit(model, rows, mode="calibrated", margin=1.0).checks
    ratios = pd.Series({name: 1 / check.rule.share for name, check in checks.items()})
    row = {"value": ratios.median(), "low": ratios.min(), "high": ratios.max(), "n": len(ratios)}
    row |= {"interval": f"range over {len(ratios)} layers"}
    return pd.DataFrame([row])


def beyond_rounding(model: nn.Module, split: Split, errors: pd.DataFrame) -> pd.Series:
    """Whether each error in a table changes a pooled value of a row of the split by more than rounding may.

    The bound of a bag's sum is (d + 3 (L + 2) + 3) u sum |T|, with L rows of d values and u the unit roundoff (N. J. Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2; each row is pooled once, with weight 1 or as a mean).

    Args:
        model: without errors; tables of floats.
        split: the rows on which errors are scored.
        errors: as `single_errors` returns them, in tables alone.

    Returns:
        bool, with the index of `errors`.
    """
    bounds = _smallest_bounds(model, split)
    width = {name: model.get_parameter(name).shape[1] for name in errors["tensor"].unique()}
    row = errors["word"] // errors["tensor"].map(width)
    bound = np.array([bounds[name][number] for name, number in zip(errors["tensor"], row, strict=True)])
    return pd.Series(errors["change"].to_numpy() > bound, errors.index)


def _smallest_bounds(model: nn.Module, split: Split) -> dict[str, np.ndarray]:
    """By table, for each of its rows the smallest rounding bound of a bag that reads it; infinite where none does."""
    checks, modules = ABFTEmbeddingBag.fit(model).checks, dict(named_modules(model))
    bounds, handles = {}, []
    try:
        for name, check in checks.items():
            tables = list(check.memory(modules[name]).values())
            bounds[name] = torch.full((sum(len(table) for table in tables),), torch.inf, dtype=torch.float64)
            hook = _bound_hook(check, tables, bounds[name])
            handles.append(modules[name].register_forward_pre_hook(hook, with_kwargs=True))
        for _ in run(model, split):
            pass
    finally:
        for handle in handles:
            handle.remove()
    by_table: dict[str, np.ndarray] = {}
    for name, check in checks.items():
        parts = bounds[name].split([table.rows for table in check.tables])
        by_table |= {table.name: part.numpy() for table, part in zip(check.tables, parts, strict=True)}
    return by_table


def _bound_hook(check: BagCheck, tables: list[torch.Tensor], bounds: torch.Tensor) -> Callable[..., None]:
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
