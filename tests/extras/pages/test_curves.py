import json

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from drsrobust_extras.pages import plots
from drsrobust_extras.pages.plots.losses import WIDE


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
    for refused, frame in (
        (plots.auc_vs_ber, trials),
        (plots.auc_vs_ber_data, trials[["error_kind", "error_bit", "auc"]]),
    ):
        with pytest.raises(ValueError, match=r"has no column .*dr.summarise"):
            refused(frame)


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
