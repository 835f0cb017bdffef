import pytest
import torch

from drsrobust.injection.number_formats import format_named, plain, quantized_rows


def numbers(mask):
    return {bit for bit in range(64) if int(mask) >> bit & 1}


def fields(dtype):
    return {name: numbers(mask[0]) for name, mask in plain(dtype).fields.items()}


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS)
def test_fields_of_floats_are_what_pytorch_computes_with(dtype):
    """The exponent is what doubling changes, the sign what negation changes, the mantissa what is left."""
    integer = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[8 * dtype.itemsize]
    width = 8 * dtype.itemsize

    def bits(value):
        word = int(torch.tensor(value, dtype=torch.float64).to(dtype).view(integer)) % 2**width
        return {i for i in range(width) if word >> i & 1}

    found = fields(dtype)
    assert sorted(i for group in found.values() for i in group) == list(range(width))
    assert bits(1.5) ^ bits(-1.5) == found["sign"]
    assert bits(1.0) <= found["exponent"]  # the mantissa of 1.0 is all zeros
    powers = [2.0**e for e in range(-14, 9) if 2.0**e >= torch.finfo(dtype).smallest_normal]
    exponents = set().union(*map(bits, powers))
    assert exponents <= found["exponent"] and max(exponents) == max(found["exponent"])
    eps = float(torch.finfo(dtype).eps)
    assert bits(1.0) ^ bits(1.0 + eps) == {0} and bits(1.0) ^ bits(1.5) == {max(found["mantissa"])}
    assert 2.0 ** -len(found["mantissa"]) == eps


def test_fields_of_integers():
    assert fields(torch.int8) == {"sign": {7}, "value": set(range(7))}
    assert fields(torch.int64)["sign"] == {63}
    assert fields(torch.uint8) == {"value": set(range(8))}


def test_eligible_bits():
    assert numbers(plain(torch.float32).eligible(("exponent", 0))[0]) == {0, *range(23, 31)}
    assert numbers(plain(torch.int8).eligible(("exponent",))[0]) == set()
    assert numbers(plain(torch.float16).eligible(None)[0]) == set(range(16))
    with pytest.raises(ValueError, match="bit 16 does not exist in bfloat16; its words have bits 0 to 15"):
        plain(torch.bfloat16).eligible((16,))


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


def test_rows_of_floats_are_floats():
    form = quantized_rows("float16", 5, 0, 16)
    assert form.dtype == torch.float16 and form.period == 8
    assert form.eligible(("sign",)).tolist() == [2**15] * 5 + [0] * 3
    assert form.eligible(("padding",)).tolist() == [0] * 5 + [2**16 - 1] * 3


def test_names_of_formats_are_read_again():
    for form in (plain(torch.float8_e5m2), quantized_rows("int4", 5, 4, 16), quantized_rows("float16", 5, 0, 16)):
        assert format_named(form.name) == form
    with pytest.raises(ValueError, match="'float31' is no number format"):
        format_named("float31")
