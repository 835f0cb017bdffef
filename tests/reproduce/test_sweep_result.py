"""Results of sweeps: what notebooks name, how rows become means and ends, and what is refused."""

import math

import pandas as pd
import pytest

from reproduce.notebooks import FIGURES, Notebook, all_notebooks
from reproduce.sweep_chart import draw_result
from reproduce.sweep_result import average, read_result
from tests.refusals import refuses

NOTEBOOKS = all_notebooks()
RATES = NOTEBOOKS["03_ber_sweep"]


def tables(**columns):
    """A figure `f` of points that vary in trials, model_name and seed."""
    return {"f": pd.DataFrame({"point": range(len(next(iter(columns.values())))), **columns})}


def result(text):
    return read_result(text, Notebook("f", FIGURES, "", {}))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_result_that_a_notebook_names_is_published(name):
    text = NOTEBOOKS[name].result
    assert text, f"notebooks/{name}.ipynb: name a result of its sweeps in the metadata, as drsrobust.result"
    found = read_result(text, NOTEBOOKS[name])
    path = FIGURES / "data" / f"{found.figure}.csv"
    if path.is_file():  # not of a notebook that is not published yet
        means = average(found, {found.figure: pd.read_csv(path).assign(point="all", trials=1)}, ["trials"])
        assert means.table[found.column].notna().any() and str(found) == text


def test_seeds_are_averaged_from_the_least_to_the_greatest():
    data = tables(trials=[4, 4, 8, 8], seed=[0, 1, 0, 1], auc=[0.7, 0.9, 0.5, math.nan], auc_low=0.0, auc_high=1.0)
    means = average(result("f:auc"), data, ["trials", "seed"])
    assert means.axis == "trials" and not means.lines and "2 values of seed" in means.over and "1 of 4" in means.over
    found = means.table[["trials", "auc", "auc_low", "auc_high", "of"]].round(9).to_numpy().tolist()
    assert found == [[4, 0.8, 0.7, 0.9, 2], [8, 0.5, 0.0, 1.0, 1]]
    alone = average(result("f:auc"), {"f": data["f"].query("trials == 4")}, ["seed"])
    assert alone.axis == "seed" and alone.table["auc_high"].tolist() == [1.0, 1.0] and "own table" in alone.over


def test_trainings_are_averaged_and_words_are_lines_or_panels():
    rows = [(p, t, d, m, s) for p, t in ((0, 4), (1, 8)) for d in "ab" for m in "xyz" for s in (100, 101)]
    table = pd.DataFrame(rows, columns=["point", "trials", "dataset", "model", "train_seed"]).assign(auc=range(24))
    data = {"f": table}
    means = average(result("f:auc,dataset=b"), data, ["trials"])
    assert (means.lines, means.panels) == (["model"], []) and means.table["auc"].iloc[0] == 6.5
    means = average(result("f:auc"), data, ["trials"])
    assert (means.lines, means.panels) == (["model"], ["dataset"]) and "2 trainings" in means.over
    means = average(result("f:auc"), {"f": table.assign(rows=table["trials"] % 3)}, ["trials", "rows"])
    assert (means.lines, means.panels) == (["model"], ["dataset"])  # rows follow from trials, as in a [zip]


@pytest.mark.parametrize(
    ("values", "scales", "ticks"),
    [
        ([1e-6, 1e-4, 1e-2], ("log", "log"), ["1e-6", "1e-4", "0.01"]),
        (["[1e-06]", "[2e-06]", "[3e-06]"], ("linear", "log"), ["1e-6", "2e-6", "3e-6"]),
        (["fm", "dlrm", "afm"], ("linear", "log"), ["fm", "dlrm", "afm"]),
    ],
)
def test_numbers_have_a_numeric_axis_and_words_are_side_by_side(values, scales, ticks):
    data = tables(bers=3 * values, model_name=[*"aaabbbbbb"], seed=[0] * 6 + [1] * 3, rate=[1e-3, 1e-1, 1, *[1e-2] * 6])
    ax = draw_result(average(result("f:rate"), data, ["bers", "model_name", "seed"]), "rate")
    assert (ax.get_xscale(), ax.get_yscale()) == scales
    assert [text.get_text() for text in ax.get_xticklabels()] == ticks
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]


REFUSED = [
    ("auc", "'auc'", "figure:column"),
    ("03_ber_sweep:", "'03_ber_sweep:'", "figure:column"),
    ("03_ber_swep:auc", "03_ber_swep", "'03_ber_sweep'"),
    ("04_component_vulnerability:auc_drop", "04_component_vulnerability"),
    ("03_ber_sweep:auk", "auk", "'auc'"),
    ("03_ber_sweep:auc,bar=1", "'bar'", "part"),
    ("03_ber_sweep:auc,ber=1,ber=2", "ber"),
]


@pytest.mark.parametrize(("text", "said"), [(text, said) for text, *said in REFUSED])
def test_what_is_no_result(text, said):
    refuses(lambda: read_result(text, RATES), ValueError, *said)


MISSING = [
    ("g:auc", "'g'"),
    ("f:auk", "'auk'"),
    ("f:auc,ber=7", "ber=7", 0.1),
    ("f:auc", "ber=0.2"),
    ("f:model", "model"),
]


@pytest.mark.parametrize(("text", "said"), [(text, said) for text, *said in MISSING])
def test_a_result_that_the_points_do_not_have(text, said):
    data = {"f": pd.DataFrame({"point": 0, "trials": 4, "model": "fm", "ber": [0.1, 0.2], "auc": [0.8, 0.7]})}
    refuses(lambda: average(result(text), data, ["trials"]), ValueError, *said)
