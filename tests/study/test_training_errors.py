"""Numbers of notebook 17: losses, detection, what actions leave, and the findings on C16a and C16b."""

import numpy as np
import pandas as pd
import pytest

import drsrobust_study as study
from drsrobust_study.training_errors import (
    BITS,
    COMPUTED,
    PLACES,
    STORED,
    claims,
    detection,
    left_by_actions,
    losses,
    named,
)
from reproduce.claims import load_claims
from reproduce.notebooks import all_notebooks


def table(trials, *, harmful=1.0, noticed=1.0, repaired=1.0, stored_repaired=0.0):
    """Trials of all places; shares of those of bit 30 that are harmful, and of these that are noticed and repaired."""
    rows = []
    for kind, target in PLACES.values():
        for number, error in enumerate(BITS.values()):
            for trial in range(trials):
                share = (trial + 0.5) / trials
                bad = number == 0 and share < harmful
                seen = bad and share < noticed * harmful
                mended = seen and share < harmful * (repaired if kind == COMPUTED else stored_repaired)
                auc = 0.6 if bad else 0.8
                row = {"error_model": error.label, "target": str(target), "trial": trial, "auc": auc, "auc_golden": 0.8}
                row |= {"auc_drop": 0.8 - auc, "alarm_gradient_norm": 1 if seen else pd.NA, "alarm_replay": pd.NA}
                rows.append(row | {"auc_recompute": 0.8 if mended else auc, "auc_skip": auc})
    frame = pd.DataFrame(rows).astype({"alarm_gradient_norm": "Int64", "alarm_replay": "Int64"})
    return named(frame.assign(model="dlrm", dataset="made"))


def verdict(claim, reading, found):
    """What the rule of a check says of a finding on all trials, and how many trials it needs."""
    (rule,) = [
        check.rule
        for one in load_claims(all_notebooks())
        if one.id == claim
        for check in one.checks
        if check.quantity.where["reading"] == reading
    ]
    row = found[(found["claim"] == claim) & (found["reading"] == reading) & (found["third"] == 0)].iloc[0]
    numbers = row["value"], row["low"], row["high"]
    return rule.verdict(*numbers), rule.needed(*numbers, int(row["n"]))


def test_names_of_places_and_bits():
    made = table(1)
    assert list(dict.fromkeys(made["place"])) == list(PLACES) and set(made["bit_class"]) == set(BITS)
    assert set(made["kind"]) == {STORED, COMPUTED}
    bits = sorted(bit for error in BITS.values() for bit in error.bits)
    assert bits == list(range(32))


def test_losses():
    found = losses(table(4, harmful=0.5))
    made, trials = (found[found["what"] == what] for what in ("mean", "trial"))
    assert len(made) == len(PLACES) * 3 and (made["n"] == 4).all() and len(trials) == 4 * len(made)
    top = made[made["bit_class"] == "bit 30"]
    assert (top["harmful"] == 2).all() and np.allclose(top["auc_drop"], 0.1)
    assert (made["auc_drop_low"] <= made["auc_drop"]).all() and (made["auc_drop"] <= made["auc_drop_high"]).all()
    assert np.allclose(trials.groupby(["place", "bit_class"])["auc_drop"].mean().loc["gradients", "bit 30"], 0.1)
    raised = table(2).assign(auc=np.nan, auc_drop=np.nan)
    assert losses(raised)["auc_drop"].isna().all()


def test_detection_is_of_harmful_errors_within_steps():
    made = table(10, harmful=0.5, noticed=0.6)
    made.loc[made["alarm_gradient_norm"].notna() & (made["trial"] == 0), "alarm_gradient_norm"] = 5
    shares = detection(made, ["gradient_norm", "replay"]).set_index(["kind", "detector", "within"]).sort_index()
    computed = sum(kind == COMPUTED for kind, _ in PLACES.values())
    assert (shares.xs(COMPUTED)["n"] == 5 * computed).all()
    assert shares["share"].xs((STORED, "gradient_norm")).round(6).to_dict() == {1: 0.4, 3: 0.4, 10: 0.6}
    assert (shares.xs("replay", level=1)["share"] == 0).all()
    assert (shares["share_low"] <= shares["share"]).all() and (shares["share"] <= shares["share_high"]).all()


def test_what_actions_leave():
    left = left_by_actions(table(10, repaired=0.3), ["skip", "recompute"]).set_index(["kind", "action"])
    assert left.loc[(COMPUTED, "recompute"), "share"] == pytest.approx(0.3)
    assert left.loc[(COMPUTED, "recompute"), "auc_drop"] == pytest.approx(0.2 * 0.7)
    assert left.loc[(STORED, "recompute"), "repaired"] == 0
    assert (
        left.loc[(STORED, "nothing"), "auc_drop"]
        == pytest.approx(left.loc[(STORED, "skip"), "auc_drop"])
        == pytest.approx(0.2)
    )


def test_rules_of_the_claims():
    true, false, few = claims(table(20)), claims(table(20, noticed=0.2, repaired=0.0)), claims(table(1))
    assert list(true["third"].unique()) == [0, 1, 2, 3] and list(few["third"].unique()) == [0]
    for claim in ("C16a", "C16b"):
        assert verdict(claim, COMPUTED, true)[0] == "reproduced"
        assert verdict(claim, COMPUTED, false)[0] == "contradicted"
        word, needed = verdict(claim, COMPUTED, few)
        assert word == "undecided" and int(needed.removeprefix("some ").replace(",", "")) > 4
    assert verdict("C16b", STORED, true)[0] == "contradicted"  # a stored error is still there
    nothing = claims(table(3, harmful=0.0))
    assert (nothing["n"] == 0).all() and verdict("C16a", COMPUTED, nothing)[0] == "not testable here"
    assert nothing["reason"].tolist()[:2] == [
        "none of 45 stored errors was harmful",
        "none of 36 computed errors was harmful",
    ]


def test_figures():
    made = table(4, harmful=0.5, repaired=0.5)
    ax = study.figures.training_losses(losses(made))
    assert [label.get_text() for label in ax.get_xticklabels()][2] == "Adam\nm" and ax.get_yscale() == "log"
    ax = study.figures.training_detection(detection(made, ["gradient_norm", "replay"]), kind=STORED)
    assert ax.get_title(loc="left") == "stored errors (n = 10)"
    ax = study.figures.training_actions(left_by_actions(made, ["skip", "recompute"]))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["nothing", "skip", "recompute"]
    nothing = table(1, harmful=0.0)
    study.figures.training_actions(left_by_actions(nothing, ["skip"]))
    study.figures.training_detection(detection(nothing, ["replay"]), kind=COMPUTED)
