import numpy as np
import pytest
import torch

from drsrobust.injection.number_formats import bit_classes, format_named, plain, quantized_rows


@pytest.mark.parametrize(
    ("values", "dim", "row", "live"),
    [("int8", 16, 32, 20), ("int4", 16, 16, 12), ("int4", 5, 16, 7), ("int2", 16, 16, 8)],
)
def test_quantized_rows(values, dim, row, live):
    form = quantized_rows(values, dim, 4, row)
    masks = {name: mask.tolist() for name, mask in form.fields.items()}
    assert masks["scale"] == [255] * 2 + [0] * (row - 2) and masks["bias"] == [0] * 2 + [255] * 2 + [0] * (row - 4)
    assert masks["value"] == [0] * 4 + [255] * (live - 4) + [0] * (row - live)
    assert masks["padding"] == [0] * live + [255] * (row - live)
    assert form.eligible(None).tolist() == [255] * live + [0] * (row - live)  # padding must be asked for
    assert form.eligible((7,)).tolist() == [128] * live + [0] * (row - live)
    assert form.eligible(("padding", "scale")).tolist() == [255] * 2 + [0] * (live - 2) + [255] * (row - live)


def test_names_of_formats_are_read_again():
    for form in (plain(torch.float8_e5m2), quantized_rows("int4", 5, 4, 16), quantized_rows("float16", 5, 0, 16)):
        assert format_named(form.name) == form


def test_bit_classes_of_float32_are_the_literatures():
    assert bit_classes("float32") == {
        "sign": (31,),
        "exponent_top": (30,),
        "exponent_high": (27, 28, 29),
        "exponent_low": (23, 24, 25, 26),
        "mantissa": tuple(range(23)),
    }


def test_bit_classes_of_other_formats():
    bfloat16, float64 = bit_classes("bfloat16"), bit_classes("float64")
    assert bfloat16["exponent_high"] == (11, 12, 13) and bfloat16["exponent_low"] == (7, 8, 9, 10)
    assert float64["exponent_top"] == (62,) and float64["exponent_low"] == (52, 53, 54, 55)
    assert "exponent_high" not in bit_classes("float16") and bit_classes("float8_e4m3fn")["exponent_low"] == (3, 4, 5)
    assert bit_classes("int8") == {"sign": (7,), "value_high": (3, 4, 5, 6), "value_low": (0, 1, 2)}
    assert bit_classes("uint8") == {"value_high": (4, 5, 6, 7), "value_low": (0, 1, 2, 3)}
    assert bit_classes(quantized_rows("int4", 6, 4, 16)) == {
        "value": ("value",),
        "scale": ("scale",),
        "bias": ("bias",),
    }
    assert bit_classes(quantized_rows("float16", 3, 0, 8)) == bit_classes("float16")


PARTED = [
    plain(torch.float64),
    plain(torch.int32),
    quantized_rows("int8", 5, 4, 16),
    quantized_rows("float32", 3, 0, 16),
]


@pytest.mark.parametrize("known", PARTED, ids=lambda known: known.name)
def test_bit_classes_are_a_partition(known):
    """Each bit but padding is in one class, and classes say what their flips scale by."""
    seen = np.zeros(known.period, np.uint64)
    for bits in bit_classes(known).values():
        mask = known.eligible(bits)
        assert not (mask & seen).any() and mask.any()
        seen |= mask
    assert (seen == known.eligible(None)).all()
