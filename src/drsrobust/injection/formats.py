"""Number formats: how wide a word is, and which of its bits are sign, exponent and mantissa.

Bit 0 is the lowest. Floating formats follow IEEE 754 and, for 8 bits, the OCP 8-bit floating point specification; signed
integers are two's complement, whose highest bit is the sign.
"""

from collections.abc import Iterable

import numpy as np
import torch

# dtype -> (bits of the exponent, bits of the mantissa); a sign bit lies above them.
_FLOATS = {
    torch.float64: (11, 52),
    torch.float32: (8, 23),
    torch.float16: (5, 10),
    torch.bfloat16: (8, 7),
    torch.float8_e4m3fn: (4, 3),
    torch.float8_e5m2: (5, 2),
}
FIELDS = ("sign", "exponent", "mantissa", "value")


def fields(dtype: torch.dtype) -> dict[str, range]:
    """The fields of a word and their bit numbers: `sign`, `exponent`, `mantissa` of floats; `sign` (of signed ones) and
    `value` (the other bits) of integers.

    Example:
        >>> fields(torch.bfloat16)
        {'sign': range(15, 16), 'exponent': range(7, 15), 'mantissa': range(0, 7)}
    """
    width = 8 * dtype.itemsize
    if dtype in _FLOATS:
        _, mantissa = _FLOATS[dtype]
        return {
            "sign": range(width - 1, width),
            "exponent": range(mantissa, width - 1),
            "mantissa": range(mantissa),
        }
    if dtype.is_signed:
        return {"sign": range(width - 1, width), "value": range(width - 1)}
    return {"value": range(width)}


def bit_numbers(dtype: torch.dtype, bits: Iterable[int | str] | None) -> np.ndarray:
    """The bit numbers, ascending, that a set of numbers and field names means in a format (None: all bits). A field that
    the format does not have means none.

    Raises:
        ValueError: a number that the format's words do not have.
    """
    width = 8 * dtype.itemsize
    if bits is None:
        return np.arange(width)
    chosen: set[int] = set()
    for bit in bits:
        if isinstance(bit, str):
            chosen.update(fields(dtype).get(bit, ()))
        elif 0 <= bit < width:
            chosen.add(bit)
        else:
            raise ValueError(f"bit {bit} does not exist in {dtype}; its words have bits 0 to {width - 1}")
    return np.array(sorted(chosen), np.int64)
