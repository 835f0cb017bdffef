import pandas as pd
import pytest

from drsrobust_study import figures


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
    rows += [row("dense", 125_000, 1e-4, None, dtype="int8"), row("tool", 3125, 1e-3, None)]
    rows += [row("tool", 31250, 1e-3, None)]
    return pd.DataFrame(rows)


def test_data_picks_and_sorts(table):
    data = figures.injection_speed_data(table, parameters=31250)
    rate = data[data["panel"] == "rate"]
    assert rate[["method", "rate"]].to_numpy().tolist() == [
        *(["ours", 1e-4], ["ours", 2.5e-4], ["ours", 1e-3], ["dense", 1e-4], ["dense", 1e-3])
    ]
    assert rate["total_ms"].tolist()[:4] == [2.0, 9.0, 4.0, 800.0] and rate["total_ms"].isna().tolist()[4]
    others = data[data["panel"] == "none"]
    assert others[["method", "parameters"]].to_numpy().tolist() == [
        *(["ours", 3125], ["ours", 125_000], ["dense", 3125], ["dense", 125_000])
    ]
    assert "tool" not in set(data["method"])


def test_figure_shows_the_numbers(table):
    ax = figures.injection_speed(figures.injection_speed_data(table, parameters=31250))
    ours, dense = ax.lines
    assert ours.get_xdata().tolist() == [1e-4, 2.5e-4, 1e-3] and ours.get_ydata().tolist() == [2.0, 9.0, 4.0]
    assert dense.get_ydata().tolist() == [800.0]  # the curve ends where it was not run
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ours", "dense"]
    assert ax.get_xscale() == ax.get_yscale() == "log" and ax.get_title(loc="left") == "31,250 float32 parameters"
    empty = figures.injection_speed_data(table.iloc[:0], parameters=31250)
    assert not figures.injection_speed(empty).lines


def test_published_tools():
    shared = {"parameters": 19_000_000, "rate": 1e-3}
    calls = [("PyTEI", 20.0), ("PyTEI", 22.0), ("PyTEI", 30.0), ("other", 44.0), ("absent", None)]
    table = pd.DataFrame(
        {"tool": tool, "cpu_s": time, "note": "" if time else "not run: why"} | shared for tool, time in calls
    )
    ax = figures.peer_speed(table)
    study, other, limit = ax.lines
    assert study.get_xdata().tolist() == [20.0, 22.0, 30.0] and other.get_xdata().tolist() == [44.0]
    assert set(limit.get_xdata()) == {2200.0}  # a hundred times the median
    expected = ["22 s", "44 s, 2 times PyTEI", "not run", "100 times PyTEI, as published "]
    assert [text.get_text() for text in ax.texts] == expected
    assert [label.get_text() for label in ax.get_yticklabels()] == ["PyTEI", "other", "absent"]
