"""Recovery: pairs, ratio of means, blanks, intervals; what protection keeps, stores and is worth."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.campaign import auc_under_errors
from drsrobust.evaluation import clean_cost
from drsrobust.mitigation.memory.base import storage_overhead
from drsrobust.statistics.intervals import rule_of_three
from drsrobust.statistics.recovery import recovery
from drsrobust_study.as_released import AppliedTooEarly
from drsrobust_study.protection import cost_benefit, front
from tests.statistics.tables import GOLDEN, table_of


def trials(mitigation, aucs, first=0, **more):
    """A campaign's table of one condition; seeds say which trials are pairs."""
    return table_of(aucs, mitigation=mitigation, seed=range(first, first + len(aucs)), **more)


def test_a_ratio_of_means_over_pairs():
    faulty, guarded = [0.5, 0.7, 0.6, 0.68], [0.8, 0.7, 0.7, 0.64]
    table = pd.concat([trials("none", faulty), trials("a", guarded)])
    row = recovery(table).iloc[0]
    assert row["recovery"] == pytest.approx(0.36 / 0.72)  # the mean of ratios would be another number
    assert row["recovery_low"] < row["recovery"] < row["recovery_high"]
    assert row["lost"] == pytest.approx(0.18) and row["gained"] == pytest.approx(0.36 / 4)
    assert row["auc_faulty"] == pytest.approx(0.62) and row["auc"] == pytest.approx(0.71)
    gains = np.subtract(guarded, faulty)
    assert row["gained_high"] - row["gained"] == pytest.approx(3.182446 * gains.std(ddof=1) / 2)  # t of 3 degrees
    assert row["trials_harmed"] == 0.75 and row["trials_harmed_faulty"] == 1 and row["n"] == 4 and row["raised"] == 0


@pytest.mark.parametrize(
    ("faulty", "guarded", "why"),
    [
        ([GOLDEN] * 20, [GOLDEN] * 20, "the mean loss without it is 0 AUC, under 0.001"),
        ([0.7995, 0.7992], [0.8, 0.8], "the mean loss without it is 0.00065 AUC, under 0.001"),
        ([0.5, *[GOLDEN] * 19], [GOLDEN] * 20, "the mean loss without it is 0.015 AUC, not clearly over 0: its interval"),
        ([None] * 5, [None] * 5, "the model raised in all trials"),
        ([0.5], [0.7], "the mean loss without it is 0.3 AUC, not clearly over 0: its interval begins at -0.1"),
        ([0.5, 0.7, 0.6, 0.68], [0.8, 0.7, 0.7, 0.64], None),
    ],
)  # fmt: skip
def test_a_blank_says_why(faulty, guarded, why):
    row = recovery(pd.concat([trials("none", faulty), trials("a", guarded)])).iloc[0]
    assert row[["recovery", "recovery_low", "recovery_high"]].isna().any() == (why is not None)
    assert row["why"] is None if why is None else row["why"].startswith(why), row["why"]
    assert why is None or "raised" in why or row["gained"] == pytest.approx(np.mean(np.subtract(guarded, faulty)))


def test_pairs_are_found_by_seed_and_not_by_order():
    faulty, guarded = [0.5, 0.7, 0.6, 0.8], [0.8, 0.7, 0.7, 0.75]
    table = pd.concat([trials("none", faulty), trials("a", guarded)])
    mixed = table.sample(frac=1, random_state=1)
    pd.testing.assert_frame_equal(recovery(mixed), recovery(table))
    # Each protected trial is better by 0.1 exactly: only pairs know that they agree. Others may do otherwise.
    steady = recovery(pd.concat([trials("none", faulty), trials("a", np.add(faulty, 0.1))])).iloc[0]
    assert steady["gained_low"] == pytest.approx(0.1 - 1.1 * rule_of_three(4))
    assert steady["gained_high"] == pytest.approx(0.1 + 0.9 * rule_of_three(4))


def test_an_exact_repair_is_not_certain():
    """All 100 trials are repaired wholly: what they may have missed loses as much as the worst of them."""
    faulty = np.linspace(0.3, 0.7, 100)
    table = pd.concat([trials("none", faulty), trials("a", [GOLDEN] * 100), trials("b", faulty)])
    a, b = recovery(table).to_dict("records")
    assert a["recovery"] == 1 and a["recovery_low"] == pytest.approx(1 - rule_of_three(100, 0.975) * 0.5 / 0.3)
    assert b["recovery"] == 0 and b["recovery_low"] <= 0 < b["recovery_high"]
    assert a["auc_low"] == pytest.approx(0.8 - 0.8 * rule_of_three(100))


def test_survivors_alone_show_no_recovery():
    """Where the model survives, all is repaired; in 10 of 100 trials it raises. An end of the interval counts them."""
    faulty = np.linspace(0.3, 0.7, 100)
    guarded = np.where(np.arange(100) % 10 == 0, np.nan, GOLDEN)
    row = recovery(pd.concat([trials("none", faulty), trials("a", guarded)])).iloc[0]
    assert row["recovery"] == pytest.approx(1) and row["recovery_low"] < 1 - 0.08 / 0.3 < row["recovery_high"]
    assert row["auc"] == pytest.approx(GOLDEN) and row["auc_low"] < 0.9 * GOLDEN
    fragile = recovery(pd.concat([trials("none", guarded), trials("a", faulty)])).iloc[0]
    assert fragile["lost"] == 0 and fragile["lost_high"] > 0.08 and fragile["auc_faulty_low"] < 0.9 * GOLDEN


def test_a_model_that_raises_is_counted_and_in_no_mean():
    table = pd.concat([trials("none", [0.6, None, 0.61, 0.59, 0.6]), trials("a", [0.8, 0.8, None, 0.7, 0.75])])
    row = recovery(table).iloc[0]
    assert row["raised"] == pytest.approx(0.4) and row["n"] == 5
    assert row["recovery"] == pytest.approx(0.46 / 0.61) and row["auc"] == pytest.approx(0.75)
    assert row["trials_harmed"] == pytest.approx(0.6) and row["trials_harmed_faulty"] == 1  # raised counts as harm


def test_what_cannot_be_compared_is_refused():
    none, some = trials("none", [0.5, 0.6]), trials("a", [0.7, 0.7])
    for parts, said in (
        ([some], "no unprotected trials.* a "),
        ([none], "no protected trials"),
        ([none, trials("a", [0.7] * 3)], "a has 3 trials .* 2, and 1 of them"),
        ([none, trials("a", [0.7, 0.7], first=100)], "4 of them .*seed"),
        ([none, some, some], "2 trials twice.* trial 0, .*mitigation a"),
        ([none, trials("a", [0.7, 0.7], checkpoint="other")], "2 .*'checkpoint'"),
    ):
        with pytest.raises(ValueError, match=said):
            recovery(pd.concat(parts))


def test_front_and_prices():
    points = pd.DataFrame({"recovery": [0.9, 0.9, 0.5, 0.95, np.nan], "time": [1, 1, 0, 9, 0], "bits": [5, 6, 9, 5, 0]})
    assert front(points, "recovery", ["time", "bits"]).tolist() == [True, False, True, True, False]
    found = pd.DataFrame({"mitigation": ["a", "b"], "recovery": [0.9, 0.5]})
    storage = pd.DataFrame({"mitigation": ["a", "b"], "stored_bits": [3, 0], "stored_percent": [1.0, 0.0]})
    times = pd.DataFrame({"mitigation": ["a", "a", "a"], "overhead_percent": [3.0, 1.0, 9.0]})
    found.attrs["interval"] = "some"
    both = cost_benefit(found, storage, times)
    overhead = both[["overhead_percent", "overhead_percent_low", "overhead_percent_high"]]
    assert overhead.values.tolist() == [[3, 1, 9], [0, 0, 0]]
    assert both["timed"].tolist() == [True, False] and both["front"].all() and both.attrs["interval"] == "some"
    harm = cost_benefit(found.assign(recovery=[0.9, -0.1]), storage, times)
    assert harm["front"].tolist() == [True, False]  # doing nothing is better
    with pytest.raises(ValueError, match="a is in several rows"):
        cost_benefit(found.iloc[[0, 0]], storage, times)
    with pytest.raises(ValueError, match="no row for b"):
        cost_benefit(found, storage.head(1), times)


def test_what_is_stored():
    layer = nn.Linear(64, 64)
    layer.register_buffer("steps", torch.zeros(7))
    protections = [dr.BitProtection(range(23, 32), code="tmr"), dr.ParityZero(), dr.ActivationClipping(6)]
    found = storage_overhead(layer, protections)
    assert found["stored_percent"].tolist() == pytest.approx([56.25, 3.125, 100 * 32 / (4160 * 32)])
    assert found["stored_bits"].tolist() == [2 * 9 * 4160, 4160, 32]


@pytest.fixture(scope="module")
def evaluator():
    torch.manual_seed(0)
    data = dr.load_dataset("synthetic-movielens/ids", rows=4000)
    return dr.Evaluator(dr.models.build_model("wide_deep", data.schema).eval(), data.test)


def test_without_errors(evaluator):
    small, large = dr.ActivationClipping(1e-3), dr.ActivationClipping(1e6)
    found = clean_cost(evaluator, [small, large]).set_index("mitigation")
    assert found.loc[large.name, "difference"] == 0 and -0.03 < found.loc[large.name, "low"] < 0  # of 400 rows
    row = found.loc[small.name]
    assert row["auc"] != evaluator.golden.auc and row["difference"] == pytest.approx(row["auc"] - evaluator.golden.auc)
    assert row["low"] < row["difference"] < row["high"] and 0 <= row["p"] <= 1


class Refuses(dr.mitigation.Mitigation):
    """Raises where a score is not finite."""

    name = "refuses"

    def settings(self):
        return None

    def register_hooks(self, model, active):
        def hook(module, args, scores):
            if not bool(scores.isfinite().all()):
                raise ArithmeticError("not finite")

        yield model.register_forward_hook(hook)


def test_a_search_counts_raised_trials_as_lost(evaluator, empty_cache):
    """Each counts as an AUC of 0: what the other trials give is not the whole score."""
    errors, refuses = dr.BitFlip(1e-3), Refuses()
    campaign = dr.Campaign(evaluator, errors=[errors], mitigations=[None, refuses], trials=20, seed=3, sampling="plain")
    with pytest.warns(UserWarning, match="of 40 trials raised"):
        table = campaign.run(progress=False)
    plain, refused = (table[table["mitigation"] == name].reset_index() for name in ("none", "refuses"))
    raised = refused["outcome"] == "raised"
    assert 0 < raised.sum() < 20
    score = auc_under_errors(evaluator, errors, trials=20, seed=3)
    assert score(refuses) == pytest.approx(plain["auc"].mask(raised, 0.0).mean())
    assert score(refuses) != pytest.approx(refused["auc"].mean())
    assert auc_under_errors(evaluator, dr.BitFlip(0.5), trials=2, seed=3)(refuses) == 0


def test_a_real_campaign(evaluator, tmp_path):
    """Protection of all bits recovers all; that of none, nothing."""
    errors, some = [dr.BitFlip(1e-2)], [dr.BitProtection(range(32)), AppliedTooEarly(dr.BitProtection(range(32)))]
    options = {"trials": 6, "seed": 3}
    campaign = dr.Campaign(evaluator, errors=errors, mitigations=[None, *some], store=tmp_path / "store", **options)
    table = campaign.run(workers=1, progress=False)
    found = recovery(table)
    assert found["auc"].iloc[0] == evaluator.golden.auc and (found["gained"].iloc[1], found["n"].iloc[1]) == (0, 6)
    if found["lost"].iloc[0] >= 0.001 and found["lost_low"].iloc[0] > 0:
        assert found["recovery"].tolist() == pytest.approx([1, 0])
