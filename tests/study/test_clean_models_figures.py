import pandas as pd
import pytest

from drsrobust_extras.pages.plots.style import new_panels
from drsrobust_study.figures.clean_models import clean_auc, clean_auc_data


@pytest.fixture
def table():
    row = {"dataset": "d", "logloss": 0.5, "ne": 0.8, "parameters": 7, "seconds": 3.2, "auc_low": 0.6, "auc_high": 0.9}
    aucs = {"worse": (0.70, 0.79), "better": (0.78, 0.80)}
    return pd.DataFrame(
        [row | {"model": m, "train_seed": k, "auc": a} for m, values in aucs.items() for k, a in enumerate(values)]
    )


def test_the_best_mean_is_on_top(table):
    data = clean_auc_data(table)
    assert (
        data["model"].tolist() == ["better"] * 2 + ["worse"] * 2 and "seconds" not in data
    )  # times differ from run to run
    ax = clean_auc(data, published=0.75)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["better", "worse"]
    lines = [line.get_xydata().tolist() for line in ax.lines]
    assert lines[0] == [[0.78, 1], [0.80, 1]] and lines[1] == [[pytest.approx(0.79), 1]]
    assert lines[2] == [[0.70, 0], [0.79, 0]] and lines[4][0][0] == 0.75


def test_data_sets_are_drawn_on_one_scale(table):
    both = pd.concat([table, table.assign(dataset="narrow", auc=table["auc"] / 100)])
    axes = new_panels(2, sharey=False)
    for ax, name in zip(axes, ("d", "narrow"), strict=True):
        clean_auc(both, ax, dataset=name)
    spans = [high - low for low, high in (ax.get_xlim() for ax in axes)]
    assert spans[0] == pytest.approx(spans[1]) and spans[0] >= 0.1 and axes[1].get_title("left") == "narrow"
    clean_auc(table.iloc[:0])
