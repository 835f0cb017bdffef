import itertools

import numpy as np
import pandas as pd
import pytest
import torch

import drsrobust as dr
from drsrobust_extras.pages import plots
from drsrobust_study import as_released, figures, mitigations
from drsrobust_study.mitigations import Case, with_int8_tables

NAN = float("nan")
ABOUT = {"model": "wide_deep", "dataset": "d", "target": "all", "n": 9, "auc_golden": 0.8}


def ends(name, value, by=0.02):
    return {name: value, f"{name}_low": value - by, f"{name}_high": value + by}


def drawn(ax):
    """The heights of all points with error bars, by series."""
    return [line.lines[0].get_ydata().tolist() for line in ax.containers]


@pytest.fixture
def summary():
    rows = []
    names = {"corrected": ["none", "clip 6", "clip profiled"], "as_released": ["none", "clip as released 6"]}
    for protocol, ber in itertools.product(names, (0.0, 1e-4, 1e-2)):
        for number, name in enumerate(names[protocol]):
            row = ABOUT | {"protocol": protocol, "mitigation": name, "ber": ber, "share_nonfinite": 0.0}
            row |= ends("auc", 0.6 + number / 20 - ber) | ends("auc_drop", 0.2 - number / 20 + ber)
            rows.append(row | {"auc_q10": 0.5, "auc_q90": 0.7, "share_raised": 0.0})
    return pd.DataFrame(rows)


@pytest.fixture
def found():
    rows = []
    for name, ber in itertools.product(("clip 6", "ECC", "clip as released 6"), (1e-5, 1e-3)):
        row = ABOUT | {"mitigation": name, "ber": ber, "raised": 0.0}
        row |= {"protocol": "as_released" if "released" in name else "corrected"}
        value = {"clip 6": 0.4, "ECC": 0.9, "clip as released 6": 0.1}[name]
        row |= ends("recovery", value if ber == 1e-3 else NAN) | ends("gained", 0.3 * value * (ber == 1e-3))
        rows.append(row | ends("lost", 0.3 * (ber == 1e-3)) | ends("trials_harmed", 0.5))
    return pd.DataFrame(rows)


def test_auc_by_mitigation_and_protocol(summary):
    names = {"clip as released 6": "clip 6"}
    data = plots.mitigated_auc_data(summary, names)
    same = data["mitigation"].isin(["clip 6", "clip as released 6"])
    assert data.loc[same, "series"].unique().tolist() == [0]  # the same bound looks alike under both protocols
    assert set(data.loc[data["mitigation"] == "none", "series"]) == {-1}
    ax = plots.mitigated_auc(data)
    assert np.allclose(drawn(ax), [[0.2001, 0.21], [0.1501, 0.16], [0.1001, 0.11]])  # AUC lost; no rate of 0
    released = plots.mitigated_auc(data, label="as_released", errors=as_released.ERRORS["as_released"], names=names)
    assert len(drawn(released)) == 2
    with pytest.raises(ValueError, match="2 models"):
        plots.mitigated_auc_data(pd.concat([summary, summary.assign(model="fm")]))


def test_recovery_leaves_out_what_is_blank(found):
    data = plots.recovery_vs_ber_data(found)
    axes = plots.new_panels(2)
    plots.recovery_vs_ber(data, axes[0])
    plots.recovery_vs_ber(data, axes[1], quantity="gained")
    assert drawn(axes[0]) == [[0.4], [0.9]]
    assert [len(series) for series in drawn(axes[1])] == [2, 2]


def test_rows_of_mitigations_best_first(found):
    data = figures.recovery_rows_data(found, rank_at=1e-3)
    assert data["mitigation"].drop_duplicates().tolist() == ["ECC", "clip 6", "clip as released 6"]
    assert data["rank"].tolist() == [1, 1, 2, 2, 3, 3] and data["ber"].tolist() == [1e-5, 1e-3] * 3


@pytest.fixture
def points():
    rows = []
    for name, value, time, bits, front in [
        ("ECC", 0.99, NAN, 12.5, True),
        ("clip", 0.8, 10.0, 0.01, True),
        ("slow", 0.7, 30.0, 0.02, False),
        ("a + b", 1.02, 40.0, 90.0, True),
        ("blank", NAN, 1.0, 1.0, False),
    ]:
        row = ABOUT | {"protocol": "corrected", "ber": 1e-3, "mitigation": name, "stored_bits": int(bits * 100)}
        row |= {"stored_percent": bits, "timed": time == time, "front": front} | ends("recovery", value)
        rows.append(
            row | ends("lost", 0.3) | ends("gained", 0.2) | ends("overhead_percent", 0 if time != time else time, 1)
        )
    return pd.DataFrame(rows)


def test_recovery_against_costs(points):
    data = figures.protection_front_data(points)
    assert data["mitigation"].tolist() == ["a + b", "ECC", "clip", "slow", "blank"]
    ax = figures.protection_front(data)
    marks = [line.lines[0] for line in ax.containers]
    assert [mark.get_ydata()[0] for mark in marks] == [0.9999, 0.99, 0.8, 0.7]  # over the last tick: drawn there
    times = [mark.get_xdata()[0] for mark in marks]
    assert times[0::2] + times[3:] == [40.0, 10.0, 30.0] and times[1] < 0  # what takes no time has its strip
    assert [mark.get_markerfacecolor() == "white" for mark in marks] == [False, False, False, True]
    assert "ECC (+12.5 %)" in {" ".join(text.get_text().split()) for text in ax.texts}


def test_places_are_groups_of_rows(points):
    places = {"memory": ["ECC"], "nowhere": [], "layers": ["slow", "a + b"]}
    ax = figures.protection_places(figures.protection_places_data(points, places))
    assert [text.get_text() for text in ax.get_yticklabels()] == ["ECC", "a + b", "slow"]
    shown = {bars.get_label(): bars.lines[0].get_xdata().tolist() for bars in ax.containers}
    assert shown == {"memory": [0.99], "layers": [1.02, 0.7]}
    assert "+40 % time, +90 % bits" in [text.get_text() for text in ax.texts]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.ao.quantization")
def test_int8_tables_are_a_copy(data, trained):
    before = {name: parameter.clone() for name, parameter in trained.named_parameters()}
    small = with_int8_tables(Case("dlrm", data.name, trained, data.train, data.test))
    assert all(torch.equal(before[name], parameter) for name, parameter in trained.named_parameters())
    assert small.name == "dlrm, int8 tables" and small.int8
    assert any(tensor.format.name.startswith("int8") for tensor in dr.resolve(small.model).tensors)


def test_which_data(monkeypatch):
    asked = []
    monkeypatch.setattr(mitigations, "load_dataset", asked.append)
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    mitigations.trained(models=[])
    assert asked == list(mitigations.GENERATED)
    monkeypatch.setenv("DRSROBUST_DATA", "/somewhere")
    mitigations.trained(models=[])
    assert asked[len(mitigations.GENERATED) :] == list(mitigations.REAL)
