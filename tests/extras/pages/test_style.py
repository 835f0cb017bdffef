from importlib import import_module

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Annotation

from drsrobust import models
from drsrobust.introspection.tensors import declared_components
from drsrobust_extras.pages import plots
from drsrobust_extras.pages.plots.names import readable
from drsrobust_extras.pages.plots.style import (
    COLOURS,
    apart,
    auc_guides,
    label_lines,
    legend_outside,
    name_line,
    plain_number,
    series_styles,
    shade_rates,
    styled,
)

mpl.use("Agg")


@pytest.fixture
def ax():
    yield plots.new_panels()[0]
    plt.close("all")


def parts(names):
    return {(one["color"], one["marker"], str(one["linestyle"])) for one in series_styles(names).values()}


def test_models_look_alike_whatever_stands_beside_them():
    one, other = series_styles(["dlrm", "fm", "mine"]), series_styles(["wide_deep", "fm", "dlrm"])
    assert one["fm"] == other["fm"] and one["dlrm"] == other["dlrm"]
    assert series_styles(["embedding", "over_mlp"])["over_mlp"] == series_styles(["over_mlp"])["over_mlp"]


def test_no_two_look_alike():
    names = ["fm", "dcn", "afm", "afn", "wide_deep", "deepfm", "dlrm", "dlrm_dcn", "mine", "yours"]
    assert len({style["color"] for style in series_styles(names).values()}) == len(names) == len(parts(names))
    many = [f"part {number}" for number in range(30)]
    assert len(parts(["all", "embedding", *many])) == 32


def test_all_components_of_our_models_have_colours_of_their_own():
    built = [getattr(import_module(entry.module), entry.attribute) for entry in models.MODELS.values()]
    declared = [declared_components(one) for one in built]
    names = {"all", "mlp"}.union(*declared)
    assert len({style["color"] for style in series_styles(sorted(names)).values()}) == len(names) > 9


def test_curves_of_one_rate_stay_near_it():
    for n in (1, 2, 8, 30):
        places = [apart(index, n) for index in range(n)]
        assert np.ptp(np.log10(places)) <= 0.16 + 1e-9 and np.mean(np.log10(places)) == pytest.approx(0)
        assert len(set(places)) == n


@pytest.mark.parametrize("n", [2, 8, 20])
def test_points_of_many_models_stay_near_their_rate(n):
    ends = ["", "_low", "_high", "_q10", "_q90", "_golden", "_drop", "_drop_low", "_drop_high"]
    row = dict.fromkeys([*(f"auc{end}" for end in ends), "share_nonfinite", "share_raised"], 0.7)
    row |= {
        "dataset": "d",
        "protocol": "corrected",
        "target": "all",
        "error_model": "BitFlip",
        "error_kind": "BitFlip",
        "rate": 1e-5,
        "ber": 1e-5,
        "n": 5,
    }
    table = pd.DataFrame([row | {"model": f"m{number}", "realised": 1e-5} for number in range(n)])
    table = table.assign(realised_low=1e-5, realised_high=1e-5)
    ax = plots.auc_vs_ber(plots.auc_vs_ber_data(table))
    x = [container.lines[0].get_xdata()[0] for container in ax.containers]
    assert len(set(x)) == n and max(x) / min(x) <= 10**0.161
    plt.close("all")


def name(ax):
    ax.figure.canvas.draw()
    text = next(one for one in ax.get_children() if isinstance(one, Annotation))
    return text.get_window_extent(), ax.get_window_extent(), ax.transData.transform((0, text.xy[1]))[1]


@pytest.mark.parametrize(("top", "below"), [(1.0, False), (0.505, True), (0.52, True)])
def test_a_name_stays_in_the_frame(ax, top, below):
    ax.axhline(0.5)
    name_line(ax, 0.5, "claimed")
    ax.set_ylim(0, top)  # later than the name
    box, frame, line = name(ax)
    assert (box.y1 <= line) == below
    assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1


def test_a_name_does_not_lie_on_data_nor_leaves_the_frame_aside(ax):
    name_line(ax, 0.5, "claimed")
    ax.plot([0.8, 1.0], [0.52, 0.52])
    ax.set(xlim=(0, 1), ylim=(0, 1))
    box, _, line = name(ax)
    assert box.y1 <= line
    ax = plots.new_panels()[0]
    ax.set(xlim=(0, 1), ylim=(0, 1))
    name_line(ax, 0.97, "published: under 10 %", axis="x")
    box, frame, _ = name(ax)
    assert box.x1 <= frame.x1 and box.x0 >= frame.x0


def test_a_name_beside_curves_without_points(ax):
    ax.errorbar([1.0, 2.0], [np.nan, np.nan], yerr=[[np.nan] * 2] * 2)
    ax.plot([], [])
    ax.set_ylim(0, 1)
    name_line(ax, 0.5, "claimed")
    box, _, line = name(ax)
    assert box.y0 > line


def test_the_coin_toss_is_above_the_grid(ax):
    auc_guides(ax, [0.8])
    ax.figure.canvas.draw()
    dotted = next(line for line in ax.lines if list(line.get_ydata()) == [0.5, 0.5])
    assert dotted.get_zorder() > ax.yaxis.get_zorder()  # at which an axis draws its grid
    assert mpl.colors.to_rgb(dotted.get_color())[0] < 0.35


def test_the_first_figure_may_make_a_notebook_show_figures(ax):
    """matplotlib's notebook backend switches this on when it is loaded, while the first figure is drawn."""

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


def test_colours_stay_apart_in_deuteranopia():
    """CIE Lab distances of the first eight colours in full deuteranopia, as Machado, Oliveira and Fernandes (2009) simulate it:
    over 10, where an eye sees 2. The four models of the lead picture are 20 apart."""
    seen = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]])
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )

    def lab(colour):
        share = np.array(mpl.colors.to_rgb(colour))
        linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
        xyz = to_xyz @ np.clip(seen @ linear, 0, 1) / [0.95047, 1, 1.08883]
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    def closest(colours):
        return min(np.linalg.norm(lab(a) - lab(b)) for n, a in enumerate(colours) for b in colours[:n])

    assert closest(COLOURS[:8]) > 10
    assert closest([series_styles([name])[name]["color"] for name in ("fm", "dcn", "wide_deep", "dlrm")]) > 20


def test_names_at_the_ends_of_lines_do_not_overlap(ax):
    ax.set(xscale="log", xlim=(1e-9, 1e-2), ylim=(0.5, 0.8))
    shade_rates(ax)
    label_lines(ax, {"a": (1e-2, 0.6), "b": (1e-2, 0.601), "c": (1e-2, 0.602), "d": (1e-2, 0.9)}, {"a": "#0072B2"})
    ax.figure.canvas.draw()
    texts = {text.get_text(): text.get_window_extent() for text in ax.texts}
    assert {"a", "b", "c", "d", "memory in the field", "stress"} == set(texts) and ax.get_xlim() == (1e-9, 1e-2)
    frame = ax.get_window_extent()
    boxes = sorted((texts[name] for name in "abcd"), key=lambda box: box.y0)
    for below, above in zip(boxes, boxes[1:], strict=False):
        assert above.y0 >= below.y1 - 1 and below.x0 > frame.x1
    assert boxes[-1].y1 <= frame.y1 + boxes[-1].height


def test_a_reader_sees_names_not_ids():
    names = ["movielens-1m/ids", "criteo-sample/fields", "over_mlp", "dense_mlp", "wide_deep", "my_model"]
    shown = ["MovieLens-1M (ids only)", "Criteo sample", "top MLP", "bottom MLP", "Wide & Deep", "my model"]
    assert [plots.display_name(name) for name in names] == shown
    text = "dlrm on movielens-1m/full: over_mlp 1, embedding user, mlp_x, path/dlrm.csv"
    assert readable("linear layers of linear") == "linear layers of first-order weights"
    assert readable(text) == "DLRM on MovieLens-1M (all features): top MLP 1, table user, mlp_x, path/dlrm.csv"


def test_ticks_are_plain_numbers(ax):
    @styled
    def draw(ax):
        ax.plot([1e-9, 1e-2], [0.002, 0.7])
        ax.set(xscale="log", yscale="log", ylim=(1e-3, 1))
        return ax

    draw(ax)
    ax.figure.canvas.draw()
    shown = {text.get_text() for axis in (ax.xaxis, ax.yaxis) for text in axis.get_majorticklabels()}
    assert {"1e-9", "1e-5", "0.01", "0.1"} <= shown and not any("$" in text for text in shown)
    assert [plain_number(one) for one in (2.5e-5, 1e-10, 0, 1, 20000, -1e-4)] == [
        "2.5e-5",
        "1e-10",
        "0",
        "1",
        "2e4",
        "-1e-4",
    ]


@pytest.mark.parametrize(("n", "rows"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_panels_share_seven_inches(n, rows):
    axes = plots.new_panels(n, rows=rows)
    assert axes[0].figure.get_figwidth() == 7.0 and len(axes) == n * rows
    plt.close("all")


def test_a_figure_that_cannot_be_read_is_refused(ax, tmp_path):
    ax.plot([0, 1], [0, 1])
    data = pd.DataFrame({"a": [1]})
    small = ax.text(0, 0, "tiny", size=7)
    with pytest.raises(ValueError, match="the text 'tiny' has 7 points; save takes 8 or more"):
        plots.save(ax, "figure", data, "c", folder=tmp_path)
    small.remove()
    ax.figure.set_figwidth(7.5)
    with pytest.raises(ValueError, match=r"the figure is 7.5 inches wide; save takes at most 7"):
        plots.save(ax, "figure", data, "c", folder=tmp_path)
    assert not list(tmp_path.iterdir())
    ax.figure.set_figwidth(7)
    plots.save(ax, "figure", data, "c", folder=tmp_path)
    assert plt.imread(tmp_path / "figure.png").shape[1] == 7 * 240


def test_a_legend_stands_beside_one_panel_and_once_below_several(ax):
    ax.plot([0, 1], label="a")
    assert legend_outside(ax) is ax.get_legend()
    ax = plots.new_panels()[0]
    ax.plot([0, 1], label="a name that would squeeze the panel beside which it stands")
    assert legend_outside(ax) in ax.figure.legends
    axes = plots.new_panels(2, rows=2)
    for panel, labels in zip(axes, ("ab", "ab", "bc", "bc"), strict=True):
        for label in labels:
            panel.plot([0, 1], label=label)
        legend_outside(panel, title="errors in")
    (below,) = axes[0].figure.legends
    assert [text.get_text() for text in below.get_texts()] == ["a", "b", "c"]
    axes[0].figure.canvas.draw()
    lowest = min(panel.get_tightbbox().y0 for panel in axes)
    assert below.get_window_extent().y1 <= lowest + 1 and below.get_window_extent().x0 >= 0
    _, free = plt.subplots()  # without a layout that keeps room below
    free.plot([0, 1], label="a")
    assert legend_outside(free) is free.get_legend()
