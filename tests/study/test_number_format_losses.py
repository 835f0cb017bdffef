"""Numbers of notebook 15: what formats cost, what flips cost in them, and effects."""

import numpy as np
import pytest

import drsrobust_study as study
from drsrobust.introspection import components
from drsrobust_extras.data.stored_as import stored_as
from drsrobust_study.number_formats import DENSE, RATE, TABLES

pytestmark = pytest.mark.long

FORMATS = {DENSE: ["fp32", "bf16", "fp8_e5m2"], TABLES: ["fp32", "int4"]}


@pytest.fixture(scope="module")
def measured(trained, data):
    stored = study.number_formats.stored_models(trained, data.test.head(300), *FORMATS.values())
    flips = study.number_formats.flips(stored, trials=7, seed=1)
    return stored, flips, study.number_formats.clean_cost(trained, stored)


def test_parts_and_sizes(measured, trained):
    """Every number of a part is counted once; storage is what the words take, with scales, biases and padding."""
    stored, _, clean = measured
    assert list(zip(clean["part"], clean["format"], strict=True)) == [
        (p, f) for p, names in FORMATS.items() for f in names
    ]
    numbers = components(trained).set_index("component")["parameters"]
    expected = {DENSE: numbers.drop("embedding").sum(), TABLES: numbers["embedding"]}
    assert clean.groupby("part")["numbers"].first().to_dict() == expected
    by_format = clean.set_index(["part", "format"])
    dense, size = expected[DENSE], by_format["megabytes"] * 1e6
    tensors = sum(not name.startswith("sparse") for name, _ in trained.named_parameters())
    sizes = [size[DENSE, name] for name in ("fp32", "bf16", "fp8_e5m2")]
    assert sizes == [4 * dense, 2 * dense, dense + 4 * tensors]
    rows = sum(len(p) for name, p in trained.named_parameters() if name.startswith("sparse"))
    assert size[TABLES, "int4"] == 16 * rows  # 2 + 2 + 8 bytes, padded
    assert (by_format.xs("fp32", level=1)["auc_change"] == 0).all()
    assert (clean["auc_change_low"] <= clean["auc_change"]).all()
    assert (clean["auc_change"] <= clean["auc_change_high"]).all()


def test_losses_by_bit_weight_and_rate(measured):
    """The mean over classes, weighted by their bits; what depends on it is that times numbers of bits."""
    stored, flips, clean = measured
    numbers = clean.groupby("part")["numbers"].first()
    losses = study.number_formats.flip_losses(stored, flips, numbers)
    for one, row in zip(stored, losses.to_dict("records"), strict=True):
        partition, trials = study.number_formats.partition_of(one), flips[one.part, one.format]
        means = [
            trials[(trials["error_model"] == error.label) & (trials["target"] == str(target))]["auc_drop"].mean()
            for error, target in study.components.single_errors(partition)
        ]
        assert row["per_bit"] == pytest.approx(float(np.dot(means, partition["weight"])), abs=1e-12)
        assert row["bits"] == partition["eligible"].sum() and row["n"] == 7 * len(partition)
        assert row["per_weight"] == pytest.approx(row["per_bit"] * row["bits"] / numbers[one.part])
        assert row["at_rate"] == pytest.approx(row["per_bit"] * row["bits"] * RATE)
    names = losses.set_index(["part", "format"])["bits"]
    assert names[DENSE, "fp32"] == 2 * names[DENSE, "bf16"]
    figure = study.figures.number_formats_data(clean, losses)
    for quantity in ("auc_change", "per_bit", "at_rate"):
        ax = study.figures.number_formats(figure, quantity=quantity)
        expected = ["fp32", "bf16", "fp8", "fp32", "int4"]
        assert [label.get_text().partition(" ")[0] for label in ax.get_yticklabels()] == expected
    classes = study.number_formats.class_losses(stored, flips)
    of_scaled = classes[(classes["part"] == DENSE) & (classes["format"] == "fp8_e5m2")]
    assert set(of_scaled["bit_class"]) == {"sign", "exponent_top", "exponent_low", "mantissa", "scale"}
    for (part, name), rows in classes.groupby(["part", "format"]):
        whole = losses.set_index(["part", "format"])["per_bit"][part, name]
        assert float(np.dot(rows["auc_drop"], rows["share"])) == pytest.approx(whole, abs=1e-12)


def test_effects(measured, trained, data):
    stored, flips, clean = measured
    losses = study.number_formats.flip_losses(stored, flips, clean.groupby("part")["numbers"].first())
    half = study.number_formats.Evaluator(stored_as(trained, dense="bf16", tables="fp16"), data.test.head(300))
    kept = study.number_formats.kept_under_errors(half, ber=1e-2, trials=6, seed=2).assign(format="half")
    tables = [{seed: table for seed in range(2)} for table in (clean, losses, kept)]
    found = study.number_formats.effects(*tables).set_index("effect")
    lost = losses.set_index(["part", "format"])
    for quantity in ("per_bit", "at_rate"):
        ratio = lost.loc[(DENSE, "bf16"), quantity] / lost.loc[(DENSE, "fp32"), quantity]
        assert found.loc[f"{quantity} {DENSE} bf16", "value"] == pytest.approx(ratio)
    change = clean.set_index(["part", "format"])["auc_change"][TABLES, "int4"]
    assert found.loc[f"change {TABLES} int4", "value"] == pytest.approx(change)
    plain, protected = (found.loc[f"kept {name}, half", "value"] for name in ("no protection", "exponents protected"))
    assert plain < 0.5 < protected <= 1.01
