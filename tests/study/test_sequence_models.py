"""Notebook 19: shares of quality kept, the loss by one flip, and both figures."""

import pandas as pd
import pytest

import drsrobust as dr
import drsrobust_study as study
from drsrobust_study import sequence_models
from drsrobust_study.trained import Trained


def curves(model, losses, bits=10**6, part="all", mitigation="none"):
    """`points` of one model that loses these shares at these rates."""
    rows = []
    for ber, lost in losses.items():
        row = {"model": model, "dataset": "shop/sequences", "part": part, "mitigation": mitigation, "ber": ber, "n": 12}
        row |= {"metric": "hit_rate@10", "golden": 0.2, "bits": bits, "lost": lost, "lost_low": 0.5 * lost}
        row |= {
            "lost_high": 2 * lost + 0.01,
            "kept": 1 - lost,
            "kept_low": 0.99 - 2 * lost,
            "kept_high": 1 - 0.5 * lost,
        }
        rows.append(row)
    return pd.DataFrame(rows)


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
    none = {
        ("hstu", 0): curves("hstu", {1e-6: 0.0, 1e-5: -0.01}),
        ("sasrec", 0): found["hstu", 0].assign(model="sasrec"),
    }
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
