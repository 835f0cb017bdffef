import itertools

import pandas as pd
import pytest

from drsrobust_extras.pages import plots
from drsrobust_study import figures


def ends(value, name):
    return {name: value, f"{name}_low": value / 2, f"{name}_high": 2 * value}


def test_mlps_against_tables_by_training():
    rows = []
    for seed, part, loss in itertools.product((0, 1), ("mlp", "table", "cross"), (1e-4,)):
        loss *= {"mlp": 100, "table": 1, "cross": 0}[part] * (1 + seed)
        share = {"mlp": 0.7, "table": 0.2, "cross": 0.1}[part]
        row = {"model": "dcn", "dataset": "d", "part": part, "train_seed": seed, "bits": 9, "share": 0.5, "n": 60}
        rows.append(row | ends(loss, "auc_drop") | {"auc_drop_error": loss / 9, "loss_share": share})
    data = figures.part_losses_data(pd.DataFrame(rows))
    axes = plots.new_panels(2)
    figures.part_losses(data, axes[0])
    figures.part_losses(data, axes[1], quantity="loss_share")
    drawn = [line.get_xdata().tolist() for line in axes[0].lines]
    assert drawn == [pytest.approx(x) for x in ([1e-2, 2e-2], [1.5e-2], [1e-4, 2e-4], [1.5e-4])]
    assert [text.get_text() for text in axes[0].texts] == ["100 times"]
    assert [patch.get_width() for patch in axes[1].patches] == pytest.approx([0.7, 0.2, 0.1])
    assert [patch.get_x() for patch in axes[1].patches] == pytest.approx([0, 0.7, 0.9])
    figures.part_losses(data.iloc[:0])


def test_layers_per_error_and_in_total():
    rows = [("embedding", "embedding user", 900, 0.9, 1e-5), ("over_mlp", "over_mlp 1", 100, 0.1, 1e-3)]
    frame = pd.DataFrame(
        [
            {"model": "dlrm", "dataset": "d", "component": c, "layer": name, "bits": b, "share": s, "n": 300}
            | ends(v, "auc_drop")
            for c, name, b, s, v in rows
        ]
    )
    frame.loc[2] = frame.loc[0]
    frame.loc[2, ["layer", "auc_drop", "auc_drop_low", "auc_drop_high"]] = ["embedding zip", 0.0, -1e-5, 8e-6]
    data = figures.layer_loss_data(frame)
    assert data["layer"].tolist() == ["over_mlp 1", "embedding user", "embedding zip"]
    assert data["total"].tolist() == pytest.approx([1e-4, 9e-6, 0.0])
    axes = plots.new_panels(2)
    figures.layer_loss(data, axes[0])
    figures.layer_loss(data, axes[1], quantity="total")
    assert [t.get_text() for t in axes[0].get_yticklabels()][0] == "over_mlp 1  (10 %)"
    arrows = [line for line in axes[0].lines if line.get_marker() == "<" and len(line.get_xdata())]
    assert [line.get_xdata().tolist() for line in arrows] == [[8e-6]]  # what is not above 0 shows its upper end


def test_rows_read_often_and_seldom():
    rows = []
    for table, kind, k in itertools.product(("movie", "user"), ("hot 0.01", "cold 0.99"), (1, 100)):
        target = f"Rows({table}, {kind} of 0123abcd4567)"
        rows.append({"model": "dlrm", "dataset": "d", "error_model": f"FixedCount(k={k})", "target": target})
        rows[-1] |= {"error_kind": "FixedCount", "error_count": k, "target_table": table}
        rows[-1] |= {"target_rows": kind.split()[0], "target_share": float(kind.split()[1])}
        rows[-1] |= {"ber": k / 1e5, "n": 20} | ends(1e-5 * k, "auc_drop")
    rows.append(rows[0] | {"target": "embedding", "target_table": None})
    data = figures.row_loss_data(pd.DataFrame(rows))
    assert data["rows"].unique().tolist() == ["1 % most read", "99 % least read"] and len(data) == 8
    assert data["errors"].tolist() == [1, 100] * 4
    ax = figures.row_loss(data)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [f"{t}: {r}" for t in ("movie", "user") for r in ("1 % most read", "99 % least read")]
    assert ax.get_xscale() == ax.get_yscale() == "log"
    with pytest.raises(ValueError, match=r"no column 'auc_drop_low'"):
        figures.row_loss_data(pd.DataFrame(rows).drop(columns="auc_drop_low"))
