import matplotlib as mpl
import pandas as pd
import pytest

from drsrobust import plots
from drsrobust_study import figures

mpl.use("Agg")


def row(method, parameters, rate, cpu, undo=None, dtype="float32"):
    note = "" if cpu is not None else "not run: why"
    numbers = {"errors": 3, "cpu_ms": cpu, "undo_cpu_ms": undo, "peak_mib": None if cpu is None else 2.0, "note": note}
    return {"method": method, "parameters": parameters, "dtype": dtype, "rate": rate} | numbers


@pytest.fixture
def table():
    """Two models (100 errors: rates 1e-3 and 1e-4) and one of int8; a tool that ran nowhere."""
    rows = [row("ours", 3125, 1e-3, 1.0, 0.5), row("ours", 31250, 1e-4, 1.5, 0.5), row("ours", 31250, 1e-3, 3.0, 1.0)]
    rows += [row("ours", 125_000, 1e-4, 2.0, 1.0, dtype="int8"), row("ours", 31250, 1e-3 / 4, 9.0, 0.0)]
    rows += [row("dense", 3125, 1e-3, 80.0), row("dense", 31250, 1e-4, 800.0), row("dense", 31250, 1e-3, None)]
    rows += [
        row("dense", 125_000, 1e-4, None, dtype="int8"),
        row("tool", 3125, 1e-3, None),
        row("tool", 31250, 1e-3, None),
    ]
    return pd.DataFrame(rows)


def test_data_picks_and_sorts(table):
    data = figures.injection_speed_data(table, parameters=31250, counts=[100, 1000])
    rate = data[data["panel"] == "rate"]
    assert rate[["method", "rate"]].to_numpy().tolist() == [
        *(["ours", 1e-4], ["ours", 2.5e-4], ["ours", 1e-3], ["dense", 1e-4], ["dense", 1e-3]),
    ]
    assert rate["total_ms"].tolist()[:4] == [2.0, 9.0, 4.0, 800.0] and rate["total_ms"].isna().tolist()[4]
    size = data[data["panel"] == "size"]
    assert size[["method", "expected_errors", "parameters"]].to_numpy().tolist() == [
        *(["ours", 100, 3125], ["ours", 100, 31250], ["ours", 100, 125_000], ["ours", 1000, 31250]),
        *(["dense", 100, 3125], ["dense", 100, 31250], ["dense", 100, 125_000], ["dense", 1000, 31250]),
    ]
    assert "tool" not in set(data["method"])


def test_figure_shows_the_numbers(table):
    data = figures.injection_speed_data(table, parameters=31250, counts=[100, 1000])
    ax = figures.injection_speed(data)
    ours, dense = ax.lines
    assert ours.get_xdata().tolist() == [1e-4, 2.5e-4, 1e-3] and ours.get_ydata().tolist() == [2.0, 9.0, 4.0]
    assert dense.get_ydata().tolist() == [800.0]  # the curve ends where it was not run
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ours", "dense"]
    assert ax.get_xscale() == ax.get_yscale() == "log" and ax.get_title(loc="left") == "31,250 float32 parameters"


def test_sizes_and_memory(table):
    data = figures.injection_speed_data(table, parameters=31250, counts=[100, 1000])
    ax = figures.injection_speed(data, panel="size", quantity="peak_mib")
    assert [line.get_xdata().tolist() for line in ax.lines[:2]] == [
        [3125, 31250],
        [125_000],
    ]  # of two types: not joined
    assert set(ax.lines[0].get_ydata()) == {2.0}
    assert ax.lines[0].get_markerfacecolor() != "white" and ax.lines[2].get_markerfacecolor() == "white"
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["ours", "dense", "100 errors", "1,000 errors", "int8 parameters"]
    assert ax.get_yscale() == "symlog" and "MiB" in ax.get_ylabel()


@pytest.mark.long
@pytest.mark.parametrize("panel", ["rate", "size"])
@pytest.mark.parametrize("quantity", ["total_ms", "peak_mib"])
def test_nothing_and_one_row(table, panel, quantity, tmp_path, monkeypatch):
    monkeypatch.setenv("DRSROBUST_FIGURES", str(tmp_path))
    data = figures.injection_speed_data(table.iloc[:1], parameters=3125, counts=[100])
    for rows in (data, data.iloc[:0], data[data["panel"] != panel]):
        plots.save(figures.injection_speed(rows, panel=panel, quantity=quantity), "figure", rows, "caption")
        assert (tmp_path / "figure.svg").stat().st_size > 5000
