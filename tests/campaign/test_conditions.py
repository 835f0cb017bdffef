"""Mitigations, explicit conditions, further metrics and a user's own."""

import warnings
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
from drsrobust.metrics import NAMES, recall
from drsrobust.mitigation import ECC, Detection, Mitigation, NaNGuard
from drsrobust.mitigation.base import attached_mitigations
from drsrobust.statistics.recovery import recovery
from drsrobust.statistics.summary import summarise
from drsrobust_extras.pages.plots.curves import recovery_vs_ber_data
from tests.refusals import refuses


class TopBitProtected(Mitigation):
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
FEW = {"errors": [BitFlip(1e-3)], "trials": 4}


def each(truths):
    """Whether all are true and none is missing, which pandas skips."""
    return truths.tolist() == [True] * len(truths)


def test_mitigations_meet_the_same_maps(evaluator, tmp_path):
    runner = Campaign(evaluator, mitigations=[None, TopBitProtected(), Clamped(1e3)], store=tmp_path / "s", **GRID)
    table = runner.run(progress=False)
    by = {name: group.reset_index(drop=True) for name, group in table.groupby("mitigation", sort=False)}
    assert list(by) == ["none", "bit 30", "clamp 1000"]
    for name in ("seed", "bits_flipped", "words_hit", "realised_rate", "auc_golden"):
        assert all(each(group[name] == by["none"][name]) for group in by.values()), name
    plain, protected, clamped = by.values()
    assert each(plain["bits_left"] == plain["bits_flipped"]) and each(clamped["bits_left"] == plain["bits_left"])
    assert each(protected["bits_left"] < protected["bits_flipped"])
    assert (plain["outcome"] == "nonfinite").any() and (clamped["outcome"] == "ok").all()
    assert protected["auc"].mean() > plain["auc"].mean()
    assert plain["detected"].isna().all() and clamped["detected"].any() and clamped["repaired"].isna().all()
    counts = runner.errors().groupby(["mitigation", "trial"])["count"].sum()
    assert (counts["none"] == counts["bit 30"]).all()  # as drawn


def test_a_mitigated_row_by_hand(evaluator, trained, tmp_path):
    clamp = Clamped(0.05)
    table = Campaign(evaluator, mitigations=[clamp], store=tmp_path / "s", **GRID).run(progress=False)
    errors = inject(trained, BitFlip(1e-3), seed=int(table["seed"][3]))
    with evaluator.under(clamp) as guarded, errors as error_map:
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
    listed = [(BitFlip(rate), "all", NaNGuard(prior=0.2)) for rate in (1e-3, 1e-2)]
    one, other = (condition.mitigation for condition in Campaign(evaluator, conditions=listed).conditions)
    assert one is other is listed[0][2]


def test_an_evaluator_under_a_mitigation_ends_with_its_block(evaluator, trained):
    low, high = NaNGuard(prior=0.2), NaNGuard(prior=0.9)
    with evaluator.under(low) as guarded:
        guarded.run()
    for block in (nullcontext(), high.attach(trained)):
        with block, inject(trained, BitFlip(1e-3), seed=1) as error_map:
            for call in (guarded.run, lambda e=error_map: guarded.rerun(e)):
                refuses(call, RuntimeError, "made under 'NaN guard', which is not attached now")
    with evaluator.under(low, guarded) as again, inject(trained, BitFlip(1e-3), seed=1) as error_map:
        assert again is guarded and again.rerun(error_map).auc == again.run().auc


def test_chunks_take_the_evaluator_of_their_mitigation(evaluator, monkeypatch):
    """One golden run for each mitigation, whatever the order of chunks, and never outside of its block."""
    low, high = NaNGuard(prior=0.2), NaNGuard(prior=0.9)
    conditions = Campaign(evaluator, mitigations=[None, low, high], **GRID).conditions
    here = LocalRunner(evaluator, conditions, {"seed": 0, "coupled": True, "label": "p", "metrics": ()})
    made, real = [], Evaluator.__init__

    def noted(self, model, *arguments, **options):
        made.append(attached_mitigations(model))
        real(self, model, *arguments, **options)

    monkeypatch.setattr(Evaluator, "__init__", noted)
    for number in (1, 2, 0, 1, 2, 1):
        table, stopped = here(Chunk(number, (0,)))
        assert stopped is None and table["mitigation_id"].to_pylist() == [conditions[number].mitigation_id]
        assert not attached_mitigations(evaluator.model)
    assert made == [(low,), (high,)]


def test_explicit_conditions_are_those_of_axes(evaluator, tmp_path):
    """A list of targets is a union, in both."""
    union, clamp, few = ["embedding", "over_mlp"], Clamped(5.0), {"trials": 3, "sampling": "plain"}
    listed = [
        (BitFlip(1e-3), "mlp"),
        (FixedCount(200), union),
        {"error": FixedCount(200), "target": "all", "mitigation": clamp},
        {"error": FixedCount(1)},
    ]
    table = Campaign(evaluator, conditions=listed, **few, store=tmp_path / "s").run(progress=False)
    assert table[["error_model", "target", "mitigation"]].drop_duplicates().values.tolist() == [
        ["BitFlip", "mlp", "none"],
        ["FixedCount(k=200)", "embedding | over_mlp", "none"],
        ["FixedCount(k=200)", "all", "clamp 5"],
        ["FixedCount(k=1)", "all", "none"],
    ]
    axes = {"errors": FixedCount(200), "targets": [union, "all"], "mitigations": [None, clamp]}
    crossed = Campaign(evaluator, **axes, **few, store=tmp_path / "t").run(progress=False)
    pd.testing.assert_frame_equal(
        pd.concat([crossed[:3], crossed[9:]], ignore_index=True), table[3:9].reset_index(drop=True)
    )


def test_metrics(evaluator, trained, tmp_path):
    runner = Campaign(evaluator, metrics=NAMES, store=tmp_path / "s", **GRID)
    table = runner.run(progress=False)
    assert tuple(table.columns[-len(NAMES) - 1 :]) == ("n_bits", *NAMES)
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


def test_one_error_per_trial(evaluator, tmp_path):
    """Campaigns are quick since a trial of one error in a table computes the rows that read it. A code in memory corrects it
    and says so, also together with a watch on the computation."""
    ecc, n = ECC(uncorrectable="zero"), 25
    grid = {"errors": [FixedCount(0), FixedCount(1)], "targets": ["embedding"], "trials": n}
    runner = Campaign(evaluator, mitigations=[None, ecc, ecc + Clamped(1e3)], store=tmp_path / "s", **grid)
    table = runner.run(progress=False)
    _, *none, plain, corrected, watched = (table[start : start + n] for start in range(0, 6 * n, n))
    assert plain["rows_reached"].median() < len(evaluator.rows) / 50 and np.isfinite(plain["auc"]).all()
    for one in none:
        assert one["bits_flipped"].tolist() == [0] * n and each(~one["detected"])
    for one in (corrected, watched):
        assert one["bits_flipped"].tolist() == [1] * n and each(one["detected"]) and each(one["repaired"])
        assert each(one["bits_left"] == 0) and each(one["rows_reached"] == 0)
        assert each(one["auc"] == evaluator.golden.auc)


def test_an_evaluator_without_the_mitigation_runs_in_full(evaluator, trained):
    """Its golden scores are those of the unprotected model: rows that no error reaches have others now."""
    with inject(trained, FixedCount(1), "embedding", seed=1, mitigation=Clamped(0.05)) as error_map:
        full, quick = evaluator.run(), evaluator.rerun(error_map)
        assert np.array_equal(full.scores, quick.scores) and quick.rows_reached == len(evaluator.rows)
    assert np.abs(full.scores).max() == np.float32(0.05) < np.abs(evaluator.golden.scores).max()


def test_one_object_is_an_axis_of_one_and_iterators_are_not_used_up(evaluator):
    flips, rows, guard = [BitFlip(1e-4), BitFlip(1e-3)], Rows("movie", range(100)), NaNGuard(value=0.0)
    listed = Campaign(evaluator, errors=flips, targets=[rows], mitigations=[guard])
    for axes in ((iter(flips), rows, guard), (flips, (target for target in [rows]), iter([guard]))):
        one = Campaign(evaluator, **dict(zip(("errors", "targets", "mitigations"), axes, strict=True)))
        assert one.store.identity == listed.store.identity and len(one.conditions) == 2
    assert len(Campaign(evaluator, errors=BitFlip(1e-4), mitigations=None, sampling="plain").conditions) == 1


def mean_score(labels, scores, golden_scores, users):
    """A metric that workers can import."""
    return float(np.nanmean(scores))


def test_it_is_computed_as_a_user_would(evaluator):
    def moved(labels, scores, golden_scores, users):
        return np.mean(np.abs(scores - golden_scores) > 0.1)

    metrics = {"moved": moved, "recall@10": None, "mean_score": mean_score}
    table = Campaign(evaluator, metrics=metrics, **FEW).run(progress=False)
    golden, rows = evaluator.golden.probabilities, evaluator.rows
    for number, row in table.iterrows():
        with inject(evaluator.model, BitFlip(1e-3), seed=int(row["seed"])):
            scores = evaluator.run().probabilities
        assert row["moved"] == np.mean(np.abs(scores - golden) > 0.1)
        assert row["mean_score"] == pytest.approx(float(np.nanmean(scores)))
        assert row["recall@10"] == recall(rows.labels, scores, rows.users, k=10), number


def test_it_sees_logits_where_the_evaluator_compares_them(trained, data):
    logits = Evaluator(trained, data.test.head(500), scores="logit")
    metrics = {"most": lambda labels, scores, golden_scores, users: float(golden_scores.max())}
    table = Campaign(logits, metrics=metrics, errors=[FixedCount(1)], trials=1).run(progress=False)
    assert table["most"].iloc[0] == logits.golden.scores.max() != logits.golden.probabilities.max()


def test_a_metric_that_cannot_take_nan_is_missing_where_scores_are_and_widens_its_interval(evaluator):
    def strict(labels, scores, golden_scores, users):
        if not np.isfinite(scores).all():
            raise ValueError("NaN")
        return float(scores.mean())

    table = Campaign(evaluator, metrics={"strict": strict}, errors=[BitFlip(1e-4)], trials=40).run(progress=False)
    missing = table["strict"].isna()
    assert missing.any() and not missing.all() and (table["outcome"][missing] != "ok").all()
    tables = table, *(table.fillna({"strict": end}) for end in (0.0, 1.0))
    row, least, greatest = (summarise(each, ["strict"], bounds={"strict": (0, 1)}).iloc[0] for each in tables)
    assert row["strict_low"] <= least["strict_low"] < greatest["strict_high"] <= row["strict_high"]
    assert least["strict"] < row["strict"] < greatest["strict"]

    def broken(labels, scores, golden_scores, users):
        return 1.0 if scores is golden_scores or (scores == golden_scores).all() else 1 / 0

    with pytest.raises(ZeroDivisionError):
        Campaign(evaluator, metrics={"broken": broken}, errors=[BitFlip(1e-4)], trials=3).run(progress=False)


def test_a_metric_that_fails_ends_the_campaign_before_any_trial(evaluator, tmp_path):
    with pytest.raises(ValueError, match="metric 'mine'.*ZeroDivisionError"):
        Campaign(evaluator, metrics={"mine": lambda *_: 1 / 0}, store=tmp_path / "s", **FEW)
    assert not (tmp_path / "s").exists()


@pytest.mark.long
def test_workers_compute_what_they_can_import(evaluator, tmp_path):
    grid = {"metrics": {"mean_score": mean_score}, **FEW}
    one = Campaign(evaluator, store=tmp_path / "one", **grid).run(progress=False, workers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        two = Campaign(evaluator, store=tmp_path / "two", **grid).run(progress=False, workers=2)
    assert one.equals(two)
    private = {"metrics": {"mean_score": lambda labels, scores, *_: float(np.nanmean(scores))}, **FEW}
    with pytest.warns(UserWarning, match="in this process alone, since no other can import mean_score") as said:
        here = Campaign(evaluator, store=tmp_path / "here", **private).run(progress=False, workers=2)
    assert len(said) == 1 and here["mean_score"].equals(one["mean_score"])
