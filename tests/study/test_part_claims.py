"""Findings part by part, how large flipped weights become, and codes that keep the AUC."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from drsrobust_study.bit_sensitivity import flipped_magnitudes
from drsrobust_study.components import part_ratio, size_power
from drsrobust_study.protection import kept_rates, released_gain, worst_loss


def parts(model, values, half, definition="score_changed"):
    frame = pd.DataFrame({"component": ["over_mlp", "dense_mlp", "embedding"], "incorrect": values})
    frame["incorrect_low"], frame["incorrect_high"] = frame["incorrect"] - half, frame["incorrect"] + half
    return frame.assign(model=model, dataset="d", definition=definition, n=20)


def test_ratios_of_parts_by_model_and_definition():
    given = pd.concat(
        [
            parts("a", [0.5, 0.3, 0.1], 0.05),
            parts("b", [0.5, 0.3, 0.1], 0.15),
            parts("c", [0.3, 0.5, 0.1], 0.05),
            parts("a", [np.nan] * 3, 0, "list_changed"),
        ]
    )
    found = part_ratio(given, "incorrect", top="over_mlp")
    assert found["model"].tolist() == ["a", "b", "c"] and set(found["n"]) == {60}
    assert (found["low"] > 1).tolist() == [True, False, False] and (found["high"] < 1).tolist() == [False, False, True]
    assert found["value"].tolist() == pytest.approx([5 / 3, 5 / 3, 3 / 5])
    assert (found["low"][0], found["high"][0]) == pytest.approx((0.45 / 0.35, 0.55 / 0.25))
    assert (
        found["detail"][2]
        == "dense_mlp 0.5 [0.45, 0.55], then over_mlp 0.3 [0.25, 0.35], least embedding 0.1 [0.05, 0.15]"
    )
    last = part_ratio(given, "incorrect", bottom="embedding")
    assert last["value"].tolist() == pytest.approx([3, 3, 3]) and last["low"][0] > 1
    assert last["reason"].tolist() == ["", "", ""] and np.isnan(last["low"][1])  # 0.1 - 0.15 is no divisor
    both = part_ratio(given, "incorrect", top="over_mlp", bottom="embedding")
    assert both["value"].tolist() == pytest.approx([5, 5, 3])
    alone = part_ratio(given, "incorrect", top="cross")
    assert alone["low"].isna().all() and set(alone["reason"]) == {"no cross in this model"}


def test_the_total_of_a_table_against_its_size():
    bits, noise = np.array([1e3, 1e4, 1e5, 1e6]), np.array([1.1, 0.9, 0.9, 1.1])
    layers = pd.DataFrame({"component": "embedding", "bits": bits, "total": 3e-6 * bits**0.5 * noise})
    layers.loc[4] = {"component": "over_mlp", "bits": 10.0, "total": 9.0}

    def found(**columns):
        table = layers.assign(**columns)
        half = table.get("half", 0.1 * table["total"].abs())
        return size_power(table.assign(total_low=table["total"] - half, total_high=table["total"] + half)).iloc[0]

    assert found()["low"] > 0 and found()["value"] == pytest.approx(0.5, abs=0.02) and found()["n"] == 4
    flat = found(total=[*noise, 9.0])
    assert flat["low"] < 0 < flat["high"]
    assert flat["detail"] == "4 tables of 1,000 to 1e6 bits lose 0.9 to 1.1 AUC"
    # A table whose loss is hardly known, and here is under 0, hardly counts.
    vague = found(total=[3e-6 * 1e3**0.5, 3e-6 * 1e4**0.5, 3e-6 * 1e5**0.5, -1e-3, 9.0], half=[1e-6] * 3 + [1e-2, 0.1])
    assert vague["value"] == pytest.approx(0.5, abs=0.02) and vague["high"] - vague["low"] < 0.2
    few = size_power(layers[:2].assign(total_low=0.0, total_high=1.0)).iloc[0]
    assert np.isnan(few["value"]) and few["reason"] == "fewer than 3 sizes of tables"


@pytest.mark.long
@pytest.mark.parametrize("power", [0.0, 0.3, 1.0])
def test_the_interval_of_the_power_covers_it(power):
    random, bits, covered = np.random.default_rng(0), np.geomspace(1e3, 1e6, 8), 0
    expected = (bits / 1e3) ** power
    error = expected * np.geomspace(0.1, 1.0, 8)  # the large ones are hardly known
    for _ in range(300):
        total = random.normal(expected, error)
        layers = {"component": "embedding", "bits": bits, "total": total}
        found = size_power(
            pd.DataFrame(layers | {"total_low": total - 1.96 * error, "total_high": total + 1.96 * error})
        )
        covered += bool(found["low"][0] <= power <= found["high"][0])
    assert covered >= 0.93 * 300


def test_magnitudes_are_those_of_single_flips(trained):
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    found = flipped_magnitudes([trained]).set_index("target")
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.state_dict().items())
    weights = torch.cat([one.detach().reshape(-1) for name, one in trained.named_parameters() if "embedding" in name])
    sizes = weights.double().abs() * 2.0**128  # below 2 in magnitude the top bit of the exponent is 0
    assert found.loc["embedding", "words"] == len(weights)
    middle = (weights != 0) & (weights.abs() > 1e-30)
    assert found.loc["embedding", "flipped_median"] == pytest.approx(float(sizes[middle].median()), rel=1e-2)
    low, high = found["flipped_q10"], found["flipped_q90"]
    assert (low < found["flipped_median"]).all() and (found["flipped_median"] < high).all()


def test_magnitudes_of_other_bits_and_types():
    layer = nn.Linear(3, 1, bias=False)
    nn.init.constant_(layer.weight, 1.5)
    assert flipped_magnitudes([layer], bit=31)["flipped_median"].tolist() == [1.5]
    assert flipped_magnitudes([layer], bit=22)["flipped_median"].tolist() == [1.0]
    assert flipped_magnitudes([layer])["infinite"].tolist() == [1.0]  # 1.5 becomes NaN
    with pytest.raises(ValueError, match="bit must be 0 to 31 for float32, got 32"):
        flipped_magnitudes([layer], bit=32)
    assert flipped_magnitudes([layer.half()]).empty


@pytest.mark.parametrize(
    ("limits", "share", "detail"),
    [
        (
            {"a": 1e-3, "b": 1e-2},
            1,
            "held at 2 of 2 rates, clearly at 2: 0.001 a, +1 % storage; 0.01 b, +5 % storage",
        ),
        (
            {"a": 1e-3, "b": 1e-4},
            0.5,
            "held at 1 of 2 rates, clearly at 1: 0.001 a, +1 % storage; 0.01 none",
        ),
        ({"a": 1e-4, "b": 1e-4}, 0, "held at 0 of 2 rates, clearly at 0: 0.001 none; 0.01 none"),
    ],
)
def test_codes_that_keep_the_auc(limits, share, detail):
    kept = pd.DataFrame({"mitigation": ["none", *limits], "kept_to": [1e-4, *limits.values()]})
    kept = kept.assign(model="m", dataset="d", protocol="p", target="all", held_to=kept["kept_to"])
    kept["lost_from"] = 10 * kept["kept_to"]
    storage = pd.DataFrame({"mitigation": ["b", "a", "other"], "stored_percent": [5.0, 1.0, 0.0]})
    found = kept_rates(kept, storage, {"code": ["a", "b"]}, [1e-4, 1e-3, 1e-2]).iloc[0]
    assert (found["model"], found["dataset"], found["code"]) == ("m", "d", "code")
    assert (found["value"], found["low"], found["high"], found["detail"]) == (share, share, share, detail)
    calm = kept_rates(kept.assign(lost_from=np.nan), storage, {"code": ["a", "b"]}, [1e-4, 1e-3, 1e-2]).iloc[0]
    assert np.isnan(calm["value"]) and calm["reason"] == "nothing lost"
    unclear = kept.assign(kept_to=np.nan).replace({"lost_from": {10 * limit: np.nan for limit in limits.values()}})
    unclear.loc[unclear["mitigation"] == "none", "lost_from"] = 1e-3
    unclear = kept_rates(unclear, storage, {"code": ["a", "b"]}, [1e-4, 1e-3, 1e-2]).iloc[0]
    assert (unclear["low"], unclear["value"], unclear["high"]) == (0, share, 1)


def test_the_worst_loss_is_judged_by_the_bound_that_assumes_nothing():
    rates = {"ber": [1e-4, 1e-3], "auc_drop": [0.0, 0.0002], "auc_drop_low": 0.0, "auc_drop_high": [0.0001, 0.0003]}
    summary = pd.DataFrame(rates | {"auc_drop_bound": [0.0004, 0.0009], "n": 4000}).assign(model="m", dataset="d")
    summary = pd.concat([summary.assign(mitigation="bits"), summary.assign(mitigation="none", auc_drop_bound=0.3)])
    found = worst_loss(summary, "bits").iloc[0]
    assert (found["value"], found["high"], found["n"]) == (0.0002, 0.0009, 4000)
    assert found["interval"] == "distribution-free upper bound"
    assert found["detail"] == "at 0.001, 4,000 trials"


def test_a_protection_that_changes_nothing():
    table = pd.DataFrame({"ber": 1e-3, "trial": [0, 1] * 2, "mitigation": ["none"] * 2 + ["released"] * 2})
    table = table.assign(model="m", dataset="d", auc=[0.7, 0.8, 0.7, 0.8])
    nothing = released_gain(table, "released").iloc[0]
    assert nothing[["value", "low", "n"]].tolist() == [0, 0, 2] and nothing["high"] == pytest.approx(1 - 0.025**0.5)
    assert nothing["interval"] == "exact binomial (Clopper-Pearson)"
    helped = released_gain(table.assign(auc=[0.7, 0.8, 0.7, 0.81]), "released")
    assert helped["value"].tolist() == [0.5] and helped["low"].tolist() == pytest.approx([1 - 0.975**0.5])
