"""The results of a sweep: one table of parameters and figures' rows, its result, figures over all points, and a page."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import nbformat
import numpy as np
import pandas as pd

from drsrobust._files import new_file
from drsrobust._hashing import file_digest
from drsrobust._provenance import commit, machine, versions
from drsrobust_extras.pages.plots.save import read_words, save, write_csv
from drsrobust_extras.pages.report import figure_entries, templates
from reproduce import executed
from reproduce.plan import duration
from reproduce.runner import Outcome
from reproduce.sweep import Sweep
from reproduce.sweep_chart import draw_result, grouped
from reproduce.sweep_result import PANELS, SEED, Averages, Result, average, averaged, chosen, means_by, panel_columns

# What curves are drawn of, where a figure's CSV has it with its interval at several rates; the first that is there.
MEASURES = {"recovery": "share of the lost AUC regained", "auc": "AUC", "auc_drop": "loss of AUC", "pvf": "PVF"}
SHOWN = 24  # lines in a figure at most
RESULT = "result"  # name of its figure


class Curves(NamedTuple):
    """How a table is drawn: a measure by bit error rate, a panel for each value of the columns `keys`."""

    measure: str
    keys: list[str]


def write_results(sweep: Sweep, folder: Path, outcomes: Mapping[str, Outcome], result: Result | None = None) -> Path:
    """Writes sweep.csv (a row for each row of a figure's CSV), points.csv (a row for each point), figures/ (the result, and
    each figure that has curves), a page for each executed notebook, and index.html, whose path it returns.

    Args:
        sweep: the sweep.
        folder: of its results.
        outcomes: of all points, in their order.
        result: what the page begins with, if the points have it; else it says why not.
    """
    tables = _tables(sweep, folder, outcomes)
    rows = [table.assign(figure=figure) for figure, table in tables.items()]
    first = ["point", *sweep.varied, "figure"]
    together = pd.concat(rows) if rows else pd.DataFrame(columns=first)
    write_csv(together[[*first, *(name for name in together if name not in first)]], folder / "sweep.csv", digits=None)
    for earlier in (folder / "figures").rglob(f"{RESULT}.*"):
        earlier.unlink()
    numbers, missing = {}, ""
    try:
        if result and tables:
            numbers = _result(result, tables, sweep, folder)
    except ValueError as error:
        missing = str(error)
    curves = _distinct(tables, {figure: _curves(table) for figure, table in tables.items()})
    for figure, drawn in curves.items():
        _draw(figure, tables[figure], drawn, sweep, folder)
    environment = templates(Path(__file__).parent)
    points = [_point(environment, sweep, folder, point, outcome) for point, outcome in outcomes.items()]
    write_csv(pd.DataFrame([_row(point) for point in points]), folder / "points.csv")
    page = environment.get_template("sweep.html.j2").render(
        title=f"Sweep of {sweep.notebook.name}",
        sweep=sweep,
        points=points,
        numbers=numbers,
        missing=missing,
        result=figure_entries(folder / "figures", [RESULT] if numbers else []),
        figures=figure_entries(folder / "figures", list(curves)),
        pictures={figure: _pictures(figure, table, folder) for figure, table in tables.items() if figure not in curves},
        failed=[point for point in points if not point["ok"]],
        duration=duration,
        commit=commit(),
        machine=machine(),
        versions=versions(),
    )
    with new_file(folder / "index.html") as part:
        part.write_text(page)
    return folder / "index.html"


def _result(
    result: Result, tables: Mapping[str, pd.DataFrame], sweep: Sweep, folder: Path
) -> dict[str, dict[str, Any]]:
    """Draws the result; returns its columns of the page: heading -> point -> (value, text).

    Raises:
        ValueError: the tables lack it, or all its values are blank.
    """
    averages, words = average(result, tables, sweep.varied), _words(folder, result.figure, tables[result.figure])
    table, column = chosen(result, tables, sweep.varied)
    if table[column].isna().all():
        raise ValueError(f"all values of {result} are blank")
    label = MEASURES.get(result.column, result.column.replace("_", " "))
    where = ", ".join(f"{name} = {value}" for name, value in result.rows.items())
    title = f"{label} against {averages.axis.replace('_', ' ')}{f', where {where}' if where else ''}"
    failed = len(sweep.points) - tables[result.figure]["point"].nunique()
    save(
        draw_result(averages, label),
        RESULT,
        averages.table,
        _caption(averages, words),
        details=f"Column {result.column} of {result.figure}.csv."
        + (f" {failed} of {len(sweep.points)} points have none." if failed else ""),
        title=f"{result.figure}: {title}",
        timed=words["timed"],
        folder=folder / "figures",
    )
    keys = panel_columns(table, [*sweep.varied, column])
    points, _ = averaged(table, column, ["point", *keys])
    columns: dict[str, dict[str, Any]] = {}
    for name, rows in grouped(points.dropna(subset=[column]), keys).items():
        ends = rows[["point", column, f"{column}_low", f"{column}_high"]].to_numpy()
        columns[f"{label}{f': {name}' if name else ''}"] = {one[0]: (one[1], _cell(*one[1:])) for one in ends}
    return columns


def _caption(averages: Averages, words: Mapping[str, Any]) -> str:
    """What the bars are, and the first sentence about the figure of a point, whose further ones explain its own marks."""
    of = re.split(r"(?<=\.) (?=[A-Z])", words["caption"])[0]
    return f"{averages.over[:1].upper()}{averages.over[1:]}. The figure of each point: {of}"


def _cell(value: float, low: float, high: float) -> str:
    return f"{value:.3g}" if np.isnan([low, high]).any() else f"{value:.3g} [{low:.3g}, {high:.3g}]"


def _tables(sweep: Sweep, folder: Path, outcomes: Mapping[str, Outcome]) -> dict[str, pd.DataFrame]:
    """Of each figure the rows of all points, after the parameters that vary; main figures first. A column with the name of such
    a parameter becomes `figure_<name>`."""
    names, parts = ["point", "figure", *sweep.varied], {}
    for point, outcome in outcomes.items():
        for figure in outcome.figures:
            rows = pd.read_csv(folder / point / "figures" / "data" / f"{figure}.csv")
            rows = rows.rename(columns={name: f"figure_{name}" for name in names if name in rows})
            values = {"point": point} | {name: _text(value) for name, value in sweep.points[point].items()}
            for place, (name, value) in enumerate(values.items()):
                rows.insert(place, name, [value] * len(rows))
            parts.setdefault(figure, []).append(rows)
    tables = {figure: pd.concat(rows, ignore_index=True) for figure, rows in parts.items()}
    return dict(sorted(tables.items(), key=lambda item: _words(folder, *item)["appendix"]))


def _words(folder: Path, figure: str, table: pd.DataFrame, point: str = "") -> dict[str, Any]:
    """The words about a figure of a point; of its first one, if none is named."""
    return read_words(folder / (point or table["point"].iloc[0]) / "figures", figure)


def _text(value: Any) -> Any:
    """A value in a cell of a table: a list as JSON."""
    return json.dumps(value) if isinstance(value, list) else value


def _curves(table: pd.DataFrame) -> Curves | None:
    """How a table is drawn as curves; None if it has no measure at several rates, or several rows at one rate."""
    measure = next((name for name in MEASURES if {name, f"{name}_low", f"{name}_high", "ber"} <= set(table)), None)
    if measure is None or table["ber"][table["ber"] > 0].nunique() < 2:
        return None
    keys = panel_columns(table, [])
    is_plain = not table.duplicated(["point", *keys, "ber"]).any()
    return Curves(measure, keys) if is_plain and len(grouped(table, keys)) <= PANELS else None


def _distinct(tables: Mapping[str, pd.DataFrame], curves: Mapping[str, Curves | None]) -> dict[str, Curves]:
    """The curves of figures that have some, each once: figures that draw the same table in several ways have the same."""
    drawn: dict[str, Curves] = {}
    for figure, one in curves.items():
        if one is None:
            continue
        columns = ["point", *one.keys, "ber", *(f"{one.measure}{end}" for end in ("", "_low", "_high"))]
        if not any(
            other == one and tables[name][columns].equals(tables[figure][columns]) for name, other in drawn.items()
        ):
            drawn[figure] = one
    return drawn


def _draw(figure: str, table: pd.DataFrame, curves: Curves, sweep: Sweep, folder: Path) -> None:
    """Draws a panel for each group of rows, in it a line for all points that differ in their seed alone."""
    lines = [name for name in sweep.varied if name != SEED]
    drawn, words = table[table["ber"] > 0], _words(folder, figure, table)
    if lines:
        drawn = drawn.merge(drawn[lines].drop_duplicates()[:SHOWN])
    some = f", the first {SHOWN}" if table[lines].drop_duplicates().shape[0] > SHOWN else ""
    label, by = MEASURES[curves.measure], ", ".join(lines)
    averages = means_by(drawn, curves.measure, "ber", lines, curves.keys)
    title = f"{figure}: {label} against the bit error rate{by and f', by {by}'}{some}"
    details = f"{table['point'].iloc[0]}: {words['details']}" if words["details"] else ""
    options = {"details": details, "timed": words["timed"], "appendix": words["appendix"], "folder": folder / "figures"}
    ax = draw_result(averages, label, "bit error rate (flips per stored bit)")
    save(ax, figure, averages.table, _caption(averages, words), title=title, **options)


def _pictures(figure: str, table: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """The pictures of a figure without curves, each once with the points that have it."""
    entries: dict[str, dict[str, Any]] = {}
    for point in table["point"].unique():
        figures = folder / point / "figures"
        picture = file_digest(figures / f"{figure}.svg")
        if picture not in entries:
            entries[picture] = figure_entries(figures, [figure])[0] | {"folder": f"{point}/figures", "points": []}
        entries[picture]["points"].append(point)
    return {"caption": _words(folder, figure, table)["caption"], "entries": list(entries.values())}


def _point(environment: jinja2.Environment, sweep: Sweep, folder: Path, point: str, outcome: Outcome) -> dict[str, Any]:
    """The template's variables for a point; writes the page of its executed notebook."""
    path, page = folder / point / outcome.output, None
    if path.is_file():
        page = f"{point}.html"
        body = executed.body(nbformat.read(path, as_version=4))
        with new_file(folder / page) as part:
            part.write_text(environment.get_template("notebook.html.j2").render(title=point, body=body))
    values = {name: _text(value) for name, value in sweep.points[point].items()}
    about = {"name": point, "values": values, "ok": outcome.ok, "error": outcome.error, "seconds": outcome.seconds}
    return about | {"page": page}


def _row(point: Mapping[str, Any]) -> dict[str, Any]:
    """A row of points.csv."""
    minutes = {"minutes": point["seconds"] / 60, "error": point["error"]}
    return {"point": point["name"]} | point["values"] | {"status": "done" if point["ok"] else "failed"} | minutes
