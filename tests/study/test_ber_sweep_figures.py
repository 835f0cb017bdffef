import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from drsrobust import plots
from drsrobust.plots import alt_text
from drsrobust_study import figures

mpl.use("Agg")


def summary():
    rows = []
    for dataset in ("one", "two"):
        for protocol, models in (("corrected", ["fm", "dlrm"]), ("as_released", ["fm"])):
            for model in models:
                for ber, auc in ((1e-5, 0.8), (1e-3, 0.6)):
                    row = {
                        "dataset": dataset,
                        "protocol": protocol,
                        "model": model,
                        "target": "all",
                        "rate": ber,
                        "ber": ber,
                        "n": 5,
                    }
                    row |= {
                        "error_model": "BitFlip",
                        "error_kind": "BitFlip",
                        "auc_golden": 0.8,
                        "auc": auc,
                        "auc_q10": auc,
                        "auc_q90": auc,
                    }
                    row |= {"auc_low": auc - 0.1, "auc_high": auc + 0.1, "share_nonfinite": 0.0, "share_raised": 0.0}
                    rows.append(row | {"auc_drop": 0.8 - auc, "auc_drop_low": 0.0, "auc_drop_high": 0.3})
    return pd.DataFrame(rows)


def found():
    rows = []
    for model, knee in (("fm", 1e-3), ("dlrm", 1e-5)):
        for loss, more in (("0.001", 1), ("0.01", 3), ("half", np.inf if model == "fm" else 30)):
            row = {"dataset": "one", "protocol": "corrected", "model": model, "target": "all", "loss": loss}
            rows.append(row | {"knee": knee * more, "knee_low": knee * min(more, 30) / 2, "knee_high": knee * more * 2})
    return pd.DataFrame(rows)


def test_curves_of_one_panel():
    data = figures.model_curves_data(summary())
    assert data["series"].tolist() == [0, 0, 1, 1, 0, 0] * 2
    axes = plots.new_panels(2, rows=2)
    cells = [(d, p) for p in ("corrected", "as_released") for d in ("one", "two")]
    for ax, (dataset, protocol) in zip(axes, cells, strict=True):
        figures.model_curves(data, ax, dataset=dataset, protocol=protocol)
    assert [len(ax.containers) for ax in axes] == [2, 2, 1, 1]
    assert axes[0].containers[1].lines[0].get_ydata().tolist() == [0.8, 0.6]
    assert [text.get_text() for text in axes[1].figure.legends[0].get_texts()] == ["fm", "dlrm"]
    assert "published scripts" in axes[2].get_title(loc="left")
    same = [ax.containers[0].lines[0].get_color() for ax in axes]
    assert len(set(same)) == 1  # fm looks alike everywhere
    assert "errors in all parameters: AUC against bit error rate" in alt_text.text(axes[0].figure)


def test_points_of_broken_scores_are_open():
    data = summary()
    data.loc[(data["model"] == "dlrm") & (data["ber"] == 1e-3), "share_nonfinite"] = 0.8
    ax = figures.model_curves(figures.model_curves_data(data), dataset="one", protocol="corrected")
    markers = [line for line in ax.lines if line.get_markerfacecolor() == "white"]
    assert [line.get_ydata().tolist() for line in markers] == [[], [0.6]]
    assert ax.get_legend().get_texts()[-1].get_text().startswith("open: most trials")
    assert "open:" not in alt_text.text(ax.figure)


def test_knees_the_latest_first_and_arrows():
    data = figures.ber_knees_data(found().iloc[::-1])
    assert list(dict.fromkeys(data["model"])) == ["fm", "dlrm"]
    ax = figures.ber_knees(figures.ber_knees_data(found()), dataset="one", highest=1e-2)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["fm", "dlrm"]
    arrows = [line for line in ax.lines if line.get_marker() == ">"]
    assert len(arrows) == 1 and arrows[0].get_xdata()[0] == 1e-2
    assert [text.get_text() for text in ax.get_legend().get_texts()][-1] == "lost: half of AUC - 0.5"


def test_nothing_to_draw(tmp_path, monkeypatch):
    monkeypatch.setenv("DRSROBUST_FIGURES", str(tmp_path))
    data = figures.model_curves_data(summary())
    plots.save(figures.model_curves(data.iloc[:0], dataset="one", protocol="corrected"), "a", data, "c")
    knees = figures.ber_knees_data(found())
    plots.save(figures.ber_knees(knees.iloc[:0], dataset="one", highest=1e-2), "b", knees, "c")
    assert (tmp_path / "a.svg").exists() and (tmp_path / "b.svg").exists()
    with pytest.raises(ValueError, match=r"no column 'auc_low'"):
        figures.model_curves_data(pd.DataFrame({"error_model": ["BitFlip"]}))


def test_knees_in_words():
    ax = figures.ber_knees(figures.ber_knees_data(found()), dataset="one", highest=1e-2)
    words = alt_text.text(ax.figure)
    ends = "from 1e-5 at DLRM (lost: 0.001 AUC, errors in all parameters) to 0.01 at FM"
    assert f"{ends} (lost: half of AUC - 0.5, errors in all parameters, not reached)" in words
    axes = plots.new_panels(2, sharey=False)
    for one in axes:
        figures.ber_knees(figures.ber_knees_data(found()), one, dataset="one", highest=1e-2)
    assert "one: Bit error rate at which" in alt_text.text(axes[0].figure)
    axes[0].set_title("criteo/ids", loc="left")
    assert "criteo/ids: Bit error rate at which" in alt_text.text(axes[0].figure)
