import numpy as np
import pytest
import torch

from drsrobust.injection.formats import bit_numbers, fields

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS)
def test_fields_of_floats_are_what_pytorch_computes_with(dtype):
    """The exponent is what doubling changes, the sign what negation changes, the mantissa what is left."""
    integer = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[8 * dtype.itemsize]
    width = 8 * dtype.itemsize

    def bits(value):
        word = int(torch.tensor(value, dtype=torch.float64).to(dtype).view(integer)) % 2**width
        return {i for i in range(width) if word >> i & 1}

    found = {name: set(numbers) for name, numbers in fields(dtype).items()}
    assert sorted(i for numbers in found.values() for i in numbers) == list(range(width))
    assert bits(1.5) ^ bits(-1.5) == found["sign"]
    assert bits(1.0) <= found["exponent"]  # the mantissa of 1.0 is all zeros
    powers = [2.0**e for e in range(-14, 9) if 2.0**e >= torch.finfo(dtype).smallest_normal]
    exponents = set().union(*map(bits, powers))
    assert exponents <= found["exponent"] and max(exponents) == max(found["exponent"])
    eps = float(torch.finfo(dtype).eps)
    assert bits(1.0) ^ bits(1.0 + eps) == {0} and bits(1.0) ^ bits(1.5) == {max(found["mantissa"])}
    assert 2.0 ** -len(found["mantissa"]) == eps


def test_fields_of_integers():
    assert fields(torch.int8) == {"sign": range(7, 8), "value": range(7)}
    assert fields(torch.uint8) == {"value": range(8)}


def test_bit_numbers():
    assert bit_numbers(torch.float32, ("exponent", 0)).tolist() == [0, *range(23, 31)]
    assert bit_numbers(torch.int8, ("exponent",)).tolist() == []
    assert np.array_equal(bit_numbers(torch.float16, None), np.arange(16))
    with pytest.raises(ValueError, match="bit 16 does not exist in torch.bfloat16; its words have bits 0 to 15"):
        bit_numbers(torch.bfloat16, (16,))
