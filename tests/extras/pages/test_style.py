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
from drsrobust_extras.pages.plots.style import COLOURS, apart, legend_outside, plain_number, series_styles, styled
from tests.refusals import refuses


def parts(names):
    return {(one["color"], one["marker"], str(one["linestyle"])) for one in series_styles(names).values()}


def test_models_look_alike_whatever_stands_beside_them_and_no_two_do():
    one, other = series_styles(["dlrm", "fm", "mine"]), series_styles(["wide_deep", "fm", "dlrm"])
    assert one["fm"] == other["fm"] and one["dlrm"] == other["dlrm"]
    assert series_styles(["embedding", "over_mlp"])["over_mlp"] == series_styles(["over_mlp"])["over_mlp"]
    names = ["fm", "dcn", "afm", "afn", "wide_deep", "deepfm", "dlrm", "dlrm_dcn", "mine", "yours"]
    assert len({style["color"] for style in series_styles(names).values()}) == len(names) == len(parts(names))
    many = [f"part {number}" for number in range(30)]
    assert len(parts(["all", "embedding", *many])) == 32


def test_the_components_of_each_of_our_models_have_colours_of_their_own():
    for entry in models.MODELS.values():
        declared = declared_components(getattr(import_module(entry.module), entry.attribute))
        names = sorted({"all", "mlp", *declared})
        assert len({style["color"] for style in series_styles(names).values()}) == len(names) > 3


def test_curves_of_one_rate_stay_near_it():
    for n in (1, 2, 8, 30):
        places = [apart(index, n) for index in range(n)]
        assert np.ptp(np.log10(places)) <= 0.16 + 1e-9 and np.mean(np.log10(places)) == pytest.approx(0)
        assert len(set(places)) == n


def test_a_name_at_the_right_end_stays_in_the_frame(ax):
    ax.set(xlim=(0, 1), ylim=(0, 1))
    plots.style.name_line(ax, 0.97, "published: under 10 %", axis="x")
    ax.figure.canvas.draw()
    text = next(one for one in ax.get_children() if isinstance(one, Annotation))
    box, frame = text.get_window_extent(), ax.get_window_extent()
    assert box.x1 <= frame.x1 and box.x0 >= frame.x0


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
    plots.style.shade_rates(ax)
    plots.style.label_lines(
        ax, {"a": (1e-2, 0.6), "b": (1e-2, 0.601), "c": (1e-2, 0.602), "d": (1e-2, 0.9)}, {"a": "#0072B2"}
    )
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
    assert readable(text) == "DLRM on MovieLens-1M (all features): over_mlp 1, embedding user, mlp_x, path/dlrm.csv"


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
    numbers = {"2.5e-5": 2.5e-5, "1e-10": 1e-10, "0": 0, "1": 1, "2e4": 20000, "-1e-4": -1e-4}
    assert [plain_number(one) for one in numbers.values()] == list(numbers)


def test_a_figure_that_cannot_be_read_is_refused(ax, tmp_path):
    ax.plot([0, 1], [0, 1])
    data = pd.DataFrame({"a": [1]})
    small = ax.text(0, 0, "tiny", size=7)

    def save():
        plots.save(ax, "figure", data, "c", folder=tmp_path)

    refuses(save, ValueError, "the text 'tiny' has 7 points; save takes 8 or more")
    small.remove()
    ax.figure.set_figwidth(7.5)
    refuses(save, ValueError, "the figure is 7.5 inches wide; save takes at most 7")
    assert not list(tmp_path.iterdir())
    ax.figure.set_figwidth(7)
    save()
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
