"""Numbers of notebooks 16 and 17: chosen and random flips, detection, what actions leave, and effects."""

import numpy as np
import pandas as pd
import pytest

import drsrobust as dr
import drsrobust_study as study
from drsrobust.mitigation.base import Screened
from drsrobust_study.training_errors import BITS, COMPUTED, PLACES, STORED, by_place, detection, effects


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
                row |= {"auc_drop": 0.8 - auc, "alarm_gradient_norm": 1 if seen else pd.NA}
                rows.append(row | {"auc_recompute": 0.8 if mended else auc, "auc_skip": auc})
    alarms = ["alarm_gradient_norm", "alarm_replay", "alarm_non_finite"]
    frame = pd.DataFrame(rows).assign(alarm_replay=pd.NA, alarm_non_finite=pd.NA).astype(dict.fromkeys(alarms, "Int64"))
    return study.training_errors.named(frame.assign(model="dlrm", dataset="made"))


def test_names_of_places_and_bits():
    made = table(1)
    assert list(dict.fromkeys(made["place"])) == list(PLACES) and set(made["bit_class"]) == set(BITS)
    assert set(made["kind"]) == {STORED, COMPUTED}
    bits = sorted(bit for error in BITS.values() for bit in error.bits)
    assert bits == list(range(23, 31))


def test_losses_by_place():
    model = dr.models.build_model("dlrm", dr.load_dataset("synthetic-movielens/full", rows=6000).schema)
    words = study.training_errors.words_of(model)
    names = [name for name, _ in model.named_parameters() if "embedding" in name]
    assert words["tables"] == sum(weight.numel() for name, weight in model.named_parameters() if name in names)
    assert words["weights"] == words["Adam m"] == sum(weight.numel() for weight in model.parameters()) - words["tables"]
    assert words["Adagrad sums"] == sum(len(weight) for name, weight in model.named_parameters() if name in names)
    found = by_place(table(4, harmful=0.5), words)
    top = found[found["bit_class"] == "bit 30"]
    assert len(found) == len(PLACES) * len(BITS) and (found["n"] == 4).all() and (top["harmful"] == 2).all()
    assert np.allclose(top["auc_drop"], 0.1) and np.allclose(top["auc_drop_most"], 0.2)
    assert found.set_index("place")["words"]["gradients"].isna().all()
    assert by_place(table(2).assign(auc=np.nan, auc_drop=np.nan), words).empty


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
    left = study.training_errors.left_by_actions(table(10, repaired=0.3), ["skip", "recompute"])
    left = left.set_index(["kind", "action"])
    assert left.loc[(COMPUTED, "recompute"), "share"] == pytest.approx(0.3)
    assert left.loc[(COMPUTED, "recompute"), "auc_drop"] == pytest.approx(0.2 * 0.7)
    assert left.loc[(STORED, "recompute"), "repaired"] == 0
    assert [left.loc[(STORED, name), "auc_drop"] for name in ("nothing", "skip")] == pytest.approx([0.2, 0.2])


WORDS = {"weights": 10, "tables": 960, "Adam m": 10, "Adam v": 10, "Adagrad sums": 10}


def test_effects_are_counts():
    found = effects(table(20, harmful=0.5), WORDS).set_index("effect")
    harmful = 10 * sum(kind == COMPUTED for kind, _ in PLACES.values())
    assert found.loc["norm computed", ["value", "n", "high"]].tolist() == [1, harmful, 1]
    assert found.loc["norm computed", "what"].endswith(f": {harmful} of {harmful}")
    assert found.loc["non-finite computed", "value"] == 0 and found.loc["norm alone computed", "value"] == 1
    assert found.loc["recompute computed", "value"] == 1 and found.loc["recompute stored", "value"] == 0
    nothing = effects(table(3, harmful=0.0), WORDS).set_index("effect")
    assert nothing.loc["norm stored", "why"] == f"none of {3 * 5 * len(BITS)} stored errors was harmful"
    assert nothing["value"].isna().all()


def test_stored_errors_count_by_words():
    """The norm misses those of tables, 96 % of the words, and finds all others."""
    made = table(10)
    made["alarm_gradient_norm"] = made["alarm_gradient_norm"].mask(made["place"] == "tables")
    found = effects(made, WORDS).set_index("effect")
    assert found.loc["norm stored", "value"] == pytest.approx(4 / 5)
    assert found.loc["norm stored, by words", "value"] == pytest.approx(0.04)


def test_figures():
    made = table(4, harmful=0.5)
    data = detection(made, ["gradient_norm", "replay"])
    ax = study.figures.training_detection(data, kind=STORED, within=3)
    assert [text.get_text() for text in ax.texts] == ["10 of 10", "0 of 10"]
    assert [bar.get_width() for bar in ax.patches] == [1, 0]
    nothing = detection(table(1, harmful=0.0), ["replay"])
    ax = study.figures.training_detection(nothing, kind=COMPUTED, within=3)
    assert ax.texts[0].get_text() == "no harmful error"


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


def test_curves(trained, data):
    """Chosen flips have a point each and no interval; random ones a mean within its interval."""
    search, evaluator = dr.Evaluator(trained, data.valid.head(300)), dr.Evaluator(trained, data.test.head(300))
    allowed = {"any bit": dr.Allowed(), "in range": dr.Allowed("mlp", passes=dr.WeightRange.fit(trained))}
    found = {name: dr.worst_case(search, budget=3, allowed=kind) for name, kind in allowed.items()}
    random = study.chosen_flips.random_flips(evaluator, allowed, [1, 40], trials=18, seed=5)
    table = study.chosen_flips.chosen_and_random(found, random, evaluator)
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


def test_flips_to_half_and_effects():
    how, flips = ["chosen"] * 3 + ["random"] * 3, [0, 1, 2, 1, 10, 100]
    rows = {"allowed": "any", "how": how, "flips": flips, "auc_golden": 0.8}
    aucs = {seed: [0.8, 0.66, 0.5, 0.8, 0.7, 0.6 + 0.03 * seed] for seed in range(3)}
    trainings = [pd.DataFrame(rows | {"train_seed": seed, "auc": auc}) for seed, auc in aucs.items()]
    table = pd.concat(trainings, ignore_index=True)
    table = table.assign(auc_low=table["auc"] - 0.01, auc_high=table["auc"] + 0.01)
    half = study.chosen_flips.flips_to_half(table)
    assert half["chosen"].tolist() == [2, 2, 2] and half["random"].tolist() == [100, 100, np.inf]
    found = study.chosen_flips.effects(table, random_flips=100).set_index("effect")
    assert found.loc["flips any", ["value", "n"]].tolist() == [2, 3]
    assert found.loc["chosen any", "value"] == pytest.approx(1.0)  # of 0.3 over 0.5
    lost = (found.loc["random any", ["value", "least", "most"]] * 0.3).tolist()
    assert lost == pytest.approx([0.17, 0.14, 0.2])
    assert found.loc["random any", "sd_maps"] == pytest.approx(0.01 / 0.3 / 1.959964)
    tough = table.assign(auc=table["auc"].where((table["train_seed"] > 0) | (table["how"] == "random"), 0.7))
    row = study.chosen_flips.effects(tough, random_flips=7).set_index("effect").loc["half any"]
    assert row[["value", "n", "why"]].tolist() == [2, 2, "not reached in 1 of 3 trainings"]
