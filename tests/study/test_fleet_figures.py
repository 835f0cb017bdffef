"""The table of a fleet and its figure, of tables with no row, one and several."""

import pandas as pd
import pytest

from drsrobust_study.figures import fleet_day, fleet_day_data
from drsrobust_study.fleet_risk import fleet_risk_table, worded


def table(kind="faults", wrong=(5e4, 0.0), stops=(0.0, 0.08), nonfinite="wrong", width=2.0):
    rows = []
    for name, *values in zip(("none", "SECDED (72,64)"), wrong, stops, strict=False):
        row = {"kind": kind, "nonfinite": nonfinite, "mitigation": name, "faults_per_day": 146.0, "hits_per_day": 0.08}
        quantities = {"wrong_per_day": values[0], "nan_per_day": values[0] / 2, "auc_days_per_day": 0.1}
        quantities |= {"stops_per_day": values[1], "stops_anywhere_per_day": 900 * values[1]}
        for quantity, value in quantities.items():
            row |= {quantity: value, f"{quantity}_low": value / width, f"{quantity}_high": width * value + 0.001}
        rows.append(row | {"active": 0.45, "loss_once_a_year": 0.3, "loss_once_in_ten_years": 0.4})
    return pd.DataFrame(rows)


def joined(tables):
    return pd.concat([one.assign(rate=name) for name, one in tables.items()], ignore_index=True)


@pytest.fixture
def data():
    return joined({"1 Gb": table(), "16 Gb": table(wrong=(4e4, 10.0)), "events": table("events", (90.0, 0.0))})


def test_the_table_of_a_reader(data):
    shown = fleet_risk_table(data, 1e6)
    assert shown["protection"].tolist()[:2] == ["no protection", "SECDED (72,64)"] and len(shown) == len(data)
    assert shown.loc[0, ["wrong_per_day", "share_wrong", "share_wrong_low"]].tolist() == [5e4, 0.05, 0.025]
    words = worded(shown)
    assert words["hosts stopped a day"].tolist()[1] == "72 [36, 144]"
    assert words["wrong recommendations a day"].tolist()[1] == "up to 0.001"  # what no trial showed has its bound
    assert len(worded(shown.head(0))) == 0


def test_a_day_of_the_fleet():
    caught = table(wrong=(2.8e4, 0.0), nonfinite="caught")
    data = joined({"1 Gb": pd.concat([table(), caught]), "16 Gb": table(wrong=(4e4,))})
    day = fleet_day_data(data, "1 Gb")
    assert day["mitigation"].tolist() == ["none", "none", "SECDED (72,64)"] and day["nonfinite"].tolist()[1] == "caught"
    ax = fleet_day(day, quantity="wrong_per_day")
    assert [bar.get_width() for bar in ax.patches] == [5e4, 2.8e4, 0]
    assert [text.get_text() for text in ax.texts] == ["50,000", "28,000", "at most 0.001"]
    assert fleet_day(day, quantity="stops_anywhere_per_day").patches[2].get_width() == 72
    fleet_day(day.head(0), quantity="wrong_per_day")
