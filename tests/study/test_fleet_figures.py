"""What the figures of a fleet draw of tables with no row, one and several."""

import matplotlib as mpl
import pandas as pd
import pytest

from drsrobust import plots
from drsrobust_study import messages
from drsrobust_study.figures import fleet_risk, fleet_risk_data, fleet_tail

mpl.use("Agg")


def table(kind="faults", wrong=(5e4, 0.0), stops=(0.0, 0.08), nonfinite="wrong", width=2.0):
    rows = []
    for name, *values in zip(("none", "SECDED (72,64)"), wrong, stops, strict=False):
        row = {"kind": kind, "nonfinite": nonfinite, "mitigation": name, "faults_per_day": 146.0, "hits_per_day": 0.08}
        for quantity, value in {
            "wrong_per_day": values[0],
            "nan_per_day": values[0] / 2,
            "auc_days_per_day": 0.1,
            "stops_per_day": values[1],
            "stops_anywhere_per_day": 900 * values[1],
        }.items():
            row |= {quantity: value, f"{quantity}_low": value / width, f"{quantity}_high": width * value + 0.001}
        rows.append(row | {"active": 0.45, "loss_once_a_year": 0.3, "loss_once_in_ten_years": 0.4})
    return pd.DataFrame(rows)


@pytest.fixture
def data():
    return fleet_risk_data({"1 Gb": table(), "16 Gb": table(wrong=(4e4, 10.0)), "events": table("events", (90.0, 0.0))})


def points(ax):
    return [line.lines[0].get_xdata().tolist() for line in ax.containers]


def test_faults_and_events_have_panels_of_their_own(data):
    axes = plots.new_panels(3)
    fleet_risk(data, axes[0])
    fleet_risk(data, axes[1], quantity="stops_anywhere_per_day")
    fleet_risk(data, axes[2], kind="events")
    assert [points(ax) for ax in axes] == [[[5e4], [4e4, 10.0], []], [[72.0], [72.0], []], [[], [], [90.0]]]
    limits = [line.get_xdata().tolist() for line in axes[0].lines if line.get_marker() == "<" and len(line.get_xdata())]
    assert limits == [[0.001]]  # the upper end, where no trial had any
    assert "distinct" in axes[0].get_title("left") and "logged" in axes[2].get_title("left")
    labels = [text.get_text() for text in axes[2].figure.legends[0].get_texts()]
    assert labels == ["1 Gb", "16 Gb", "events", "none in these trials:\nupper end"]
    assert axes[0].get_xlim() == (1e-2, 1e6)  # six decades below the largest


def test_one_row_and_none(data):
    one = fleet_risk_data({"1 Gb": table(wrong=(5e4,))})
    assert points(fleet_risk(one)) == [[5e4]]
    assert points(fleet_risk(data.head(0))) == []
    assert points(fleet_risk(data.assign(wrong_per_day=0.0, wrong_per_day_high=0.0))) == [[], [], []]  # nothing fails


def test_a_curve_for_each_protection():
    tail = pd.DataFrame(
        {"mitigation": ["none"] * 2 + ["ECC"] * 2, "years": [0.1, 1.0] * 2, "loss": [0.1, 0.3, 0.0, 0.0]}
    )
    drawn = fleet_tail(tail)
    assert [line.get_ydata().tolist() for line in drawn.lines] == [[0.1, 0.3], [0.0, 0.0]]
    assert drawn.lines[0].get_label() == "no protection"
    assert len(fleet_tail(tail.head(1)).lines) == 1 and len(fleet_tail(tail.head(0)).lines) == 0
    assert messages.fleet_tail(tail) == "Without protection a fault costs some host 0.15 AUC at least once in 365 days."
    assert messages.fleet_tail(tail[tail["mitigation"] == "ECC"]).startswith("AUC that a host loses")


def test_the_message(data):
    """What the first rate is; a number of a wide interval is given by its ends."""
    said = "Faults in the memory of 10 hosts (1 Gb) make 25,000 to 100,000 recommendations a day wrong"
    code = "; where SECDED (72,64) stops the host instead, 36 to 140 hosts stop a day and up to 0.001 stay wrong."
    assert messages.fleet_risk(data, 10) == said + code
    assert messages.fleet_risk(data[data["mitigation"] == "none"], 10) == f"{said}."
    assert messages.fleet_risk(data[data["mitigation"] != "none"], 10).endswith("(1 Gb): wrong recommendations a day.")


def test_every_rule_for_nan_is_in_the_table_and_the_message():
    """The first one is drawn."""
    rules = [table(wrong=(7.4e4,), width=1.1)]
    rules += [
        table(wrong=(5.5e4,), width=1.1, nonfinite="no click"),
        table(wrong=(2.8e4,), width=1.1, nonfinite="caught"),
    ]
    data = fleet_risk_data({"1 Gb": pd.concat(rules), "16 Gb": table(wrong=(4e4,))})
    assert data["nonfinite"].tolist() == ["wrong", "no click", "caught", "wrong"]
    assert {"nan_per_day_low", "stops_per_day_high", "stops_anywhere_per_day"} < set(data.columns)
    assert points(fleet_risk(data)) == [[7.4e4], [4e4]]
    many = "74,000 recommendations a day wrong (55,000 with NaN as no click, 28,000 with NaN caught)."
    assert messages.fleet_risk(data, 10_000) == f"Faults in the memory of 10,000 hosts (1 Gb) make {many}"
