"""A user's own metrics as columns of a campaign."""

import warnings

import numpy as np
import pytest

import drsrobust as dr
from drsrobust.metrics import recall


def mean_score(labels, scores, golden_scores, users):
    """A metric that workers can import."""
    return float(np.nanmean(scores))


def errors():
    return {"errors": [dr.BitFlip(1e-3)], "trials": 4}


def test_it_is_computed_as_a_user_would(evaluator):
    def moved(labels, scores, golden_scores, users):
        return np.mean(np.abs(scores - golden_scores) > 0.1)

    metrics = {"moved": moved, "recall@10": None, "mean_score": mean_score}
    table = dr.Campaign(evaluator, metrics=metrics, **errors()).run(progress=False)
    for number, row in table.iterrows():
        space = dr.resolve(evaluator.model, "all")
        with dr.inject(evaluator.model, dr.BitFlip(1e-3), seed=int(row["seed"])):
            result = evaluator.run()
        assert space.words
        golden = evaluator.golden.probabilities
        assert row["moved"] == np.mean(np.abs(result.probabilities - golden) > 0.1)
        assert row["mean_score"] == pytest.approx(float(np.nanmean(result.probabilities)))
        rows = evaluator.rows
        assert row["recall@10"] == recall(rows.labels, result.probabilities, rows.users, k=10), number


def test_it_sees_logits_where_the_evaluator_compares_them(trained, data):
    logits = dr.Evaluator(trained, data.test.head(500), scores="logit")
    metrics = {"most": lambda labels, scores, golden_scores, users: float(golden_scores.max())}
    table = dr.Campaign(logits, metrics=metrics, errors=[dr.FixedCount(1)], trials=1).run(progress=False)
    assert table["most"].iloc[0] == logits.golden.scores.max() != logits.golden.probabilities.max()


def test_a_metric_that_cannot_take_nan_is_missing_where_scores_are_and_widens_its_interval(evaluator):
    def strict(labels, scores, golden_scores, users):
        if not np.isfinite(scores).all():
            raise ValueError("NaN")
        return float(scores.mean())

    table = dr.Campaign(evaluator, metrics={"strict": strict}, errors=[dr.BitFlip(1e-4)], trials=40).run(progress=False)
    missing = table["strict"].isna()
    assert missing.any() and not missing.all() and (table["outcome"][missing] != "ok").all()
    (row,) = dr.summarise(table, ["strict"], bounds={"strict": (0, 1)}).to_dict("records")
    (least,), (greatest,) = (
        dr.summarise(table.fillna({"strict": end}), ["strict"], bounds={"strict": (0, 1)}).to_dict("records")
        for end in (0.0, 1.0)
    )
    assert row["strict_low"] <= least["strict_low"] < greatest["strict_high"] <= row["strict_high"]
    assert least["strict"] < row["strict"] < greatest["strict"]

    def broken(labels, scores, golden_scores, users):
        return 1.0 if scores is golden_scores or (scores == golden_scores).all() else 1 / 0

    with pytest.raises(ZeroDivisionError):
        dr.Campaign(evaluator, metrics={"broken": broken}, errors=[dr.BitFlip(1e-4)], trials=3).run(progress=False)


def test_a_metric_that_fails_ends_the_campaign_before_any_trial(evaluator, tmp_path):
    with pytest.raises(ValueError, match="metric 'mine'.*ZeroDivisionError"):
        dr.Campaign(evaluator, metrics={"mine": lambda *_: 1 / 0}, store=tmp_path / "s", **errors())
    assert not (tmp_path / "s").exists()


@pytest.mark.long
def test_workers_compute_what_they_can_import(evaluator, tmp_path):
    grid = {"metrics": {"mean_score": mean_score}, **errors()}
    one = dr.Campaign(evaluator, store=tmp_path / "one", **grid).run(progress=False, workers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        two = dr.Campaign(evaluator, store=tmp_path / "two", **grid).run(progress=False, workers=2)
    assert one.equals(two)
    private = {"metrics": {"mean_score": lambda labels, scores, *_: float(np.nanmean(scores))}, **errors()}
    with pytest.warns(UserWarning, match="in this process alone, since no other can import mean_score") as said:
        here = dr.Campaign(evaluator, store=tmp_path / "here", **private).run(progress=False, workers=2)
    assert len(said) == 1 and here["mean_score"].equals(one["mean_score"])
