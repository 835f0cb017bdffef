"""Protections: as released, figures of them, of a plan and of a fleet, and the models on which they are compared."""

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust_extras.pages import plots
from drsrobust_study import as_released, figures, mitigations
from drsrobust_study.figures import fleet_day, fleet_day_data
from drsrobust_study.fleet_risk import fleet_risk_table, worded
from drsrobust_study.mitigations import Case, with_int8_tables
from drsrobust_study.protection_plan import best_uniform, candidates, effects, shares
from tests.click_models import CLICK_MODELS
from tests.mitigation.plain import screened
from tests.mitigation.test_clipping import build

NAN = float("nan")
ABOUT = {"model": "wide_deep", "dataset": "d", "target": "all", "n": 9, "auc_golden": 0.8}


def ends(name, value, by=0.02):
    return {name: value, f"{name}_low": value - by, f"{name}_high": value + by}


def drawn(ax):
    """The heights of all points with error bars, by series."""
    return [line.lines[0].get_ydata().tolist() for line in ax.containers]


def test_auc_by_mitigation_and_protocol():
    rows = []
    names = {"corrected": ["none", "clip 6", "clip profiled"], "as_released": ["none", "clip as released 6"]}
    for protocol, ber in itertools.product(names, (0.0, 1e-4, 1e-2)):
        for number, name in enumerate(names[protocol]):
            row = ABOUT | {"protocol": protocol, "mitigation": name, "ber": ber, "share_nonfinite": 0.0}
            row |= ends("auc", 0.6 + number / 20 - ber) | ends("auc_drop", 0.2 - number / 20 + ber)
            rows.append(row | {"auc_q10": 0.5, "auc_q90": 0.7, "share_raised": 0.0})
    summary, names = pd.DataFrame(rows), {"clip as released 6": "clip 6"}
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


MEASURED = pd.DataFrame(
    {
        "mitigation": ["range per tensor", "plan, 5 % bits, 0 % time", "plan by means, 5 % bits, 0 % time", "none"],
        "kind": ["uniform", "plan", "plan by means", "none"],
        "stored_percent": [0.02, 4.7, 3.6, 0.0],
        "time_percent": 0.0,
        "n": 9,
        "auc_drop": [1e-6, 3e-5, 4e-4, 0.012],
        "auc_drop_low": [-1e-4, -1e-4, 0.0, 0.01],
        "auc_drop_high": [1e-3, 1e-3, 2e-3, 0.014],
    }
)


@pytest.mark.parametrize("rows", [[], [3], [1, 3], [0, 1, 2, 3]])
def test_none_one_and_many(rows):
    data = figures.protection_plan_data(MEASURED.iloc[rows])
    assert data["kind"].tolist() == [kind for kind in MEASURED["kind"].iloc[rows] if kind != "plan by means"]
    ax = figures.protection_plan(data)
    lengths = {round(bar.get_y() + bar.get_height() / 2): bar.get_width() for bar in ax.patches}
    assert [lengths[place] for place in sorted(lengths)] == sorted(data["auc_drop"])
    ax.figure.canvas.draw()


def test_the_best_uniform_protection_at_no_more_bits():
    assert best_uniform(MEASURED, 4.7)["mitigation"] == "range per tensor"
    assert best_uniform(MEASURED, 0.01) is None
    dear = MEASURED.iloc[[0]].assign(mitigation="ECC", stored_percent=4.0, auc_drop=1e-7)
    assert best_uniform(pd.concat([MEASURED, dear], ignore_index=True), 4.7)["mitigation"] == "ECC"


def measured(**columns):
    """A plan by what it measured."""
    table = MEASURED.assign(**columns)
    return SimpleNamespace(name=MEASURED["mitigation"][1], stored_percent=4.7, compare=lambda trials: table)


def test_the_plan_against_the_best_uniform_protection(monkeypatch):
    name = measured().name
    recovered = {"mitigation": name, "recovery": [0.99], "recovery_low": 0.9, "recovery_high": 1.0}
    monkeypatch.setattr("drsrobust_study.protection_plan.recovery", lambda trials: pd.DataFrame(recovered))
    over = {"over_plan": [0.006, 0, 0, 0.1], "over_plan_low": [0.003, 0, 0, 0.1], "over_plan_high": [0.012, 0, 0, 0.1]}
    found = shares(pd.DataFrame(), measured(**over))
    assert found["mitigation"].tolist() == [name, "range per tensor"]
    assert found.loc[0, ["value", "low", "high"]].tolist() == [0.99, 0.9, 1.0]
    assert found.loc[1, ["value", "low", "high"]].tolist() == pytest.approx([0.5, 0.25, 1.0])  # of 0.012
    table = effects(dict.fromkeys(range(2), found)).set_index("effect")
    assert table["value"][["removed", "against uniform", "bits removed"]].tolist() == pytest.approx([0.99, 0.5, 4.7])
    none = shares(pd.DataFrame(), measured(**over, stored_percent=[9.0, 4.7, 3.6, 0.0]))
    assert none.loc[1, "mitigation"] == "" and pd.isna(none.loc[1, "value"])  # none stores so little


def test_candidates_of_memory_and_of_the_computation(trained, data):
    """Those of memory take no multiplications; each can be confined to the tensors of one part."""
    memory, computing = candidates(trained, data.train)
    assert not any(one.cost(trained).multiply_adds for one in memory) and len({one.name for one in memory}) == 6
    assert all(one.cost(trained).multiply_adds for one in computing)


@pytest.fixture
def tables():
    about = {"model": "dlrm", "dataset": "d"}
    rows = []
    for mitigation in ("range per tensor", "SECDED (72,64)"):
        for ber, lost, recovery in ((0.0, 0.0, NAN), (1e-5, 0.01, NAN), (1e-3, 0.3, 0.9)):
            row = about | {"mitigation": mitigation, "ber": ber, "auc_golden": 0.8} | ends("recovery", recovery, 0.1)
            row |= {"recovery_high": recovery + 0.2} | ends("lost", lost)
            rows.append(row | ends("gained", 0.9 * lost, NAN))
    faults = {"none": (0.1, 0.02), "on-die ECC": (0.1, 0.0), "SECDED (72,64)": (0.11, 0.02)}
    faults |= {"chipkill RS(18,16)": (0.0, 0.0), "selective chipkill": (0.0, 0.0)}
    any_mode = about | {"error_mode": "any"}
    losses = [any_mode | {"mitigation": name} | ends("auc_drop", *loss) for name, loss in faults.items()]
    losses.append(losses[0] | {"error_mode": "bank", "auc_drop": 0.3})
    ranking = [about | {"mitigation": "range per tensor"} | ends("faults", 0.4, 0.1)]
    return pd.DataFrame(rows), pd.DataFrame(losses), pd.DataFrame(ranking)


def test_both_kinds_of_errors_in_one_table(tables):
    data = figures.lead_data(*tables)
    flips = data[data["errors"] == "flips"].set_index(["mitigation", "ber"])
    assert flips["auc"].tolist() == pytest.approx([0.79, 0.5, 0.799, 0.77])
    assert flips.loc[("range per tensor", 1e-3), ["auc_low", "auc_high"]].tolist() == pytest.approx([0.74, 0.8])
    assert flips.loc[("range per tensor", 1e-5), ["auc_low", "auc_high"]].tolist() == pytest.approx([0.77, 0.8])
    chips = data[data["errors"] == "chips"].set_index("mitigation")
    assert chips["auc"].to_dict() == pytest.approx(
        {"none": 0.7, "SECDED (72,64)": 0.69, "range per tensor": 0.74, "chipkill RS(18,16)": 0.8}
    )
    assert chips.loc["range per tensor", ["auc_low", "auc_high"]].tolist() == pytest.approx([0.73, 0.75])
    assert (data["auc_high"] <= 0.8).all() and list(chips.index)[0] == "none"


def test_a_panel_for_flips_and_one_for_chips(tables):
    data = figures.lead_data(*tables)
    axes = plots.new_panels(2, sharey=False)
    figures.lead(data, axes[0])
    figures.lead(data, axes[1], errors="chips")
    curves = {line.get_label(): line.get_ydata() for line in axes[0].lines if not line.get_label().startswith("_")}
    assert list(curves) == ["no protection", "range check of weights"]
    assert np.allclose(curves["no protection"], [0.79, 0.5])
    for errors in ("flips", "chips"):
        figures.lead(data.iloc[:0], errors=errors)


def test_a_blank_recovery_has_words_in_its_place(tables):
    recovery, losses, ranking = tables
    data = figures.lead_data(recovery, losses, ranking.assign(faults=NAN, faults_low=NAN, faults_high=NAN))
    ax = figures.lead(data, errors="chips")
    assert "too few maps to say" in [text.get_text() for text in ax.texts]


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


def test_the_table_of_a_reader():
    risk = joined({"1 Gb": table(), "16 Gb": table(wrong=(4e4, 10.0)), "events": table("events", (90.0, 0.0))})
    shown = fleet_risk_table(risk, 1e6)
    assert shown["protection"].tolist()[:2] == ["no protection", "SECDED (72,64)"] and len(shown) == len(risk)
    assert shown.loc[0, ["wrong_per_day", "share_wrong", "share_wrong_low"]].tolist() == [5e4, 0.05, 0.025]
    words = worded(shown)
    assert words["hosts stopped a day"].tolist()[1] == "72 [36, 144]"
    assert words["wrong recommendations a day"].tolist()[1] == "up to 0.001"  # what no trial showed has its bound
    wide = shown.head(1).assign(wrong_per_day_low=90.0, wrong_per_day_high=4e5)
    assert worded(wide)["wrong recommendations a day"].tolist() == ["90 to 400,000"]
    assert len(worded(shown.head(0))) == 0


def test_a_day_of_the_fleet():
    caught = table(wrong=(2.8e4, 0.0), nonfinite="caught")
    risk = joined({"1 Gb": pd.concat([table(), caught]), "16 Gb": table(wrong=(4e4,))})
    day = fleet_day_data(risk, "1 Gb")
    assert day["mitigation"].tolist() == ["none", "none", "SECDED (72,64)"] and day["nonfinite"].tolist()[1] == "caught"
    ax = fleet_day(day, quantity="wrong_per_day")
    assert [bar.get_width() for bar in ax.patches] == [5e4, 2.8e4, 0]
    assert [text.get_text() for text in ax.texts] == ["50,000", "28,000", "at most 0.001"]
    assert fleet_day(day, quantity="stops_anywhere_per_day").patches[2].get_width() == 72
    fleet_day(day.head(0), quantity="wrong_per_day")


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_clipping(name, data):
    """Every nn.Linear but the last, and nothing else; NaN becomes 0 before values are clamped."""
    model = build(name, data)
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != "first_order_dense"]
    clips = as_released.clippings(model, [6, 100.0])
    if name == "fm":
        assert clips == [] and len(linear) <= 1
        return
    expected = {"clip as released 6": "fixed bound 6", "clip as released 100": "fixed bound 100"}
    assert as_released.display_names(clips) == {name: f"{bound}, hidden layers" for name, bound in expected.items()}
    assert clips[0].identity() == dr.ActivationClipping(6, sites="linear").identity()
    with clips[0].attach(model):
        hooked = [n for n, m in model.named_modules() if m._forward_hooks]
        assert hooked == linear[:-1] and not any("forward" in m.__dict__ for m in model.modules())
        for name_of in hooked:
            layer = model.get_submodule(name_of)
            x = torch.full((2, layer.in_features), float("nan"))
            x[1] = 1e30
            with torch.no_grad():
                out = layer(x)
            assert (out[0] == 0).all() and out[1].abs().max() == 6


def test_protection_protects_nothing():
    layer = nn.Linear(64, 64)
    drawn = dr.BitFlip(0.01).sample(dr.resolve(layer), seed=1)
    meant = dr.BitProtection(range(23, 32))
    released = as_released.AppliedTooEarly(meant)
    assert screened(released, drawn, layer).remaining is drawn and released.cost(layer).stored_bits == 0
    assert released.name == "bits 23-31, as released" and released.identity() != meant.identity()
