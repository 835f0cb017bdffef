"""Titles of figures: what they say follows from the numbers, and small runs have something to say too."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from drsrobust_study import messages
from drsrobust_study.figures import injection_speed_data
from drsrobust_study.findings import interval

INF = np.inf
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (
            {30: 0.2, 29: 1e-3, 3: 0.0},
            "On average over components, a flip of bit 30 costs some 200 times as much AUC as one of any other bit.",
        ),
        ({30: 0.2, 31: 0.15}, "A flip of bit 30 costs most AUC in these trials, not clearly more than others."),
        ({30: 0.2, 29: 0.0}, "Bit 30 alone costs AUC: 0.2 a flip."),
        ({30: 0.0, 29: 0.0}, "No flip of a single bit costs AUC in these trials."),
    ],
)
def test_bits(losses, said):
    rows = [{"target": target, "bit": bit, "auc_drop": loss} for bit, loss in losses.items() for target in ("a", "b")]
    data = pd.DataFrame(rows)
    ends = {"auc_drop_low": 0.8 * data["auc_drop"], "auc_drop_high": 1.2 * data["auc_drop"] + 1e-4}
    assert messages.bits(data.assign(**ends)) == said


def test_curves():
    rates = pd.DataFrame({"model": ["fm", "dlrm", "dcn"], "loss": "half", "knee": [0.0104, 6.1e-6, INF]})
    assert messages.curves(rates) == "Half of the AUC over 0.5 is lost at a bit error rate of 6e-6 (DLRM) to 0.01 (FM)."
    assert messages.curves(rates[:1]).endswith("of 0.01 (FM).")
    assert messages.curves(rates[2:]) == "No model loses half of its AUC over 0.5 at these rates."


def test_ranking_rules():
    rules = ["probability, NaN tie", "probability, NaN prior", "logit, NaN tie"]
    ranked = pd.DataFrame({"model": "fm", "dataset": "d", "ber": 1e-2, "rule": rules, "auc": [0.65, 0.74, 0.6]})
    said = "Ranking logits would move AUC by up to 0.05, another rule for NaN by up to 0.09."
    assert messages.ranking_rules(ranked) == said


def test_contributions():
    parts = pd.DataFrame({"bits_share": [0.02, 0.14], "share": [0.2, 0.92]})
    said = "The MLPs hold 2 % to 14 % of the bits, and errors in them cause 20 % to 92 % of the changed outputs."
    assert messages.contributions(parts) == said


def test_protection():
    points = {"mitigation": ["range", "copies", "clip"], "recovery": [0.993, 1.0, 0.9], "overhead_percent": [0, 0, 18]}
    points = pd.DataFrame(points | {"stored_percent": [0.02, 200, 0.001]})
    said = messages.mitigations(points, 1e-3)
    said_of_range = "range gives back 99.3 % of the lost AUC for no extra time and 0.02 % more storage."
    assert said == f"At a bit error rate of 0.001, {said_of_range}"
    assert "for 18 % more time" in messages.mitigations(points[2:], 1e-3)
    assert messages.mitigations(points.assign(recovery=np.nan), 1e-3) == "Recovery against cost, by mitigation."


def test_protected_bits():
    """The number is that of claim C5, of many maps; as released, all data sets are meant."""
    findings = pd.read_csv(ROOT / "figures" / "06_selective_bit_protection_claims.csv").query("third == 0")
    losses, released = (findings[findings["reading"] == reading] for reading in ("loss", "released"))
    claims = pd.read_csv(ROOT / "figures" / "claims.csv", comment="#").query("claim == 'C5' and check == 0")
    (said,) = claims["sentence"]
    (row,), title = losses.to_dict("records"), messages.protected_bits(losses, released)
    number = interval(row["value"], row["low"], row["high"])
    assert number in said and title == (
        f"With bits 23-31 protected the mean loss is {number} AUC on MovieLens-1M (all features) ({row['detail']}); the "
        "protection as first released changed nothing."
    )
    some = messages.protected_bits(losses, released.assign(value=[0.0, 0.25]))
    assert some.endswith("the protection as first released changed 0 to 25 % of the trials.")


def test_places():
    shares = {"place": ["words", "words", "score"], "recovery": [0.99, 0.5, -0.01], "ber": 1e-3}
    said = "Of the AUC lost at 0.001, mitigations give back up to 99 % at words, -1 % at score."
    assert messages.places(pd.DataFrame(shares)) == said
    assert messages.places(pd.DataFrame(shares | {"recovery": np.nan})) == "Where mitigations act."


def test_clipping():
    claims = {"scope": "all", "reading": "recovery", "protocol": ["as_released", "corrected"], "value": [0.35, 0.99]}
    said = messages.clipping(pd.DataFrame(claims))
    released = "With errors as in its scripts, the study's clipping gives back at best 35 % of the lost AUC"
    assert said == f"{released}; with errors everywhere, bounds learnt from data up to 99 %."
    assert messages.clipping(pd.DataFrame(claims | {"value": np.nan})) == "Recovery by clipping activations."


def test_checks_and_shapes():
    claims = {"part": "layers", "reading": "noticed", "value": [1.0, 0.98], "n": [500, 700]}
    said = messages.detection(pd.DataFrame(claims), "layers")
    assert said == "Checksums of linear layers find 98 % to 100 % of 1,200 harmful errors."
    assert messages.detection(pd.DataFrame(claims), "tables") == "Errors that checksums of embedding look-ups find."
    shapes = {"target": "mlp", "shape": ["one flip", "a random block of 8 KB"], "auc_drop": [0.004, 0.3]}
    assert (
        messages.shapes(pd.DataFrame(shapes))
        == "In the MLP, a random block of 8 KB costs 75 times the AUC of one flip."
    )
    assert messages.shapes(pd.DataFrame(shapes | {"auc_drop": [0.0, 0.3]})) == "AUC lost to one event, by its shape."
    ratio = pd.DataFrame({"model": ["dlrm"], "value": [318.0]})
    assert (
        messages.layers(ratio)
        == "On average, a flipped bit of the MLPs costs DLRM 320 times as much AUC as one of the tables."
    )
    assert messages.layers(ratio.assign(value=np.nan)) == "AUC lost to one flipped bit, by layer and table."


def test_speed_and_factors():
    rows = [
        {"method": name, "parameters": size, "dtype": "float32", "rate": rate, "cpu_ms": ms, "undo_cpu_ms": undo}
        for name, size, rate, ms, undo in (
            ("drsrobust", 9, 1e-6, 0.5, 0.5),
            ("dense error map", 9, 1e-6, 900.0, np.nan),
            ("drsrobust", 9, 1e-3, 4.0, 1.0),
            ("dense error map", 9, 1e-3, 900.0, np.nan),
            ("drsrobust", 3125, 1e-2, 2.0, 0.5),  # 1,000 errors
            ("dense error map", 3125, 1e-2, 100.0, np.nan),
            ("drsrobust", 3125, 0.1, 9.0, 1.0),  # neither
            ("dense error map", 3125, 0.1, 110.0, np.nan),
        )
    ]
    table = pd.DataFrame(rows).assign(peak_mib=1.0, note="")
    data = injection_speed_data(table, parameters=9)
    assert data["panel"].tolist() == [*["none"] * 2, *["rate"] * 4, *["size"] * 2]
    assert messages.speed(data) == "Sparse injection is 11 to 900 times as fast as a dense error map."
    assert messages.speed(data[data["method"] == "drsrobust"]) == "Time of one injection, by method."
    trends = pd.DataFrame({"factor": ["width", "embedding_dim"], "at_least": [0.06, 0.1], "at_greatest": [0.3, 0.28]})
    said = messages.factors(trends, 1e-6)
    assert said == "Outputs changed at a bit error rate of 1e-6: 6 to 30 % by width, 10 to 28 % by embedding dimension."
