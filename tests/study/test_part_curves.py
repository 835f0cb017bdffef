"""Curves by part of a model: parts, the law of a known curve, and the values of S6 to S12."""

import numpy as np
import pandas as pd
import pytest

from drsrobust.evaluation import Evaluator
from drsrobust.injection import resolve
from drsrobust.models import build_model
from drsrobust_extras.data.load import load_dataset
from drsrobust_study import part_curves as curves

RATES = np.array([1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
STUDY = ["fm", "dcn", "afm", "wide_deep", "deepfm"]
REST = {"dcn": ["cross"]}  # in `all` alone


@pytest.fixture(scope="module")
def data():
    return load_dataset("synthetic-movielens/ids", rows=3000)


@pytest.mark.parametrize("name", [*STUDY, "afn", "dlrm"])
def test_parts_and_the_rest_add_up_to_all(name, data):
    model = build_model(name, data.schema)
    targets = curves.part_targets(model)
    bits = {part: resolve(model, target).bits for part, target in targets.items()}
    rest = sum(resolve(model, other).bits for other in REST.get(name, []))
    assert bits["all"] == bits["table"] + bits.get("mlp", 0) + rest
    assert ("mlp" in targets) == (name != "fm")


def points(losses, *, model="fm", dataset="movielens-1m/ids", part="all", seed=0, bits=10**6, error=0.01, spread=0.01):
    lost = np.asarray(losses, float)
    frame = pd.DataFrame({"ber": RATES, "lost": lost, "auc": 0.8 - lost, "lost_error": error * lost + 1e-9})
    same = {"model": model, "dataset": dataset, "train_seed": seed, "part": part, "bits": bits, "golden": 0.8}
    return frame.assign(**same, n=40, spread=spread, least=frame["auc"] - 0.1, most=frame["auc"] + 0.1)


def test_the_law_of_a_known_curve():
    """200 times the rate, which is 2e-4 a flip of a million bits, until 0.3."""
    (law,) = curves.loss_per_flip(points(np.minimum(200 * RATES, 0.3))).to_dict("records")
    assert law["per_flip"] == pytest.approx(2e-4) and law["flips"] == pytest.approx(50)
    assert law["rate"] == pytest.approx(5e-5) and law["fails_at"] == 1e-2  # 0.2 at 1e-3 is still on the line
    assert law["steepest"] == pytest.approx(1)
    (knee,) = curves.loss_per_flip(points([1e-6, 1e-5, 1e-4, 3e-3, 0.03, 0.3])).to_dict("records")
    assert knee["steepest"] == pytest.approx(np.log10(30))
    (never,) = curves.loss_per_flip(points(0 * RATES)).to_dict("records")
    assert np.isnan([never["per_flip"], never["steepest"]]).all() and never["rate"] == np.inf
    laws = curves.loss_per_flip(
        pd.concat(points(200 * RATES * 10**k, seed=seed) for seed, k in enumerate((-0.1, 0, 0.1)))
    )
    (mean,) = curves.law_over_trainings(laws).to_dict("records")
    half = 4.302653 * 0.1 / np.sqrt(3)  # Student's t of three trainings, in decades
    assert [mean[f"flips{end}"] for end in ("", "_low", "_high")] == pytest.approx(
        [50, 50 * 10**-half, 50 * 10**half], rel=1e-5
    )


def test_crossings():
    for power in (0.4, 1.0, 1.3):  # a power of the rate is met exactly
        assert curves.crossing(5 * RATES**power, RATES) == pytest.approx((0.01 / 5) ** (1 / power))
    two = np.array([1e-3, 1e-2])
    assert curves.crossing(np.array([0.0, 0.005]), two) == np.inf
    assert curves.crossing(np.array([0.02, 0.3]), two) == pytest.approx(5e-4)  # below the lowest rate: from 0
    assert curves.crossing(np.array([0.0, 0.02]), two) == pytest.approx(1e-3 + 0.5 * 9e-3)


def test_values_of_statements():
    """Criteo loses ten times as much as MovieLens, DCN four times as much as FM; tables vary half as much as MLPs."""
    parts = []
    for dataset, factor in (("movielens-1m/ids", 1), ("criteo-sample/fields", 10)):
        for model, weak in (("fm", 1), ("dcn", 4)):
            for seed in (0, 1, 2):
                losses = np.minimum(factor * weak * 100 * RATES, 0.3)
                of = {"model": model, "dataset": dataset, "seed": seed}
                parts += [points(losses, **of), points(losses / 2, part="table", spread=0.01, **of)]
                parts += [points(losses / 2, part="mlp", spread=0.02, **of)] if model == "dcn" else []
    table = curves.statement_values(pd.concat([*parts, points(0 * RATES, model="afn")]), ["fm", "dcn"])
    found = table.groupby(["statement", "dataset", "item", "what"])["value"].agg(["mean", "size"])
    assert (found["size"] == 3).all() and "afn" not in set(table["item"])
    value = found["mean"].to_dict()
    movielens, criteo = "movielens-1m/ids", "criteo-sample/fields"
    assert value["S6", movielens, "dcn", "lost at 1e-05"] == pytest.approx(0.004)
    assert value["S7", movielens, "fm", "share lost at 0.001"] == pytest.approx(0.1 / 0.3)
    assert value["S7", criteo, "fm", "AUC at 0.01"] == pytest.approx(0.5)
    assert value["S8", criteo, "fm", "lost at 0.0001, tables"] == pytest.approx(0.05)
    assert value["S9", movielens, "dcn", "deviation, tables over MLPs"] == pytest.approx(0.5)
    assert value["S10", criteo, "dcn", "rate over FM's"] == pytest.approx(0.25)
    both = f"{movielens}, {criteo}"
    assert value["S11", both, "fm", "rate, Criteo over MovieLens"] == pytest.approx(0.1)
    name = f"fm on {movielens} over dcn on {criteo}"
    assert value["S12", both, name, "largest over smallest"] == pytest.approx(40)
    few = curves.statement_values(pd.concat(parts).query("ber > 2e-6"), ["fm", "dcn"])
    assert set(few["statement"]) == {"S7", "S9", "S10", "S11", "S12"}  # 1e-6 was not run


def test_trials_of_a_model(data):
    """Stratified means are those of plain maps, and both parts together lose what all loses, where little is lost."""
    evaluator = Evaluator(build_model("wide_deep", data.schema), data.test)
    options = {"trials": 30, "plain_trials": 6, "train_seed": 3, "seed": 1}
    table = curves.part_trials(evaluator, [1e-4, 1e-3], **options)
    assert set(table.loc[table["part"] == "as_released", "protocol"]) != {curves.PLAIN}
    made = curves.part_points(table)
    assert len(made) == 8 and (made["train_seed"] == 3).all()
    single = table[(table["protocol"] == curves.PLAIN) & (table["part"] == "mlp") & (table["ber"] == 1e-3)]["auc"]
    (row,) = made[(made["part"] == "mlp") & (made["ber"] == 1e-3)].to_dict("records")
    assert (row["least"], row["most"], row["spread"]) == pytest.approx((single.min(), single.max(), single.std()))
    over = curves.over_trainings(made)
    assert (over["trainings"] == 1).all() and over["auc_low"].isna().all()
    assert over["sd_maps"].notna().sum() == 6  # as released there are no plain maps
