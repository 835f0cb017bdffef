"""The models on which mitigations are compared, the mitigations, and their time at inference (notebook 07, benchmarks)."""

import os
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import nn

from drsrobust.data import Split
from drsrobust.extend import progress_bar
from drsrobust.injection import resolve
from drsrobust.mitigation import ECC, ActivationClipping, Mitigation, NaNGuard, WeightRange
from drsrobust.models import build_model
from drsrobust.training import Settings, load_model
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.synthetic import planted
from drsrobust_extras.protection.abft.embedding import ABFTEmbeddingBag
from drsrobust_extras.protection.abft.linear import ABFTLinear
from drsrobust_extras.protection.bit_protection import BitProtection
from drsrobust_extras.protection.parity import ParityZero
from drsrobust_extras.protection.replication import Replication
from drsrobust_extras.protection.scrubbing import Scrubbing
from drsrobust_extras.risk.timing import overhead

TABLE_ROWS = 1_000_000
SIZES: dict[str, Any] = {"dense_mlp": [512, 256, 16], "over_mlp": [512, 256, 1]}
COLUMNS = (
    "mitigation",
    "model",
    "scope",
    "batch",
    "plain_ms",
    "protected_ms",
    "overhead_percent",
    "stored_bits_percent",
)
BATCHES = (64, 512, 2048, 8192)
PASS, MOST = 16_384, 64  # rows and batches of a timed pass, at most
LARGE, INT8 = "dlrm, 26 tables", ", int8 tables"
ROWS = 20_000  # of the large model, for training and for test each
REAL = ("movielens-1m/full", "movielens-1m/ids", "criteo-sample/fields")
GENERATED = ("synthetic-movielens/full", "synthetic-criteo/dlrm")
_STUDY = ("dlrm", "fm", "dcn", "wide_deep", "deepfm", "dlrm_dcn")
# AFM takes 20 minutes to train on `full`.
MODELS = {"movielens-1m/full": _STUDY, "movielens-1m/ids": ("afm", "dlrm"), "synthetic-movielens/full": _STUDY}


@dataclass(frozen=True, eq=False)
class Case:
    """A model without errors.

    Attributes:
        name: in the tables.
        data: name of the data set.
        model: in evaluation mode.
        train: rows from which bounds and thresholds are fitted.
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
    """The DLRM of 26 tables with planted rows (`planted`) and seeded first weights: the time of a check does not depend on
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
) -> list[Case]:
    """Trained models, DLRM on MovieLens first.

    Args:
        datasets: None: MovieLens-1M (`full`, `ids`) and the Criteo sample where DRSROBUST_DATA is set, else generated ones.
        models: on each of them; None: DLRM, and on MovieLens the study's models.
        rows: of generated data sets; None: their own number.
        settings: of training; None: those of the model on the data.
    """
    if datasets is None:
        datasets = REAL if os.environ.get("DRSROBUST_DATA") else GENERATED
    cases = []
    for dataset in datasets:
        is_generated = rows is not None and dataset.startswith("synthetic-")
        data = load_dataset(dataset, rows=rows) if is_generated else load_dataset(dataset)
        for name in MODELS.get(dataset, ("dlrm",)) if models is None else models:
            model = load_model(name, data, settings=settings)
            cases.append(Case(name, dataset, model, data.train, data.test))
    return cases


def with_int8_tables(case: Case) -> Case:
    """A copy with the embedding tables quantized to int8 rows, each with a scale and a bias."""
    from torchrec.inference.modules import quantize_embeddings

    model = quantize_embeddings(deepcopy(case.model), dtype=torch.int8, inplace=True)
    return Case(case.name + INT8, case.data, model.eval(), case.train, case.test)


def clipping(case: Case) -> list[Mitigation]:
    """Profiled bounds, by layer and by neuron, saturating and to zero; and the published bound of 6."""
    fit = ActivationClipping.fit
    modes = [(scope, mode) for scope in ("layer", "neuron") for mode in ("saturate", "zero")]
    return [*(fit(case.model, case.train, scope=s, mode=mode) for s, mode in modes), ActivationClipping(6)]


def checks(case: Case) -> list[Mitigation]:
    """Checksums of linear layers and of tables."""
    return [*layer_checks(case), *bag_checks(case)]


def layer_checks(case: Case) -> list[ABFTLinear]:
    """Checksums of linear layers, if there are any, by both thresholds."""
    if not any(isinstance(module, nn.Linear) for module in case.model.modules()):
        return []
    return [ABFTLinear.fit(case.model), ABFTLinear.fit(case.model, case.train.head(ROWS), mode="calibrated")]


def bag_checks(case: Case) -> list[Mitigation]:
    """Checksums of tables; of int8 rows by residues and by sums."""
    if not case.int8:
        return [ABFTEmbeddingBag.fit(case.model)]
    checks = [ABFTEmbeddingBag.fit(case.model, quantized=way) for way in ("residue", "sum")]
    for check, way in zip(checks, ("residues", "sums"), strict=True):
        check.name += f" by {way}"
    return checks


def in_computation(case: Case) -> list[Mitigation]:
    """All mitigations that take time at inference, and a sum of them: both checksums and clipping."""
    checksums, bounds = checks(case), clipping(case)
    first, *others = [check for check in checksums if "calibrated" not in check.name and "by sums" not in check.name]
    combined = first
    for mitigation in [*others, bounds[0]]:
        combined = combined + mitigation
    return [*checksums, *bounds, NaNGuard(case.train.prior), combined]


def in_memory(case: Case) -> list[Mitigation]:
    """Mitigations that take memory, and time only when weights are loaded or scrubbed."""
    ranges = [WeightRange.fit(case.model, per=per) for per in ("tensor", "row")]
    nine = [BitProtection(("sign", "exponent"), code=code) for code in ("tmr", "secded")]
    return [*ranges, *nine, ParityZero(), ECC(64), ECC(32), Replication(), Scrubbing()]


def time_cost(
    cases: Sequence[Case], batches: Sequence[int], turns: int, *, checks_only: bool = False, progress: bool = True
) -> pd.DataFrame:
    """Inference with and without each mitigation, in turns (`overhead`); of checksums also as a share of the operators that
    they check.

    Args:
        cases: models, timed on test rows.
        batches: sizes.
        turns: of `overhead`.
        checks_only: checksums alone.
        progress: shows a progress bar.

    Returns:
        the columns `COLUMNS`; `stored_bits_percent` is of the parameters' bits.
    """
    rows = []
    with progress_bar(len(cases) * len(batches), "inference time", progress=progress) as bar:
        for case in cases:
            mitigations = bag_checks(case) if case.int8 else checks(case) if checks_only else in_computation(case)
            scopes = [(mitigation, None) for mitigation in mitigations]
            scopes += [(mitigation, mitigation.covered) for mitigation in mitigations if hasattr(mitigation, "covered")]
            bits = resolve(case.model, "all").bits  # int8 rows are no parameters
            for size in batches:
                for mitigation, modules in scopes:
                    row = {"mitigation": mitigation.name, "model": case.name}
                    row["stored_bits_percent"] = 100 * mitigation.cost(case.model).stored_bits / bits
                    timed = overhead(case.model, _batches(case, size), mitigation, modules=modules, turns=turns)
                    rows.append(row | timed)
                bar.update()
    return pd.DataFrame(rows)[list(COLUMNS)]


def _batches(case: Case, size: int) -> list:
    split = case.test.head(min(len(case.test), size * max(1, min(MOST, PASS // size))))
    batches = [batch for batch in split.batches(size) if len(batch.labels) == size]
    if not batches:
        raise ValueError(f"a batch of {size} needs more test rows than the {len(split)} of {case.name} on {case.data}")
    return batches
