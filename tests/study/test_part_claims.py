"""Findings part by part, and how large flipped weights become."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from drsrobust_study.bit_sensitivity import flipped_magnitudes
from drsrobust_study.components import part_ratio, size_power


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
