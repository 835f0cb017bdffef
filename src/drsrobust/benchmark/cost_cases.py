"""The models and rows on which the cost of campaigns is measured."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from drsrobust.benchmark.large_tables import SIZES, TABLE_ROWS
from drsrobust.benchmark.planted import planted
from drsrobust.data import Schema, Split, load_dataset
from drsrobust.models import build_model

ROWS = 100_000
LAST = "over_arch.model.1.*"  # the last layer of TorchRec's top MLP
# Modules through which what errors in a target change must go: with dense errors alone, nothing else has to be computed.
_DLRM_FROM = {
    "dense_mlp": ("dense_arch", "inter_arch", "over_arch"),
    "over_mlp": ("over_arch",),
    LAST: ("over_arch.model.1",),
}


@dataclass(frozen=True)
class Case:
    """A model with the rows that it is judged on.

    Attributes:
        name: in the tables.
        model: of seeded first weights: what a trial costs does not depend on training.
        factory: makes the same module again, in any state.
        split: the rows.
        targets: of errors; `all` and components, a glob for one layer.
        late: of some targets: the modules that have to be computed anew when errors are there alone.
        remark: for a reader.
    """

    name: str
    model: nn.Module
    factory: partial
    split: Split
    targets: tuple[str, ...]
    late: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remark: str = ""

    @property
    def parameters(self) -> int:
        """How many the model has."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def small_cases(dataset: str | None = None, rows: int | None = None) -> list[Case]:
    """DeepFM and DLRM of their default sizes.

    Args:
        dataset: its test rows; None: MovieLens-1M (`full`) where DRSROBUST_DATA is set, else generated ratings.
        rows: how many of the test rows; None: all (of generated ratings 100,000).
    """
    real = bool(os.environ.get("DRSROBUST_DATA"))
    name = dataset or ("movielens-1m/full" if real else "synthetic-movielens/full")
    data = load_dataset(name, rows=10 * (rows or ROWS)) if name.startswith("synthetic-") else load_dataset(name)
    split = data.test if rows is None else data.test.head(rows)
    remark = "DRSROBUST_DATA is not set: generated ratings" if dataset is None and not real else ""
    deepfm = _case("deepfm", data.schema, split, ("all", "embedding", "deep_mlp", "linear"), {"deep_mlp": ("deep",)})
    dlrm = _case("dlrm", data.schema, split, ("all", "embedding", *_DLRM_FROM), _DLRM_FROM)
    return [replace(case, remark=remark) for case in (deepfm, dlrm)]


def large_case(rows: int = ROWS, table_rows: int = TABLE_ROWS, sizes: dict[str, Any] | None = None) -> Case:
    """The DLRM of 26 tables of dimension 16 with planted rows (`planted`).

    Args:
        rows: to judge on.
        table_rows: of all tables together; 1,000,000 give 16.46 million parameters.
        sizes: of the model; None: MLPs 512-256-16 and 512-256-1.
    """
    schema, _, split, _ = planted(table_rows, 64, rows)
    sizes = SIZES if sizes is None else sizes
    targets = ("all", "embedding", *_DLRM_FROM)
    return _case("dlrm", schema, split, targets, _DLRM_FROM, name="dlrm, 26 tables", sizes=sizes)


def _case(
    kind: str,
    schema: Schema,
    split: Split,
    targets: Sequence[str],
    late: Mapping[str, tuple[str, ...]],
    *,
    name: str | None = None,
    sizes: dict[str, Any] | None = None,
) -> Case:
    factory = partial(build_model, kind, schema, **(sizes or {}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = factory().eval()
    return Case(name or kind, model, factory, split, tuple(targets), late)
