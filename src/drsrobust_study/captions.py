"""How a figure was made, in sentences: data, rows, trials, intervals. `details` is the one builder; the others word its parts
for one kind of table."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from drsrobust.data import Split
from drsrobust.evaluation import Evaluator
from drsrobust.extend import machine, versions
from drsrobust.statistics import CONFIDENCE, DEFINITIONS, INTERVAL
from drsrobust_study.model_factors import FACTORS

if TYPE_CHECKING:
    import pandas as pd


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


def part_details(
    rows: Iterable[Split], points: "pd.DataFrame", *, slow: Sequence[str] = (), afn_neurons: int = 0
) -> str:
    """Details of figures made from `part_curves.over_trainings`.

    Args:
        rows: the scored rows of each data set.
        points: with `model`, `dataset`, `n`, `trainings` and `golden`.
        slow: pairs with fewer maps and rows.
        afn_neurons: logarithmic neurons of `afn`, if it was run.
    """
    parts = []
    for split in rows:
        golden = points[points["dataset"] == split.dataset].groupby("model", sort=False)["golden"].first()
        parts.append(f"{_data(split, None, None)} AUC without errors: {_golden(golden)}.")
    parts.append(
        f"Trainings per model: {span(points['trainings'])}; stratified maps per point: {span(points['n'])} over all of them. "
        "Points: means over maps and trainings; bars: least to greatest single run with plain maps."
    )
    there = set(points["model"] + " " + points["dataset"])
    parts += [f"Fewer maps and rows: {', '.join(pair for pair in slow if pair in there)}."] if there & set(slow) else []
    parts += (
        [f"afn has {afn_neurons} logarithmic neurons (the study's: 1500)."] if "afn" in set(points["model"]) else []
    )
    parts.append("Of the study's curves no value is known here.")
    return details(parts)


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
    return f"{text} AUC without errors: {_golden(golden)}."


def _golden(golden: "pd.Series") -> str:
    return ", ".join(f"{model} {auc:.4f}" for model, auc in golden.items())


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
    trainings = table["train_seed"].nunique() if "train_seed" in table else 1
    text += "their numbers of bits; " + ("model and rows are fixed." if trainings < 2 else f"of {trainings} trainings.")
    of_what = "of stratified samples" if trainings < 2 else "over trainings"
    points_text = f"Points: means; bars: {CONFIDENCE:.0%} intervals {of_what}."
    definition = f"Incorrect: {', '.join(incorrect[name] for name in definitions)}." if definitions else ""
    return details(evaluator.rows, table, definition, trials=text, points=points_text)


def dummy_details(table: "pd.DataFrame") -> str:
    """Details of a figure of the dummy model: data, numbers of models and maps, and what was read with each look-up.

    Args:
        table: as `dummy_trials` returns it.
    """
    densities = ", ".join(f"{value:g}" for value in sorted(table["density"].unique()))
    inputs = table.groupby("lookup")["n_inputs"].first()
    maps = table.groupby([*FACTORS, "target", "ber", "lookup"]).size()
    fewer = f" ({inputs['as_released']:,} with the released look-up)" if inputs.nunique() > 1 else ""
    return details(
        [
            f"Data: synthetic-dummy (generated inputs, not real clicks), densities {densities}; {inputs['corrected']:,} "
            f"inputs{fewer}. Untrained models, {table['drawn'].nunique()} drawn per cell; {span(maps)} error maps per cell, "
            "target and rate, nested over rates and independent between cells.",
            "An RMSE over 1e6, or one that is not finite, is huge; an output moved if it changed by over 1 % or is not finite.",
        ]
    )


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
