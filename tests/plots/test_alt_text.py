import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from drsrobust import plots
from drsrobust.plots import alt_text as description

mpl.use("Agg")


@pytest.fixture
def ax():
    yield plots.new_panels()[0]
    plt.close("all")


def curves(ax, **series):
    ax.set(xlabel="bit error rate (flips per stored bit)", ylabel="AUC", xscale="log")
    for shift, (name, values) in enumerate(series.items()):
        places = [10.0 ** (0.1 * shift + power) for power in range(-9, -9 + len(values))]
        ax.errorbar(places, values, yerr=0.01, label=name)
    return ax.figure


def test_the_widest_curve_is_the_title_and_all_are_told(ax):
    ax.axhline(0.9)  # a guide without a name is no series
    figure = curves(ax, all=[0.8, 0.79, 0.5], tables=[0.8, 0.8, float("nan")])
    assert description.title(figure) == "AUC falls from 0.8 to 0.5 (bit error rate 1e-9 to 1e-7; all)."
    told = "AUC against bit error rate. all: from 0.8 at 1e-9 to 0.5 at 1e-7; tables: 0.8 throughout."
    assert description.text(figure) == told


def test_a_curve_that_stays_and_one_with_a_peak(ax):
    assert description.title(curves(ax, all=[0.8, 0.8])) == "AUC stays at 0.8."
    figure = curves(plots.new_panels()[0], low=[0.1, 0.2, 0.1], high=[0.1, 0.7, 0.2])
    assert description.title(figure) == "AUC is highest at bit error rate 1e-8 (0.7; high)."
    assert "high: from 0.1 at 1e-9 to 0.2 at 1e-7, highest 0.7 at 1e-8" in description.text(figure)


def test_rows_with_names_and_units(ax):
    ax.set_yticks([1, 0], ["one", "the\nother"])
    ax.set(xlabel="time (ms)", title="price")
    ax.errorbar([3.0, 5.0], [1.1, 0.1], xerr=1, linestyle="none", label="batch 64")
    ax.errorbar([3.0, 4.0], [0.9, -0.1], xerr=1, linestyle="none", label="batch 256")
    assert description.title(ax.figure) == "Time is highest for the other (5 ms; batch 64)."
    told = "price: time. batch 64: from 3 at one to 5 at the other; batch 256: from 3 at one to 4 at the other."
    assert description.text(ax.figure) == told


def test_columns_with_names(ax):
    ax.set_xticks([0, 1], ["sign", "mantissa"])
    ax.set(ylabel="share")
    ax.errorbar([0, 1], [0.5, 0.1], label="mlp")
    assert description.title(ax.figure) == "Share is highest for sign (0.5)."


def test_columns_with_numbers_of_their_own(ax):
    ax.set_xticks([0, 1, 2], ["64", "128", "512"])
    ax.set(xlabel="width", ylabel="share")
    ax.errorbar([0.1, 1.1, 2.1], [0.1, 0.5, 0.2], label="mlp")
    assert description.text(ax.figure) == "Share against width. mlp: from 0.1 at 64 to 0.2 at 512, highest 0.5 at 128."


def test_bars_and_points_without_names(ax):
    ax.barh([1, 0], [2.0, 3.0], left=1.0)
    ax.set_yticks([1, 0], ["bits 30", "all bits"])
    ax.set(xlabel="rate", ylabel="protected")
    assert description.title(ax.figure) == "Rate is highest for all bits (4)."
    assert description.text(ax.figure) == "Rate. 2 points, from 3 at bits 30 to 4 at all bits."
    one, other = plots.new_panels(2)
    for ax in (one, other):
        ax.errorbar(1, 2, yerr=1)
        ax.errorbar(3, 1, yerr=1)
    one.set(xlabel="cost (%), measured", ylabel="gain")
    other.set(xlabel="size", title="right")
    assert description.title(one.figure) == "Gain against cost, measured."
    assert description.text(one.figure).endswith(" right: gain against size. 2 points, from 1 at 3 to 2 at 1.")


def test_many_series_are_cut_and_none_is_told(ax):
    assert description.title(ax.figure) == "Nothing was measured."
    assert description.text(ax.figure) == "Value. Nothing was measured."
    assert description.text(curves(ax, **{f"s{n}": [0.1, 0.2] for n in range(11)})).endswith("; and 3 more.")


def test_the_numbers_come_with_title_and_text(ax, tmp_path, monkeypatch):
    import pandas as pd

    monkeypatch.setenv("DRSROBUST_FIGURES", str(tmp_path))
    curves(ax, all=[0.8, 0.5])
    frame = pd.DataFrame({"auc": [0.8, 0.5]})
    plots.save(ax, "figure", frame, "Data: d.")
    lines = (tmp_path / "data" / "figure.csv").read_text().splitlines()
    assert lines[:3] == ["# Data: d.", f"# Title: {description.title(ax.figure)}", lines[2]]
    assert lines[2].startswith("# Shown: AUC against") and lines[3] == "auc"
    assert f"<title>{description.title(ax.figure)}</title>" in (tmp_path / "figure.svg").read_text()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "data" / "figure.csv", comment="#"), frame)
    plots.save(ax, "figure", frame, "Data: d.", title="My own.")
    assert "\n# Title: My own.\n" in (tmp_path / "data" / "figure.csv").read_text()


def test_the_first_figure_may_make_a_notebook_show_figures(ax):
    """matplotlib's notebook backend says so when it is loaded, which is while the first figure is drawn."""

    @plots.style.styled
    def first():
        mpl.interactive(True)

    before = mpl.is_interactive()
    try:
        mpl.interactive(False)
        first()
        assert mpl.is_interactive()
    finally:
        mpl.interactive(before)
