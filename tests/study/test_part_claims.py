"""Verdicts part by part, how large flipped weights become, and codes that keep the AUC."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from drsrobust.study.bit_sensitivity import flipped_magnitudes
from drsrobust.study.components import most_and_least
from drsrobust.study.protection import protection_verdicts


def parts(model, values, half, definition="score_changed"):
    frame = pd.DataFrame(
        {"component": ["over_mlp", "dense_mlp", "embedding"], "incorrect": values, "pvf": values[::-1]}
    )
    for name in ("incorrect", "pvf"):
        frame[f"{name}_low"], frame[f"{name}_high"] = frame[name] - half, frame[name] + half
    return frame.assign(model=model, dataset="d", definition=definition)


def test_one_row_per_quantity_model_and_definition():
    given = pd.concat(
        [
            parts("a", [0.5, 0.3, 0.1], 0.05),
            parts("b", [0.5, 0.3, 0.1], 0.15),
            parts("a", [np.nan] * 3, 0, "list_changed"),
        ]
    )
    given["definition"] = given["definition"].astype(str)
    found = most_and_least(given, {"incorrect": "outputs", "pvf": "errors"}, most="over_mlp", least="embedding")
    assert found[["quantity", "model", "definition", "verdict"]].values.tolist() == [
        ["outputs", "a", "score_changed", "reproduced"],
        ["outputs", "b", "score_changed", "partly"],
        ["errors", "a", "score_changed", "not"],
        ["errors", "b", "score_changed", "not"],
    ]
    # The number is that of the part that is said to be the most vulnerable, also where it is not.
    assert found["value"].tolist() == [0.5, 0.5, 0.1, 0.1] and found["low"].iloc[0] == pytest.approx(0.45)
    assert found["detail"].iloc[2].startswith("embedding 0.5 [0.45, 0.55], then dense_mlp 0.3")
    alone = most_and_least(given, {"incorrect": "outputs"}, most="cross", least="embedding")
    assert alone["value"].isna().all() and set(alone["verdict"]) == {"partly"}


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
    ("limits", "verdict", "value", "detail"),
    [
        (
            {"a": 1e-3, "b": 1e-2},
            "reproduced",
            1e-2,
            "kept at 2 of 2 rates: 0.001 a, +1 % storage; 0.01 b, +5 % storage",
        ),
        ({"a": 1e-3, "b": 1e-4}, "partly", 1e-3, "kept at 1 of 2 rates: 0.001 a, +1 % storage; 0.01 none"),
        ({"a": 1e-4, "b": 1e-4}, "not", 1e-4, "kept at 0 of 2 rates: 0.001 none; 0.01 none"),
    ],
)
def test_codes_that_keep_the_auc(limits, verdict, value, detail):
    kept = pd.DataFrame({"mitigation": ["none", *limits], "kept_to": [1e-4, *limits.values()]})
    kept = kept.assign(model="m", dataset="d", protocol="p", target="all", lost_from=[1e-3, np.nan, np.nan])
    storage = pd.DataFrame({"mitigation": ["b", "a", "other"], "stored_percent": [5.0, 1.0, 0.0]})
    found = protection_verdicts(kept, storage, {"code": ["a", "b"]}, [1e-4, 1e-3, 1e-2]).iloc[0]
    assert (found["model"], found["dataset"], found["code"]) == ("m", "d", "code")
    assert (found["verdict"], found["value"], found["detail"]) == (verdict, value, detail)
    calm = protection_verdicts(kept.assign(lost_from=np.nan), storage, {"code": ["a", "b"]}, [1e-4, 1e-3, 1e-2]).iloc[0]
    assert calm["verdict"] == "not tested" and calm["reason"] == "nothing lost"
