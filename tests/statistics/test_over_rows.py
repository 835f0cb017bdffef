"""Intervals over error maps and rows: their parts, and how often they hold what other rows give."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import drsrobust as dr
from benchmarks.row_coverage import METRICS, trials_on
from drsrobust.campaign import Campaign
from drsrobust.campaign.trial import ROW_TRIALS
from drsrobust.metrics import served
from drsrobust.metrics.auc import auc_difference, auc_interval, twice_won_by_row
from drsrobust.metrics.row_parts import auc_parts, draws
from drsrobust.metrics.tasks import MultiMetrics
from drsrobust.statistics.columns import DRAWS, OVER_ROWS
from drsrobust.statistics.summary import summarise

Z = 1.959964


@pytest.fixture(scope="module")
def scored():
    """Clicks, golden scores, and noise, of 20,000 rows."""
    random = np.random.default_rng(1)
    clicked = random.random(20_000) < 0.4
    return clicked, clicked + random.normal(size=20_000), random


def error_of(interval):
    return (interval[2] - interval[1]) / 2 / Z


def faulty_scores(kind, clicked, golden, random, maps=60):
    """Scores [maps, n] under error maps that all do the same, that lose all in ways of their own, or that reach a few rows."""
    if kind == "same":
        return golden + 1.5 * random.normal(size=len(golden)) + 1e-3 * random.normal(size=(maps, 1)) * clicked
    noise = random.normal(size=(maps, len(golden)))
    if kind == "own":
        return noise
    return np.where(random.random(noise.shape) < 0.05, 4 * noise, golden)


def test_parts_and_draws_have_delongs_standard_error(scored):
    """Squares of the parts sum up to DeLong's variance, also of a difference; the root mean square of draws is its root."""
    clicked, golden, random = scored[0][:400], scored[1][:400], np.random.default_rng(2)
    faulty = np.round(golden + random.normal(size=400), 1)
    one, two = (auc_parts(clicked, twice_won_by_row(clicked, scores)) for scores in (golden, faulty))
    assert np.sqrt((two**2).sum()) == pytest.approx(error_of(auc_interval(clicked, faulty)), rel=1e-6)
    paired = error_of(auc_difference(clicked, golden, faulty))
    assert np.sqrt(((one - two) ** 2).sum()) == pytest.approx(paired, rel=1e-6)
    drawn = draws(one - two)
    assert drawn.shape == (DRAWS,) and np.sqrt((drawn**2).mean()) == pytest.approx(paired, rel=1e-6)
    assert (draws(one - two) == drawn).all() and (draws(np.zeros(9)) == 0).all()
    assert auc_parts(np.array([True, False, False]), np.array([0, 1, 1])) is None  # one click has no variance
    both = MultiMetrics(np.stack([clicked, clicked], 1), np.stack([golden, golden], 1), [0.4, 0.4], ["a", "b"])
    of_served = auc_parts(clicked, twice_won_by_row(clicked, served(golden)))
    assert both.auc_parts(np.stack([golden, golden], 1)) == pytest.approx(of_served, abs=1e-4)


def test_the_rows_part_is_what_trials_have_in_common(scored):
    """Maps that do the same: DeLong's error of one of them; of maps with losses of their own no more than the mean error."""
    clicked, golden, random = (part[:2000] if part is not scored[2] else part for part in scored)
    scores = faulty_scores("same", clicked, golden, random, 20)
    same = summarise(trials_on(clicked, golden, scores), METRICS).iloc[0]
    exact = error_of(auc_difference(clicked, golden, scores[0]))
    assert same["auc_drop_rows"] == pytest.approx(exact, rel=1e-3)
    half = np.hypot(same["auc_drop"] - same["auc_drop_maps_low"], Z * same["auc_drop_rows"])
    assert same["auc_drop"] - same["auc_drop_low"] == pytest.approx(half, rel=1e-6)
    assert same["over"] == "maps and rows"
    few = faulty_scores("few rows", clicked, golden, random, 30)
    each = np.mean([error_of(auc_difference(clicked, golden, one)) for one in few])
    assert 0 < summarise(trials_on(clicked, golden, few), METRICS)["auc_drop_rows"].item() < 0.6 * each


def test_unknown_is_said_and_is_not_0(scored):
    """Of other metrics, of tables without draws, and where no trial changed the order of rows."""
    clicked, golden, random = (part[:500] if part is not scored[2] else part for part in scored)
    table = trials_on(clicked, golden, faulty_scores("own", clicked, golden, random, 20)).assign(
        logloss=np.linspace(0.5, 0.6, 20), ne=1.0
    )
    summary = summarise(table).iloc[0]
    assert np.isnan(summary["logloss_rows"]) and np.isnan(summary["ne_rows"]) and summary["auc_drop_rows"] > 0
    assert summary["over"] == "maps and rows (auc, auc_drop); maps (logloss, ne)"
    before = summarise(table.drop(columns=[name for names in OVER_ROWS.values() for name in names])).iloc[0]
    assert before["over"] == "maps" and np.isnan(before["auc_drop_rows"])
    for end in ("low", "high"):
        assert before[f"auc_drop_{end}"] == before[f"auc_drop_maps_{end}"] == summary[f"auc_drop_maps_{end}"]
    unharmed = summarise(trials_on(clicked, golden, np.tile(golden, (20, 1))), ["auc_drop"]).iloc[0]
    assert np.isnan(unharmed["auc_drop_rows"]) and unharmed["over"] == "maps"


def test_models_on_the_same_rows_share_the_error_over_rows(scored):
    """More trained models narrow the part of the maps and of training, not that of the rows."""
    clicked, golden, random = (part[:1000] if part is not scored[2] else part for part in scored)
    each = [
        summarise(trials_on(clicked, golden, faulty_scores("own", clicked, golden, random, 10)), ["auc_drop"])
        for _ in range(4)
    ]
    both = dr.statistics.across_models(each, ["auc_drop"]).iloc[0]
    assert both["auc_drop_rows"] == pytest.approx(np.mean([one["auc_drop_rows"].item() for one in each]))
    assert both["auc_drop_high"] - both["auc_drop"] > Z * both["auc_drop_rows"]


def test_a_campaign_has_draws_in_its_first_trials(evaluator, tmp_path):
    """Paired with the golden scores of the same rows, under protections too."""
    options = {"errors": [dr.BitFlip(1e-3)], "mitigations": [None, dr.NaNGuard(prior=0.3)], "trials": ROW_TRIALS + 2}
    campaign = Campaign(evaluator, store=tmp_path / "s", **options)
    table = campaign.run(progress=False)
    for name, columns in OVER_ROWS.items():
        has = table[list(columns)].notna().all(axis=1)
        assert (has == (table["trial"] < ROW_TRIALS)).all(), name
    first = table.iloc[0]
    with dr.inject(evaluator.model, dr.BitFlip(1e-3), seed=int(first["seed"])) as error_map:
        scores = evaluator.rerun(error_map).probabilities
    exact = error_of(auc_difference(evaluator.rows.labels, evaluator.golden.probabilities, scores))
    assert np.sqrt((first[list(OVER_ROWS["auc_drop"])].astype(float) ** 2).mean()) == pytest.approx(exact, rel=1e-6)
    assert campaign.summary()["over"].str.startswith("maps and rows").all()
    pd.testing.assert_frame_equal(summarise(pd.DataFrame(table)), campaign.summary())


def test_a_store_of_an_earlier_version_opens(evaluator, tmp_path):
    """Chunks without the columns of draws: they are null, its first trials are compared without them, and more are added."""
    options = {"errors": [dr.BitFlip(1e-3)], "store": tmp_path / "s"}
    made = Campaign(evaluator, trials=4, **options)
    expected = made.run(progress=False)
    later = [name for names in OVER_ROWS.values() for name in names]
    for path in list((tmp_path / "s").glob("*.parquet")):
        chunk = pq.read_table(path)
        path.unlink()
        made.store._write_chunk(chunk.drop_columns(later), path.name.rsplit("-", 1)[0])
    table = Campaign(evaluator, trials=6, **options).run(progress=False)
    pd.testing.assert_frame_equal(table[:4].drop(columns=later), expected.drop(columns=later))
    assert table[later][:4].isna().all(axis=None) and table[later][4:].notna().all(axis=None)
