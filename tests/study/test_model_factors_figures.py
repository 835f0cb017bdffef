import itertools

import matplotlib as mpl
import pandas as pd
import pytest

from drsrobust import plots
from drsrobust_study import figures

mpl.use("Agg")
MIDDLE = {"width": 128, "depth": 1, "embedding_dim": 64, "density": 0.01}
CELLS = [
    MIDDLE,
    MIDDLE | {"width": 64},
    MIDDLE | {"width": 256},
    MIDDLE | {"depth": 2},
    MIDDLE | {"depth": 2, "width": 64},
]


def ends(name, value):
    return {name: value, f"{name}_low": value / 2, f"{name}_high": min(1.5 * value, 1.0)}


@pytest.fixture
def summary():
    rows = []
    for protocol, cell, target, ber in itertools.product(
        ("corrected", "as_released"), CELLS, ("all", "mlp", "embedding"), (1e-7, 1e-6)
    ):
        share = cell["width"] * cell["depth"] * ber * 1000 / (1 + (target != "all"))
        row = {"protocol": protocol, **cell, "target": target, "ber": ber, "n": 40, "n_inputs": 500}
        rows.append(row | ends("deviated_0.01", share) | ends("deviated_0.1", share / 2) | ends("spearman", 1 - share))
    return pd.DataFrame(rows)


@pytest.fixture
def shares():
    rows = [
        {"protocol": protocol, **cell, "n": 40, "bits_share": 0.05} | ends("share", cell["width"] / 300)
        for protocol, cell in itertools.product(("corrected", "as_released"), CELLS)
    ]
    return pd.DataFrame(rows)


def test_the_middle_cell_stands_once_for_each_factor_that_varies(summary):
    data = figures.model_factors_data(summary, MIDDLE)
    assert data["factor"].drop_duplicates().tolist() == ["width", "depth"]  # the others have one level
    first = data[(data["protocol"] == "corrected") & (data["target"] == "all") & (data["ber"] == 1e-6)]
    assert first[["factor", "level"]].to_numpy().tolist() == [
        ["width", 64], ["width", 128], ["width", 256], ["depth", 1], ["depth", 2],
    ]  # fmt: skip
    assert first["deviated_0.01"].tolist() == pytest.approx([0.064, 0.128, 0.256, 0.128, 0.256])
    assert data["protocol"].drop_duplicates().tolist() == ["corrected", "as_released"]


def drawn(ax):
    return {round(float(y), 9) for series in ax.containers for y in series.lines[0].get_ydata()}


def test_curves_over_rates(summary):
    data = figures.model_factors_data(summary, MIDDLE)
    axes = plots.new_panels(2, rows=2, scale=0.5)
    for ax, (protocol, factor) in zip(
        axes, itertools.product(("corrected", "as_released"), ("width", "depth")), strict=True
    ):
        figures.model_factors(data, ax, factor=factor, protocol=protocol)
    here = data[(data["factor"] == "width") & (data["protocol"] == "corrected") & (data["target"] == "all")]
    assert drawn(axes[0]) == {round(value, 9) for value in here["deviated_0.01"]}
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["64", "128", "256"]
    assert axes[0].get_xscale() == axes[0].get_yscale() == "log" and axes[2].get_legend() is None
    assert axes[0].get_title("left") == "MLP width" and axes[2].get_title("left") == ""
    assert axes[2].get_ylabel().startswith("as in the published scripts") and axes[3].get_ylabel() == ""


def test_a_share_of_zero_is_an_arrow_at_the_intervals_end(summary):
    columns = ["deviated_0.01", "deviated_0.01_low"]
    summary.loc[summary["ber"] == 1e-7, columns] = 0.0
    ax = figures.model_factors(figures.model_factors_data(summary, MIDDLE), factor="depth")
    arrows = [line for line in ax.lines if line.get_marker() == "v" and line.get_linestyle() == "None"]
    assert sorted(float(y) for line in arrows for y in line.get_ydata()) == pytest.approx([0.0192, 0.0384])


def test_other_metrics(summary):
    data = figures.model_factors_data(summary, MIDDLE)
    ax = figures.model_factors(data, factor="width", value="spearman", target="mlp")
    assert ax.get_yscale() == "linear" and ax.get_ylabel() == "fresh errors in each trial\nrank correlation"
    assert "> 10 %" in figures.model_factors(data, factor="width", value="deviated_0.1").get_ylabel()


def test_levels_by_target(summary):
    data = figures.model_factors_data(summary, MIDDLE)
    axes = plots.new_panels(2)
    for ax, factor in zip(axes, ("width", "depth"), strict=True):
        figures.model_factor_levels(data, ax, factor=factor, ber=1e-6)
    assert drawn(axes[0]) == {3.2, 6.4, 12.8, 25.6}  # of 64, 128, 256 by errors in all, and half of that in each part
    assert [tick.get_text() for tick in axes[1].get_xticklabels()] == ["1", "2"]
    assert len(axes[0].figure.legends[0].get_texts()) == 3


def test_contributions(shares):
    data = figures.component_contribution_data(shares, MIDDLE)
    axes = plots.new_panels(2)
    for ax, protocol in zip(axes, ("corrected", "as_released"), strict=True):
        figures.component_contribution(data, ax, protocol=protocol)
    here = data[data["protocol"] == "corrected"]
    bars = [patch.get_width() for patch in axes[0].patches]
    assert bars[: len(here)] == pytest.approx((100 * here["share"]).tolist())
    assert bars[len(here) :] == pytest.approx((100 - 100 * here["share"]).tolist())
    names = [text.get_text() for text in axes[0].get_yticklabels()]
    assert names == ["width 64", "width 128", "width 256", "depth 1", "depth 2"]
    assert len(axes[1].figure.legends[0].get_texts()) == 3


def test_what_is_refused(summary):
    with pytest.raises(ValueError, match=r"no column 'deviated_0.01_low'"):
        figures.model_factors_data(summary.drop(columns="deviated_0.01_low"), MIDDLE)
    with pytest.raises(
        ValueError, match="one level of each of width, depth, embedding_dim, density; one factor needs several"
    ):
        figures.model_factors_data(summary[(summary["width"] == 128) & (summary["depth"] == 1)], MIDDLE)
    with pytest.raises(ValueError, match="unknown factor 'widht'; did you mean 'width'"):
        figures.model_factors(figures.model_factors_data(summary, MIDDLE), factor="widht")
