"""The models on which mitigations are measured, and which mitigations."""

import os
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import nn

from drsrobust._environment import progress_bar
from drsrobust.data import Split, load_dataset
from drsrobust.data.synthetic import planted
from drsrobust.injection import resolve
from drsrobust.mitigation import (
    ECC,
    ABFTEmbeddingBag,
    ABFTLinear,
    ActivationClipping,
    BitProtection,
    Mitigation,
    NaNGuard,
    ParityZero,
    Replication,
    Scrubbing,
    WeightRange,
)
from drsrobust.mitigation.abft.base import ABFT
from drsrobust.models import build_model
from drsrobust.timing import overhead
from drsrobust.training import Settings, load_model

TABLE_ROWS = 1_000_000

SIZES: dict[str, Any] = {"dense_mlp": [512, 256, 16], "over_mlp": [512, 256, 1]}

COLUMNS = ("mitigation", "model", "scope", "batch", "plain_ms", "protected_ms", "overhead_percent")

LARGE, INT8 = "dlrm, 26 tables", ", int8 tables"
ROWS = 20_000  # of the large model: to learn from, and to test
REAL = ("movielens-1m/full", "movielens-1m/ids", "criteo-sample/fields")
GENERATED = ("synthetic-movielens/full", "synthetic-criteo/dlrm")
# AFM takes 20 minutes to train on `full`.
MODELS = {
    "movielens-1m/full": ("dlrm", "fm", "dcn", "wide_deep", "deepfm", "dlrm_dcn"),
    "movielens-1m/ids": ("afm", "dlrm"),
    "criteo-sample/fields": ("dlrm",),
    "synthetic-movielens/full": ("dlrm", "fm", "dcn", "wide_deep", "deepfm", "dlrm_dcn"),
    "synthetic-criteo/dlrm": ("dlrm",),
}


@dataclass(frozen=True, eq=False)
class Case:
    """A model without errors.

    Attributes:
        name: in the tables.
        data: name of the data set.
        model: in evaluation mode.
        train: what bounds and thresholds are learnt from.
        test: other rows.
    """

    name: str
    data: str
    model: nn.Module
    train: Split
    test: Split

    @property
    def int8(self) -> bool:
        """Whether its tables are of int8 rows."""
        return self.name.endswith(INT8)


def large(table_rows: int = TABLE_ROWS, rows: int = ROWS, sizes: dict[str, Any] | None = None) -> Case:
    """The DLRM of 26 tables with planted rows (`planted`) and seeded first weights: what a check costs does not depend on
    training.

    Args:
        table_rows: of all tables together.
        rows: of training and of test, each.
        sizes: of the model; None: MLPs 512-256-16 and 512-256-1.
    """
    schema, train, test, _ = planted(table_rows, rows, rows)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model("dlrm", schema, **(SIZES if sizes is None else sizes)).eval()
    return Case(LARGE, train.dataset, model, train, test)


def trained(
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    *,
    rows: int | None = None,
    settings: Settings | None = None,
    progress: bool = True,
) -> list[Case]:
    """Trained models, DLRM on MovieLens first; from the cache where they are there.

    Args:
        datasets: None: MovieLens-1M (`full`, `ids`) and the Criteo sample where DRSROBUST_DATA is set, else generated ones.
        models: on each of them; None: DLRM, and on MovieLens the study's models.
        rows: of generated data sets; None: their own number.
        settings: of training; None: those of the model on the data.
        progress: a progress bar while training.
    """
    if datasets is None:
        datasets = REAL if os.environ.get("DRSROBUST_DATA") else GENERATED
    cases = []
    for dataset in datasets:
        own = rows is not None and dataset.startswith("synthetic-")
        data = load_dataset(dataset, rows=rows) if own else load_dataset(dataset)
        for name in MODELS.get(dataset, ("dlrm",)) if models is None else models:
            model = load_model(name, data, settings=settings, progress=progress)
            cases.append(Case(name, dataset, model, data.train, data.test))
    return cases


def with_int8_tables(case: Case) -> Case:
    """A copy with the embedding tables quantized to int8 rows, each with a scale and a bias."""
    from torchrec.inference.modules import quantize_embeddings

    model = quantize_embeddings(deepcopy(case.model), dtype=torch.int8, inplace=True)
    return Case(case.name + INT8, case.data, model.eval(), case.train, case.test)


def clipping(case: Case) -> list[Mitigation]:
    """Profiled bounds, by layer and by neuron, saturating and to zero; those of the published code, within 6."""
    fitted = [
        ActivationClipping.fit(case.model, case.train, scope=scope, mode=mode)
        for scope in ("layer", "neuron")
        for mode in ("saturate", "zero")
    ]
    return [*fitted, ActivationClipping(6)]


def checks(case: Case) -> list[Mitigation]:
    """Checksums: of linear layers, where there are any, by both thresholds; of tables (of int8 rows in both ways)."""
    if not any(isinstance(module, nn.Linear) for module in case.model.modules()):
        return bag_checks(case)
    calibrated = ABFTLinear.fit(case.model, case.train.head(ROWS), mode="calibrated")
    return [ABFTLinear.fit(case.model), calibrated, *bag_checks(case)]


def bag_checks(case: Case) -> list[Mitigation]:
    """Checksums of tables; of int8 rows in both ways."""
    if not case.int8:
        return [ABFTEmbeddingBag.fit(case.model)]
    found = [ABFTEmbeddingBag.fit(case.model, quantized=way) for way in ("residue", "sum")]
    for way, one in zip(("residues", "sums"), found, strict=True):
        one.name += f" by {way}"
    return found


def in_computation(case: Case) -> list[Mitigation]:
    """All mitigations that take time at inference, and a sum of them: both checksums and clipping."""
    found, bounds = checks(case), clipping(case)
    both = [one for one in found if "calibrated" not in one.name and "by sums" not in one.name]
    together = both[0]
    for one in [*both[1:], bounds[0]]:
        together = together + one
    return [*found, *bounds, NaNGuard(case.train.prior), together]


def in_memory(case: Case) -> list[Mitigation]:
    """Mitigations that take memory, and time only when weights are loaded or scrubbed."""
    ranges = [WeightRange.fit(case.model, per=per) for per in ("tensor", "row")]
    nine = [BitProtection(("sign", "exponent"), code=code) for code in ("tmr", "secded")]
    return [*ranges, *nine, ParityZero(), ECC(64), ECC(32), Replication(), Scrubbing()]


BATCHES = (64, 512, 2048, 8192)
PASS = 16_384  # rows of a timed pass, in at most so many batches:
MOST = 64


def time_cost(
    cases: Sequence[Case], batches: Sequence[int], turns: int, *, checks_only: bool = False, progress: bool = True
) -> pd.DataFrame:
    """Inference with and without each mitigation, side by side (`overhead`); of checksums also as a share of the operators that
    they check, of those of one kind.

    Args:
        cases: models, with the rows that are scored: test rows, not those that bounds were learnt from.
        batches: sizes.
        turns: of `overhead`.
        checks_only: checksums alone.
        progress: a progress bar.
    """
    rows = []
    with progress_bar(len(cases) * len(batches), "inference time", progress=progress) as bar:
        for case in cases:
            mitigations = bag_checks(case) if case.int8 else checks(case) if checks_only else in_computation(case)
            bits = resolve(case.model, "all").bits  # int8 rows are no parameters
            for size in batches:
                rows += [_timed(case, one, size, turns, modules, bits) for one, modules in _scopes(mitigations)]
                bar.update()
    table = pd.DataFrame(rows)
    return table[list(COLUMNS)]


def _scopes(mitigations: Sequence[Mitigation]) -> list[tuple[Mitigation, list[str] | None]]:
    """Each for the whole model, checksums for their operators too."""
    found: list[tuple[Mitigation, list[str] | None]] = [(one, None) for one in mitigations]
    return found + [(one, one.covered) for one in mitigations if isinstance(one, ABFT)]


def _timed(case: Case, mitigation: Mitigation, size: int, turns: int, modules: list[str] | None, bits: int) -> dict:
    number = max(1, min(MOST, PASS // size))
    split = case.test.head(min(len(case.test), number * size))
    batches = [batch for batch in split.batches(size) if len(batch.labels) == size]
    if not batches:
        raise ValueError(f"{case.name} on {case.data} has {len(split)} test rows; a batch of {size} needs more")
    measured = overhead(case.model, batches, mitigation, modules=modules, turns=turns)
    stored = 100 * mitigation.cost(case.model).stored_bits / bits
    return {"mitigation": mitigation.name, "model": case.name, "stored_bits_percent": stored} | measured
