"""Summaries, recovery, plans and reports of whatever metric a campaign has: AUC, or NDCG and hit rate of rankings."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.campaign.sampling import allocated, first_trials
from drsrobust.injection.critical_bits import harmful_pilots
from drsrobust.statistics import Headline
from tests.statistics.tables import table_of

N, ITEMS, METRICS = 128, 30, ["ndcg@10", "hit_rate@1", "overlap"]
INF = float("inf")


class Scores(nn.Module):
    """Scores of all items for a user's dense features."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.items = nn.Linear(4, 8), nn.Parameter(torch.randn(ITEMS, 8))

    def forward(self, dense_features, sparse_features=None):
        return self.layer(dense_features) @ self.items.T


@pytest.fixture(scope="module")
def ranked():
    """A model, and rows whose relevant item is the best one but for every fourth row."""
    model, dense = Scores().eval(), torch.randn(N, 4, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        best = model(dense).argmax(1)
    best[::4] = (best[::4] + 1) % ITEMS
    return model, dr.data.from_tensors(label=best.numpy(), task="ranking", dense=dense.numpy())


@pytest.fixture(scope="module")
def campaign(ranked, tmp_path_factory):
    grid = {"errors": [dr.BitFlip(3e-4), dr.BitFlip(3e-3)], "mitigations": [None, dr.ECC()], "trials": 20}
    evaluator = dr.Evaluator(*ranked, task="ranking")
    made = dr.Campaign(evaluator, metrics=METRICS, store=tmp_path_factory.mktemp("ranked") / "s", **grid)
    made.run(progress=False, workers=1)
    return made


@pytest.mark.parametrize(
    ("name", "golden", "losses", "bounds", "worst"),
    [
        ("auc", 0.8, [0.8, 0.3, -0.2], (-0.2, 0.8), 0.0),
        ("ndcg@10/buy", 0.4, [0.4, -0.1, -0.6], (-0.6, 0.4), 0.0),
        ("logloss", 0.5, [-0.5, 0.0, 0.5], (-0.5, INF), INF),
    ],
)
def test_losses_bounds_and_direction(name, golden, losses, bounds, worst):
    headline = Headline(name, golden)
    assert headline.loss(np.array([0.0, 0.5, 1.0])) == pytest.approx(losses)
    assert headline.bounds_of(headline.drop) == pytest.approx(bounds) and headline.worst_of(name) == worst
    assert headline.worst_of(headline.drop) == pytest.approx(bounds[1])


def test_a_table_has_headlines_by_its_columns():
    assert Headline.of(table_of([0.7, 0.8])) == [Headline("auc", 0.8)]
    trials = table_of([np.nan], auc_golden=None).assign(
        **{"ndcg_golden": 0.5, "own_golden": 1.0, "logloss_golden": 0.6}
    )
    assert Headline.of(trials) == [Headline("ndcg", 0.5), Headline("logloss", 0.6)]
    with pytest.raises(ValueError, match="auc_golden"):
        Headline.of(pd.DataFrame({"auc": [0.5]}))


def as_clicks(table, name):
    """The same numbers as those of a table of clicks."""
    numbers = {"auc": table[name], "auc_golden": table[f"{name}_golden"], "auc_drop": table[f"{name}_drop"]}
    others = [f"{each}{end}" for each in METRICS for end in ("_golden", "_drop")]
    return table.drop(columns=others).assign(**numbers)


@pytest.mark.parametrize("name", METRICS)
def test_rankings_are_summarised_as_clicks_are(campaign, name):
    """The oracle is the path of AUC, given the same numbers."""
    table, golden = campaign.table(), campaign.evaluator.golden.metric(name)
    assert (table[f"{name}_golden"] == golden).all() and (table[f"{name}_drop"] == golden - table[name]).all()
    assert campaign.headlines == [Headline(each, campaign.evaluator.golden.metric(each)) for each in METRICS]
    found, known = dr.recovery(table, metric=name), dr.recovery(as_clicks(table, name))
    renamed = {f"auc{end}": f"{name}{end}" for end in ("_golden", "", "_low", "_high")}
    renamed |= {f"auc_faulty{end}": f"{name}_faulty{end}" for end in ("", "_low", "_high")}
    pd.testing.assert_frame_equal(found.drop(columns="why"), known.drop(columns="why").rename(columns=renamed))
    assert found["recovery_low"].notna().any()
    summary = dr.summarise(table)[[f"{name}_drop", f"{name}_drop_low", f"{name}_drop_high", f"{name}_drop_bound"]]
    if name == METRICS[0]:  # of others, which trials are harmed is said by the first
        clicks = dr.summarise(as_clicks(table, name), ["auc_drop"])
        assert summary.to_numpy() == pytest.approx(
            clicks[[c.replace(name, "auc") for c in summary]].to_numpy(), nan_ok=True
        )


def test_what_is_no_headline_is_refused(campaign):
    with pytest.raises(ValueError, match="'list_changed'.*ndcg@10"):
        dr.recovery(campaign.table(), metric="list_changed")


def test_strata_get_trials_by_the_headline(ranked, tmp_path):
    """As many as the losses of NDCG in the first trials ask for."""
    grid = {"errors": [dr.BitFlip(1e-5)], "sampling": "stratified", "trials": 120, "store": tmp_path / "s"}
    made = dr.Campaign(dr.Evaluator(*ranked, task="ranking"), metrics=["ndcg@10"], **grid)
    table, strata = made.run(progress=False, workers=1), [condition.stratum for condition in made.conditions]
    drops = [table.loc[table["stratum"] == one.name, "ndcg@10_drop"].to_numpy(float) for one in strata]
    losses = [[drop[:n]] for drop, n in zip(drops, first_trials(strata, 120), strict=True)]
    harmful = harmful_pilots(strata, [first for (first,) in losses])
    assert [len(drop) for drop in drops] == allocated(strata, losses, harmful, 120) and max(map(np.max, drops)) > 0.01
    assert table.groupby("stratum")["ndcg@10_drop"].std().max() > 0.01


@pytest.mark.filterwarnings("ignore:.*errors do harm in")
def test_a_plan_loses_least_of_it(ranked, tmp_path, monkeypatch):
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path))
    model, rows = ranked[0], ranked[1].test
    errors, options = dr.BitFlip(1e-3), {"task": "ranking", "k": 10}
    found = dr.plan(
        *(model, rows),
        errors=errors,
        candidates=[dr.ECC()],
        budget_bits=0.5,
        budget_time=1.0,
        trials=30,
        additive="warn",
        **options,
    )
    evaluator = dr.Evaluator(model, rows, **options)
    golden = evaluator.golden.metric("ndcg")
    assert found.losses.headline == Headline("ndcg", golden) and found.losses.whole.max() > 0.01
    trials = found.verify(evaluator, errors, trials=12)
    assert (trials["ndcg_drop"] == golden - trials["ndcg"]).all()
    compared = found.compare(trials).set_index("kind")
    assert compared.loc["none", "ndcg_drop"] > compared.loc["plan", "ndcg_drop"] >= 0.0


def test_the_report_says_what_it_costs(campaign, tmp_path):
    page = dr.report.write(campaign, tmp_path / "report").read_text()
    golden = campaign.headlines[0].golden
    assert (
        f"Without errors its ndcg@10 is {golden:.4f}" in page and "costs a ndcg@10 of" in page and "gives back" in page
    )
