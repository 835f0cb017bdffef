"""Mitigations, explicit conditions, further metrics."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from drsrobust.campaign import Campaign
from drsrobust.campaign.schedule import Chunk
from drsrobust.campaign.trial import LocalRunner
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, FixedCount, Rows, inject
from drsrobust.metrics import NAMES
from drsrobust.mitigation import ECC, Detection, Mitigation, NaNGuard
from drsrobust.mitigation.base import attached_mitigations
from drsrobust.statistics.recovery import recovery
from drsrobust.statistics.summary import summarise
from drsrobust_extras.pages.plots.curves import recovery_vs_ber_data


class TopBitProtected(Mitigation):
    """Storage in which bit 30 never flips."""

    name = "bit 30"

    def settings(self):
        return {}

    def screen(self, error_map, space, *, seed):
        return error_map.restrict(range(30))


class Clamped(Mitigation):
    """The logit is held within bounds; it tells whether it had to be."""

    def __init__(self, bound):
        self.bound, self.name = bound, f"clamp {bound:g}"

    def settings(self):
        return {"bound": self.bound}

    def new_detection(self):
        return Detection(detected=False)

    def register_hooks(self, model, active):
        def hook(module, args, logits):
            held = logits.nan_to_num(0.0, self.bound, -self.bound).clamp(-self.bound, self.bound)
            if not bool((held == logits).all()):
                active.detection.record()
            return held

        yield model.register_forward_hook(hook)


GRID = {"errors": [BitFlip(1e-3)], "targets": ["all"], "trials": 20}


def test_mitigations_meet_the_same_maps(evaluator, tmp_path):
    mitigations = [None, TopBitProtected(), Clamped(1e3)]
    table = Campaign(evaluator, mitigations=mitigations, store=tmp_path / "s", **GRID).run(progress=False)
    by = {name: group.reset_index(drop=True) for name, group in table.groupby("mitigation", sort=False)}
    assert list(by) == ["none", "bit 30", "clamp 1000"]
    for name in ("seed", "bits_flipped", "words_hit", "realised_rate", "auc_golden"):
        assert all((group[name] == by["none"][name]).all() for group in by.values()), name
    plain, protected, clamped = by.values()
    assert (plain["bits_left"] == plain["bits_flipped"]).all() and (clamped["bits_left"] == plain["bits_left"]).all()
    assert (protected["bits_left"] < protected["bits_flipped"]).all()
    assert (plain["outcome"] == "nonfinite").any() and (clamped["outcome"] == "ok").all()
    assert protected["auc"].mean() > plain["auc"].mean()
    assert plain["detected"].isna().all() and clamped["detected"].any() and clamped["repaired"].isna().all()
    errors = Campaign(evaluator, mitigations=mitigations, store=tmp_path / "s", **GRID).errors()
    counts = errors.groupby(["mitigation", "trial"])["count"].sum()
    assert (counts["none"] == counts["bit 30"]).all()  # as drawn


def test_a_mitigated_row_by_hand(evaluator, trained, tmp_path):
    clamp = Clamped(0.05)
    table = Campaign(evaluator, mitigations=[clamp], store=tmp_path / "s", **GRID).run(progress=False)
    with (
        evaluator.under(clamp) as guarded,
        inject(trained, BitFlip(1e-3), seed=int(table["seed"][3])) as error_map,
    ):
        assert guarded.rerun(error_map).auc == guarded.run().auc == table["auc"][3]
        assert guarded.golden.auc != evaluator.golden.auc  # this bound costs something without errors too
    assert not trained._forward_hooks


def test_two_settings_of_one_label(evaluator, tmp_path):
    """They meet the same maps, are stored, grouped and looked up apart, and give what each gives by itself."""
    low, high = NaNGuard(prior=0.2), NaNGuard(prior=0.9)
    assert low.name == high.name
    grid = GRID | {"errors": [BitFlip(1e-2)]}
    runner = Campaign(evaluator, mitigations=[None, low, high, low + Clamped(2.0)], store=tmp_path / "s", **grid)
    table = runner.run(progress=False)
    ids = ["", *(one.identity()[:12] for one in (low, high, low + Clamped(2.0)))]
    assert table["mitigation_id"].fillna("").drop_duplicates().tolist() == ids and len(set(ids)) == 4
    assert table.loc[table["mitigation"] == "none", "mitigation_id"].isna().all()
    trials = [group.reset_index(drop=True) for _, group in table.groupby("mitigation_id", sort=False)]
    assert trials[0]["seed"].tolist() == trials[1]["seed"].tolist() == table["seed"].tolist()[:20]
    assert trials[0]["logloss"].tolist() != trials[1]["logloss"].tolist()
    alone = Campaign(evaluator, mitigations=[high], store=tmp_path / "t", **grid).run(progress=False)
    pd.testing.assert_frame_equal(trials[1], alone)

    summary = summarise(table)
    assert summary["mitigation_id"].fillna("").tolist() == ids and (summary["n"] == 20).all()
    assert np.allclose(summary["auc"].tolist()[1:], [one["auc"].mean() for one in trials])
    found = recovery(table)
    assert found["mitigation"].tolist() == ["NaN guard", "NaN guard", "NaN guard + clamp 2"]
    assert found["mitigation_id"].tolist() == ids[1:] and np.allclose(found["auc"], summary["auc"][1:])
    assert runner.timings().groupby("mitigation_id", dropna=False).size().tolist() == [20] * 4
    with pytest.raises(ValueError, match="2 mitigations are labelled 'NaN guard'; set a `.name` for each before run"):
        recovery_vs_ber_data(found)


def test_equal_mitigations_are_one(evaluator):
    """Its golden run is made once."""
    listed = [(BitFlip(1e-3), "all", NaNGuard(prior=0.2)), (BitFlip(1e-2), "all", NaNGuard(prior=0.2))]
    one, other = (condition.mitigation for condition in Campaign(evaluator, conditions=listed).conditions)
    assert one is other is listed[0][2]


def test_an_evaluator_under_a_mitigation_ends_with_its_block(evaluator, trained):
    low, high = NaNGuard(prior=0.2), NaNGuard(prior=0.9)
    with evaluator.under(low) as guarded:
        guarded.run()
    for block in (nullcontext(), high.attach(trained)):
        with block, inject(trained, BitFlip(1e-3), seed=1) as error_map:
            for call in (guarded.run, lambda e=error_map: guarded.rerun(e)):
                with pytest.raises(RuntimeError, match="made under 'NaN guard', which is not attached now"):
                    call()
    with evaluator.under(low, guarded) as again, inject(trained, BitFlip(1e-3), seed=1) as error_map:
        assert again is guarded and again.rerun(error_map).auc == again.run().auc


def test_chunks_take_the_evaluator_of_their_mitigation(evaluator, monkeypatch):
    """One golden run for each mitigation, whatever the order of chunks, and never outside of its block."""
    low, high = NaNGuard(prior=0.2), NaNGuard(prior=0.9)
    conditions = Campaign(evaluator, mitigations=[None, low, high], **GRID).conditions
    here = LocalRunner(evaluator, conditions, {"seed": 0, "coupled": True, "label": "p", "metrics": ()})
    made, real = [], Evaluator.__init__
    monkeypatch.setattr(
        Evaluator, "__init__", lambda self, *a, **o: (made.append(attached_mitigations(a[0])), real(self, *a, **o))[1]
    )
    for number in (1, 2, 0, 1, 2, 1):
        table, stopped = here(Chunk(number, (0,)))
        assert stopped is None and table["mitigation_id"].to_pylist() == [conditions[number].mitigation_id]
        assert not attached_mitigations(evaluator.model)
    assert made == [(low,), (high,)]


def test_explicit_conditions(evaluator, tmp_path):
    clamp = Clamped(5.0)
    listed = [
        (BitFlip(1e-3), "embedding"),
        {"error": FixedCount(2), "target": "mlp", "mitigation": clamp},
        {"error": FixedCount(1)},
    ]
    few = {"trials": 3, "sampling": "plain"}
    table = Campaign(evaluator, conditions=listed, **few, store=tmp_path / "s").run(progress=False)
    assert table[["error_model", "target", "mitigation"]].drop_duplicates().values.tolist() == [
        ["BitFlip", "embedding", "none"],
        ["FixedCount(k=2)", "mlp", "clamp 5"],
        ["FixedCount(k=1)", "all", "none"],
    ]
    crossed = Campaign(evaluator, errors=[BitFlip(1e-3)], targets=["embedding"], **few, store=tmp_path / "t")
    pd.testing.assert_frame_equal(crossed.run(progress=False), table[:3])


def test_a_list_in_the_axis_of_targets_is_a_union(evaluator, tmp_path):
    union = ["embedding", "over_mlp"]
    grid = {"trials": 2, "sampling": "plain"}
    table = Campaign(evaluator, errors=FixedCount(200), **grid, targets=["all", union], store=tmp_path / "s").run(
        progress=False
    )
    assert table["target"].drop_duplicates().tolist() == ["all", "embedding | over_mlp"]
    campaign = Campaign(evaluator, conditions=[(FixedCount(200), union)], **grid, store=tmp_path / "t")
    pd.testing.assert_frame_equal(campaign.run(progress=False), table[2:].reset_index(drop=True))


def test_metrics(evaluator, trained, tmp_path):
    runner = Campaign(evaluator, metrics=NAMES, store=tmp_path / "s", **GRID)
    table = runner.run(progress=False)
    assert tuple(table.columns[-len(NAMES) :]) == NAMES
    assert table.columns[-len(NAMES) - 1] == "n_bits"
    with inject(trained, BitFlip(1e-3), seed=int(table["seed"][4])):
        full = evaluator.run()
        assert [full.metric(name) for name in NAMES] == table.loc[4, list(NAMES)].tolist()
    assert runner.summary(metrics=("auc", "ndcg"))["ndcg_low"].iloc[0] < table["ndcg"].mean()


def test_metrics_of_users_are_null_without_users(evaluator, trained, data, tmp_path):
    anonymous = Evaluator(trained, replace(data.test, users=None))
    with pytest.warns(UserWarning, match="^ndcg: no value on these rows"):
        campaign = Campaign(anonymous, metrics=["ndcg", "decision_changed"], store=tmp_path / "s", **GRID)
    table = campaign.run(progress=False)
    assert table["ndcg"].isna().all() and table["decision_changed"].notna().all()


def test_one_error_per_trial_costs_few_rows(evaluator, tmp_path):
    """What campaigns are quick by: a trial of one error in a table computes the rows that read it."""
    table = Campaign(evaluator, errors=[FixedCount(1)], targets=["embedding"], store=tmp_path / "s").run(progress=False)
    assert table["rows_reached"].median() < len(evaluator.rows) / 50
    assert np.isfinite(table["auc"]).all()


def test_what_memory_noticed_is_in_the_table(evaluator, tmp_path):
    """A code in memory tells what it corrected; together with a watch on the computation."""
    grid = {"errors": [FixedCount(0), FixedCount(1)], "targets": ["embedding"], "trials": 5}
    ecc = ECC(uncorrectable="zero")
    table = Campaign(evaluator, mitigations=[ecc, ecc + Clamped(1e3)], store=tmp_path / "s", **grid).run(progress=False)
    none, one = table[table["bits_flipped"] == 0], table[table["bits_flipped"] == 1]
    assert len(none) == len(one) == 10
    assert not none["detected"].any() and none["detected"].notna().all()
    assert one["detected"].all() and one["repaired"].all() and (one["bits_left"] == 0).all()
    assert (one["auc"] == evaluator.golden.auc).all() and (one["rows_reached"] == 0).all()


def test_an_evaluator_without_the_mitigation_runs_in_full(evaluator, trained):
    """Its golden scores are those of the unprotected model: rows that no error reaches have others now."""
    with inject(trained, FixedCount(1), "embedding", seed=1, mitigation=Clamped(0.05)) as error_map:
        full, quick = evaluator.run(), evaluator.rerun(error_map)
        assert np.array_equal(full.scores, quick.scores) and quick.rows_reached == len(evaluator.rows)
    assert np.abs(full.scores).max() == np.float32(0.05) < np.abs(evaluator.golden.scores).max()


def test_one_object_is_an_axis_of_one_and_iterators_are_not_used_up(evaluator):
    flips, rows, guard = [BitFlip(1e-4), BitFlip(1e-3)], Rows("movie", range(100)), NaNGuard(value=0.0)
    listed = Campaign(evaluator, errors=flips, targets=[rows], mitigations=[guard])
    for one in (
        Campaign(evaluator, errors=iter(flips), targets=rows, mitigations=guard),
        Campaign(evaluator, errors=flips, targets=(target for target in [rows]), mitigations=iter([guard])),
    ):
        assert one.store.identity == listed.store.identity and len(one.conditions) == 2
    assert len(Campaign(evaluator, errors=BitFlip(1e-4), mitigations=None, sampling="plain").conditions) == 1
