import numpy as np
import pytest

from drsrobust_extras.pages import plots
from drsrobust_extras.pages.plots import alt_text


def curves(ax, **series):
    ax.set(xlabel="bit error rate (flips per stored bit)", ylabel="AUC", xscale="log")
    for shift, (name, values) in enumerate(series.items()):
        places = [10.0 ** (0.1 * shift + power) for power in range(-9, -9 + len(values))]
        ax.errorbar(places, values, yerr=0.01, label=name)
    return ax.figure


def test_the_text_has_the_ends_of_all_curves(ax):
    ax.axhline(0.9)  # a guide without a name is no series
    figure = curves(ax, all=[0.8, 0.79, 0.5], tables=[0.8, 0.8, float("nan")])
    expected = "AUC against bit error rate: from 0.5 at 1e-7 (all) to 0.8 at 1e-9 (all)."
    assert alt_text.text(figure) == expected


def test_rows_with_names(ax):
    ax.set_yticks([1, 0], ["one", "the\nother"])
    ax.set(xlabel="time (ms)", title="price")
    ax.errorbar([3.0, 5.0], [1.1, 0.1], xerr=1, linestyle="none", label="batch 64")
    ax.errorbar([3.0, 4.0], [0.9, -0.1], xerr=1, linestyle="none", label="batch 256")
    expected = "price: Time: from 3 at one (batch 64) to 5 at the other (batch 64)."
    assert alt_text.text(ax.figure) == expected


def test_columns_with_numbers_set_by_hand(ax):
    ax.set_xticks([0, 1, 2], ["64", "128", "512"])
    ax.set(xlabel="width", ylabel="share")
    ax.errorbar([0.1, 1.1, 2.1], [0.1, 0.5, 0.2], label="mlp")
    assert alt_text.text(ax.figure) == "Share against width: from 0.1 at 64 (mlp) to 0.5 at 128 (mlp)."


def test_a_map_of_colours(ax):
    values = np.array([[0.1, 0.3], [np.nan, 0.2], [np.nan, np.nan]])
    ax.figure.colorbar(ax.pcolormesh([0, 1, 2], [0, 1, 2, 3], values), ax=ax)
    ax.set(xlabel="bit position (31: sign)", title="loss")
    ax.set_yticks([0.5, 1.5, 2.5], ["fm", "dlrm", "blank"])
    assert alt_text.text(ax.figure) == "Loss against bit position: from 0.1 at 0.5 (FM) to 0.3 at 1.5 (FM)."


def test_marks_without_a_name_count(ax):
    ax.set_yticks([1, 0], ["one", "two"])
    ax.set(xlabel="AUC")
    ax.plot([0.7, 0.8], [1, 0], "o")
    ax.plot([0.9, 0.9], [0, 1], "--")  # a guide
    assert alt_text.text(ax.figure) == "AUC: from 0.7 at one to 0.8 at two."
    ax.figure.canvas.draw()
    assert [words for *_, words in alt_text.points(ax.figure)] == ["0.7 at one", "0.8 at two"]


def test_the_value_of_a_stacked_bar_is_its_length(ax):
    ax.set_yticks([1, 0], ["one", "two"])
    ax.set(xlabel="share")
    ax.barh([1, 0], [0.7, 0.6], label="MLPs")
    ax.barh([1, 0], [0.3, 0.4], left=[0.7, 0.6], label="tables")
    assert alt_text.text(ax.figure) == "Share: from 0.3 at one (tables) to 0.7 at one (MLPs)."


def test_nothing_and_one_value_are_said(ax):
    assert alt_text.text(ax.figure) == "Value: no data."
    assert alt_text.text(curves(ax, all=[0.2, 0.2])) == "AUC against bit error rate: 0.2 throughout."
    figure = curves(plots.new_panels()[0], all=[0.2])
    assert alt_text.text(figure, "A message.") == "A message. AUC against bit error rate: 0.2 at 1e-9 (all)."


@pytest.mark.parametrize("letters", [10, 20, 2000])
def test_no_text_is_longer_than_400_letters(letters):
    axes = plots.new_panels(4, rows=2)
    for ax in axes:
        curves(ax, **{f"{'word ' * (letters // 5)}{n}": [0.1, 0.2, 0.3] for n in range(11)})
        ax.set_title(f"dlrm on movielens-1m/full, {'name ' * (letters // 10)}")
    text = alt_text.text(axes[0].figure, "Half of it is lost. " * 30)
    assert 100 < len(text) <= 400 and text.startswith("Half of it is lost.")
    assert ("more panels." in text) == (letters < 1000)
