import itertools

import numpy as np
import pandas as pd
import pytest

from drsrobust_extras.pages import plots
from drsrobust_study import as_released, figures
from drsrobust_study.figures.protection import spread_labels

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
    axes = plots.new_panels(2)
    plots.mitigated_auc(data, axes[0])
    plots.mitigated_auc(data, axes[1], label="as_released", errors=as_released.ERRORS["as_released"], names=names)
    assert np.allclose(drawn(axes[0]), [[0.2001, 0.21], [0.1501, 0.16], [0.1001, 0.11]])  # AUC lost; no rate of 0
    assert len(drawn(axes[1])) == 2 and axes[0].get_legend() is None
    colours = [[line.lines[0].get_color() for line in ax.containers] for ax in axes]
    assert colours[0][:2] == colours[1] and colours[0][0] == "#000000"
    labels = [text.get_text() for text in axes[1].figure.legends[0].get_texts()]
    assert labels[:3] == ["no protection", "clip 6", "10-90 % of trials,\nno protection"]  # what its row shows
    assert "all parameters" in axes[0].get_title("left") and "published" in axes[1].get_title("left")
    mine = plots.mitigated_auc(data[data["protocol"] == "as_released"].assign(protocol="mine"))
    assert len(drawn(mine)) == 2  # a user's label needs no argument
    with pytest.raises(ValueError, match=r"as dr.summarise\(table\)"):
        plots.mitigated_auc_data(summary.drop(columns="auc_low"))
    with pytest.raises(ValueError, match="2 models and 1 data sets"):
        plots.mitigated_auc_data(pd.concat([summary, summary.assign(model="fm")]))


def test_recovery_leaves_out_what_is_blank(found):
    data = plots.recovery_vs_ber_data(found)
    axes = plots.new_panels(2)
    plots.recovery_vs_ber(data, axes[0])
    plots.recovery_vs_ber(data, axes[1], quantity="gained")
    assert drawn(axes[0]) == [[0.4], [0.9]]
    assert [len(series) for series in drawn(axes[1])] == [2, 2]
    with pytest.raises(ValueError, match=r"as dr.recovery\(table\)"):
        plots.recovery_vs_ber_data(found.drop(columns="recovery_low"))


def test_rows_of_mitigations_best_first(found):
    data = figures.recovery_rows_data(found, rank_at=1e-3)
    assert data["mitigation"].drop_duplicates().tolist() == ["ECC", "clip 6", "clip as released 6"]
    assert data["rank"].tolist() == [1, 1, 2, 2, 3, 3] and data["ber"].tolist() == [1e-5, 1e-3] * 3
    with pytest.raises(ValueError, match="rank_at is 0.1; the table has the rates 1e-05, 0.001"):
        figures.recovery_rows_data(found, rank_at=0.1)


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
    names = {" ".join(text.get_text().split()) for text in ax.texts}
    assert {"a + b (+90 %)", "ECC (+12.5 %)", "clip (+0.01 %)", "slow (+0.02 %)"} < names  # all of them
    assert all(tick >= 0 for tick in ax.get_xticks())


def test_places_are_groups_of_rows(points):
    places = {"memory": ["ECC"], "nowhere": [], "layers": ["slow", "a + b"]}
    ax = figures.protection_places(figures.protection_places_data(points, places))
    assert [text.get_text() for text in ax.get_yticklabels()] == ["ECC", "a + b", "slow"]
    shown = {bars.get_label(): bars.lines[0].get_xdata().tolist() for bars in ax.containers}
    assert shown == {"memory": [0.99], "layers": [1.02, 0.7]}
    texts = [text.get_text() for text in ax.texts]
    assert {"+12.5 % bits", "+40 % time, +90 % bits", "+30 % time, +0.02 % bits", "cost"} < set(texts)


def test_names_cover_no_names_and_stay_inside():
    random = np.random.default_rng(1)
    x, y = random.normal(0, 0.15, 15) + 1, random.normal(0, 0.05, 15) + 1
    ax = plots.new_panels()[0]
    ax.plot(x, y, "o")
    ax.set(xlim=(0, 2), ylim=(0, 2))
    spread_labels(ax, x, y, [f"method {number}" for number in range(14)] + [""])
    ax.figure.canvas.draw()
    boxes = [text.get_bbox_patch().get_window_extent().shrunk(0.95, 0.8) for text in ax.texts]
    assert len(boxes) == 14  # an empty name is not written
    assert not [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)]
    frame = ax.get_window_extent()
    assert all(frame.contains(*box.min) and frame.contains(*box.max) for box in boxes)
