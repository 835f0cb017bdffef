"""Checksums of the rows of embedding tables."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from drsrobust._environment import unknown
from drsrobust.introspection.embedding_modules import quantized_tables
from drsrobust.introspection.tensors import named_modules
from drsrobust.mitigation.abft.base import ABFT, Check, check_options, refuse_errors
from drsrobust.mitigation.abft.embedding_checks import BagCheck, Feature, ResidueCheck, SumCheck, Table
from drsrobust.mitigation.abft.quantized_rows import quantized_row_sums, row_sums, table_residues
from drsrobust.mitigation.base import Cost
from drsrobust.mitigation.memory.golden_copy import GoldenCopy

QUANTIZED = ("residue", "sum")
_CHECKED = (torch.float32, torch.float64)


class ABFTEmbeddingBag(ABFT):
    """Checks what is looked up in embedding tables by checksums of trusted rows, C_r = sum_j T_rj: for each bag of rows r with
    weights w_r (1; given ones; one over their number where the mean is taken) and pooled values R_j,

        | sum_j R_j - sum_r w_r C_r | < tau,    tau = factor * sum_r |w_r| A_r,    A_r = sum_j |T_rj|,

    where the factor covers all roundings (`bag_factor`), so there is no false alarm as long as no sum overflows. An error in a
    row shows if it changes the row's values by more than some (d + 3 L) 2^-24 of their magnitudes, L being the rows in the bag.
    A difference that is not finite counts as detected. Source: the check of arXiv:2103.00130, with a bound of its own; there
    99 % of significant flips are found, with up to 10 % false alarms.

    Quantized tables of FBGEMM are checked in either of two ways: `"sum"` as above (values are scale * q + bias, and C_r has all
    three), or `"residue"`: the memory of each row that is read, scale and bias among it, is summed modulo 2^k - 1 and compared
    with what is kept: exact, any single flipped bit shows, also below rounding; errors while pooling do not.

    Covered are TorchRec's `EmbeddingBagCollection` (plain and quantized), `nn.EmbeddingBag` (sum and mean) and `nn.Embedding`,
    of float32 and float64. Not covered: `max` pooling, `max_norm`, other formats, batches of varying stride. Ids are trusted.

    Stored are C_r and the threshold of a bag of the row alone (64 bits a row), or a residue (8 bits, modulo 127). Make it by
    `fit`.
    """

    name = "ABFT EmbeddingBag"

    def __init__(self, checks: Mapping[str, Check], *, action: str, every: int, golden: GoldenCopy | None) -> None:
        super().__init__(checks, action=action, every=every, golden=golden)
        about = ([] if action == "report" else [action]) + ([] if every == 1 else [f"every {every}"])
        self.name = f"ABFT EmbeddingBag ({', '.join(about)})" if about else "ABFT EmbeddingBag"

    @classmethod
    def fit(
        cls, model: nn.Module, *, action: str = "report", every: int = 1, quantized: str = "residue", modulus: int = 127
    ) -> "ABFTEmbeddingBag":
        """Checksums of the tables of a model as they are.

        Args:
            model: without errors.
            action: `"report"`, `"recompute"`, `"zero"` (the pooled vector) or `"restore"` (the rows that it read), see `ABFT`.
            every: batches that pass from one check to the next.
            quantized: how quantized tables are checked, by `"residue"` or by `"sum"`.
            modulus: of residues, 2^k - 1 with k from 2 to 31.

        Raises:
            ValueError: an unknown option, nothing to check, rows that are not finite, errors in the model.

        Example:
            >>> model = nn.EmbeddingBag(10, 4, mode="sum")
            >>> abft = ABFTEmbeddingBag.fit(model, action="restore")
            >>> ids = torch.tensor([[1, 2], [3, 4]])
            >>> golden = model(ids).detach()
            >>> with torch.no_grad(), abft.attach(model) as watch:
            ...     model.weight.data[2, 0] += 1.0
            ...     print(bool((model(ids) == golden).all()), watch.detected, watch.repaired)
            True True True
        """
        check_options(action, every)
        if quantized not in QUANTIZED:
            raise unknown("check of quantized tables", quantized, QUANTIZED)
        if isinstance(modulus, bool) or modulus not in {2**k - 1 for k in range(2, 32)}:
            raise ValueError(f"modulus is {modulus!r}; it must be 2^k - 1 with k from 2 to 31, as 127")
        refuse_errors(model)
        checks: dict[str, BagCheck] = {}
        copied: dict[str, torch.Tensor] = {}
        for name, module in _lookups(model):
            try:
                check = _check(name, module, quantized, modulus)
            except ValueError as error:
                raise ValueError(f"{name or type(module).__name__}: {error}") from None
            if check is not None:
                checks[name] = check
                copied |= check.memory(module)
        if not checks:
            raise ValueError("the model has no embedding tables that can be checked")
        golden = GoldenCopy(copied) if action == "restore" else None
        return cls(checks, action=action, every=every, golden=golden)

    def cost(self, model: nn.Module) -> Cost:
        """The sums of pooled values, one checksum and one magnitude per bag (or the memory of its row once more), per sample
        with one id per feature. Divided by `every`."""
        work = sum(check.multiply_adds for check in self.checks.values())
        touched = sum(check.bytes_touched for check in self.checks.values())
        return Cost(self.stored_bits(), -(-work // self.every), -(-touched // self.every))


def _lookups(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that look up: collections, and what is not inside of one."""
    inside: tuple[str, ...] = ()
    for name, module in named_modules(model):
        if any(name.startswith(prefix) for prefix in inside):
            continue
        if callable(getattr(module, "embedding_bag_configs", None)) and hasattr(module, "embedding_bags"):
            inside += (f"{name}." if name else "",)
            yield name, module
        elif isinstance(module, nn.EmbeddingBag | nn.Embedding):
            yield name, module


def _check(name: str, module: nn.Module, quantized: str, modulus: int) -> BagCheck | None:
    """The check of one module; None where there is none."""
    start = f"{name}." if name else ""
    if isinstance(module, nn.EmbeddingBag | nn.Embedding):
        pools = getattr(module, "mode", "sum") in ("sum", "mean")
        if not pools or module.max_norm is not None or module.weight.dtype not in _CHECKED:
            return None
        table = Table(f"{start}weight", "weight", *module.weight.shape)
        bag = isinstance(module, nn.EmbeddingBag)
        feature = Feature("", 0, bag and module.mode == "mean")
        return SumCheck(name, "bag" if bag else "rows", (table,), (feature,), False, row_sums(module.weight))
    if type(getattr(module, "_emb_modules", None)) is list:
        configs = list(chain(*module._key_to_tables.values()))
        memory = {table.name: table for table in quantized_tables([("", module)])}
        found = [memory[f"embedding_bags.{config.name}.weight"] for config in configs]
        if quantized == "residue":
            kept = torch.cat([table_residues(table, modulus) for table in found])
            return ResidueCheck(
                name, "quantized", *_described(start, configs, found), module.is_weighted(), kept, modulus
            )
        if module._output_dtype != torch.float32:
            return None
        return SumCheck(
            name,
            "quantized",
            *_described(start, configs, found),
            module.is_weighted(),
            torch.cat([quantized_row_sums(table) for table in found]),
        )
    configs = list(module.embedding_bag_configs())
    bags = getattr(module, "embedding_bags", {})
    weights = [getattr(bags[config.name], "weight", None) if config.name in bags else None for config in configs]
    if not configs or any(type(weight) is not nn.Parameter or weight.dtype != torch.float32 for weight in weights):
        return None
    about = _described(start, configs, weights)
    return SumCheck(name, "collection", *about, module.is_weighted(), torch.cat([row_sums(w) for w in weights]))


def _described(start: str, configs: list[Any], tables: list[Any]) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
    """Tables and features of a collection, in the order of its output."""
    rows = [len(table.tensor if hasattr(table, "tensor") else table) for table in tables]
    found = tuple(
        Table(f"{start}embedding_bags.{c.name}.weight", f"embedding_bags.{c.name}.weight", n, c.embedding_dim)
        for c, n in zip(configs, rows, strict=True)
    )
    features = tuple(
        Feature(feature, number, config.pooling.name == "MEAN")
        for number, config in enumerate(configs)
        for feature in config.feature_names
    )
    return found, features
