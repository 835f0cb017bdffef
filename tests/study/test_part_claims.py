"""Codes that keep the AUC."""

import numpy as np
import pandas as pd
import pytest

from drsrobust_study.protection import kept_rates, released_gain, worst_loss


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
