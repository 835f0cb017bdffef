"""Numbers of notebook 20: who sees a defective unit, what its wrong words look like, effects."""

import pandas as pd
import pytest
from torch import nn

import drsrobust as dr
from drsrobust_study import stuck_unit
from drsrobust_study.stuck_unit import CHECKSUMS, PROBES

UNITS = [dr.StuckUnit(part, lane=3, period=16) for part in ("accumulator", "multiplier")]
BITS = (31, 30, 8)


@pytest.fixture
def plain(evaluator, tmp_path):
    defects = stuck_unit.errors(BITS)
    campaign = dr.Campaign(evaluator, errors=defects, targets=UNITS, trials=1, store=tmp_path / "plain")
    return stuck_unit.named(campaign.run(workers=1, progress=False), UNITS)


def test_defects_have_their_names(plain):
    assert len(plain) == len(stuck_unit.KINDS) * len(BITS) * len(UNITS)
    assert not plain.duplicated(["kind", "bit", "part"]).any() and set(plain["bit"]) == set(BITS)
    assert (plain["harmful"] == (plain["auc_drop"] > 0.005)).all() and 0 < plain["harmful"].sum() < len(plain)


def test_who_sees_and_effects(evaluator, data, plain, tmp_path):
    every = stuck_unit.protections(evaluator, data.train.head(500))
    chosen = {name: every[name] for name in ("SECDED", "range check", CHECKSUMS)}
    mitigations = [mitigation for _, mitigation in chosen.values()]
    defects = stuck_unit.errors(BITS)
    campaign = dr.Campaign(
        evaluator, errors=defects, targets=UNITS, mitigations=mitigations, trials=1, store=tmp_path / "m"
    )
    table = pd.concat([plain, stuck_unit.named(campaign.run(workers=1, progress=False), UNITS)])
    probes = dr.ProbeRows.fit(evaluator, data.train, n=8)
    found = stuck_unit.probed(evaluator, probes, defects, UNITS)
    who = stuck_unit.seen(table, chosen, found).set_index("protection")
    bad = plain["harmful"].sum()
    assert (who["n"] == len(plain)).all() and (who["harmful"] == bad).all()
    assert who["harmful_reported"].to_dict() == {"SECDED": 0, "range check": 0, CHECKSUMS: bad, PROBES: bad}
    assert who["given_back"].dropna().tolist() == [0.0] * 3  # alarms alone change nothing
    training = pd.DataFrame({"batches": [1.0, 1.0, 0.1], "auc_drop": [0.1, 0.2, 0.0], "lost_skip": [0.0, 0.1, 0.0]})
    words = {0: stuck_unit.wrong_words(evaluator, defects, UNITS)}
    who = {0: who.reset_index()}
    rows = stuck_unit.effects({0: plain}, {0: plain.assign(lane=[0, *[1] * (len(plain) - 1)])}, who, words, training)
    rows = rows.set_index("effect")
    own = plain.query("part == 'accumulator' and kind == 'inverted'")
    assert rows.loc["bit 30 accumulator", "value"] == own.query("bit == 30")["auc_drop"].item()
    assert rows.loc["skip 1", "value"] == 0.5 and rows.loc["skip 0.1", "why"]
    assert rows.loc[f"reported {CHECKSUMS}", "value"] == 1 and rows.loc["reported SECDED", "value"] == 0
    assert stuck_unit.joined(who | {1: who[0]})["harmful"].tolist() == [2 * bad] * 4


def test_wrong_words_of_layers(evaluator):
    """An inverted sign of a sum, to which the bias is added: wrong in several bits, in the lane's columns alone."""
    found = stuck_unit.wrong_words(evaluator, stuck_unit.errors([31], ["inverted"]), UNITS[:1])
    row = found.iloc[0]
    assert row["elsewhere"] == row["nonfinite"] == 0 <= row["single"] < row["wrong"] / 2
    layers = [one for one in evaluator.model.modules() if isinstance(one, nn.Linear)]
    rows = min(stuck_unit.WORDS_OF, len(evaluator.rows))
    hit = [one.out_features for one in layers if one.out_features > 3]
    assert row["words"] == rows * sum(hit) and 0 < row["wrong"] <= rows * sum(-(-(n - 3) // 16) for n in hit)
