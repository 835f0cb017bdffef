"""What is read from the benchmark `mitigation`: each target with its number, and the tables as text."""

import os
from collections.abc import Mapping

import pandas as pd

from drsrobust._versions import machine, versions
from drsrobust.benchmark.mitigation_cases import INT8, LARGE
from drsrobust.campaign.statistics import wilson

BATCH = 2048  # rows of the batch that the targets on time are about
CLEAN = 1e-4  # of AUC, that profiled bounds may cost, and that repair may leave
SLOWEST = {"provable": 10.0, "calibrated": 8.0, "bag": 3.0, "clip": 5.0}  # per cent of the 26-table DLRM's time
NOTICED = {"provable": 1.0, "calibrated": 0.999, "bag": 0.999, "int8": 0.999}  # share of significant errors


def verdicts(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One row per target: `what`, `asked`, `found`, `met`.

    Args:
        tables: of `mitigation_cost`.
    """
    rows = [*_time(tables["mitigation"]), *_noticed(tables["detection"]), *_quiet(tables["detection"])]
    for row in tables["mitigation_repair"].itertuples():
        worst = row.largest_difference
        rows.append((f"repair, {row.error_model}: |AUC - golden|", f"<= {CLEAN:g}", f"{worst:.2g}", worst <= CLEAN))
    return pd.DataFrame([*rows, *_clean(tables["mitigation_clean"])], columns=["what", "asked", "found", "met"])


def kind(name: str) -> str | None:
    """Which target a mitigation falls under: a key of `SLOWEST`; None for sums and others."""
    if " + " in name:
        return None
    if name.startswith("ABFT Linear"):
        return "calibrated" if "calibrated" in name else "provable"
    if name.startswith("ABFT EmbeddingBag"):
        return "bag"
    return "clip" if name.startswith("clip") else None


def _time(table: pd.DataFrame) -> list[tuple]:
    here = table[table["model"].isin([LARGE, LARGE + INT8]) & (table["batch"] == BATCH) & (table["scope"] == "model")]
    found = []
    for row in here.itertuples():
        if (which := kind(row.mitigation)) is not None:
            most, took = SLOWEST[which], row.overhead_percent
            found.append((f"{row.mitigation}: time", f"<= {most:g} %", f"{took:.1f} %", took <= most))
    return found


def _noticed(table: pd.DataFrame) -> list[tuple]:
    found = []
    for (name, model), group in table[table["injections"] > 0].groupby(["mitigation", "model"], sort=False):
        which, about = kind(name), ""
        if which == "bag":
            int8 = model.endswith(INT8)
            which, about = ("int8", ", int8 rows") if int8 else ("bag", ", sign and exponent")
            group = group if int8 else group[group["bit"] >= 23]
        n, seen = int(group["significant"].sum()), int(group["significant_detected"].sum())
        share, least = (seen / n if n else float("nan")), NOTICED[which]
        low = wilson(seen, n)[1] if n else float("nan")
        asked = "all" if least == 1 else f">= {least:.1%}"
        text = f"{seen:,} of {n:,} significant ({share:.2%}, 95 % from {low:.2%})"
        found.append((f"{name}{about}: detected", asked, text, share >= least))
    return found


def _quiet(table: pd.DataFrame) -> list[tuple]:
    counts = table.drop_duplicates(["mitigation", "model"]).groupby("mitigation", sort=False)
    return [
        (
            f"{name}: false alarms",
            "0",
            f"{row.false_alarms:,} batches in {row.clean_rows:,} rows",
            row.false_alarms == 0,
        )
        for name, row in zip(counts.groups, counts[["false_alarms", "clean_rows"]].sum().itertuples(), strict=True)
    ]


def _clean(table: pd.DataFrame) -> list[tuple]:
    found = []
    for name, group in table.groupby("mitigation", sort=False):
        worst = group.loc[group["difference"].abs().idxmax()]
        text = (
            f"{worst['difference']:+.2g} [{worst['low']:.2g}, {worst['high']:.2g}] ({worst['model']}, {worst['data']})"
        )
        if name.startswith("clip profiled"):
            met = bool((group["difference"].abs() <= CLEAN).all())
            found.append((f"{name}: clean AUC", f"within {CLEAN:g}", text, met))
        elif name.startswith(("clip", "zero-space")):
            found.append((f"{name}: clean AUC", "stated", text, True))
        else:
            equal = int(group["bit_equal"].sum())
            found.append((f"{name}: clean scores", "bit-equal", f"{equal} of {len(group)}", equal == len(group)))
    return found


def describe(tables: Mapping[str, pd.DataFrame]) -> str:
    """The tables as text, and a verdict on each target."""
    parts = [
        f"{machine()['cores']} cores {machine()['architecture']}, torch {versions()['torch']}; CPU time, one thread"
    ]
    if not os.environ.get("DRSROBUST_DATA"):
        parts[0] += "; DRSROBUST_DATA is not set: generated data"
    for scope in ("model", "operator"):
        here = tables["mitigation"][tables["mitigation"]["scope"] == scope]
        if here.empty:
            continue
        wide = here.pivot_table(index=["model", "mitigation"], columns="batch", values="overhead_percent", sort=False)
        wide = wide.sort_index(axis=1)
        wide["stored bits"] = here.groupby(["model", "mitigation"])["stored_bits_percent"].first()
        parts.append(
            f"Per cent of the {scope}'s time, by batch; stored bits in per cent of the parameters'\n{_text(wide)}"
        )
    storage = tables["mitigation_storage"].set_index(["model", "mitigation"])
    parts.append(f"In memory: nothing at inference; CPU time of one pass over all words (ms)\n{_text(storage)}")
    repaired = tables["mitigation_repair"].set_index("error_model").drop(columns=["mitigation"])
    parts.append(f"Repair, AUC\n{repaired.to_string(float_format='{:.6f}'.format)}")
    found = verdicts(tables).assign(met=lambda frame: frame["met"].map({True: "met", False: "MISSED"}))
    text = found.set_index("what").to_string(max_colwidth=None)
    return "\n\n".join([*parts, f"Asked and measured, every batch checked; times at batch {BATCH}\n{text}"])


def _text(frame: pd.DataFrame) -> str:
    return frame.to_string(float_format="{:,.2f}".format, na_rep="-")
