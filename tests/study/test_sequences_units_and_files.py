"""Numbers of notebooks 19, 20 and 21: sequence models, a defective unit, files of weights with one flipped bit."""

import pandas as pd
import pytest
from torch import nn

import drsrobust as dr
import drsrobust_study as study
from drsrobust_study import sequence_models, stuck_unit
from drsrobust_study.checkpoint_flips import costs, flipped, outcomes
from drsrobust_study.stuck_unit import CHECKSUMS, PROBES
from drsrobust_study.trained import Trained


def curves(model, losses):
    """`points` of one model that loses these shares at these rates."""
    about = {"model": model, "dataset": "shop/sequences", "part": "all", "mitigation": "none", "n": 12}
    about |= {"metric": "hit_rate@10", "golden": 0.2, "bits": 10**6}
    lost = pd.Series([*losses.values()])
    low, high = 0.5 * lost, 2 * lost + 0.01
    table = pd.DataFrame({"ber": [*losses], "lost": lost, "lost_low": low, "lost_high": high})
    return table.assign(**about, kept=1 - lost, kept_low=1 - high, kept_high=1 - low)


def test_a_flip_costs_what_it_does_where_losses_add_up():
    found = {("hstu", seed): curves("hstu", {1e-6: 0.001, 1e-5: 0.04 + 0.01 * seed, 1e-3: 1.0}) for seed in range(3)}
    (row,) = sequence_models.flip_losses(found).to_dict("records")
    assert row["per_flip"] == pytest.approx(0.05 / 10) and row["trainings"] == 3  # 10 flips at 1e-5
    assert row["at_rate"] == pytest.approx(0.05 * 1e-9 / 1e-5) and row["megabytes"] == 0.125
    clean = pd.DataFrame({"model": "hstu", "hit_rate@10": [0.2], "sampled_hit_rate@10": [0.6]})
    values = sequence_models.effects(clean, found).set_index("effect")["value"]
    assert values["clean hit_rate@10 hstu"] == 0.2 and values["kept hstu all 1e-05"] == pytest.approx(0.95)
    joined = sequence_models.joined(found)
    assert joined.query("ber == 1e-5")["kept"].item() == pytest.approx(0.95)
    assert len(study.figures.quality_kept(joined, model="hstu").containers) == 1
    none = {("sasrec", 0): found["hstu", 0].assign(model="sasrec")}
    none["hstu", 0] = curves("hstu", {1e-6: 0.0, 1e-5: -0.01})
    flips = sequence_models.flip_losses(none)
    texts = [text.get_text() for text in study.figures.flip_cost(flips).texts]
    assert len(texts) == 1 and texts[0].startswith("at most")


def test_the_parts_of_both_kinds_of_models():
    data = {name: dr.load_dataset(name, rows=6_000) for name in ("synthetic-kuairand", "synthetic-movielens/full")}
    for name, of in zip(("sasrec", "dlrm"), data.values(), strict=True):
        one = Trained(name, of, 0, dr.models.build_model(name, of.schema).eval())
        parts = sequence_models.evaluators(one, 50)
        few = {part: parts[part] for part in ("all", sequence_models.OUTPUT) if part in parts}
        table = sequence_models.trials(few, [1e-3], trials=2, train_seed=0, seed=0)
        found = sequence_models.points(table).set_index(["part", "mitigation"])
        metric, chance = ("hit_rate@10", 0.0) if name == "sasrec" else ("auc", 0.5)
        assert set(found["metric"]) == {metric}
        mean = dr.summarise(table[table["part"] == "all"], [metric])[metric].to_numpy()
        golden = table[f"{metric}_golden"].iloc[0]
        assert found["kept"]["all"].tolist() == pytest.approx(((mean - chance) / (golden - chance)).tolist())


UNITS = [dr.StuckUnit(part, lane=3, period=16) for part in ("accumulator", "multiplier")]
BITS = (31, 30, 8)


def defective(evaluator, store, mitigations=None):
    options = {"errors": stuck_unit.errors(BITS), "targets": UNITS, "mitigations": mitigations, "trials": 1}
    return stuck_unit.named(dr.Campaign(evaluator, **options, store=store).run(workers=1, progress=False), UNITS)


@pytest.fixture
def plain(evaluator, tmp_path):
    return defective(evaluator, tmp_path / "plain")


def test_defects_have_their_names(plain):
    assert len(plain) == len(stuck_unit.KINDS) * len(BITS) * len(UNITS)
    assert not plain.duplicated(["kind", "bit", "part"]).any() and set(plain["bit"]) == set(BITS)
    assert (plain["harmful"] == (plain["auc_drop"] > 0.005)).all() and 0 < plain["harmful"].sum() < len(plain)


def test_who_sees_and_effects(evaluator, data, plain, tmp_path):
    every = stuck_unit.protections(evaluator, data.train.head(500))
    chosen = {name: every[name] for name in ("SECDED", "range check", CHECKSUMS)}
    mitigations = [mitigation for _, mitigation in chosen.values()]
    table = pd.concat([plain, defective(evaluator, tmp_path / "m", mitigations)])
    probes = dr.ProbeRows.fit(evaluator, data.train, n=8)
    found = stuck_unit.probed(evaluator, probes, stuck_unit.errors(BITS), UNITS)
    who = stuck_unit.seen(table, chosen, found).set_index("protection")
    bad = plain["harmful"].sum()
    assert (who["n"] == len(plain)).all() and (who["harmful"] == bad).all()
    assert who["harmful_reported"].to_dict() == {"SECDED": 0, "range check": 0, CHECKSUMS: bad, PROBES: bad}
    assert who["given_back"].dropna().tolist() == [0.0] * 3  # alarms alone change nothing
    training = pd.DataFrame({"batches": [1.0, 1.0, 0.1], "auc_drop": [0.1, 0.2, 0.0], "lost_skip": [0.0, 0.1, 0.0]})
    words = {0: stuck_unit.wrong_words(evaluator, stuck_unit.errors(BITS), UNITS)}
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


@pytest.fixture(scope="module")
def readers():
    return outcomes(nn.Linear(64, 64), tries=60)


def test_who_loads_wrong_words_without_an_error(readers):
    """Most bits of these files are of weights; only what compares checksums refuses them."""
    found = readers.set_index("reader")
    assert (found["silent"] + found["same"] + found["refused"] == 60).all() and (found["n"] == 60).all()
    assert found.loc["torch.load", "silent"] > 48 and found.loc["safetensors", "silent"] > 56
    assert found.loc["numpy.load", "silent"] == 0
    assert found.loc[["dr.verify, torch.load", "dr.verify, safetensors"], "silent"].tolist() == [0, 0]
    assert found.loc["dr.verify, torch.load", "refused"] > 54
    assert found.loc["torch.load", ["share_low", "share", "share_high"]].is_monotonic_increasing
    assert flipped(b"\x00\x01", 8) == b"\x00\x00"


def test_the_figure_of_readers(readers):
    ax = study.figures.checkpoint_flips(readers)
    assert [text.get_text() for text in ax.get_yticklabels()] == readers["reader"].tolist()
    assert sum(patch.get_width() for patch in ax.patches) == pytest.approx(len(readers))
    assert f"{readers['silent'][0]} of 60" in ax.texts[0].get_text()
    study.figures.checkpoint_flips(readers.head(0))


def test_costs_of_checksums():
    table = costs(1, turns=2)
    assert table["kind"].tolist() == ["crc32", "sha256"]
    assert (table["seconds_low"] > 0).all() and (table["seconds_low"] <= table["seconds_high"]).all()
