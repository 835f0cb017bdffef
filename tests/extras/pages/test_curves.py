import json

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from drsrobust_extras.pages import plots
from drsrobust_extras.pages.plots.losses import BOUND, WIDE, bound_handles, draw_losses, loss_axis, loss_floor
from drsrobust_extras.pages.plots.style import OPEN_MARK
from tests.refusals import refuses


def summary(error_models, targets=("all",), models=("dlrm",)):
    rows = []
    for model in models:
        for target in targets:
            for index, (error_model, rate) in enumerate(error_models):
                auc = 0.8 - 0.1 * index
                row = {"model": model, "dataset": "d", "target": target, "error_model": error_model, "ber": rate}
                row["rate"] = rate if error_model.startswith("BitFlip") else None
                row |= {"error_kind": error_model.partition("(")[0], "interval": "t", "confidence": 0.95}
                row["error_bit"] = float(error_model[14:-1].lstrip("=")) if row["error_kind"] == "SingleBit" else None
                row |= {"n": 5, "auc": auc, "auc_low": auc - 0.02, "auc_high": auc + 0.01, "auc_q10": auc - 0.05}
                row |= {"auc_q90": auc + 0.05, "auc_golden": 0.8, "share_nonfinite": 0.0, "auc_drop": 0.8 - auc}
                row |= {"realised": rate, "realised_low": rate, "realised_high": rate}
                row |= {"auc_drop_low": 0.79 - auc, "auc_drop_high": 0.82 - auc, "few_harmful": auc == 0.8}
                row |= {"trials_harmed": 0.4, "trials_harmed_low": 0.1, "trials_harmed_high": 0.7}
                rows.append(row)
    return pd.DataFrame(rows)


RATES = [("BitFlip", 1e-3), ("BitFlip", 1e-5)]
BITS = [("SingleBit(bit=31)", 1e-6), ("SingleBit(bit=2)", 1e-6)]


def test_ber_data_picks_and_sorts():
    data = plots.auc_vs_ber_data(summary([*RATES, *BITS], targets=("mlp", "all")))
    assert data[["target", "ber"]].to_numpy().tolist() == [["all", 1e-5], ["all", 1e-3], ["mlp", 1e-5], ["mlp", 1e-3]]


def test_ber_figure_shows_the_numbers():
    data = plots.auc_vs_ber_data(summary(RATES, targets=("all", "mlp")))
    settings, given = dict(mpl.rcParams), plots.new_panels()[0]
    ax = plots.auc_vs_ber(data, given)
    assert ax is given and dict(mpl.rcParams) == settings
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["all", "mlp", "10-90 % of trials", WIDE]
    curve = ax.containers[0]
    assert curve.lines[0].get_ydata().tolist() == pytest.approx([0.7, 0.8])
    bar = curve.lines[2][0].get_segments()[0]
    assert bar[:, 1].tolist() == pytest.approx([0.68, 0.71])
    assert ax.get_xscale() == "log" and ax.get_title(loc="left") == "dlrm on d"


def test_error_models_are_not_joined_in_one_curve():
    other = [("BitFlip(bits=[30])", 1e-3), ("BitFlip(bits=[30])", 1e-5)]
    data = plots.auc_vs_ber_data(summary([*RATES, *other]))
    labels = [text.get_text() for text in plots.auc_vs_ber(data).get_legend().get_texts()]
    assert labels[:2] == ["BitFlip, all", "BitFlip(bits=[30]), all"]


def test_auc_vs_ber_takes_a_summary_and_refuses_trials():
    frame = summary([*RATES, *BITS], targets=("all", "mlp"))
    one, other = plots.auc_vs_ber(frame), plots.auc_vs_ber(plots.auc_vs_ber_data(frame))
    assert [line.get_xydata().tolist() for line in one.lines] == [line.get_xydata().tolist() for line in other.lines]
    trials = frame.drop(columns=[name for name in frame if name.startswith(("realised", "auc_q", "auc_l", "auc_h"))])
    refuses(lambda: plots.auc_vs_ber(trials), ValueError, "has no column ", "dr.summarise")
    few = trials[["error_kind", "error_bit", "auc"]]
    refuses(lambda: plots.auc_vs_ber_data(few), ValueError, "has no column ", "dr.summarise")


def test_files_are_equal_from_run_to_run(tmp_path, monkeypatch):
    data = plots.auc_vs_ber_data(summary(RATES, targets=("all", "mlp")))
    contents = []
    for run in ("one", "two"):
        monkeypatch.setenv("DRSROBUST_FIGURES", str(tmp_path / run))
        np.random.seed(len(run))
        plots.save(plots.auc_vs_ber(data), "figure", data, "AUC against rate.", details="Data: d, 5 rows.")
        contents.append({p.name: p.read_bytes() for p in (tmp_path / run).rglob("*") if p.is_file()})
    assert contents[0] == contents[1] and set(contents[0]) == {f"figure.{end}" for end in ("svg", "png", "csv", "json")}
    assert b"AUC against rate" in contents[0]["figure.svg"] and b"5 rows" not in contents[0]["figure.svg"]


def test_the_csv_is_plain_and_the_words_are_in_a_json(tmp_path, monkeypatch):
    monkeypatch.setenv("DRSROBUST_FIGURES", str(tmp_path))
    data = plots.auc_vs_ber_data(summary(RATES))
    ax = plots.auc_vs_ber(data)
    plots.save(ax, "figure", data, "AUC < rate.", details="Data: d.", timed=True)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "data" / "figure.csv"), data, check_dtype=False)
    words = plots.read_words(tmp_path, "figure")
    assert words["title"] == "AUC < rate."
    assert words["alt"].startswith("AUC < rate. DLRM on d: AUC")
    assert [words[name] for name in ("caption", "details", "timed")] == ["AUC < rate.", "Data: d.", True]
    assert "<title>AUC &lt; rate.</title>" in (tmp_path / "figure.svg").read_text()
    plots.save(ax, "figure", data, "c", title="My own.")
    assert plots.read_words(tmp_path, "figure")["title"] == "My own."
    plots.save_table(data, "table", "c", details="d")
    assert json.loads((tmp_path / "table.json").read_text()) == {"caption": "c", "details": "d", "timed": False}


def test_a_notebook_shows_the_picture_with_its_words(tmp_path, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    monkeypatch.setenv("DRSROBUST_FIGURES", str(tmp_path))
    data = plots.auc_vs_ber_data(summary(RATES))
    shell = InteractiveShell.instance()
    shell.kernel = None  # as a kernel's shell has
    try:
        with capture_output() as shown:
            plots.save(plots.auc_vs_ber(data), "figure", data, "AUC < rate.", details="Data: d.")
    finally:
        InteractiveShell.clear_instance()
    picture, words = shown.outputs
    assert picture.data["image/png"] and picture.metadata["image/png"]["alt"].startswith("AUC < rate. DLRM on d")
    assert words.data["text/html"] == "<p>AUC &lt; rate. <small>Data: d.</small></p>" and not plt.get_fignums()


def test_where_figures_go(tmp_path, monkeypatch):
    monkeypatch.delenv("DRSROBUST_FIGURES", raising=False)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert plots.figures_folder() == tmp_path / "build" / "lab" / "figures"


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
    """Of three rates without and with a protection."""
    rows = {"mitigation": ["none"] * 3 + ["range"] * 3, "auc_drop": [1e-4, 0.1, 0.3, 0, 0, 1e-3], "protocol": ""}
    rows |= {"share_raised": 0}
    rows |= {"auc_drop_low": [-0.1, 0.05, 0.2, -0.1, -0.1, 5e-4], "auc_drop_high": [0.05, 0.2, 0.31, 0.05, 0.05, 2e-3]}
    data = summary([("BitFlip", rate) for rate in (1e-5, 1e-4, 1e-3)] * 2).assign(**rows | columns, auc_q90=0.8)
    for auc, drop in {"auc": "", "auc_low": "_high", "auc_q10": "_high", "auc_high": "_low"}.items():
        data[auc] = 0.8 - data[f"auc_drop{drop}"]
    return data.drop(columns=["few_harmful", *[name for name in data if name.startswith("trials_harmed")]])


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
