"""What the benchmarks share: the models they measure, growth with a size, targets and verdicts, tables as text."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import nn

from drsrobust._provenance import machine, versions
from drsrobust.data import Split
from drsrobust.models import build_model
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.synthetic import planted
from drsrobust_study.mitigations import LARGE, SIZES, TABLE_ROWS

OURS = "drsrobust"
NOT_INSTALLED = "not installed (pip install -e '.[benchmark]')"
ROWS = 100_000  # on which a trial is measured
LAST = "over_arch.model.1.*"  # the last layer of TorchRec's top MLP
# Target -> modules whose outputs its errors change.
_DLRM_LATE = {
    "dense_mlp": ("dense_arch", "inter_arch", "over_arch"),
    "over_mlp": ("over_arch",),
    LAST: ("over_arch.model.1",),
}


@dataclass(frozen=True)
class Result:
    """What a benchmark returns.

    Attributes:
        tables: file name without `.csv` -> table.
        text: printed.
    """

    tables: dict[str, pd.DataFrame]
    text: str


@dataclass(frozen=True)
class Case:
    """A model and the rows on which its trials are measured.

    Attributes:
        name: in the tables.
        model: with seeded first weights: the cost of a trial does not depend on training.
        factory: makes the same module, with any weights.
        rows: that are scored.
        targets: of errors.
        late: target -> modules that must be recomputed for errors in that target; for dense targets only.
        remark: printed with the results.
    """

    name: str
    model: nn.Module
    factory: Callable[[], nn.Module]
    rows: Split
    targets: tuple[str, ...]
    late: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remark: str = ""

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def seeded(factory: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A new model in evaluation mode with first weights from a seed; the global random state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory().eval()


def small_cases(dataset: str | None = None, rows: int | None = None) -> list[Case]:
    """DeepFM and DLRM of default size.

    Args:
        dataset: its test rows are used; None: see `default_dataset`, with schema `full`.
        rows: number of test rows; None: all (100,000 if they are generated).
    """
    remark = "" if dataset else generated_remark()
    name = dataset or default_dataset("full")
    data = load_dataset(name, rows=10 * (rows or ROWS)) if name.startswith("synthetic-") else load_dataset(name)
    split = data.test if rows is None else data.test.head(rows)
    cases = []
    for model, late, targets in (
        ("deepfm", {"deep_mlp": ("deep",)}, ("deep_mlp", "linear")),
        ("dlrm", _DLRM_LATE, tuple(_DLRM_LATE)),
    ):
        factory = partial(build_model, model, data.schema)
        cases.append(Case(model, seeded(factory), factory, split, ("all", "embedding", *targets), late, remark))
    return cases


def large_case(rows: int = ROWS, table_rows: int = TABLE_ROWS, sizes: Mapping[str, Any] | None = None) -> Case:
    """The DLRM of 26 tables of dimension 16 with planted rows (`planted`).

    Args:
        rows: that are scored.
        table_rows: of all tables together; 1,000,000 make 16.46 million parameters.
        sizes: of the model; None: MLPs 512-256-16 and 512-256-1.
    """
    schema, _, split, _ = planted(table_rows, 64, rows)
    factory = partial(build_model, "dlrm", schema, **(SIZES if sizes is None else sizes))
    return Case(LARGE, seeded(factory), factory, split, ("all", "embedding", *_DLRM_LATE), _DLRM_LATE)


def default_dataset(schema: str) -> str:
    """MovieLens-1M if DRSROBUST_DATA is set, else generated ratings."""
    return f"{'movielens-1m' if os.environ.get('DRSROBUST_DATA') else 'synthetic-movielens'}/{schema}"


def generated_remark() -> str:
    """Says that data are generated, if DRSROBUST_DATA is not set."""
    return "" if os.environ.get("DRSROBUST_DATA") else "DRSROBUST_DATA is not set: generated data"


def growth(table: pd.DataFrame, size: str, value: str, by: Sequence[str]) -> pd.DataFrame:
    """How a value grows with a size: by group, the smallest and the largest size, the values there, and how many times the
    first the last of each is.

    Args:
        table: one row per group and size.
        size, value: columns.
        by: columns that make a group; null is a group of its own.
    """
    rows = []
    for key, group in table.groupby(list(by), sort=False, dropna=False):
        first, last = group.loc[group[size].idxmin()], group.loc[group[size].idxmax()]
        ends = [
            first[size],
            last[size],
            last[size] / first[size],
            first[value],
            last[value],
            last[value] / first[value],
        ]
        rows.append((*key, *ends))
    columns = [*by, f"{size}_from", f"{size}_to", f"{size}_times", f"{value}_from", f"{value}_to", f"{value}_times"]
    return pd.DataFrame(rows, columns=columns).set_index(list(by))


@dataclass(frozen=True)
class Verdict:
    """A target and what was measured.

    Attributes:
        name: of the target.
        limit: as text.
        value: what was measured, as text.
        met: whether the value is within the limit; NaN never is.
    """

    name: str
    limit: str
    value: str
    met: bool


def at_most(name: str, value: float, limit: float, unit: str = "", note: str = "") -> Verdict:
    """The verdict on an upper limit.

    Example:
        >>> at_most("dlrm: over its parts", 1.2, 1.1, note="all, 1e-06")
        Verdict(name='dlrm: over its parts', limit='<= 1.1', value='1.2 (all, 1e-06)', met=False)
    """
    return Verdict(name, f"<= {_number(limit)}{unit}", _measured(value, unit, note), bool(value <= limit))


def at_least(name: str, value: float, limit: float, unit: str = "", note: str = "") -> Verdict:
    """The verdict on a lower limit."""
    return Verdict(name, f">= {_number(limit)}{unit}", _measured(value, unit, note), bool(value >= limit))


def verdict_text(verdicts: Iterable[Verdict]) -> str:
    """Targets and verdicts as a table in text."""
    frame = pd.DataFrame([vars(verdict) for verdict in verdicts], columns=["name", "limit", "value", "met"])
    frame["met"] = frame["met"].map({True: "met", False: "MISSED"})
    return (
        f"Targets\n{frame.set_index('name').to_string(max_colwidth=None)}" if len(frame) else "Targets\n  none measured"
    )


def text(frame: pd.DataFrame, number: str | None = None) -> str:
    """A table as text, null as `-`.

    Args:
        frame: the table.
        number: format of floats, such as `{:.4f}`; None: three significant digits.
    """
    return frame.to_string(float_format=number.format if number else _number, na_rep="-")


def about(*remarks: str) -> str:
    """The machine, one line, and the remarks that are not empty, a line each."""
    line = f"{machine()['cores']} cores {machine()['architecture']}, torch {versions()['torch']}"
    return "\n  ".join([line, *(remark for remark in remarks if remark)])


def rate_label(rate: float) -> str:
    """A bit error rate as text; NaN means one error per trial."""
    return "1 error" if rate != rate else f"{rate:g}"


def _measured(value: float, unit: str, note: str) -> str:
    return f"{_number(value)}{unit}" + (f" ({note})" if note else "")


def _number(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1e3 else f"{value:,.0f}"
