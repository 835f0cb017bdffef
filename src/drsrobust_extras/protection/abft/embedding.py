"""Checksums of the rows of embedding tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from drsrobust.extend import (
    check_choice,
    check_whole,
    is_quantized_collection,
    pooled_table_name,
    pooled_weight,
    tables_in_output_order,
    wrong,
)
from drsrobust.introspection import named_modules, pooled_tables, quantized_tables
from drsrobust_extras.protection.abft.base import ABFT, Check, check_options, refuse_errors
from drsrobust_extras.protection.abft.embedding_checks import (
    BagCheck,
    CheckedFeature,
    CheckedTable,
    ResidueCheck,
    SumCheck,
)
from drsrobust_extras.protection.abft.quantized_rows import quantized_row_sums, row_sums, table_residues
from drsrobust_extras.protection.golden_copy import GoldenCopy

QUANTIZED = ("residue", "sum")
_CHECKED = (torch.float32, torch.float64)


class ABFTEmbeddingBag(ABFT):
    """Checks lookups in embedding tables by checksums of trusted rows, C_r = sum_j T_rj: for a bag of rows r with weights w_r
    (1; given ones; one over their number for means) and pooled values R_j::

        | sum_j R_j - sum_r w_r C_r | < tau,    tau = factor * sum_r |w_r| A_r,    A_r = sum_j |T_rj|,

    where the factor covers all roundings (`bag_factor`), so there is no false alarm unless a sum overflows. An error in a row
    is detected if it changes the row's values by more than some (d + 3 L) 2^-24 of their magnitudes, with L rows in the bag. A
    difference that is not finite counts as detected. Source: the check of arXiv:2103.00130, with another bound; its own detects
    99 % of significant flips, with up to 10 % false alarms.

    Quantized tables of FBGEMM are checked by `"sum"` as above (values are scale * q + bias, and C_r includes all three), or by
    `"residue"`: the memory of each row that is read, with scale and bias, is summed modulo 2^k - 1 and compared with the stored
    residue. This is exact and detects any single flipped bit, also below rounding, but no errors of pooling.

    Checked are TorchRec's `EmbeddingBagCollection` (plain and quantized), `nn.EmbeddingBag` (sum and mean) and `nn.Embedding`,
    of float32 and float64. Not checked: `max` pooling, `max_norm`, other formats, batches of varying stride. Ids are trusted.

    It stores C_r and the threshold of a bag of this one row (64 bits a row), or a residue (8 bits, modulo 127). Use `fit`.
    """

    def __init__(self, checks: Mapping[str, Check], *, action: str, every: int, golden: GoldenCopy | None) -> None:
        super().__init__("ABFT EmbeddingBag", [], checks, action=action, every=every, golden=golden)

    @classmethod
    def fit(
        cls, model: nn.Module, *, action: str = "report", every: int = 1, quantized: str = "residue", modulus: int = 127
    ) -> "ABFTEmbeddingBag":
        """Checksums of a model's present tables.

        Args:
            model: without errors.
            action: `"report"`, `"recompute"`, `"zero"` (the pooled vector) or `"restore"` (the rows that it read), see `ABFT`.
            every: checks every n-th batch.
            quantized: check quantized tables by `"residue"` or by `"sum"`.
            modulus: of residues, 2^k - 1 with k from 2 to 31.

        Raises:
            ValueError: an unknown option, nothing to check, rows that are not finite, errors in the model.

        Example:
            >>> model = nn.EmbeddingBag(10, 4, mode="sum")
            >>> abft = ABFTEmbeddingBag.fit(model, action="restore")
            >>> ids = torch.tensor([[1, 2], [3, 4]])
            >>> golden = model(ids).detach()
            >>> with torch.no_grad(), abft.attach(model) as detection:
            ...     model.weight.data[2, 0] += 1.0
            ...     print(bool((model(ids) == golden).all()), detection.detected, detection.repaired)
            True True True
        """
        check_options(action, every)
        check_choice("check of quantized tables", quantized, QUANTIZED)
        modulus = check_whole("modulus", modulus)
        if modulus not in {2**k - 1 for k in range(2, 32)}:
            raise wrong("modulus", "2^k - 1 with k from 2 to 31, as 127", modulus)
        refuse_errors(model)
        checks: dict[str, BagCheck] = {}
        copied: dict[str, torch.Tensor] = {}
        for name, module in _lookup_modules(model):
            try:
                check = _make_check(name, module, quantized, modulus)
            except ValueError as error:
                raise ValueError(f"{name or type(module).__name__}: {error}") from None
            if check is not None:
                checks[name] = check
                copied |= check.memory(module)
        if not checks:
            raise ValueError("the model has no embedding tables that can be checked")
        golden = GoldenCopy(copied) if action == "restore" else None
        return cls(checks, action=action, every=every, golden=golden)


def _lookup_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Collections, and tables outside of them."""
    prefixes: tuple[str, ...] = ()
    for name, module in named_modules(model):
        if name.startswith(prefixes):
            continue
        if pooled_tables(module) is not None and hasattr(module, "embedding_bags"):
            prefixes += (f"{name}." if name else "",)
            yield name, module
        elif isinstance(module, nn.EmbeddingBag | nn.Embedding):
            yield name, module


def _make_check(name: str, module: nn.Module, quantized: str, modulus: int) -> BagCheck | None:
    """The check of one module; None if it cannot be checked."""
    start = f"{name}." if name else ""
    if isinstance(module, nn.EmbeddingBag | nn.Embedding):
        pools = getattr(module, "mode", "sum") in ("sum", "mean")
        if not pools or module.max_norm is not None or module.weight.dtype not in _CHECKED:
            return None
        table = CheckedTable(f"{start}weight", "weight", *module.weight.shape)
        is_bag = isinstance(module, nn.EmbeddingBag)
        feature = CheckedFeature("", 0, is_bag and module.mode == "mean")
        return SumCheck(name, "bag" if is_bag else "rows", (table,), (feature,), False, row_sums(module.weight))
    if is_quantized_collection(module):
        configs = tables_in_output_order(module)
        by_name = {table.name: table for table in quantized_tables([("", module)])}
        tables = [by_name[pooled_table_name("", config.name)] for config in configs]
        arguments = (
            name,
            "quantized",
            *_layout(name, configs, [len(table.tensor) for table in tables]),
            module.is_weighted(),
        )
        if quantized == "residue":
            return ResidueCheck(*arguments, torch.cat([table_residues(table, modulus) for table in tables]), modulus)
        if module._output_dtype != torch.float32:
            return None
        return SumCheck(*arguments, torch.cat([quantized_row_sums(table) for table in tables]))
    configs = pooled_tables(module)
    weights = [pooled_weight(module, config.name) for config in configs]
    if not configs or any(type(weight) is not nn.Parameter or weight.dtype != torch.float32 for weight in weights):
        return None
    arguments = (name, "collection", *_layout(name, configs, list(map(len, weights))), module.is_weighted())
    return SumCheck(*arguments, torch.cat([row_sums(weight) for weight in weights]))


def _layout(
    name: str, configs: Sequence[Any], rows: Sequence[int]
) -> tuple[tuple[CheckedTable, ...], tuple[CheckedFeature, ...]]:
    """Tables and features of a collection, in the order of its output."""
    tables = tuple(
        CheckedTable(pooled_table_name(name, c.name), pooled_table_name("", c.name), n, c.embedding_dim)
        for c, n in zip(configs, rows, strict=True)
    )
    features = tuple(
        CheckedFeature(feature, number, config.pooling.name == "MEAN")
        for number, config in enumerate(configs)
        for feature in config.feature_names
    )
    return tables, features
