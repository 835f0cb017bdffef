"""Checksums of table rows: sums of their values with rounding thresholds, and residues of their memory."""

from collections.abc import Iterable

import torch

from drsrobust.introspection import QuantizedTable
from drsrobust_extras.protection.abft.rounding_bounds import bag_factor, round_up, unit_roundoff

_VALUE_BITS = {"int8": 8, "int4": 4, "int2": 2}  # bits of one value
_BLOCK = 65_536  # rows at a time
THRESHOLD_FLOOR = 2.0**-100  # added to thresholds: more than underflow, less than any error that matters
ONE = 1  # terms of a bag of one row
ONE_QUANTIZED = 3  # the same if scale and bias are added separately


def row_sums(table: torch.Tensor) -> torch.Tensor:
    """For each row r of a table T: its checksum C_r = sum_j T_rj, and the threshold factor * sum_j |T_rj| of a bag of this row
    alone (see `bag_factor`), computed in float64 and rounded, the threshold upwards.

    Args:
        table: [rows, d], float32 or float64.

    Returns:
        [rows, 2] of the table's format: the two numbers of a row are adjacent, so that one memory read gets both.

    Raises:
        ValueError: a number is not finite.
    """
    return _rounded(_value_sums(table), table.dtype, ONE, table.shape[1])


def quantized_row_sums(table: QuantizedTable) -> torch.Tensor:
    """As `row_sums`, of a quantized table with values scale_r q_rj + bias_r: C_r = scale_r sum_j q_rj + d bias_r. Since
    scale_r q_rj and bias_r are rounded separately, |scale_r| sum_j q_rj + d |bias_r| is the sum of magnitudes. Rows of floats
    are their own values.

    Raises:
        ValueError: a number is not finite.
    """
    if table.values not in _VALUE_BITS:
        return _rounded(_value_sums(table.tensor[:, : table.dim]), torch.float32, ONE_QUANTIZED, table.dim)
    parts = []
    for block in table.tensor.split(_BLOCK):
        number = torch.float16 if table.header == 4 else torch.float32
        scale, bias = block[:, : table.header].contiguous().view(number).double().unbind(1)
        total = _unpacked(block[:, table.header :], table).sum(1, dtype=torch.float64)
        parts.append((scale * total + table.dim * bias, scale.abs() * total + table.dim * bias.abs()))
    return _rounded(parts, torch.float32, ONE_QUANTIZED, table.dim)


def live_bytes(table: QuantizedTable) -> int:
    """Bytes of a row without padding: header and values."""
    if table.values in _VALUE_BITS:
        return table.header + -(-table.dim * _VALUE_BITS[table.values] // 8)
    return table.dim * table.tensor.element_size()


def residues(rows: torch.Tensor, live: int, modulus: int) -> torch.Tensor:
    """The sum of a row's 32-bit words (of its bytes, if they do not fill words) modulo 2^k - 1, as in arXiv:2103.00130 with
    127. A power of two is never 0 modulo 2^k - 1, so any single flipped bit is detected; another change is missed with
    probability 1 / (2^k - 1).

    Args:
        rows: bytes [n, bytes of a row], contiguous.
        live: bytes of a row without padding.
        modulus: 2^k - 1.

    Returns:
        int64 [n].

    Example:
        >>> residues(torch.tensor([[1, 2, 128], [1, 3, 0]], dtype=torch.uint8), 3, 127)
        tensor([4, 4])
    """
    return as_words(rows, live).sum(1, dtype=torch.int64).remainder_(modulus)


def as_words(rows: torch.Tensor, live: int) -> torch.Tensor:
    """The words that a residue sums, as a view: int32 [n, live / 4], or bytes [n, live] if they do not fill words."""
    if live % 4 == 0 and rows.shape[1] % 4 == 0:
        return rows.view(torch.int32)[:, : live // 4]
    return rows[:, :live]


def table_residues(table: QuantizedTable, modulus: int) -> torch.Tensor:
    """Residues of all rows of a table, [rows], in the smallest type that holds them."""
    dtype = torch.uint8 if modulus < 2**8 else torch.int16 if modulus < 2**15 else torch.int32
    live, memory = live_bytes(table), table.tensor.view(torch.uint8)
    parts = [residues(block.contiguous(), live, modulus).to(dtype) for block in memory.split(_BLOCK)]
    return torch.cat(parts)


def _unpacked(codes: torch.Tensor, table: QuantizedTable) -> torch.Tensor:
    """The values q [rows, d] of packed codes; the lowest bits of a byte come first."""
    bits = _VALUE_BITS[table.values]
    if bits == 8:
        return codes[:, : table.dim]
    parts = [codes >> shift & 2**bits - 1 for shift in range(0, 8, bits)]
    return torch.stack(parts, dim=2).flatten(1)[:, : table.dim]


def _value_sums(table: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Sums of values and of magnitudes of blocks of rows, in float64."""
    for block in table.detach().split(_BLOCK):
        values = block.double()
        yield values.sum(1), values.abs().sum(1)


def _rounded(
    parts: Iterable[tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype, terms: int, dim: int
) -> torch.Tensor:
    sums, magnitudes = (torch.cat(column) for column in zip(*parts, strict=True))
    thresholds = magnitudes * bag_factor(terms, dim, unit_roundoff(dtype)) + THRESHOLD_FLOOR
    rows = torch.stack((sums.to(dtype), round_up(thresholds, dtype)), dim=1)
    if not rows.isfinite().all():
        raise ValueError("sums of its rows are not finite")
    return rows
