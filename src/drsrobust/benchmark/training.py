"""How fast models are trained and scored, ours and others' side by side in one run."""

import os
from typing import TYPE_CHECKING, Any

from drsrobust._processes import cores, threads
from drsrobust._versions import machine, versions
from drsrobust.benchmark.large_tables import SIZES, large_tables
from drsrobust.benchmark.parts import parts
from drsrobust.benchmark.planted import planted
from drsrobust.benchmark.study_models import OURS, study_models
from drsrobust.data import load_dataset
from drsrobust.models import build_model
from drsrobust.models.scoring import BATCH

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("method", "model", "phase", "batch", "rows_per_s")
AUC_COLUMNS = ("method", "model", "rows", "valid_auc")
PARTS_OF = ("deepfm", "afm")  # of the study's models


def training_speed(
    large: dict[str, Any] | None = None,
    small: dict[str, Any] | None = None,
    dataset: str | None = None,
    *,
    table_rows: int = 1_000_000,
    parts_of: tuple[str, ...] = PARTS_OF,
    show: bool = True,
) -> tuple["pd.DataFrame", "pd.DataFrame", dict[str, "pd.DataFrame"], list[str]]:
    """The benchmark `training`.

    Args:
        large: arguments of `large_tables` other than its defaults.
        small: arguments of `study_models` other than its defaults.
        dataset: for the study's models; None: MovieLens-1M where DRSROBUST_DATA is set, else generated ratings.
        table_rows: of the DLRM whose scoring is looked at in parts.
        parts_of: models of the study whose scoring is looked at in parts.
        show: progress bars.

    Returns:
        speeds (`COLUMNS`), AUC after training of the DLRM (`AUC_COLUMNS`), the parts of scoring by model, and remarks.
    """
    import pandas as pd

    if dataset is None:
        dataset = "movielens-1m/ids" if os.environ.get("DRSROBUST_DATA") else "synthetic-movielens/ids"
    remarks = [
        f"{cores()} threads on {machine()['cores']} cores {machine()['architecture']}, torch {versions()['torch']}"
    ]
    speeds, areas, said = large_tables(**(large or {}), show=show)
    more, heard = study_models(dataset, **(small or {}), show=show)
    remarks += said + heard
    table = pd.DataFrame(speeds + more, columns=list(COLUMNS))
    sizes = (large or {}).get("sizes") or SIZES
    schema, rows, *_ = planted(table_rows, BATCH, 64)
    data = load_dataset(dataset)
    with threads(cores()):
        looked = {"dlrm, 26 tables": parts(build_model("dlrm", schema, **sizes), rows.batch())}
        for name in parts_of:
            looked[f"{name}, {dataset}"] = parts(build_model(name, data.schema), data.test.head(BATCH).batch())
    return table, pd.DataFrame(areas, columns=list(AUC_COLUMNS)), looked, remarks


def ratios(table: "pd.DataFrame") -> "pd.DataFrame":
    """How many times the rows per second of each other method ours reaches.

    Args:
        table: as `training_speed` gives it.

    Returns:
        by `model` and `phase`: a column for each other method, and `best`, the least of them (`drsrobust, bfloat16` counts as
        ours and is left out).
    """
    wide = table.pivot_table(index=["model", "phase"], columns="method", values="rows_per_s", sort=False)
    others = [method for method in wide if not method.startswith(OURS)]
    found = wide[others].rdiv(wide[OURS], axis=0)
    return found.assign(best=found.min(axis=1))


def describe(
    table: "pd.DataFrame", areas: "pd.DataFrame", looked: dict[str, "pd.DataFrame"], remarks: list[str]
) -> str:
    """All of it as text."""
    lines = [*remarks[:1], *(f"  {remark}" for remark in remarks[1:])]
    shown = table.assign(rows_per_s=table["rows_per_s"].map("{:,.0f}".format))
    text = ["\n".join(lines), f"Rows per second\n{shown.to_string(index=False)}"]
    text.append(
        f"{OURS}'s rows per second over the others' (best: over the best of them)\n"
        + ratios(table).to_string(float_format="{:.2f}".format, na_rep="-")
    )
    text.append(f"AUC on validation rows after the same training rows\n{areas.to_string(index=False)}")
    for name, frame in looked.items():
        frame = frame.assign(share=frame["share"].map(lambda share: "" if share != share else f"{share:.0%}"))
        text.append(f"Scoring {BATCH:,} rows: {name}\n" + frame.to_string(float_format="{:,.1f}".format, na_rep="-"))
    return "\n\n".join(text)
