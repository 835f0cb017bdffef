"""Error models that cannot be, or cannot hit what they are given."""

import math

import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.injection import Sum
from drsrobust.injection.address_space import AddressSpace, TargetTensor
from tests.injection.spaces import COUNTED, space_of


def quantized():
    from drsrobust.injection.number_formats import quantized_rows

    return AddressSpace([TargetTensor("t", "t", (3, 16), quantized_rows("int8", 8, 4, 16))])


NUMBER = "must be a number from 0 to 1"


@pytest.mark.parametrize("rate", [float("nan"), -1e-300, 1.0000001, math.inf, "0.1", True, None, 1j, 10**400, [0.1]])
@pytest.mark.parametrize("kind", [*COUNTED])
def test_bad_rates(kind, rate):
    name = "ber" if kind == "BitFlip" else "rate"
    with pytest.raises(ValueError, match=f"^{name} {NUMBER}, got "):
        COUNTED[kind][0](rate)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: dr.StuckAt(2, 0.1), "value must be 0 or 1, got 2"),
        (lambda: dr.StuckAt(True, 0.1), "value must be 0 or 1, got True"),
        (lambda: dr.StuckAt("1", 0.1), "value must be 0 or 1, got '1'"),
        (lambda: dr.MultiBit(0.1, 0), "bits_per_word must be at least 1, got 0"),
        (lambda: dr.MultiBit(0.1, 2.0), "bits_per_word must be a whole number from 1 to 64, got 2.0"),
        (lambda: dr.MultiBit(0.1, True), "bits_per_word must be .*, got True"),
        (lambda: dr.Burst(0.1, 0), "length must be at least 1, got 0"),
        (lambda: dr.RowError(0.1, density=1.5), f"density {NUMBER}, got 1.5"),
        (lambda: dr.RowError(0.1, density=float("nan")), "density must be .*, got nan"),
        (lambda: dr.RowError(0.1, row_bytes=12), "row_bytes is 12; it must be a multiple of 8"),
        (lambda: dr.RowError(0.1, row_bytes=0), "row_bytes must be at least 8, got 0"),
        (lambda: dr.RandomValue(0.1, 2, 1), "low is 2 and high 1; low must be the smaller one"),
        (lambda: dr.RandomValue(0.1, 1, 1), "low must be the smaller one"),
        (lambda: dr.RandomValue(0.1, float("nan"), 1), "low must be a finite number, got nan"),
        (lambda: dr.RandomValue(0.1, 0, math.inf), "high must be a finite number, got inf"),
        (lambda: dr.RandomValue(0.1, "0", 1), "low must be a finite number, got '0'"),
        (lambda: dr.RandomValue(0.1, False, 1), "low must be a finite number, got False"),
        (lambda: dr.StuckAt(1, 0.1, bits=("sing",)), "did you mean 'sign'"),
    ],
)
def test_bad_settings(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize(
    ("error_model", "space", "says"),
    [
        (
            dr.StuckAt(1, 0.1, bits=(16,)),
            space_of((2,), "float16"),
            "t: bit 16 does not exist in float16; .* bits 0 to 15",
        ),
        (dr.SingleBit(8), space_of((2,), "int8"), "t: bit 8 does not exist in int8"),
        (dr.BitFlip(0.1, bits=(-1,)), space_of((2,), "int8"), "t: bit -1 does not exist in int8"),
        (
            dr.StuckAt(1, 0.1, bits="value"),
            space_of((2,)),
            r"\['value'\] exist in none of the targeted formats: float32",
        ),
        (dr.StuckAt(1, 0.1), space_of((2,)), "t: an address space without a model has no words to read"),
        (dr.MultiBit(0.1, 9), space_of((2,), "float8_e5m2"), "bits_per_word is 9; words of t have 8 bits"),
        (dr.RandomValue(0.1, 0, 1e5), space_of((2,), "float16"), "t is float16, whose range does not hold 0 to 100000"),
        (
            dr.RandomValue(0.1, 0, 500),
            space_of((2,), "float8_e4m3fn"),
            "t is float8_e4m3fn, whose range does not hold 0 to 500",
        ),
        (
            dr.RandomValue(0.1, -1, 5),
            space_of((2,), "uint8"),
            r"t is uint8 \(0 to 255\); it holds no numbers from -1 to 5",
        ),
        (dr.RandomValue(0.1, 0, 2**63), space_of((2,), "int64"), "t is int64"),
        (dr.RandomValue(0.1, 0.2, 0.8), space_of((2,), "int32"), "it holds no numbers from 0.2 to 0.8"),
        (dr.RandomValue(0.1, 0, 1), quantized(), "t holds int8 rows.*whose bytes are no numbers"),
    ],
)
def test_models_that_cannot_hit_a_space(error_model, space, says):
    for number in (1, 2):
        with pytest.raises(ValueError, match=says):
            (error_model if number == 1 else error_model + dr.BitFlip(0.1)).sample(space, seed=1)


def test_no_error_model():
    for wrong in ("value", "BitFlip", 1e-6, None, dr.BitFlip, (dr.BitFlip(0.1),), {"ber": 1e-6}):
        with pytest.raises(TypeError, match="error_model must be an error model, as BitFlip"):
            dr.inject(nn.Linear(2, 2), wrong, seed=1).__enter__()
    with pytest.raises(TypeError, match="unsupported operand"):
        dr.BitFlip(0.1) + 3
    with pytest.raises(TypeError, match="each part of a sum must be an error model, got 3"):
        Sum((dr.BitFlip(0.1), 3))
    with pytest.raises(ValueError, match="weight is torch.complex64, which has no bit positions"):
        dr.inject(nn.Linear(2, 2, bias=False, dtype=torch.complex64), dr.StuckAt(1, 0.1), seed=1).__enter__()
