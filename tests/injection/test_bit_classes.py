import numpy as np
import pytest
import torch

from drsrobust.injection.number_formats import bit_classes, plain, quantized_rows


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


FORMATS = [
    plain(getattr(torch, name)) for name in ("float64", "float32", "float16", "bfloat16", "float8_e5m2", "int32")
]


@pytest.mark.parametrize("known", [*FORMATS, quantized_rows("int8", 5, 4, 16), quantized_rows("float32", 3, 0, 16)])
def test_bit_classes_are_a_partition(known):
    """Each bit but padding is in one class, and classes say what their flips scale by."""
    everything, seen = known.eligible(None), np.zeros(known.period, np.uint64)
    for bits in bit_classes(known).values():
        mask = known.eligible(bits)
        assert not (mask & seen).any() and mask.any()
        seen |= mask
    assert (seen == everything).all()
