"""A fleet's losses: by hand, against a simulation, and what is refused."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from torch import nn

import drsrobust as dr
from drsrobust_extras.protection.memory_map import Geometry
from drsrobust_extras.protection.rates import EVENTS, FAULTS, FIT, Fit
from drsrobust_extras.risk.fleet_risk import _exceeded
from tests.mitigation.plain import screened
from tests.refusals import refuses

# 2,048 words of 64 bits: one row of 16 KiB in a memory of 128 KiB, which has one rank of two banks of four rows.
MODEL = nn.Linear(64, 64, bias=False)
SMALL = Geometry(ranks=1, banks=2, rows=4, columns=2048)
OPTIONS = {"hosts": 10, "memory": 2 * 128 * 1024, "recommendations": 100, "geometry": SMALL, "repair_time": 48.0}
FIELD = {"hosts": 10_000, "memory": "1TiB", "recommendations": 1e6}
NEVER = dict.fromkeys(FIT, Fit(0.0, 0.0))
ROWS = NEVER | {"row": Fit(2e6, 3e6)}
SECDED = {"mitigation": "SECDED", "mitigation_kind": "ECC", "corrects_mode": "bit"}
# A row of the model is one of eight: 18 devices * 2e6 (3e6) FIT * 24e-9 / 8 * 10 hosts reach a model in a day.
ROW_HITS = (1.08, 1.62)


def damage(changed=(0.2, 0.4), lost=(0.1, 0.3), modes=("row",), mitigation="none", **columns):
    """Trials of each mode as a campaign has them."""
    each = {"auc_drop": list(lost), "outcome": "ok", "stopped": None, "n_bits": 64 * 64 * 32, "bits_left": 1}
    each |= dict.fromkeys(("decision_changed", "decision_changed_no_click"), list(changed)) | {"nan_share": 0.0}
    each |= {"model": "m", "dataset": "d", "protocol": "corrected", "rate": None, "ber": None, "target": "all"}
    each |= {"mitigation": mitigation, "mitigation_kind": "none", "auc_golden": 0.8, "nan_rows": 0}
    each |= {"error_chips": None, "error_mapping": "in order", "corrects_mode": None}
    each |= {"inf_rows": 0, "n_sites": 9, "n_events": 1, "checkpoint": "c", "data": "f"}
    errors = [{"error_model": f"MemoryFault({mode!r})", "error_mode": mode} for mode in modes]
    return pd.concat([pd.DataFrame(each | error | columns) for error in errors], ignore_index=True)


def row_of(table, mitigation="none"):
    return table.set_index("mitigation").loc[mitigation]


def test_by_hand():
    fleet = dr.fleet(damage(), MODEL, rates=ROWS, value=0.5, **OPTIONS)
    row = row_of(fleet.table())
    assert row["faults_per_day"] == pytest.approx(10 * 2 * 18 * 5e6 * 24e-9)  # hosts, memories, devices
    assert row["hits_per_day"] == pytest.approx(sum(ROW_HITS))
    active = ROW_HITS[0] * 0.5 + ROW_HITS[1] * 2  # days: half of a push interval, and until the repair
    assert row["active"] == pytest.approx(active)
    assert row["wrong_per_day"] == pytest.approx(active * 100 * 0.3)
    assert row["auc_days_per_day"] == pytest.approx(active * 0.2)
    assert row["wrong_per_day_low"] < row["wrong_per_day"] < row["wrong_per_day_high"]
    assert row["stops_per_day"] == 0 and row["cost_per_day"] == 0.5 * row["wrong_per_day"]
    assert row["cost_per_day_high"] == 0.5 * row["wrong_per_day_high"]
    assert fleet.modes["error_mode"].tolist() == ["row"] and "10 hosts of 0 GiB" in repr(fleet)
    least = {"hosts": 1, "memory": 128 * 1024, "push_interval": 1.0, "repair_time": 1.0, "value": 0.0}
    one = dr.fleet(damage(), MODEL, rates=ROWS, **OPTIONS | least)
    assert row_of(one.table())["active"] == pytest.approx((ROW_HITS[0] / 2 + ROW_HITS[1]) / 10 / 24)
    free = dr.fleet(damage(), MODEL, rates=ROWS, **OPTIONS | {"recommendations": 0})
    assert row_of(free.table())["wrong_per_day_high"] == 0


def test_intervals_are_of_the_modes_by_recovered_variances():
    rates = ROWS | {"bank": Fit(4e5, 0.0)}
    trials = damage((0.2, 0.4, 0.3, 0.1), (0.1, -0.15, 0.0, 0.02), ("row", "bank"))
    fleet = dr.fleet(trials.assign(nan_share=[0.0, 0.1, 0.0, 0.2] * 2), MODEL, rates=rates, **OPTIONS)
    row, modes = row_of(fleet.table()), fleet.modes
    for name, metric, weight in (
        ("wrong_per_day", "decision_changed", 100),
        ("nan_per_day", "nan_share", 100),
        ("auc_days_per_day", "auc_drop", 1),
    ):
        mean, low, high = (modes[f"{metric}{end}"] * modes["active"] * weight for end in ("", "_low", "_high"))
        least = -np.inf if metric == "auc_drop" else 0.0
        assert row[name] == pytest.approx(mean.sum())
        assert row[f"{name}_low"] == pytest.approx(max(least, mean.sum() - np.linalg.norm(mean - low)))
        assert row[f"{name}_high"] == pytest.approx(mean.sum() + np.linalg.norm(high - mean))
    assert row["auc_days_per_day_low"] < 0


def test_the_loss_that_is_exceeded_once_in_a_time():
    """985.5 faults a year, of which half lose 0.3 and half 0.1."""
    fleet = dr.fleet(damage(), MODEL, rates=ROWS, **OPTIONS)
    assert "cost_per_day" not in fleet.table()
    tail = fleet.tail([1 / 1000, 1 / 600, 1 / 400, 1, 10]).set_index("years")["loss"]
    assert tail.tolist() == [0.0, 0.1, 0.3, 0.3, 0.3]
    assert row_of(fleet.table())[["loss_once_a_year", "loss_once_in_ten_years"]].tolist() == [0.3, 0.3]
    better = dr.fleet(damage(lost=(-0.1, -0.15)), MODEL, rates=ROWS, **OPTIONS)
    assert (better.tail([1, 10])["loss"] == 0).all()
    exceeded = [_exceeded([0.3], [a_year], 1.0) for a_year in (1.0, 1 + 1e-9, 1 + 2e-9)]
    assert exceeded == [0.0, 0.0, 0.3]  # but for rounding


def test_what_a_code_cannot_repair_stops_the_host():
    code = damage(**SECDED, stopped=[True, False])
    watch = damage(mitigation="range", mitigation_kind="WeightRange", detected=True, repaired=False)
    raised = damage((None, 0.4), (None, 0.3), mitigation="raises", outcome=["raised", "ok"])
    table = dr.fleet(pd.concat([damage(), code, watch, raised]), MODEL, rates=ROWS, **OPTIONS).table()
    assert table["mitigation"].tolist() == ["none", "SECDED", "range", "raises"]
    for name in ("SECDED", "raises"):
        assert row_of(table, name)["stops_per_day"] == pytest.approx(sum(ROW_HITS) / 2)
        assert row_of(table, name)["wrong_per_day"] == pytest.approx(row_of(table)["active"] * 100 * 0.4 / 2)
    assert row_of(table, "raises")["stops_anywhere_per_day"] == row_of(table, "raises")["stops_per_day"]
    assert row_of(table, "range")["stops_per_day"] == 0
    assert row_of(table, "range")["wrong_per_day"] == row_of(table)["wrong_per_day"]
    one = dr.fleet(pd.concat([damage(), code]), MODEL, rates=ROWS, protection="SECDED", **OPTIONS)
    assert one.table().equals(table[table["mitigation"] == "SECDED"].reset_index(drop=True))


NAN = {"decision_changed_no_click": [0.15, 0.25], "nan_share": [0.1, 0.3]}  # of 0.2 and 0.4 wrong, if a NaN is wrong


RULES = [
    ("wrong", 0.3, "or NaN"),
    ("no click", 0.2, "a NaN is no click"),
    ("caught", 0.1, "a NaN is caught, and not served"),
]


@pytest.mark.parametrize(("nonfinite", "wrong", "said"), RULES)
def test_what_a_nan_counts_as(nonfinite, wrong, said):
    """The rule decides how many are wrong; how many have no number is counted apart, by every rule."""
    fleet = dr.fleet(damage(**NAN), MODEL, rates=ROWS, nonfinite=nonfinite, **OPTIONS)
    row, active = row_of(fleet.table()), ROW_HITS[0] * 0.5 + ROW_HITS[1] * 2
    assert row["wrong_per_day"] == pytest.approx(active * 100 * wrong)
    assert row["nan_per_day"] == pytest.approx(active * 100 * 0.2)
    assert row["nan_per_day_low"] < row["nan_per_day"] < row["nan_per_day_high"]
    assert row["nonfinite"] == fleet.nonfinite == nonfinite and said in fleet.assumptions
    drawn = fleet.simulate(4000).iloc[0]
    for column in ("wrong_per_day", "nan_per_day"):
        assert drawn[column] == pytest.approx(row[column], rel=0.05)
    if nonfinite == "wrong":  # a NaN that a stopped host would have served is none of these
        stopped = dr.fleet(damage(**NAN, stopped=True), MODEL, rates=ROWS, **OPTIONS).table()
        assert stopped[["wrong_per_day", "nan_per_day"]].to_numpy().tolist() == [[0.0, 0.0]]


def test_hosts_stop_for_words_outside_of_the_model_too():
    """10,000 hosts of 9,216 devices, 33.3 of 66.1 FIT of each of more than one bit: SECDED finds 74 such faults a day in all
    memory, 0.08 in the model; without a code no host stops, and where trials have seen none, some may."""
    trials = damage(modes=tuple(FIT))
    larger = trials["error_mode"] != "bit"
    code = trials.assign(**SECDED, stopped=larger, bits_left=larger.astype(int))
    other = trials.assign(mitigation="other", stopped=False)
    table = dr.fleet(pd.concat([trials, code, other]), MODEL, **FIELD).table().set_index("mitigation")
    devices = 9216 * 10_000
    assert table.loc["SECDED", "stops_anywhere_per_day"] == pytest.approx(devices * 33.3 * 24e-9)
    assert table.loc["SECDED", "stops_per_day"] < 0.09
    assert table.loc["SECDED", "stops_anywhere_per_day_low"] < 60
    none = table.loc["none"]
    for end in ("", "_high"):
        assert none[f"stops_anywhere_per_day{end}"] == pytest.approx(none[f"stops_per_day{end}"])
    assert table.loc["other", "stops_anywhere_per_day"] == 0 < table.loc["other", "stops_anywhere_per_day_high"]
    events = dr.fleet(code, MODEL, rates=EVENTS, **FIELD).table().iloc[0]
    assert events["stops_anywhere_per_day_high"] == 0  # each one wrong bit, which SECDED corrects


def test_how_many_ranks_a_fault_reaches():
    trials = damage(modes=tuple(FIT))
    four, two, one = (dr.fleet(trials, MODEL, ranks_reached=ranks, **FIELD) for ranks in (None, 2, 1))
    ranks = [fleet.modes.set_index("error_mode")["permanent"] for fleet in (four, two, one)]
    assert (ranks[1] / ranks[0]).tolist() == pytest.approx([1, 1, 1, 1, 1, 1, 0.5])
    assert (ranks[2] / ranks[0]).tolist() == pytest.approx([1, 1, 1, 1, 1, 1, 0.25])
    assert four.faults_per_day == two.faults_per_day
    lost = 1 - two.table()["wrong_per_day"][0] / four.table()["wrong_per_day"][0]
    assert lost == pytest.approx(0.38, abs=0.01)  # of the active faults 77 % are of this mode
    assert "a fault of mode 'ranks' reaches 4 of 4 ranks" in four.assumptions
    assert "reaches 2 of 4 ranks" in two.assumptions


@pytest.mark.parametrize(
    ("times", "rates", "active"), [({"repair_time": 1e9}, FAULTS, "2,[0-9]{3},"), ({"push_interval": 1e9}, EVENTS, "")]
)
def test_a_fleet_that_would_be_larger_than_itself_is_refused(times, rates, active):
    """2.6 million active faults on 10,000 hosts, and more wrong recommendations than served."""
    trials = damage(modes=tuple(FIT))
    says = f"^{active}.* faults would be active at a time in the models of 10,000 hosts; it must be at most one a host"
    with pytest.raises(ValueError, match=says):
        dr.fleet(trials, MODEL, rates=rates, **FIELD | times)
    table = dr.fleet(trials, MODEL, rates=rates, **FIELD).table()
    assert (table["wrong_per_day_high"] <= 1e10).all()


def test_strata_have_their_weights():
    strata = {"stratum": ["a", "a", "b", "b"], "weight": [0.45, 0.45, 0.05, 0.05]}
    fleet = dr.fleet(damage((0, 0, 0.4, 0.8), (0, 0, 0.2, 0.3), **strata), MODEL, rates=ROWS, **OPTIONS)
    assert fleet.modes["decision_changed"].tolist() == pytest.approx([0.06])
    assert (fleet.trials["hits"] / fleet.trials["hits"].sum()).tolist() == pytest.approx(strata["weight"])
    assert fleet.tail([1 / 100, 1 / 40])["loss"].tolist() == [0.0, 0.3]  # 98.55 a year lose something


def test_the_simulation_agrees_with_the_closed_form():
    """Means of 40 runs, within four of their standard errors, of transient and permanent faults of three modes."""
    rates = NEVER | {"row": Fit(2e6, 1e6), "bank": Fit(4e5, 0.0), "bit": Fit(0.0, 5e6)}
    trials = damage((0.1, 0.2, 0.9), (0.0, 0.05, 0.3), ("row", "bank", "bit"))
    code = trials.assign(**SECDED, stopped=[True, False, False] * 3)
    both = pd.concat([trials, code]).assign(nan_share=[0.05, 0.1, 0.3] * 6)
    fleet = dr.fleet(both, MODEL, rates=rates, **OPTIONS | {"push_interval": 36.0})
    table = fleet.table().set_index("mitigation")
    runs = [fleet.simulate(250, seed=seed).set_index("mitigation") for seed in range(40)]
    for name, column in itertools.product(table.index, runs[0].columns[:6]):
        values = np.array([run.loc[name, column] for run in runs])
        error = values.std(ddof=1) / np.sqrt(len(values))
        assert abs(values.mean() - table.loc[name, column]) <= 4 * error, (name, column)
        assert error > 0 or (name, column) == ("none", "stops_per_day")
    assert runs[0]["loss_once_a_year"].tolist() == table["loss_once_a_year"].tolist() == [0.3, 0.3]
    pd.testing.assert_frame_equal(fleet.simulate(250), runs[0].reset_index())
    assert runs[0]["hits_per_day"].nunique() == 1  # mitigations meet the same faults


def test_no_faults_no_losses():
    fleet = dr.fleet(damage(), MODEL, rates=NEVER, value=1.0, **OPTIONS)
    for table in (fleet.table(), fleet.simulate(100)):
        assert len(table) == 1 and not table.select_dtypes("number").to_numpy().any()
    assert fleet.tail([1])["loss"].tolist() == [0.0] and fleet.modes.empty


def test_a_fleet_of_the_field():
    """10,000 hosts of 1 TiB have 130 faults a day in devices of data, and 9/8 of that in all. With devices of 16 Gb there is a
    sixteenth of them, and of those of single bits in the model; but a chip that fails in all ranks hits it as before."""
    trials = damage(modes=tuple(FIT))
    one = dr.fleet(trials, MODEL, **FIELD)
    sixteen = dr.fleet(trials, MODEL, geometry=Geometry(banks=16, rows=131072, columns=2048), **FIELD)
    in_data = 10_000 * dr.rates.field_rates().set_index("kind").loc["faults", "per_tb_day_low"]
    assert one.faults_per_day == pytest.approx(in_data * 9 / 8) and in_data == pytest.approx(130, rel=0.01)
    assert one.faults_per_day == pytest.approx(16 * sixteen.faults_per_day)
    ratio = (one.modes["permanent"] / sixteen.modes["permanent"]).set_axis(one.modes["error_mode"])
    assert ratio[["bit", "word", "row", "ranks"]].tolist() == pytest.approx([16, 16, 16, 1])
    assert "devices of 16 Gb;" in sixteen.assumptions
    hits = dr.MemoryFault().hits_per_hour(dr.resolve(MODEL))
    expected = [24 * 10_000 * hits[mode].permanent for mode in one.modes["error_mode"]]
    assert one.modes["permanent"].tolist() == pytest.approx(expected)
    terabyte = dr.fleet(trials, MODEL, **FIELD | {"memory": "1TB"})
    assert terabyte.faults_per_day == pytest.approx(one.faults_per_day * 10**12 / 2**40)


def test_events_are_wrong_bits_until_the_push():
    """By hand: FIT/Mbit over the bits of the model and of its check bits, 9/8 of them; the next push cures each."""
    fleet = dr.fleet(damage(modes=("bit",)), MODEL, rates=EVENTS, **OPTIONS)
    row, bits = row_of(fleet.table()), 4096 * 32 * 9 / 8
    assert row["hits_per_day"] == pytest.approx(10 * bits * 25_000 / 2**20 * 24e-9)
    assert row["faults_per_day"] == pytest.approx(row["hits_per_day"] * 16)  # the model is a sixteenth of the memory
    assert row["active"] == pytest.approx(row["hits_per_day"] / 2) and row["kind"] == "events"
    assert row["wrong_per_day"] == pytest.approx(row["active"] * 100 * 0.3)
    assert "cures logged events, each of one bit" in fleet.assumptions and "reaches" not in fleet.assumptions
    more = dr.fleet(damage(modes=("bit",)), MODEL, rates=replace(EVENTS, low=EVENTS.high), **OPTIONS)
    assert row_of(more.table())["wrong_per_day"] == pytest.approx(2.8 * row["wrong_per_day"])


def test_processors_have_a_line_of_their_own():
    """One in 1,000 and 361 in 10**6 hosts; 6 stops in 54 days on 16,384 GPUs, so one in 15 days on 10,000."""
    fleet = dr.fleet(damage(), MODEL, rates=ROWS, accelerators=2, **OPTIONS | {"hosts": 5000})
    assert fleet.compute()["value"].tolist() == pytest.approx([5, 1.805, 1 / 14.75], rel=1e-3)
    plain = dr.fleet(damage(), MODEL, rates=ROWS, **OPTIONS | {"hosts": 5000})
    assert plain.compute()["value"].tolist()[2] == 0
    pd.testing.assert_frame_equal(plain.table(), fleet.table())


def test_a_fleet_of_another_memory():
    rows = dr.load_dataset("synthetic-movielens/full", rows=300, seed=1)
    model = dr.models.build_model("fm", rows.schema)
    options = {"trials": 3, "metrics": ["decision_changed"], "sampling": "stratified", "seed": 1}
    modes = [mode for mode in dr.rates.FIT if mode != "ranks"]
    errors = [dr.MemoryFault(mode, memory="lpddr6") for mode in modes]
    damage = dr.Campaign(dr.Evaluator(model, rows.test), errors=errors, **options).run()
    about = {"hosts": 10, "memory": "1TiB", "recommendations": 1e3, "accelerators": 8}
    refuses(lambda: dr.fleet(damage, model, dram="lpddr6", **about), ValueError, "lpddr6", "rates by mode")
    refuses(lambda: dr.fleet(damage, model, rates=dr.rates.FAULTS, **about), ValueError, "lpddr6", "'in order'")
    fleet = dr.fleet(damage, model, dram="lpddr6", rates=dr.rates.FAULTS, **about)
    assert set(fleet.modes["error_mode"]) == set(modes) and "1 devices of 16 Gb (lpddr6)" in fleet.assumptions
    assert "reaches" not in fleet.assumptions  # one device for each channel has no ranks
    devices = 10 * 2**40 / 2**31  # of 16 Gb
    expected = sum(dr.rates.FIT[mode].total for mode in modes) * 24e-9 * devices
    same = dr.fleet(damage, model, dram="lpddr6", rates=dr.rates.FAULTS, geometry=Geometry(), **about)
    assert fleet.faults_per_day == same.faults_per_day == pytest.approx(expected)
    stops = fleet.uncorrectable("hbm4")["value"]
    assert sorted(stops) == pytest.approx([24 * 80 / 294_912, 24 * 80 / 88_768])
    pd.testing.assert_series_equal(stops.sort_values(ignore_index=True), stops)
    refuses(lambda: fleet.uncorrectable("lpddr6"), ValueError, "lpddr6")


@pytest.mark.long
def test_of_a_campaign(evaluator, tmp_path):
    errors = [dr.MemoryFault(mode) for mode in FIT]
    options = {"mitigations": [None, dr.ECC()], "metrics": ["decision_changed"], "sampling": "stratified", "trials": 12}
    trials = dr.Campaign(evaluator, errors=errors, store=tmp_path / "s", **options).run(progress=False, workers=1)
    fleet = dr.fleet(trials, evaluator.model, **FIELD)
    plain, code = (row for _, row in fleet.table().iterrows())
    assert plain["wrong_per_day"] > 1000 > code["wrong_per_day"]
    assert code["stops_per_day"] > 0.05 > plain["stops_per_day"]
    assert plain["hits_per_day"] == code["hits_per_day"]
    expected = dr.summarise(trials, ["decision_changed"]).query("mitigation == 'none'")["decision_changed"]
    assert fleet.modes.query("mitigation == 'none'")["decision_changed"].tolist() == pytest.approx(expected.tolist())


TINY = {"geometry": Geometry(ranks=4, banks=1, rows=1, columns=1024), "memory": "1MiB"}  # ranks of half of the model


@pytest.mark.parametrize(
    ("changed", "error", "name", "value"),
    [
        ({"rates": NEVER | {"row": Fit(-1.0, 0.0)}}, ValueError, "'row'", "-1.0"),
        ({"rates": NEVER | {"row": (float("nan"), 0.0)}}, ValueError, "'row'", "nan"),
        ({"rates": replace(EVENTS, low=-1)}, ValueError, "rates.low", "-1"),
        ({"rates": {"row": Fit(1.0, 1.0)}}, ValueError, "rates", "bit, word, column, bank, banks, ranks"),
        ({"rates": replace(FAULTS, modes=None)}, TypeError, "rates", "FieldRate of faults"),
        ({"rates": NEVER | {"rows": Fit(1.0, 1.0)}}, ValueError, "mode", "'rows'"),
        ({"rates": [FAULTS, EVENTS]}, TypeError, "rates", "["),
        ({"rates": NEVER | {"bit": EVENTS}}, TypeError, "rates of 'bit'", "events"),
        ({"rates": 25_000}, TypeError, "rates", "25000"),
        ({"rates": FAULTS}, ValueError, "damage", "0 conditions of mode 'bit' under 'none'"),
        ({"hosts": 0}, ValueError, "hosts", "0"),
        ({"memory": 1024}, ValueError, "memory", "1,024"),
        ({"memory": "a lot"}, ValueError, "memory", "'a lot'"),
        ({"push_interval": 0.0}, ValueError, "push_interval", "0.0"),
        ({"repair_time": float("nan")}, ValueError, "repair_time", "nan"),
        ({"recommendations": -1}, ValueError, "recommendations", "-1"),
        ({"value": -1}, ValueError, "value", "-1"),
        ({"protection": "non"}, ValueError, "protection", "'non'"),
        ({"nonfinite": "ignored"}, ValueError, "nonfinite", "'ignored'"),
        ({"target": "weight"}, ValueError, "target", "'weight'"),
        ({"ranks_reached": 3, **TINY}, ValueError, "ranks_reached", "3"),
        ({"ranks_reached": 0, **TINY}, ValueError, "ranks_reached", "0"),
        ({"ranks_reached": 1, **TINY}, ValueError, "ranks_reached", "2 ranks"),
        ({"table": damage().drop(columns="decision_changed")}, ValueError, "decision_changed", "metrics"),
        ({"table": damage().head(0)}, ValueError, "damage", "no rows"),
        ({"table": damage(n_bits=512)}, ValueError, "512", "131,072"),
        ({"table": damage(error_model="MemoryFault('row', chips=[7])", error_chips="[7]")}, ValueError, "chips", "[7]"),
        ({"table": damage(error_model="spread", error_mapping="spread")}, ValueError, "geometry", "'in order'"),
        ({"table": damage(auc_drop=None)}, ValueError, "damage", "auc_drop"),
        ({"table": pd.concat([damage(), damage(error_model="other")])}, ValueError, "2 conditions", "'row'"),
    ],
)
def test_what_is_refused(changed, error, name, value):
    options = OPTIONS | {"rates": ROWS} | changed
    refuses(lambda: dr.fleet(options.pop("table", damage()), MODEL, **options), error, name, value)


def test_a_code_that_left_no_wrong_bit_has_no_interval():
    code = damage((0.0, 0.0), (0.0, 0.0), mitigation="code", mitigation_id="c", corrects_mode="any")
    some, other = code, code.assign(bits_left=0, corrects_mode="bit")  # SECDED does not correct every row
    some, other, none = (
        dr.fleet(one, MODEL, rates=ROWS, **OPTIONS).table().iloc[0] for one in (some, other, code.assign(bits_left=0))
    )
    assert other["wrong_per_day_high"] > 0
    assert none["wrong_per_day_high"] == none["wrong_per_day"] == 0 < some["wrong_per_day_high"]
    assert none["stops_per_day_high"] == none["auc_days_per_day_high"] == 0


def test_a_silent_miscorrection_serves_wrong_recommendations():
    """Words of one fault under SECDED: some are found and stop the host, others get one more wrong bit, or pass."""
    model, stopped, silent = nn.Embedding(3000, 16), 0, 0
    for seed in range(200):
        drawn = dr.MemoryFault("word").sample(dr.resolve(model), seed=seed)
        left = screened(dr.ECC(), drawn, model, seed)
        counts = left.counts
        assert bool(left.stopped) == (counts.get("uncorrectable", 0) > 0)
        assert not screened(dr.ECC(uncorrectable="zero"), drawn, model, seed).stopped
        assert screened(dr.ECC() + dr.WeightRange.fit(model), drawn, model, seed).stopped == left.stopped
        stopped += bool(left.stopped)
        silent += not left.stopped and counts.get("miscorrected", 0) > 0 and len(left.remaining) > 0
    assert 80 < stopped < 150 and 10 < silent < 60
