"""Claim C6: what checksums find, at what price, against arXiv:2103.00130."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust.campaign.statistics import wilson

if TYPE_CHECKING:
    import pandas as pd

# Of arXiv:2103.00130, on int8 operators: share of significant errors found, share of clean batches that raise an alarm, per
# cent of the operator's time.
PUBLISHED = {"layers": (0.95, None, 20.0), "tables": (0.99, 0.10, 26.0)}


def noticed_shares(found: "pd.DataFrame") -> "pd.DataFrame":
    """Detection by bit with intervals: the share of all errors that was noticed (`noticed`), and of those that are significant
    (`significant_noticed`, missing where there were none), each with `_low` and `_high` (95 %, Wilson).

    Args:
        found: columns of `detection.COLUMNS`; rows without injections are left out.
    """
    shares = found[found["injections"] > 0].reset_index(drop=True)
    parts = {"noticed": ("detected", "injections"), "significant_noticed": ("significant_detected", "significant")}
    for name, (seen, of) in parts.items():
        shares[[name, f"{name}_low", f"{name}_high"]] = _intervals(shares[seen], shares[of])
    return shares


def alarm_shares(found: "pd.DataFrame", batch: int) -> "pd.DataFrame":
    """False alarms with intervals, one row per mitigation and model: `false_alarms` in so many `batches` of `clean_rows`, their
    `share` with `low` and `high` (95 %, Wilson).

    Args:
        found: columns of `detection.COLUMNS`.
        batch: rows of a clean batch.
    """
    columns = ["mitigation", "model", "false_alarms", "clean_rows"]
    shares = found.drop_duplicates(columns)[columns].reset_index(drop=True)
    shares["batches"] = -(-shares["clean_rows"] // batch)
    shares[["share", "low", "high"]] = _intervals(shares["false_alarms"], shares["batches"])
    return shares


def _intervals(count: "pd.Series", n: "pd.Series") -> np.ndarray:
    ends = [wilson(int(k), int(of)) if of else (np.nan,) * 3 for k, of in zip(count, n, strict=True)]
    return np.array(ends).reshape(-1, 3)


def claims(found: "pd.DataFrame", runs: "pd.DataFrame", batch: int) -> "pd.DataFrame":
    """One row per check and model with errors: `part` (`layers` or `tables`), `mitigation`, `model`, `n` significant errors,
    the share that is `noticed` with `low` and `high` (95 %, Wilson), `alarms` (batches) in `clean_rows`, `alarms_high` (the
    upper end of their share of batches), `time` (per cent of the operator's time; missing where it was not measured),
    `verdict`, and `detail`: the alarms and the time in words.

    `reproduced`: the interval of what is noticed lies over the published share, that of alarms under the published one (none
    at all, where none is published), and the time is under the published one. `partly`: the shares themselves hold, but not
    surely, or not at that price. `not`: else. Two verdicts say why there is no test: there were no significant errors; or the
    shares hold, and the time was not measured.

    Args:
        found: `in_layers` and `in_tables`, one below the other.
        runs: `overhead` of operators, with `mitigation`.
        batch: rows of a clean batch.
    """
    import pandas as pd

    rows = []
    time = runs[runs["scope"] == "operator"].groupby("mitigation")["overhead_percent"].median()
    for (name, model), group in found[found["injections"] > 0].groupby(["mitigation", "model"], sort=False):
        alarms, clean = (int(number) for number in group[["false_alarms", "clean_rows"]].iloc[0])
        part = "layers" if name.startswith("ABFT Linear") else "tables"
        where = ""
        if part == "tables" and (group["bit"] >= 8).any():  # of int8 rows all bits
            share = f"{int(group['significant_detected'].sum()):,} of {int(group['significant'].sum()):,} over all bits"
            group, where = group[group["bit"] >= 23], f" of sign and exponent ({share})"
        n = int(group["significant"].sum())
        noticed, low, high = wilson(int(group["significant_detected"].sum()), n) if n else (float("nan"),) * 3
        alarms_high = wilson(alarms, -(-clean // batch))[2]
        took = float(time.get(name, float("nan")))
        least, most, price = PUBLISHED[part]
        quiet = alarms == 0 if most is None else alarms / -(-clean // batch) < most
        sure = low > least and quiet and (most is None or alarms_high < most)
        unmeasured = "the operator's time was not measured"
        timed = f"{took:.0f} % of the operator's time" if took == took else unmeasured
        word = "not" if not (noticed > least and quiet) else "reproduced" if sure and took < price else "partly"
        if not n and quiet:
            word = "no significant errors to notice"
        elif word == "partly" and took != took:
            word = unmeasured
        detail = f"{n:,} significant errors{where}, {alarms} alarms in {clean:,} rows, {timed}"
        rows.append((part, name, model, n, noticed, low, high, alarms, clean, alarms_high, took, word, detail))
    columns = [
        "part",
        "mitigation",
        "model",
        "n",
        "noticed",
        "low",
        "high",
        "alarms",
        "clean_rows",
        "alarms_high",
        "time",
    ]
    return pd.DataFrame(rows, columns=[*columns, "verdict", "detail"])
