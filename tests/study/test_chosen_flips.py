"""Numbers of notebook 16: random flips that are allowed, curves, flips to half of the AUC, and the findings on C15."""

import numpy as np
import pytest

import drsrobust as dr
import drsrobust_study as study
from drsrobust.mitigation.base import Screened


@pytest.fixture(scope="module")
def curves(trained, data):
    rows = data.test.head(300)
    search, evaluator = dr.Evaluator(trained, data.valid.head(300)), dr.Evaluator(trained, rows)
    allowed = {"any bit": dr.Allowed(), "in range": dr.Allowed("mlp", passes=dr.WeightRange.fit(trained))}
    found = {name: dr.worst_case(search, budget=3, allowed=kind) for name, kind in allowed.items()}
    random = study.chosen_flips.random_flips(evaluator, allowed, [1, 40], trials=18, seed=5, progress=False)
    measured = {name: each.measure(evaluator) for name, each in found.items()}
    return study.chosen_flips.chosen_and_random(found, measured, random, evaluator), random, evaluator


KINDS = {
    "any": lambda model: dr.Allowed(),
    "in range": lambda model: dr.Allowed(passes=dr.WeightRange.fit(model)),
    "one per": lambda model: dr.Allowed("embedding", passes=dr.WeightRange.fit(model), one_per=64),
}


@pytest.mark.parametrize("kind", KINDS)
def test_random_flips_are_as_many_as_asked_for_and_allowed(trained, kind):
    allowed = KINDS[kind](trained)
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
    """Chosen flips have a point each and no interval; random ones the mean of their trials within its interval."""
    table, random, evaluator = curves
    chosen = table[table["how"] == "chosen"]
    assert (chosen.groupby("allowed")["flips"].first() == 0).all() and chosen["auc_low"].isna().all()
    assert (chosen[chosen["flips"] == 0]["auc"] == evaluator.golden.auc).all()
    for row in table[table["how"] == "random"].itertuples():
        trials = random[(random["allowed"] == row.allowed) & (random["flips"] == row.flips)]["auc"]
        assert row.n == 18 and row.auc == pytest.approx(trials.mean()) and row.auc_low <= row.auc <= row.auc_high
    assert len(study.figures.worst_case(table).get_lines()) > 4
    study.figures.worst_case(table.head(0))


def test_flips_to_half(curves):
    table, *_ = curves
    golden = 0.8
    made = (
        table.head(0)
        .reindex(range(6))
        .assign(
            allowed="any",
            how=["chosen"] * 3 + ["random"] * 3,
            flips=[0, 1, 2, 1, 10, 100],
            auc=[0.8, 0.66, 0.64, 0.8, 0.7, 0.6],
            auc_golden=golden,
        )
    )
    assert study.chosen_flips.flips_to_half(made).iloc[0].to_dict() == {
        "allowed": "any",
        "chosen": 2,
        "random": 100,
        "ratio": 50,
    }
    kept = made[made["flips"] < 100]
    assert study.chosen_flips.flips_to_half(kept).iloc[0]["random"] == np.inf


def test_findings(curves):
    """Shares of AUC over 0.5; those of random flips on thirds too."""
    table, random, evaluator = curves
    found = study.chosen_flips.chosen_against_random(table, random, chosen_flips=3, random_flips=40)
    whole = found[found["third"] == 0].set_index("reading")
    golden = evaluator.golden.auc
    chosen = table[(table["how"] == "chosen") & (table["allowed"] == "any bit")].iloc[-1]
    assert whole.loc["chosen: any bit", "value"] == pytest.approx((golden - chosen["auc"]) / (golden - 0.5))
    assert whole.loc["chosen: any bit", "value"] > 0.9  # one huge weight ends a model
    mean = random[(random["allowed"] == "in range") & (random["flips"] == 40)]["auc"].mean()
    assert whole.loc["random: in range", "value"] == pytest.approx((golden - mean) / (golden - 0.5))
    assert (whole["low"] <= whole["value"]).all() and (whole["value"] <= whole["high"]).all()
    thirds = found[found["reading"] == "random: in range"]
    assert list(thirds["third"]) == [0, 1, 2, 3] and list(thirds["n"]) == [18, 6, 6, 6]
