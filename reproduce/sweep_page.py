"""The results of a sweep: one table of parameters and figures' rows, each figure over all points, and a page."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd

from drsrobust._files import new_file
from drsrobust._provenance import commit, machine, versions
from drsrobust_extras.pages.plots.curves import interval
from drsrobust_extras.pages.plots.save import read_words, save, write_csv
from drsrobust_extras.pages.plots.style import WIDTH, apart, legend_outside, new_panels, series_style, styled
from drsrobust_extras.pages.report import figure_entries, templates
from reproduce import executed
from reproduce.plan import duration
from reproduce.runner import Outcome
from reproduce.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What curves are drawn of, where a figure's CSV has it with its interval at several rates; the first that is there.
MEASURES = {"recovery": "share of the lost AUC regained", "auc": "AUC", "auc_drop": "loss of AUC", "pvf": "PVF"}
SHOWN, PANELS = 24, 12  # points in a figure, and panels of curves, at most


class Curves(NamedTuple):
    """How a table is drawn: a measure by bit error rate, a panel for each value of the columns `keys`."""

    measure: str
    keys: list[str]


def write_results(sweep: Sweep, folder: Path, outcomes: Mapping[str, Outcome]) -> Path:
    """Writes sweep.csv (a row for each row of a figure's CSV), points.csv (a row for each point), figures/, a page for each
    executed notebook, and index.html, whose path it returns.

    Args:
        sweep: the sweep.
        folder: of its results.
        outcomes: of all points, in their order.
    """
    tables = _tables(sweep, folder, outcomes)
    rows = [table.assign(figure=figure) for figure, table in tables.items()]
    first = ["point", *sweep.varied, "figure"]
    together = pd.concat(rows) if rows else pd.DataFrame(columns=first)
    write_csv(together[[*first, *(name for name in together if name not in first)]], folder / "sweep.csv", digits=None)
    curves = {figure: _curves(table) for figure, table in tables.items()}
    for figure, table in tables.items():
        _draw(figure, table, curves[figure], sweep, folder)
    environment = templates(Path(__file__).parent)
    numbers = _numbers(tables, curves)
    points = [_point(environment, sweep, folder, point, outcome) for point, outcome in outcomes.items()]
    write_csv(pd.DataFrame([_row(point) for point in points]), folder / "points.csv")
    drawn = figure_entries(folder / "figures", list(tables))
    page = environment.get_template("sweep.html.j2").render(
        title=f"Sweep of {sweep.notebook.name}",
        sweep=sweep,
        points=points,
        numbers=numbers,
        figures=[entry for entry in drawn if not entry["appendix"]],
        appendix=[entry for entry in drawn if entry["appendix"]],
        failed=[point for point in points if not point["ok"]],
        duration=duration,
        commit=commit(),
        machine=machine(),
        versions=versions(),
    )
    with new_file(folder / "index.html") as part:
        part.write_text(page)
    return folder / "index.html"


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
    words = table.select_dtypes(["object", "string"]).columns.difference(["point", "interval"], sort=False)
    keys = [name for name in words if table[name].nunique() > 1 and not _follows(table, name)]
    is_plain = not table.duplicated(["point", *keys, "ber"]).any()
    return Curves(measure, keys) if is_plain and len(_groups(table, keys)) <= PANELS else None


def _follows(table: pd.DataFrame, name: str) -> bool:
    """Whether a column has one value in each point: it is a parameter, or follows from one."""
    return bool(table.groupby("point")[name].nunique(dropna=False).max() == 1)


def _groups(table: pd.DataFrame, keys: list[str]) -> dict[str, pd.DataFrame]:
    """The rows of each panel by its title."""
    if not keys:
        return {"": table}
    groups = table.groupby(keys, sort=False, dropna=False)
    return {", ".join(str(value) for value in dict.fromkeys(key)): rows for key, rows in groups}


def _draw(figure: str, table: pd.DataFrame, curves: Curves | None, sweep: Sweep, folder: Path) -> None:
    points = list(table["point"].unique())
    shown, words = points[:SHOWN], _words(folder, figure, table)
    some = f"the first {SHOWN} of {len(points)} points" if len(points) > SHOWN else f"{len(points)} points"
    data = table[table["point"].isin(shown)]
    if curves:
        ax = _lines(data, curves)
        caption = f"{MEASURES[curves.measure]} against the bit error rate with its interval: a line for each of {some}."
    else:
        pictures = {point: folder / point / "figures" / f"{figure}.png" for point in shown}
        ax = _pictures(pictures)
        caption = f"The figure of each of {some}. {words['caption']}"
    title = f"{figure.replace('_', ' ')} over {', '.join(sweep.varied)}"
    details = f"{points[0]}: {words['details']}" if words["details"] else ""
    options = {"details": details, "timed": words["timed"], "appendix": words["appendix"], "folder": folder / "figures"}
    save(ax, figure, table, caption[:1].upper() + caption[1:], title=title, **options)
    if not curves:  # pictures have no series to describe: the runs' words do
        alt = " ".join(f"{point}: {_words(folder, figure, table, point)['title']}" for point in shown)
        words = read_words(folder / "figures", figure) | {"alt": alt}
        with new_file(folder / "figures" / "data" / f"{figure}.json") as part:
            part.write_text(json.dumps(words, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@styled
def _lines(table: pd.DataFrame, curves: Curves) -> "Axes":
    """A panel for each group of rows, in it a line for each point."""
    groups, points = _groups(table, curves.keys), list(table["point"].unique())
    across = min(2, len(groups))
    panels = new_panels(across, rows=-(-len(groups) // across))
    for ax in panels[len(groups) :]:
        ax.remove()
    for place, (ax, (title, rows)) in enumerate(zip(panels, groups.items(), strict=False)):
        for index, point in enumerate(points):
            line = rows[(rows["point"] == point) & (rows["ber"] > 0)].sort_values("ber")
            style = series_style(index) | {"label": point, "capsize": 2, "markersize": 4.5, "linewidth": 1.4}
            if len(line):
                shifted = line["ber"] * apart(index, len(points))
                ax.errorbar(shifted, line[curves.measure], yerr=interval(line, curves.measure), **style)
        ax.set(xscale="log", title=title)
        is_lowest = place + across >= len(groups)
        ax.tick_params(labelbottom=is_lowest)
        if is_lowest:
            ax.set_xlabel("bit error rate (flips per stored bit)")
        if place % across == 0:
            ax.set_ylabel(MEASURES[curves.measure])
    legend_outside(panels[across - 1])
    return panels[0]


@styled
def _pictures(pictures: Mapping[str, Path]) -> "Axes":
    """The figures of runs side by side."""
    across = min(2, len(pictures))
    images = {point: plt.imread(path) for point, path in pictures.items()}
    highest = max(image.shape[0] / image.shape[1] for image in images.values())
    down, width = -(-len(images) // across), WIDTH / across
    size = (width * across, (width * highest + 0.3) * down)
    figure, axes = plt.subplots(down, across, squeeze=False, layout="constrained", figsize=size)
    for ax in axes.flat:
        ax.axis("off")
    for ax, (point, image) in zip(axes.flat, images.items(), strict=False):
        ax.imshow(image, interpolation="antialiased")
        ax.set_title(point)
    return axes.flat[0]


def _numbers(tables: Mapping[str, pd.DataFrame], curves: Mapping[str, Curves | None]) -> dict[str, dict[str, Any]]:
    """Columns of the page: the first curves' measure at the highest rate, by panel; heading -> point -> (value, text)."""
    figure = next((figure for figure, drawn in curves.items() if drawn), None)
    if figure is None:
        return {}
    table, drawn = tables[figure], curves[figure]
    measure, highest, columns = drawn.measure, table["ber"].max(), {}
    for title, rows in list(_groups(table[table["ber"] == highest], drawn.keys).items()):
        ends = rows[[measure, f"{measure}_low", f"{measure}_high"]].to_numpy(float)
        cells = [(value, f"{value:.3f} [{low:.3f}, {high:.3f}]") for value, low, high in ends if np.isfinite(value)]
        head = f"{MEASURES[measure]} at {highest:g}{f': {title}' if title else ''}"
        columns[head] = dict(zip(rows["point"][rows[measure].notna()], cells, strict=True))
    return columns


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
