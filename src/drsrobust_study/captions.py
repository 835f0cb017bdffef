"""How a figure was made, in sentences: data, rows, trials, intervals. `details` is the one builder; the others word its parts
for one kind of table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust._provenance import machine, versions
from drsrobust.data import Split
from drsrobust.evaluation import Evaluator
from drsrobust.statistics.intervals import CONFIDENCE
from drsrobust.statistics.pvf import DEFINITIONS
from drsrobust.statistics.summary import INTERVAL
from drsrobust_study.model_factors import FACTORS

if TYPE_CHECKING:
    import pandas as pd

INPUTS = 10_000  # per setting of the model factors in the study


def details(
    rows: Split | Iterable[Split | str],
    summary: "pd.DataFrame | None" = None,
    *more: str,
    trials: str | None = None,
    points: str | None = None,
) -> str:
    """How a figure was made.

    Args:
        rows: the scored rows of each data set (or a sentence in place of one).
        summary: `dr.summarise` or `dr.recovery` of the trials; adds AUC without errors, trials, intervals, and a note on stress
            rates. None: only the data.
        more: further sentences; empty ones are dropped.
        trials: a sentence on the trials; None: their number by `summary`.
        points: a sentence on points and bars; None: means with the intervals of `summary`.
    """
    rows = [rows] if isinstance(rows, Split) else list(rows)
    parts = [_data(split, summary if len(rows) == 1 else None, summary) for split in rows]
    if summary is not None:
        parts.append(
            trials or f"{span(summary['n'])} trials per point, each with its own error map; model and rows are fixed."
        )
        parts.append(points or f"Points: means; bars: {_intervals(summary)}.")
        if (summary["rate"].fillna(0) >= 1e-4).any():  # the field: `rates.field_rates()`
            parts.append(
                "Rates from 1e-4 are a stress range: by logged events, a day in DRAM gives about 1e-9 before ECC."
            )
    elif points:
        parts.append(points)
    return " ".join(filter(None, [*parts, *more]))


def span(numbers: "pd.Series") -> str:
    """`5`, or `5 to 9`."""
    low, high = numbers.min(), numbers.max()
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _data(split: Split | str, rows: "pd.DataFrame | None", summary: "pd.DataFrame | None") -> str:
    if isinstance(split, str):
        return split
    generated = " (generated data, not real clicks)" if split.dataset.startswith("synthetic-") else ""
    count = f"{len(split):,}" if len(split) == split.whole else f"{len(split):,} of {split.whole:,}"
    text = f"Data: {split.dataset}{generated}, {count} {split.part} rows."
    if summary is None:
        return text
    rows = summary[summary["dataset"] == split.dataset] if rows is None else rows
    golden = rows.groupby("model", sort=False)["auc_golden"].first()
    return f"{text} AUC without errors: {', '.join(f'{model} {auc:.4f}' for model, auc in golden.items())}."


def _intervals(summary: "pd.DataFrame") -> str:
    return summary.attrs.get("interval", INTERVAL)


def single_error_details(
    table: "pd.DataFrame", evaluator: Evaluator, definitions: Sequence[str] = tuple(DEFINITIONS)
) -> str:
    """Details of a figure made from `stratified_pvf` or `stratified_loss`.

    Args:
        table: the campaigns' trials, of one or more models.
        evaluator: of one of them.
        definitions: of an incorrect output, those that the figure shows.
    """
    options = evaluator.options
    incorrect = {
        "decision_changed": f"a decision on the other side of probability {options['threshold']:g}",
        "list_changed": f"a user's list of {options['k']} that differs",
        "score_changed": f"a logit that moves by over {options['epsilon']:g}",
    }
    trials = span(table.groupby(["model", "error_model", "target"]).size())
    models = ", ".join(f"{n:,} of {model}" for model, n in table.groupby("model", sort=False).size().items())
    text = (
        f"One flipped bit per trial, {trials} trials for each layer or table and class of bits ({models}), weighted by "
    )
    text += "their numbers of bits; model and rows are fixed."
    points_text = f"Points: means; bars: {CONFIDENCE:.0%} intervals of stratified samples."
    definition = f"Incorrect: {', '.join(incorrect[name] for name in definitions)}." if definitions else ""
    return details(evaluator.rows, table, definition, trials=text, points=points_text)


def deviation_details(
    summary: "pd.DataFrame", cells: Sequence[Mapping[str, float]], *more: str, points: str | None = None
) -> str:
    """Details of a figure made from `deviation_summary`, with the differences from the study's grid.

    Args:
        summary: as `deviation_summary` returns it.
        cells: as `factor_grid` gives them, the middle one first.
        more: further sentences.
        points: a sentence on points and bars; None: means with Student's t.
    """
    densities, rates = ([f"{value:g}" for value in sorted(summary[name].unique())] for name in ("density", "ber"))
    inputs = summary["n_inputs"].iloc[0]
    middle = ", ".join(f"{name.replace('_', ' ')} {level:g}" for name, level in cells[0].items())
    unit = "drawn models" if summary["models"].max() > 1 else "error maps"
    means = f"Points: means; bars: {CONFIDENCE:.0%} intervals over {unit} (Student's t)."
    parts = [
        f"Data: synthetic-dummy (generated inputs, not real clicks), densities {', '.join(densities)}; {inputs:,} inputs. "
        f"Untrained models, {span(summary['models'])} drawn per cell; {span(summary['n'])} trials per point, each with its own "
        "error map.",
        "An output counts as changed if it moves by over 1 % or is not finite.",
        f"{points or means} Middle: {middle}.",
    ]
    released = summary[summary["protocol"] == "as_released"]
    if len(released):
        last = released.sort_values("ber").iloc[-1]
        parts.append(
            "As released: only rows 0 and 1 of the table are read, and errors accumulate over batches and rates: at "
            f"{last['ber']:g} a share of {last['present']:.2g} of all bits is wrong on average."
        )
    every = len(cells) == np.prod([len({cell[name] for cell in cells}) for name in FACTORS])
    smaller = [] if every else ["one factor is varied at a time"]
    smaller += [f"rates are {', '.join(rates)}"] if len(rates) < 5 else []
    smaller += [f"inputs are {inputs:,}, which vary far less than error maps"] if inputs < INPUTS else []
    if smaller:
        parts.append(f"The study ran all combinations at 5 rates on {INPUTS:,} inputs; here {', '.join(smaller)}.")
    return details([*parts, *more])


def speed_details(table: "pd.DataFrame", peers: "pd.DataFrame") -> str:
    """Details of a figure of `injection_speed` and `peer_speed`: how they were measured, and what was not run.

    Args:
        table: as `drsrobust_study.injection_speed.injection_speed` returns it.
        peers: as `drsrobust_study.injection_speed.peers` returns it.
    """
    timed = "CPU time of one injection on one thread, median of 3 to 200 calls (2 if a call takes over a second); for drsrobust"
    parts = [
        f"{timed} with undo, which the other methods do not have. {machine()['architecture']}, torch {versions()['torch']}."
    ]
    parts.append("A model of the study's shape (26 tables of dimension 16, two MLPs); errors in all parameters.")
    notes = table[table["note"].str.startswith("not run", na=False)].drop_duplicates("method")
    parts += [f"{row.method}: {row.note}." for row in notes.itertuples()]
    ran, first = peers[peers["cpu_s"].notna()].drop_duplicates("tool"), peers.iloc[0]
    tools = ", ".join(f"{row.tool} {row.version}" for row in ran.itertuples())
    parts.append(
        f"Published tools: reproduce/peers.csv, a run of `make bench BENCH=peers` of {first['date']} ({tools};"
    )
    parts.append(f"torch {first['torch']}, {first['processor']}), each point one call.")
    parts += [f"{row.tool}: {row.note}." for row in peers[peers["cpu_s"].isna()].itertuples()]
    return details(parts)


def protocol_text(summary: "pd.DataFrame", *, ber: float) -> str:
    """How the protocols differ at one nominal rate: share of wrong bits, and of inputs that deviate by errors in each target
    (least and greatest mean over cells).

    Args:
        summary: as `deviation_summary` returns it, of both protocols.
        ber: nominal rate.
    """
    texts = []
    for protocol, cells in summary[summary["ber"] == ber].groupby("protocol", sort=False):
        ends = cells.groupby("target", sort=False)["deviated_0.01"].agg(["min", "max"]).itertuples()
        ranges = ", ".join(f"{target} {100 * low:.2g} to {100 * high:.2g} %" for target, low, high in ends)
        texts.append(
            f"{protocol}: {cells['present'].mean():.2g} of the bits wrong, inputs changed by errors in {ranges}"
        )
    return f"At {ber:g}, over all cells, {'; '.join(texts)}"
