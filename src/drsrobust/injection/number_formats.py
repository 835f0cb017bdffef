"""Number formats: how wide a word is, and what each of its bits stands for.

Bit 0 is the lowest. Floating formats follow IEEE 754 and, for 8 bits, the OCP 8-bit floating point specification; signed
integers are two's complement, whose highest bit is the sign. FBGEMM's quantized tables keep each row's scale and bias in
front of its codes and fill the row up to an alignment: there a bit's meaning depends on where in the row it lies."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from drsrobust._environment import unknown

if TYPE_CHECKING:
    pass

# dtype -> (bits of the exponent, bits of the mantissa); a sign bit lies above them.
_FLOATS = {
    torch.float64: (11, 52),
    torch.float32: (8, 23),
    torch.float16: (5, 10),
    torch.bfloat16: (8, 7),
    torch.float8_e4m3fn: (4, 3),
    torch.float8_e5m2: (5, 2),
}
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
PADDING = "padding"
FIELDS = ("sign", "exponent", "mantissa", "value", "scale", "bias", PADDING)
_CODES = {"int8": 8, "int4": 4, "int2": 2}  # bits of one code of a quantized row
_ROWS = re.compile(r"(int8|int4|int2|float16|float32) rows: (\d+) values, (\d+) bytes of scale and bias, (\d+) bytes")


@dataclass(frozen=True)
class Format:
    """What the bits of a tensor's words stand for.

    Attributes:
        name: as `float32`, or `int8 rows: 16 values, 4 bytes of scale and bias, 32 bytes` for FBGEMM's quantized rows.
        dtype: of a word. Quantized rows of integers are seen as bytes (uint8), rows of floats as those floats.
        fields: field -> uint64 [period], which bits of each word belong to it; the layout repeats every `period` words.
    """

    name: str
    dtype: torch.dtype
    fields: Mapping[str, np.ndarray] = field(compare=False, repr=False)
    _masks: tuple[tuple[str, bytes], ...] = field(
        init=False, repr=False
    )  # of the fields: what a cache tells formats by

    def __post_init__(self) -> None:
        masks = tuple((name, np.asarray(mask, np.uint64).tobytes()) for name, mask in self.fields.items())
        object.__setattr__(self, "_masks", masks)

    @property
    def width(self) -> int:
        """Bits of a word."""
        return 8 * self.dtype.itemsize

    @property
    def period(self) -> int:
        """After how many words the layout repeats: 1, or a quantized row."""
        return len(next(iter(self.fields.values())))

    def eligible(self, bits: Iterable[int | str] | None) -> np.ndarray:
        """The bits that a set of numbers and fields means, as masks uint64 [period]. None means all but padding; a field
        that the format does not have means none; numbers leave padding out.

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
            if isinstance(bit, str):
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
        ValueError: a dtype that is none of the formats known here.

    Example:
        >>> {name: f"{int(mask[0]):016b}" for name, mask in plain(torch.bfloat16).fields.items()}
        {'sign': '1000000000000000', 'exponent': '0111111110000000', 'mantissa': '0000000001111111'}
    """
    if dtype not in _FLOATS and dtype not in _INTEGERS:
        known = ", ".join(str(one).removeprefix("torch.") for one in (*_FLOATS, *_INTEGERS))
        raise ValueError(f"{dtype} is no format whose bits are known here; known: {known}")
    width = 8 * dtype.itemsize
    masks = {}
    if dtype in _FLOATS:
        _, mantissa = _FLOATS[dtype]
        masks["sign"] = _ones(width - 1, width)
        masks["exponent"] = _ones(mantissa, width - 1)
        masks["mantissa"] = _ones(0, mantissa)
    elif dtype.is_signed:
        masks["sign"] = _ones(width - 1, width)
        masks["value"] = _ones(0, width - 1)
    else:
        masks["value"] = _ones(0, width)
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
    if values in _CODES:
        byte = np.zeros(row_bytes, np.uint64)
        used = header + -(-dim * _CODES[values] // 8)
        spans = {"scale": (0, header // 2), "bias": (header // 2, header), "value": (header, used)}
        spans[PADDING] = (used, row_bytes)
        fields = {}
        for key, (start, end) in spans.items():
            fields[key] = byte.copy()
            fields[key][start:end] = 0xFF
        return Format(name, torch.uint8, fields)
    dtype = getattr(torch, values)
    words = row_bytes // dtype.itemsize
    live = np.arange(words) < dim
    fields = {key: np.where(live, mask[0], np.uint64(0)) for key, mask in plain(dtype).fields.items()}
    fields[PADDING] = np.where(live, np.uint64(0), np.uint64(_ones(0, 8 * dtype.itemsize)))
    return Format(name, dtype, fields)


def format_named(name: str) -> Format:
    """The format with this name.

    Raises:
        ValueError: there is none.
    """
    if rows := _ROWS.fullmatch(name):
        return quantized_rows(rows[1], *(int(number) for number in rows.groups()[1:]))
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no number format")
    return plain(dtype)


Bits = tuple[int | str, ...] | str | None


def bit_set(bits: Bits | Iterable[int | str]) -> tuple[int | str, ...] | None:
    """A set of bits in one form: numbers in ascending, then fields in alphabetical order, each once.

    Raises:
        ValueError: nothing, or something else than numbers and fields.
    """
    if bits is None:
        return None
    if not isinstance(bits, str | Iterable):
        raise ValueError(f"bits are {bits!r}; they must be a field as 'exponent', or a tuple of bit numbers and fields")
    bits = (bits,) if isinstance(bits, str) else tuple(bits)
    names = sorted({bit for bit in bits if isinstance(bit, str)})
    numbers = [bit for bit in bits if not isinstance(bit, str)]
    if not bits or any(isinstance(bit, bool) or not isinstance(bit, int | np.integer) for bit in numbers):
        raise ValueError(f"bits are {bits!r}; they must be one or more integers, 0 for the lowest bit, or fields")
    for name in names:
        if name not in FIELDS:
            raise unknown("field of a number format", name, FIELDS)
    return (*sorted({int(bit) for bit in numbers}), *names)


def _ones(start: int, end: int) -> int:
    """An integer whose bits start .. end - 1 are set."""
    return (1 << end) - (1 << start)


BIT_CLASSES = (
    "sign",
    "exponent_top",
    "exponent_high",
    "exponent_low",
    "mantissa",
    "value_high",
    "value_low",
    "value",
    "scale",
    "bias",
)
_LOW = 4  # exponent bits that scale by 2, 4, 16 and 256


def bit_classes(number_format: str | Format) -> dict[str, tuple[int | str, ...]]:
    """The bits of a word by what their flips do, as `bits` of an error model.

    Of floating formats: `sign`; `exponent_top`, the exponent's highest bit, which makes a weight huge; `exponent_high`, those
    that scale by 2^16 or more; `exponent_low`, the four that scale by 2, 4, 16 and 256; `mantissa`. In float32: 31, 30, 29-27,
    26-23, 22-0 (the classes of the statistical injection literature). Of integers: `sign`, `value_high` and `value_low`, the
    halves of the others. Of quantized rows: their fields, `value`, `scale` and `bias`, as codes lie anywhere in a byte.

    Args:
        number_format: a name, as `float32`, or a `Format`.

    Raises:
        ValueError: a name that is no number format.

    Example:
        >>> {name: (bits[0], bits[-1]) for name, bits in bit_classes("float16").items()}
        {'sign': (15, 15), 'exponent_top': (14, 14), 'exponent_low': (10, 13), 'mantissa': (0, 9)}
    """
    known = format_named(number_format) if isinstance(number_format, str) else number_format
    fields = {name: mask for name in FIELDS if (mask := int(np.bitwise_or.reduce(known.fields.get(name, [0]))))}
    if "scale" in fields:
        return {name: (name,) for name in ("value", "scale", "bias")}
    numbers = {name: tuple(bit for bit in range(known.width) if mask >> bit & 1) for name, mask in fields.items()}
    found = {"sign": numbers.get("sign", ())}
    if "exponent" in numbers:
        *lower, top = numbers["exponent"]
        found |= {"exponent_top": (top,), "exponent_high": tuple(lower[_LOW:]), "exponent_low": tuple(lower[:_LOW])}
        found["mantissa"] = numbers["mantissa"]
    else:
        value = numbers["value"]
        found |= {"value_high": value[len(value) // 2 :], "value_low": value[: len(value) // 2]}
    return {name: bits for name, bits in found.items() if bits}
