"""Number formats: how wide a word is, and which field each of its bits belongs to.

Bit 0 is the lowest. Floats follow IEEE 754 and, for 8 bits, the OCP 8-bit floating point specification; signed integers are
two's complement, whose highest bit is the sign. FBGEMM's quantized rows hold scale and bias, then codes, then padding, so the
field of a bit depends on its position in the row."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch

from drsrobust._arguments import check_items, check_whole
from drsrobust._choices import unknown

# dtype -> bits of the mantissa; exponent and a sign bit lie above them.
_FLOATS = {
    torch.float64: 52,
    torch.float32: 23,
    torch.float16: 10,
    torch.bfloat16: 7,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 2,
}
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
PADDING = "padding"
FIELDS = ("sign", "exponent", "mantissa", "value", "scale", "bias", PADDING)
TOP = "exponent_top"  # the highest bit of the exponent: a part of a field
_CODE_BITS = {"int8": 8, "int4": 4, "int2": 2}
_HEADERS = {2: torch.float16, 4: torch.float32}  # bytes of a quantized row's scale, or bias -> its format
_ROWS = re.compile(r"(int8|int4|int2|float16|float32) rows: (\d+) values, (\d+) bytes of scale and bias, (\d+) bytes")


@dataclass(frozen=True)
class Format:
    """The fields of a tensor's words.

    Attributes:
        name: as `float32`, or `int8 rows: 16 values, 4 bytes of scale and bias, 32 bytes` for FBGEMM's quantized rows.
        dtype: of a word. Quantized rows of integers are read as bytes (uint8), rows of floats as those floats.
        fields: field -> uint64 [period], the bits of each word that belong to it.
        width: bits of a word.
        period: the layout repeats after so many words: 1, or the words of a quantized row.
    """

    name: str
    dtype: torch.dtype
    fields: Mapping[str, np.ndarray] = field(compare=False, repr=False)
    width: int = field(init=False, compare=False, repr=False)
    period: int = field(init=False, compare=False, repr=False)
    # Two formats of one name may differ in their fields, and caches compare formats.
    _masks: tuple[tuple[str, bytes], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        masks = tuple((name, np.asarray(mask, np.uint64).tobytes()) for name, mask in self.fields.items())
        object.__setattr__(self, "_masks", masks)
        object.__setattr__(self, "width", 8 * self.dtype.itemsize)
        object.__setattr__(self, "period", len(next(iter(self.fields.values()))))

    def eligible(self, bits: Iterable[int | str] | None) -> np.ndarray:
        """Masks uint64 [period] of bits given by number or field; None: all but padding. Numbers never mean padding; a field
        that the format does not have adds no bits.

        Raises:
            ValueError: a number that the format's words do not have.
        """
        everything = np.zeros(self.period, np.uint64)
        for name, mask in self.fields.items():
            if name != PADDING:
                everything |= mask
        if bits is None:
            return everything
        chosen = np.zeros(self.period, np.uint64)
        for bit in bits:
            if bit == TOP:
                exponent = self.fields.get("exponent", np.uint64(0))
                chosen |= exponent & ~(exponent >> np.uint64(1))
            elif isinstance(bit, str):
                chosen |= self.fields.get(bit, np.uint64(0))
            elif 0 <= bit < self.width:
                chosen |= everything & np.uint64(1 << bit)
            else:
                raise ValueError(f"bit {bit} does not exist in {self.name}; its words have bits 0 to {self.width - 1}")
        return chosen


@cache
def plain(dtype: torch.dtype) -> Format:
    """The format of a tensor of numbers.

    Raises:
        ValueError: an unsupported dtype.

    Example:
        >>> {name: f"{int(mask[0]):016b}" for name, mask in plain(torch.bfloat16).fields.items()}
        {'sign': '1000000000000000', 'exponent': '0111111110000000', 'mantissa': '0000000001111111'}
    """
    if dtype not in _FLOATS and dtype not in _INTEGERS:
        names = ", ".join(str(names).removeprefix("torch.") for names in (*_FLOATS, *_INTEGERS))
        raise ValueError(f"{dtype} is not supported; known are {names}")
    top = 8 * dtype.itemsize - 1
    if dtype in _FLOATS:
        mantissa = _FLOATS[dtype]
        masks = {"sign": 1 << top, "exponent": (1 << top) - (1 << mantissa), "mantissa": (1 << mantissa) - 1}
    elif dtype.is_signed:
        masks = {"sign": 1 << top, "value": (1 << top) - 1}
    else:
        masks = {"value": (2 << top) - 1}
    name = str(dtype).removeprefix("torch.")
    return Format(name, dtype, {key: np.array([mask], np.uint64) for key, mask in masks.items()})


@cache
def quantized_rows(values: str, dim: int, header: int, row_bytes: int) -> Format:
    """The format of FBGEMM's row-wise quantized tables: scale, bias (each half of the header), codes, padding.

    Source: fbgemm_gpu, `split_table_batched_embeddings_ops_inference`.

    Args:
        values: `int8`, `int4`, `int2` (codes; words are bytes), `float16` or `float32` (no header; words are floats).
        dim: values in a row.
        header: bytes of scale and bias together (4: two of float16).
        row_bytes: bytes of a row with its padding.
    """
    name = f"{values} rows: {dim} values, {header} bytes of scale and bias, {row_bytes} bytes"
    if values in _CODE_BITS:
        used = header + -(-dim * _CODE_BITS[values] // 8)
        spans = {"scale": (0, header // 2), "bias": (header // 2, header), "value": (header, used)}
        spans[PADDING] = (used, row_bytes)
        byte = np.arange(row_bytes)
        masks = {
            key: np.where((start <= byte) & (byte < end), np.uint64(0xFF), np.uint64(0))
            for key, (start, end) in spans.items()
        }
        return Format(name, torch.uint8, masks)
    dtype = getattr(torch, values)
    is_value = np.arange(row_bytes // dtype.itemsize) < dim
    masks = {key: np.where(is_value, mask[0], np.uint64(0)) for key, mask in plain(dtype).fields.items()}
    masks[PADDING] = np.where(is_value, np.uint64(0), np.uint64((1 << 8 * dtype.itemsize) - 1))
    return Format(name, dtype, masks)


def harmful_masks(layout: Format) -> np.ndarray:
    """Masks uint64 [period] of the bits of a word whose flip may change its number by a factor of 2 or more: sign and exponent
    of floats, all bits of integers, sign and exponent of the scale and the bias of quantized rows (their codes move a value
    within the row's range). Of `float8_e4m3fn`, which has no infinities, bits of the mantissa may make NaN.
    """
    fields = layout.fields
    if "scale" in fields:
        masks = np.zeros(layout.period, np.uint64)
        for name in ("scale", "bias"):
            (place,) = np.nonzero(fields[name])
            word = _sign_and_exponent(_HEADERS[len(place)])
            masks[place] = [word >> 8 * byte & 0xFF for byte in range(len(place))]
        return masks
    if "exponent" not in fields:
        return layout.eligible(None)
    masks = fields["sign"] | fields["exponent"]
    return masks | fields["mantissa"] if layout.dtype == torch.float8_e4m3fn else masks


def _sign_and_exponent(dtype: torch.dtype) -> int:
    fields = plain(dtype).fields
    return int(fields["sign"][0] | fields["exponent"][0])


def format_named(name: str) -> Format:
    """The format with this name.

    Raises:
        ValueError: an unknown name.
    """
    if rows := _ROWS.fullmatch(name):
        return quantized_rows(rows[1], *(int(number) for number in rows.groups()[1:]))
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no number format")
    return plain(dtype)


Bits = tuple[int | str, ...] | str | None


def bit_set(bits: Bits | Iterable[int | str]) -> tuple[int | str, ...] | None:
    """A set of bits in one form: ascending numbers, then field names in alphabetical order, each once; None stays None.

    Raises:
        ValueError: an empty set, or anything but numbers and fields.
    """
    if bits is None:
        return None
    bits = check_items("bits", bits, "a field, as 'exponent', or a tuple of bit numbers and fields", str)
    names = sorted({bit for bit in bits if isinstance(bit, str)})
    if not bits:
        raise ValueError(f"bits are {bits!r}; they must be one or more integers, 0 for the lowest bit, or fields")
    numbers = {check_whole("each of bits", bit) for bit in bits if not isinstance(bit, str)}
    for name in names:
        if name not in (*FIELDS, TOP):
            raise unknown("field of a number format", name, (*FIELDS, TOP))
    return (*sorted(numbers), *names)


_LOW = 4  # exponent bits that scale by 2, 4, 16 and 256


def bit_classes(number_format: str | Format) -> dict[str, tuple[int | str, ...]]:
    """The bits of a word by the effect of a flip, as `bits` of an error model.

    Floats: `sign`; `exponent_top`, the highest bit of the exponent, which makes a weight huge; `exponent_high`, which scale by
    2^16 or more; `exponent_low`, which scale by 2, 4, 16 and 256; `mantissa`. In float32: 31, 30, 29-27, 26-23, 22-0 (the
    classes of the statistical injection literature). Integers: `sign`, and the two halves of the other bits, `value_high` and
    `value_low`. Quantized rows: their fields `value`, `scale` and `bias`, since codes may lie anywhere in a byte.

    Args:
        number_format: a name, as `float32`, or a `Format`.

    Raises:
        ValueError: an unknown name.

    Example:
        >>> {name: (bits[0], bits[-1]) for name, bits in bit_classes("float16").items()}
        {'sign': (15, 15), 'exponent_top': (14, 14), 'exponent_low': (10, 13), 'mantissa': (0, 9)}
    """
    layout = format_named(number_format) if isinstance(number_format, str) else number_format
    masks = {name: mask for name in FIELDS if (mask := int(np.bitwise_or.reduce(layout.fields.get(name, [0]))))}
    if "scale" in masks:
        return {name: (name,) for name in ("value", "scale", "bias")}
    numbers = {name: tuple(bit for bit in range(layout.width) if mask >> bit & 1) for name, mask in masks.items()}
    classes = {"sign": numbers.get("sign", ())}
    if "exponent" in numbers:
        *lower, top = numbers["exponent"]
        classes |= {"exponent_top": (top,), "exponent_high": tuple(lower[_LOW:]), "exponent_low": tuple(lower[:_LOW])}
        classes["mantissa"] = numbers["mantissa"]
    else:
        value = numbers["value"]
        classes |= {"value_high": value[len(value) // 2 :], "value_low": value[: len(value) // 2]}
    return {name: bits for name, bits in classes.items() if bits}
