"""Numbers of notebook 16: random flips that are allowed, curves, flips to half of the AUC, and effects."""

import numpy as np
import pandas as pd
import pytest

import drsrobust as dr
import drsrobust_study as study
from drsrobust.mitigation.base import Screened


@pytest.fixture(scope="module")
def curves(trained, data):
    search, evaluator = dr.Evaluator(trained, data.valid.head(300)), dr.Evaluator(trained, data.test.head(300))
    allowed = {"any bit": dr.Allowed(), "in range": dr.Allowed("mlp", passes=dr.WeightRange.fit(trained))}
    found = {name: dr.worst_case(search, budget=3, allowed=kind) for name, kind in allowed.items()}
    random = study.chosen_flips.random_flips(evaluator, allowed, [1, 40], trials=18, seed=5)
    return study.chosen_flips.chosen_and_random(found, random, evaluator), evaluator, allowed


@pytest.mark.parametrize("kind", ["any bit", "in range", "in range, one per 8 KB", "in range, in tables"])
def test_random_flips_are_as_many_as_asked_for_and_allowed(trained, kind):
    allowed = study.chosen_flips.kinds(trained)[kind]
    space = allowed.space(trained)
    drawn = [study.chosen_flips._drawn(allowed, space, 25, seed) for seed in range(4)]
    for errors in drawn:
        assert len(errors) == 25 and errors.bits >= 25
        if allowed.passes is not None:
            left = Screened.by(allowed.passes, errors, space, seed=0).remaining
            assert np.array_equal(left.word, errors.word) and np.array_equal(left.mask, errors.mask)
        if allowed.one_per is not None:
            blocks = list(zip(errors.tensor.tolist(), (errors.word * 4 // allowed.one_per).tolist(), strict=True))
            assert len(set(blocks)) == len(blocks)
    assert not np.array_equal(drawn[0].word, drawn[1].word)
    bits = np.concatenate([errors.mask for errors in drawn])
    assert len(np.unique(bits)) > 10  # not of one bit alone


def test_curves(curves, trained):
    """Chosen flips have a point each and no interval; random ones a mean within its interval."""
    table, evaluator, allowed = curves
    chosen = table[table["how"] == "chosen"]
    assert (chosen.groupby("allowed")["flips"].first() == 0).all() and chosen["auc_low"].isna().all()
    assert (chosen[chosen["flips"] == 0]["auc"] == evaluator.golden.auc).all()
    random = table[table["how"] == "random"]
    assert len(random) == 4 and (random["n"] >= 18).all()
    assert ((random["auc_low"] <= random["auc"]) & (random["auc"] <= random["auc_high"])).all()
    space, aucs = allowed["in range"].space(trained), []
    for trial in range(18):
        errors = study.chosen_flips._drawn(allowed["in range"], space, 40, 5 + trial)
        with errors.applied(trained):
            aucs.append(evaluator.rerun(errors).auc)
    (row,) = random[(random["allowed"] == "in range") & (random["flips"] == 40)].to_dict("records")
    assert row["auc"] == pytest.approx(np.mean(aucs))
    assert len(study.figures.worst_case(table.assign(train_seed=0)).get_lines()) > 4
    study.figures.worst_case(table.head(0).assign(train_seed=0))


def made(aucs, train_seed):
    """Curves of one training: chosen flips 0 to 2, random ones 1, 10 and 100."""
    how, flips = ["chosen"] * 3 + ["random"] * 3, [0, 1, 2, 1, 10, 100]
    table = pd.DataFrame({"allowed": "any", "how": how, "flips": flips, "auc": aucs, "auc_golden": 0.8})
    return table.assign(auc_low=table["auc"] - 0.01, auc_high=table["auc"] + 0.01, train_seed=train_seed)


def test_flips_to_half_and_effects():
    trainings = [made([0.8, 0.66, 0.5, 0.8, 0.7, 0.6 + 0.03 * seed], seed) for seed in range(3)]
    table = pd.concat(trainings, ignore_index=True)
    half = study.chosen_flips.flips_to_half(table)
    assert half["chosen"].tolist() == [2, 2, 2] and half["random"].tolist() == [100, 100, np.inf]
    found = study.chosen_flips.effects(table, random_flips=100).set_index("effect")
    assert found.loc["flips any", ["value", "n"]].tolist() == [2, 3]
    assert found.loc["chosen any", "value"] == pytest.approx(1.0)  # of 0.3 over 0.5
    assert found.loc["random any", ["value", "least", "most"]].tolist() == pytest.approx(
        [0.17 / 0.3, 0.14 / 0.3, 0.2 / 0.3]
    )
    assert found.loc["random any", "sd_maps"] == pytest.approx(0.01 / 0.3 / 1.959964)
    tough = table.assign(auc=table["auc"].where((table["train_seed"] > 0) | (table["how"] == "random"), 0.7))
    row = study.chosen_flips.effects(tough, random_flips=7).set_index("effect").loc["half any"]
    assert row[["value", "n", "why"]].tolist() == [2, 2, "not reached in 1 of 3 trainings"]
