import numpy as np
import pandas as pd
import pytest

from drsrobust_extras.pages import plots
from drsrobust_extras.pages.plots.losses import BOUND, WIDE, bound_handles, draw_losses, loss_axis, loss_floor
from drsrobust_extras.pages.plots.style import OPEN_MARK


def losses(*rows):
    return pd.DataFrame(rows, columns=["auc_drop", "auc_drop_low", "auc_drop_high"], dtype=float)


def triangles(ax, marker="v"):
    return next(line.get_xydata().tolist() for line in ax.lines if line.get_marker() == marker)


def test_the_floor_is_under_all_that_is_drawn():
    assert loss_floor(losses((0.1, 0.05, 0.2), (0, -0.1, 0.004))) == pytest.approx(1e-3)
    assert loss_floor(losses((3e-10, 2e-10, 4e-10))) == loss_floor(losses()) == 1e-6  # not told from none
    assert loss_floor(losses((3e-10, 2e-10, 4e-10)), lowest=1e-12) == pytest.approx(1e-10)


def test_an_interval_that_holds_no_loss_is_a_bound(ax):
    data = losses((0.1, 0.05, 0.2), (1e-4, -0.01, 0.03), (-1e-3, -0.01, 0.02), (0, 0, 0), (np.nan, np.nan, np.nan))
    floor = loss_floor(data)
    assert floor == pytest.approx(1e-4)
    draw_losses(ax, data, [1, 2, 3, 4, 5], floor=floor, label="a", marker="o", color="#000000")
    loss_axis(ax, floor, 0.2)
    (bars,) = ax.containers
    assert bars.lines[0].get_xydata().tolist() == [[1, 0.1]]
    assert bars.lines[2][0].get_segments()[0][:, 1].tolist() == pytest.approx([0.05, 0.2])
    assert triangles(ax) == [[4, floor]]  # the upper ends of 2 and 3 are over ten times their means, or the floor
    assert [handle.get_label() for handle in bound_handles(data, floor=floor)] == [BOUND, WIDE]
    low, high = ax.get_ylim()
    (means,) = [line.get_xydata().tolist() for line in ax.lines if line.get_alpha() == OPEN_MARK["alpha"]]
    assert means == [[2, 1e-4]] and low < floor and 0.2 < high < 0.5 and ax.get_yscale() == "log"
    assert ax.get_ylabel() == "AUC lost"


def test_losses_of_rows_lie_on_the_other_axis(ax):
    data = losses((0.1, 0.05, 0.2), (5e-3, -0.01, 0.03))
    draw_losses(ax, data, [0, 1], floor=1e-4, vertical=False, marker="o")
    loss_axis(ax, 1e-4, 0.2, axis="x")
    assert ax.containers[0].lines[0].get_xydata().tolist() == [[0.1, 0]] and triangles(ax, "<") == [[0.03, 1]]
    assert ax.get_xscale() == "log" and ax.get_yscale() == "linear"
    loss_axis(ax, 1e-5, 0.01, axis="x")  # of a panel that shares it
    low, high = ax.get_xlim()
    assert low < 1e-5 and high > 0.2


def campaign(**columns):
    rows = {
        "ber": [1e-5, 1e-4, 1e-3] * 2,
        "mitigation": ["none"] * 3 + ["range"] * 3,
        "auc_drop": [1e-4, 0.1, 0.3, 0, 0, 1e-3],
    }
    rows |= {"auc_drop_low": [-0.1, 0.05, 0.2, -0.1, -0.1, 5e-4], "auc_drop_high": [0.05, 0.2, 0.31, 0.05, 0.05, 2e-3]}
    data = pd.DataFrame(rows | columns).assign(n=9, auc_golden=0.8, share_nonfinite=0, share_raised=0)
    data = data.assign(
        auc=0.8 - data["auc_drop"], auc_low=0.8 - data["auc_drop_high"], auc_high=0.8 - data["auc_drop_low"]
    )
    data = data.assign(auc_q10=data["auc_low"], auc_q90=0.8, model="dlrm", dataset="d", protocol="", target="all")
    return data.assign(error_model="BitFlip", rate=data["ber"], realised=0, realised_low=0, realised_high=0)


def test_mitigations_are_compared_by_what_is_lost():
    ax = plots.mitigated_auc(plots.mitigated_auc_data(campaign()))
    assert ax.get_ylabel() == "AUC lost" and ax.get_yscale() == "log"
    plain, protected = ax.containers
    assert plain.lines[0].get_ydata().tolist() == [0.1, 0.3] and protected.lines[0].get_ydata().tolist() == [1e-3]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["no protection", "range", "10-90 % of trials,\nno protection", WIDE]
    sure = campaign(auc_drop_low=[1e-2, 0.05, 0.2, 1e-2, 1e-2, 5e-4], auc_drop=[0.02, 0.1, 0.3, 0.02, 0.02, 1e-3])
    labels = plots.mitigated_auc(plots.mitigated_auc_data(sure)).get_legend().get_texts()
    assert WIDE not in [text.get_text() for text in labels]


def test_bars_of_auc_end_at_the_model_without_errors_and_at_a_coin_toss():
    ends = {"auc_drop_low": [-0.1, -0.1, 0.2, -0.1, -0.1, 5e-4], "auc_drop_high": [0.3, 0.2, 0.31, 0.05, 0.05, 2e-3]}
    ax = plots.auc_vs_ber(campaign(**ends).query("mitigation == 'none'"))
    first, *bars = ax.containers[0].lines[2][0].get_segments()
    assert np.ptp(first[:, 1]) == 0 and bars[1][:, 1].tolist() == pytest.approx([0.5, 0.6])  # an open mark has no bar
    (is_open,) = [line.get_ydata() for line in ax.lines if line.get_markerfacecolor() == "white"]
    assert is_open.tolist() == pytest.approx([0.7999])
    bars = np.concatenate(ax.containers[0].lines[2][0].get_segments())[:, 1]
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert bars.max() == pytest.approx(0.8) and band.max() == pytest.approx(0.8) and bars.min() < 0.6
    better = campaign(auc_drop=-0.1).query("mitigation == 'none'")  # errors can help an untrained model
    ax = plots.auc_vs_ber(better)
    assert np.concatenate(ax.containers[0].lines[2][0].get_segments())[:, 1].max() == pytest.approx(0.9)
