"""What protections and memory faults refuse: the message names what is wrong and shows its value."""

import math

import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.injection import ErrorMapMismatch, Geometry
from drsrobust.mitigation import reserve_bits
from drsrobust_extras.protection.golden_copy import GoldenCopy
from tests.injection.spaces import filled, holder
from tests.mitigation.plain import screened
from tests.refusals import refuses

NAN = math.nan
LAYER, TABLE, BYTES = nn.Linear(5, 7), nn.Embedding(6, 3), holder(t=filled("int8", (37,), 1))
FULL = holder(t=torch.full((8,), 100, dtype=torch.int8))  # without room for check bits
BIG = nn.Embedding(200, 4)  # rows of tables that large are not critical
TINY = Geometry(ranks=1, banks=1, rows=4, columns=8)


def with_value(module, value):
    module.weight.data[1, 0] = value
    return module


def under(mitigation, model=LAYER, target="all"):
    """A mitigation at work on errors of a model."""
    return screened(mitigation, dr.FixedCount(3).sample(dr.resolve(model, target), seed=1), model)


def drawn(fault, model):
    return fault.sample(dr.resolve(model), seed=0)


def attached(mitigation, model):
    with mitigation.attach(model):
        pass


def fitted_under_errors():
    layer = nn.Linear(5, 7)
    with dr.inject(layer, dr.FixedCount(1), seed=0):
        dr.ABFTLinear.fit(layer)


# The call, the exception, what the message names, and the value as it shows it.
CASES = [
    (lambda: dr.MemoryFault("rows"), ValueError, "mode", "'rows'"),
    (lambda: dr.MemoryFault(density=1.5), ValueError, "density", "1.5"),
    (lambda: dr.MemoryFault(fit={"bit": (-1, 2)}), ValueError, "'bit'", "(-1, 2)"),
    (lambda: dr.MemoryFault(fit={"row": (1, NAN)}), ValueError, "'row'", "(1, nan)"),
    (lambda: dr.MemoryFault(fit={"bits": (1, 2)}), ValueError, "mode", "'bits'"),
    (lambda: dr.MemoryFault("row", fit={"bit": (1, 2)}), ValueError, "fit", "row"),
    (lambda: dr.MemoryFault("row", critical=0), ValueError, "critical", "'row'"),
    (lambda: dr.MemoryFault("bit", critical=0, others=2), ValueError, "others", "2"),
    (lambda: dr.MemoryFault("bit", others=0), ValueError, "others", "0"),
    (lambda: dr.MemoryFault("bit", critical=2), ValueError, "critical", "2"),
    (lambda: dr.MemoryFault("word", critical="1+", density=0.0), ValueError, "density", "0"),
    (lambda: dr.MemoryFault("bit", critical=0, chips=[15, 16]), ValueError, "chips", "(15, 16)"),
    (lambda: drawn(dr.MemoryFault("bit", critical="1+", chips=[3]), LAYER), ValueError, "10,000", ""),
    (lambda: drawn(dr.MemoryFault("bit", critical="1+"), BIG), ValueError, "critical bits", ""),
    (lambda: drawn(dr.MemoryFault("row", geometry=TINY), nn.Linear(64, 64)), ValueError, "256", "16,"),
    (lambda: Geometry(banks=0), ValueError, "banks", "0"),
    (lambda: Geometry(mapping="spred"), ValueError, "mapping", "'spred'"),
    (lambda: Geometry(columns=4, mapping="spread"), ValueError, "columns", "4"),
    (lambda: under(dr.BitProtection((40,))), ValueError, "bit", "40"),
    (lambda: under(dr.BitProtection(("scale",))), ValueError, "bits", "scale"),
    (lambda: under(dr.BitProtection({"*": {31}, "weight": {30}})), ValueError, "weight", "twice"),
    (lambda: dr.BitProtection(()), ValueError, "bits", ""),
    (lambda: dr.BitProtection({}), ValueError, "bits", ""),
    (lambda: dr.BitProtection({30}, code="ecc"), ValueError, "code", "'ecc'"),
    (lambda: dr.BitProtection({"a": {30}}, "b"), ValueError, "target", ""),
    (lambda: dr.BitProtection("exponents"), ValueError, "field", "'exponents'"),
    (lambda: dr.WeightRange.fit(LAYER, per="rows"), ValueError, "per", "'rows'"),
    (lambda: dr.WeightRange.fit(LAYER, repair="nothing"), ValueError, "repair", "'nothing'"),
    (lambda: dr.WeightRange.fit(with_value(nn.Linear(5, 7), NAN)), ValueError, "weight", "NaN"),
    (lambda: dr.WeightRange.fit(nn.ReLU()), ValueError, "ReLU", ""),
    (lambda: dr.WeightRange.fit(LAYER).outside(nn.ReLU()), ValueError, "weight", ""),
    (lambda: under(dr.WeightRange.fit(LAYER), nn.Linear(5, 6), "weight"), ErrorMapMismatch, "[7, 5]", "[6, 5]"),
    (lambda: dr.Chipkill("kept"), ValueError, "uncorrectable", "'kept'"),
    (lambda: under(dr.SelectiveChipkill()), ErrorMapMismatch, "check symbols", "word"),
    (lambda: dr.SelectiveChipkill.store(nn.Linear(8, 8).half()), ValueError, "target", "'all'"),
    (lambda: dr.SelectiveChipkill.store(with_value(nn.Linear(5, 7), math.inf)), ValueError, "weight", "not finite"),
    (lambda: dr.ABFTEmbeddingBag.fit(TABLE, quantized="modular"), ValueError, "quantized", "'modular'"),
    (lambda: dr.ABFTEmbeddingBag.fit(TABLE, modulus=128), ValueError, "modulus", "128"),
    (lambda: dr.ABFTEmbeddingBag.fit(TABLE, every=1.5), ValueError, "every", "1.5"),
    (lambda: dr.ABFTEmbeddingBag.fit(TABLE, action="nothing"), ValueError, "action", "'nothing'"),
    (lambda: dr.ABFTEmbeddingBag.fit(LAYER), ValueError, "embedding tables", ""),
    (lambda: dr.ABFTEmbeddingBag.fit(with_value(nn.Embedding(6, 3), math.inf)), ValueError, "Embedding", "not finite"),
    (lambda: attached(dr.ABFTEmbeddingBag.fit(TABLE), nn.Embedding(5, 3)), ValueError, "rows", "6"),
    (lambda: dr.ABFTLinear.fit(LAYER, mode="proven"), ValueError, "mode", "'proven'"),
    (lambda: dr.ABFTLinear.fit(LAYER, every=0), ValueError, "every", "0"),
    (lambda: dr.ABFTLinear.fit(LAYER, margin=0.0), ValueError, "margin", "0.0"),
    (lambda: dr.ABFTLinear.fit(LAYER, products="fp16"), ValueError, "products", "'fp16'"),
    (lambda: dr.ABFTLinear.fit(LAYER, mode="calibrated"), ValueError, "rows", ""),
    (lambda: dr.ABFTLinear.fit(LAYER, [], mode="calibrated"), ValueError, "rows", "none"),
    (lambda: dr.ABFTLinear.fit(nn.ReLU()), ValueError, "nn.Linear", ""),
    (lambda: dr.ABFTLinear.fit(with_value(nn.Linear(5, 7), NAN)), ValueError, "7 x 5", "not finite"),
    (lambda: attached(dr.ABFTLinear.fit(nn.Sequential(LAYER)), LAYER), ValueError, "another model", ""),
    (lambda: attached(dr.ABFTLinear.fit(LAYER), nn.Linear(5, 6)), ValueError, "outputs", "7"),
    (fitted_under_errors, ValueError, "errors", ""),
    (lambda: dr.OnDieECC(0), ValueError, "banks", "0"),
    (lambda: GoldenCopy.of(LAYER, ["3.weight"]), KeyError, "3.weight", ""),
    (lambda: GoldenCopy.of(LAYER).reload_tensor("weight", torch.zeros(5, 7)), ValueError, "weight", "[7, 5]"),
    (lambda: dr.Replication(1), ValueError, "copies", "1"),
    (lambda: dr.Replication(vote="mean"), ValueError, "vote", "'mean'"),
    (lambda: dr.rates.ber(1, NAN), ValueError, "hours", "nan"),
    (lambda: dr.rates.mean_ber(1, -2), ValueError, "hours", "-2"),
    (lambda: dr.rates.fit_per_mbit(1, 1), ValueError, "ber", "1"),
    (lambda: dr.rates.fit_per_mbit(0.1, 0), ValueError, "hours", "0"),
    (lambda: dr.rates.hours(0.1, 0), ValueError, "fit_per_mbit", "0"),
    (lambda: list(dr.rates.EVENTS), TypeError, "modes", "events"),
    (lambda: dr.Scrubbing(window=0), ValueError, "window", "0"),
    (lambda: dr.Scrubbing(checksum="md5"), ValueError, "checksum", "'md5'"),
    (lambda: dr.ZeroSpaceECC("ignore"), ValueError, "uncorrectable", "'ignore'"),
    (lambda: dr.ZeroSpaceECC().cost(LAYER), ValueError, "int8", ""),
    (lambda: under(dr.ZeroSpaceECC(target="everything"), FULL, "everything"), ValueError, "t: block 0", "[100, 100"),
    (lambda: reserve_bits(BYTES, "everything", how="scale"), ValueError, "reserve", "'scale'"),
    (lambda: reserve_bits(BYTES, "everything", how="rescale"), ValueError, "int8", "scales"),
]


@pytest.mark.parametrize(("call", "error", "name", "value"), CASES)
def test_the_message_names_what_is_wrong(call, error, name, value):
    refuses(call, error, name, value)


def test_a_refused_model_keeps_no_hook():
    other = nn.Sequential(nn.Linear(5, 8), nn.Linear(7, 1))
    with pytest.raises(ValueError), dr.ABFTLinear.fit(nn.Sequential(LAYER, nn.Linear(7, 1))).attach(other):
        pass
    assert not any(module._forward_hooks for module in other)
