import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from drsrobust import plots

mpl.use("Agg")
NAN = float("nan")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture
def table():
    rows = []
    for model, speed in (("small", 1.0), ("large", 10.0)):
        for rate, ms in ((NAN, 2.0), (1e-6, 4.0), (1e-4, 20.0)):
            rows.append(("drsrobust", model, "embedding", rate, ms * speed))
            rows.append(("drsrobust", model, "over.1.*", rate, 50.0 * speed))
            rows += [
                ("reload loop", model, target, rate, ms) for target, ms in (("embedding", 1000), ("over.1.*", 500))
            ]
        rows.append(("reload loop, one flip", model, "embedding", NAN, 400.0))
    return pd.DataFrame(rows, columns=["method", "model", "target", "rate", "ms_per_trial"])


@pytest.fixture
def growth():
    rows = [("rows", "all", 1e-6, n, 7, 1, n / 100, NAN) for n in (400, 100)]
    rows += [("rows", "embedding", NAN, n, 7, 1, 3.0, NAN) for n in (100, 400)]
    rows += [("workers", "all", 1e-6, 400, 7, n, NAN, 8.0 / n) for n in (1, 2)]
    columns = ["varied", "target", "rate", "rows", "parameters", "workers", "ms_per_trial", "wall_ms_per_trial"]
    return pd.DataFrame(rows, columns=columns)


def test_trials_data(table):
    data = plots.campaign_trials_data(table)
    assert data.columns.tolist() == ["model", "method", "target", "rate", "trials_per_s"]
    assert set(data["method"]) == {"drsrobust", "reload loop"} and data["trials_per_s"].iloc[0] == 500


def test_growth_data(growth):
    data = plots.campaign_growth_data(growth)
    assert data.to_numpy().tolist() == [
        ["rows", "all", "1e-06", 1.0, 1.0],
        ["rows", "all", "1e-06", 4.0, 4.0],
        ["rows", "embedding", "1 error", 1.0, 1.0],
        ["rows", "embedding", "1 error", 4.0, 1.0],
        ["workers", "all", "1e-06", 1.0, 1.0],
        ["workers", "all", "1e-06", 2.0, 0.5],
    ]


def test_trials_shows_the_numbers(table):
    data = plots.campaign_trials_data(table)
    ax = plots.campaign_trials(data, model="large")
    curves = [line.get_xydata().tolist() for line in ax.lines]
    assert curves[0] == [[1e-6, 25.0], [1e-4, 5.0]] and curves[1] == [[pytest.approx(1e-7), 50.0]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["embedding", "last layer"]
    assert ax.get_title(loc="left") == "large" and ax.get_xscale() == ax.get_yscale() == "log"
    band = ax.collections[0].get_paths()[0].vertices
    assert set(np.round(band[:, 1], 6)) == {1.0, 2.0} and ax.texts[0].get_text() == "reload loop, any target"
    ax.figure.canvas.draw()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1 error", "$10^{-6}$", "$10^{-4}$"]


def test_growth_shows_the_numbers(growth):
    ax = plots.campaign_growth(plots.campaign_growth_data(growth))
    proportion, everything, embedding, workers = (line.get_xydata().tolist() for line in ax.lines)
    assert proportion == [[1, 1], [4, 4]] == everything and embedding == [[1, 1], [4, 1]]
    assert workers == [[1, 1], [2, 0.5]]
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["rows", "processes", "all, 1e-06", "embedding, 1 error"]


def test_all_of_it(table, growth, tmp_path):
    before = dict(mpl.rcParams)
    first = plots.campaign_cost(table, growth)
    assert [ax.get_title(loc="left") for ax in first.figure.axes] == ["small", "large", "Growth: time of a trial"]
    assert len({ax.get_ylim() for ax in first.figure.axes[:2]}) == 1 and first is first.figure.axes[0]
    first.figure.savefig(tmp_path / "all.png")
    assert (tmp_path / "all.png").stat().st_size > 20_000
    assert len(plots.campaign_cost(table).figure.axes) == 2
    assert len(plots.campaign_cost(table, growth.iloc[:0]).figure.axes) == 2
    assert dict(mpl.rcParams) == before


def test_nothing_and_one_row(table, growth):
    for rows in (table.iloc[:1], table.iloc[1:2], table[table["rate"] == 1e-6]):
        plots.campaign_trials(plots.campaign_trials_data(rows)).figure.canvas.draw()
    for rows in (growth.iloc[:0], growth.iloc[:1]):
        plots.campaign_growth(plots.campaign_growth_data(rows)).figure.canvas.draw()
