"""The benchmark of campaigns in a tiny form: an honest loop, columns, ratios from measured columns, verdicts."""

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import campaign
from benchmarks import op_profile as cost_profile
from benchmarks.__main__ import main
from benchmarks.campaign import (
    COLUMNS,
    GROWTH_COLUMNS,
    PROFILE_COLUMNS,
    campaign_cost,
    describe,
    one_flip,
    verdicts,
    with_ratios,
)
from benchmarks.common import LAST, OURS, large_case, small_cases
from benchmarks.op_profile import PARTS, REST, Clock
from benchmarks.published_loop import OneFlipLoop, ReloadLoop, RowDataset, collate
from benchmarks.trial_cost import TrialCost
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, FixedCount
from drsrobust.models import padded_batches, score
from drsrobust.study.mitigations import LARGE

SIZES = {"dense_mlp": [32, 16], "over_mlp": [32, 1]}


def large(rows=700, table_rows=1300):
    return large_case(rows, table_rows, SIZES)


@pytest.fixture(scope="module")
def case():
    """A DLRM on generated ratings: dense columns, single- and multi-hot features."""
    return small_cases("synthetic-movielens/full", 600)[1]


@pytest.fixture(scope="module")
def made():
    return campaign_cost(
        [lambda: [large()]],
        [1e-6, 1e-3],
        ["all", "embedding", "over_mlp"],
        seconds=0.01,
        loop_trials=2,
        growth_rows=[300, 600],
        growth_table_rows=[1300],
        workers=[1],
        workers_seconds=0.1,
        make=large,
        progress=False,
    )


@pytest.mark.parametrize("make", [lambda: small_cases("synthetic-movielens/full", 200)[0], large])
def test_rows_one_by_one_make_the_same_batches(make):
    split = make().rows
    rows = RowDataset(split)
    assert len(rows) == len(split)
    chosen = np.array([5, 0, 7, 7])
    batch, expected = collate(list(split.sparse))([rows[int(i)] for i in chosen]), split.batch(chosen)
    for name in ("dense_features", "labels"):
        assert torch.equal(getattr(batch, name), getattr(expected, name))
    assert batch.sparse_features.keys() == expected.sparse_features.keys()
    assert torch.equal(batch.sparse_features.values(), expected.sparse_features.values())
    assert torch.equal(batch.sparse_features.lengths(), expected.sparse_features.lengths())


@pytest.mark.parametrize(("target", "rate"), [("all", 1e-5), ("embedding", 1e-4), (LAST, 3e-2)])
def test_the_loop_finds_the_same_auc_for_the_same_masks(case, tmp_path, target, rate):
    evaluator, loop = Evaluator(case.model, case.rows), ReloadLoop(case.model, case.rows, target, tmp_path)
    labels, parameters = torch.tensor(case.rows.labels), dict(case.model.named_parameters())
    compared = 0
    for seed in range(8):
        loop.load()
        masks = loop.inject(rate, seed)
        assert any(mask.any() for mask in masks.values())

        def flip(masks=masks):
            for name, mask in masks.items():
                parameters[name].data.view(-1).view(torch.int32).bitwise_xor_(mask)

        flip()
        try:
            expected = evaluator.run()
        finally:
            flip()
        _, logits = loop.score()
        np.testing.assert_allclose(logits, expected.scores, rtol=1e-4, atol=1e-5)
        assert loop.trial(rate, seed).auc == loop.auc(labels, logits)
        if (
            np.abs(expected.scores).max() < 10
        ):  # else the loop's sigmoid ties scores, and torchmetrics ranks NaN highest
            assert loop.auc(labels, logits) == pytest.approx(expected.auc, abs=1e-5)
            compared += expected.auc != evaluator.golden.auc
    assert compared
    assert evaluator.run().auc == evaluator.golden.auc  # the model that was given is not touched
    loop.load()
    assert loop.auc(*loop.score()) == pytest.approx(evaluator.golden.auc, abs=1e-5)


@pytest.mark.parametrize("kind", [ReloadLoop, OneFlipLoop])
def test_the_loop_loads_its_checkpoint_for_every_trial(case, tmp_path, kind):
    golden = {name: tensor.clone() for name, tensor in case.model.state_dict().items()}
    loop = kind(case.model, case.rows, "embedding", tmp_path)
    found = loop.trial(1e-3, 3)
    assert min(found.load_ms, found.inject_ms, found.scoring_ms, found.auc_ms) > 0
    assert found.total_ms == pytest.approx(found.load_ms + found.inject_ms + found.scoring_ms + found.auc_ms)
    flipped = {
        name: int(np.bitwise_count((tensor.view(torch.int32) ^ golden[name].view(torch.int32)).numpy()).sum())
        for name, tensor in loop.model.state_dict().items()
        if tensor.dtype == torch.float32 and tensor.numel()
    }
    assert all("embedding_bags" in name for name, bits in flipped.items() if bits)
    assert (sum(flipped.values()) == 1) == (kind is OneFlipLoop)
    assert loop.trial(1e-3, 3).auc == found.auc  # errors of one trial are gone in the next
    loop.load()
    assert all(torch.equal(tensor, golden[name]) for name, tensor in loop.model.state_dict().items())


def test_a_point(case):
    evaluator = Evaluator(case.model, case.rows)
    measuring = TrialCost(evaluator, case.late)
    late = measuring.point(BitFlip(1e-3), "over_mlp", 0.01)
    assert late["trials"] >= 10 and late["rows_reached"] == len(case.rows)
    assert late["ms_per_trial"] > late["inject_undo_ms"] > 0 and late["wall_ms_per_trial"] > 0
    assert late["forward_ms"] > late["late_ms"] > 0 and late["auc_ms"] > 0
    few = measuring.point(FixedCount(1), "embedding", 0.01)
    assert few["rows_reached"] < len(case.rows) and not {"late_ms", "over_late"} & set(few)
    np.testing.assert_array_equal(
        score(case.model, padded_batches(case.rows), len(case.rows)), evaluator.golden.scores
    )  # nothing is left in the model


def test_a_slow_spell_of_the_machine_does_not_decide_a_ratio(case, monkeypatch):
    """All takes twice as long from the fourth turn on, and the second trial ten times as long as it should."""
    slow = [1, 1, 1, 2, 2, 2]
    parts = iter(slow)
    taken = iter([3.3, 33.0, 3.3, 6.6, 6.6])

    def measured(late):
        times = next(parts)
        return {"auc": 0.5 * times, "forward": 2.0 * times, "late": 0.5 * times}

    measuring = TrialCost(Evaluator(case.model, case.rows), case.late)
    monkeypatch.setattr(measuring, "_first", lambda *_: (2, 0.4))
    monkeypatch.setattr(measuring, "_parts", measured)
    monkeypatch.setattr(measuring, "_inject_undo", lambda error, target, turn, trials: 0.5 * slow[turn + 1])
    frame = pd.DataFrame({"rows_reached": [4, 8]})
    monkeypatch.setattr(measuring, "_campaign", lambda *_: (2 * next(taken), 7.0, frame))
    found = measuring.point(BitFlip(1e-3), "over_mlp", 1.0)
    assert found["over_sum"] == pytest.approx(1.1) and found["over_late"] == pytest.approx(2.2)
    assert (
        found["first_ms_per_trial"] == 400
        and found["trials"] == 10
        and found["rows_reached"] == 6
        and found["wall_ms_per_trial"] == 3500
    )
    assert found["forward_ms"] == pytest.approx(3000) and found["inject_undo_ms"] == pytest.approx(800)


def test_the_table(made):
    table, *_ = made
    assert tuple(table.columns) == COLUMNS and COLUMNS[:8] == (
        *("method", "model", "target", "rate", "ms_per_trial", "forward_ms", "auc_ms", "rows_reached"),
    )
    ours, loop = (table[table["method"] == method] for method in (OURS, ReloadLoop.name))
    cells = [(target, rate) for target in ("all", "embedding", "over_mlp") for rate in (-1, 1e-6, 1e-3)]
    for rows in (ours, loop):
        assert list(rows[["target", "rate"]].fillna(-1).itertuples(index=False, name=None)) == cells
    numbers = ["ms_per_trial", "forward_ms", "auc_ms", "rows_reached", "inject_undo_ms", "trials"]
    assert table[numbers].notna().all(axis=None) and (table["ms_per_trial"] > 0).all()
    assert ours["late_ms"].notna().tolist() == [False] * 6 + [True] * 3 and loop["late_ms"].isna().all()
    assert (loop.groupby("target")["ms_per_trial"].nunique() == 1).all()  # measured once, and said so
    assert loop["remark"].str.contains("measured at").tolist() == [True, False, True] * 3
    flip = table[table["method"] == OneFlipLoop.name]
    assert len(flip) == 3 and flip["rate"].isna().all() and len(table) == 21


def test_ratios_come_from_the_measured_columns(made):
    table, *_ = made
    ours = table[table["method"] == OURS].reset_index(drop=True)
    loop = table[table["method"] == ReloadLoop.name].reset_index(drop=True)
    parts = ours["inject_undo_ms"] + ours["forward_ms"] + ours["auc_ms"]
    np.testing.assert_allclose(ours["sum_ms"], parts)
    assert (ours["over_sum"] > 0).all() and ours["over_late"].notna().tolist() == ours["late_ms"].notna().tolist()
    np.testing.assert_allclose(ours["over_loop"], loop["ms_per_trial"] / ours["ms_per_trial"])
    np.testing.assert_allclose(loop["sum_ms"], loop["ms_per_trial"])
    assert loop[["over_sum", "over_late", "over_loop"]].isna().all(axis=None)


def test_growth_and_profile(made):
    _, growth, parts, remarks = made
    assert tuple(growth.columns) == GROWTH_COLUMNS
    by_rows = growth[growth["varied"] == "rows"]
    assert by_rows["rows"].tolist() == [300] * 3 + [600] * 3 and by_rows["rate"].isna().tolist() == [0, 0, 1] * 2
    assert growth["varied"].value_counts().to_dict() == {"rows": 6, "parameters": 3, "workers": 2}
    assert growth["wall_ms_per_trial"].notna().all() and growth["trials"].min() > 1
    assert tuple(parts.columns) == PROFILE_COLUMNS
    shares = parts.fillna({"rate": 0}).groupby(["target", "error_model", "rate"])["share"].sum()
    assert len(shares) == 5 and shares.to_numpy() == pytest.approx(1)
    assert set(parts["part"]) == {*PARTS, REST} and "one thread" in remarks[0]


def test_where_nothing_grows_there_is_no_growth():
    table, growth, parts, _ = campaign_cost(
        [lambda: [large()]], [1e-3], [LAST], seconds=0.01, loop_trials=1, growth_rows=[], progress=False
    )
    assert growth.empty and parts.empty and set(table["target"]) == {LAST}


def fake(**changes):
    """A table of two models by hand: the loop takes a second, ours 5 ms, as its parts together."""
    rows = []
    for model in ("dlrm", LARGE):
        for target in ("all", "embedding"):
            for rate in (float("nan"), 1e-6, 1e-5):
                about = {
                    "model": model,
                    "target": target,
                    "rate": rate,
                    "error_model": "FixedCount" if rate != rate else "BitFlip",
                }
                parts = {"inject_undo_ms": 1.0, "forward_ms": 3.0, "auc_ms": 1.0}
                rows.append({"method": OURS, "ms_per_trial": 5.0, "late_ms": None, "over_sum": 1.0} | about | parts)
                rows.append({"method": ReloadLoop.name, "ms_per_trial": 1000.0} | about | parts)
    return with_ratios(pd.DataFrame(rows))


def test_verdicts():
    found = {verdict.name: verdict for verdict in verdicts(fake())}
    assert {name: verdict.met for name, verdict in found.items()} == {
        "dlrm: over the sum of its parts": True,
        f"{LARGE}: over the sum of its parts": True,
        "dlrm: embedding up to 1e-06, over the loop": True,
        f"{LARGE}: embedding at 1e-06, over the loop": True,
        f"{LARGE}: one error in embedding, over the loop": False,
    }
    assert [verdict.value.split(" (")[0] for verdict in found.values()] == ["1", "1", "200", "200", "200"]
    table = fake()
    ours = (table["method"] == OURS) & (table["rate"] == 1e-6) & (table["target"] == "embedding")
    table.loc[ours, ["ms_per_trial", "over_sum"]] = 12.0, 2.4
    found = list(verdicts(with_ratios(table)))
    assert not any(verdict.met for verdict in found)
    assert {verdict.value.split(" (")[1] for verdict in found} == {"embedding, 1e-06)", "embedding, 1 error)"}


def test_the_clock_counts_each_part_alone(monkeypatch):
    times = iter([0.0, 1.0, 3.0, 4.0, 10.0, 11.0])
    monkeypatch.setattr(cost_profile.time, "process_time", lambda: next(times))
    clock = Clock()
    inner = clock.timed(lambda: None, "inner")
    with clock.on("outer"):
        inner()
    assert clock.seconds == {"outer": 1.0 + 1.0, "inner": 2.0}


def test_the_command(made, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(campaign, "campaign_cost", lambda: made)
    assert main(["campaign", "--out", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "campaign.csv")
    assert tuple(table.columns) == COLUMNS and table["rate"].isna().sum() == 9
    assert pd.read_csv(tmp_path / "campaign_growth.csv").columns.tolist() == list(GROWTH_COLUMNS)
    assert pd.read_csv(tmp_path / "campaign_profile.csv").columns.tolist() == list(PROFILE_COLUMNS)
    out = capsys.readouterr().out
    assert "Targets" in out and "Where the time goes" in out and f"wrote {tmp_path / 'campaign.csv'}" in out
    assert describe(*made) in out and one_flip(made[0])["ratio"].notna().all()
