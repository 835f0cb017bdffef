"""Zero-space ECC: SECDED for int8 tables in bits that small values do not need, without extra memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from drsrobust.extend import Errors, Format, ProtectedWords, TargetTensor, check_choice, decode_errors
from drsrobust.injection import Target, as_target
from drsrobust.mitigation import ACTIONS, DrawContext, Screened, StorageProtection, secded

_DATA_BITS = 57  # of a block: 7 bytes without their second highest bit, and a whole one
_FREE, _TOP = np.uint64(6), np.uint64(7)  # bit numbers: the free bit of a byte, and the bit it repeats
_ONE = np.uint64(1)
WAYS = ("clip", "rescale")


class ZeroSpaceECC(StorageProtection):
    """In-place zero-space ECC: a (64,57) SECDED code in blocks of 8 bytes of int8 values.

    Guan et al., "In-Place Zero-Space Memory Protection for CNN", NeurIPS 2019, arXiv:1910.14479: of a number in [-64, 63] the
    second highest bit repeats the sign. Where the first 7 of 8 neighbouring values are so small, these 7 bits hold the check
    bits of the other 57; the decoder restores them from the sign. The paper trains networks to meet the condition; here
    `reserve_bits` clips or rescales tables, and an evaluator measures the cost.

    Protected are int8 tensors, with blocks in memory order, and FBGEMM's int8 rows, with blocks of 8 codes from the first of a
    row. Codes are unsigned: a code in [64, 191] (a code - 128 in [-64, 63]) has a second highest bit opposite to the highest.
    Not protected: scale and bias of a row (add `+ BitProtection(("scale", "bias"), code="secded")`), last values that fill no
    block, and tensors of other formats.

    Args:
        uncorrectable: `"keep"`, `"zero"` (the value 0, in rows the code 128, the middle of the range) or `"restore"`, as in
            `ECC`.
        target: protected tensors.

    `counts` of `screen`, of blocks: as of `ECC`.

    Example:
        >>> import warnings
        >>> import drsrobust as dr
        >>> from drsrobust.mitigation import BitProtection
        >>> from torchrec import EmbeddingBagCollection as Tables, EmbeddingBagConfig as Table
        >>> from torchrec.inference.modules import quantize_embeddings
        >>> tables = Tables(tables=[Table(name="t", embedding_dim=16, num_embeddings=1000, feature_names=["f"])])
        >>> with warnings.catch_warnings(action="ignore"):
        ...     int8 = quantize_embeddings(nn.Sequential(tables), dtype=torch.int8, inplace=True)
        >>> changes = reserve_bits(int8, how="rescale")
        >>> both = ZeroSpaceECC() + BitProtection(("scale", "bias"), code="secded")
        >>> for protection in (None, ZeroSpaceECC(), both):
        ...     with dr.inject(int8, dr.BitFlip(1e-4), seed=2, mitigation=protection) as remaining:
        ...         print(remaining.counts("field").to_dict())
        {'bias': 3, 'scale': 2, 'value': 6}
        {'bias': 3, 'scale': 2}
        {}
    """

    def __init__(self, uncorrectable: str = "keep", target: str | Target = "all") -> None:
        super().__init__(target)
        check_choice("action on uncorrectable errors", uncorrectable, ACTIONS)
        self.uncorrectable = uncorrectable
        action = "" if uncorrectable == "keep" else f", {uncorrectable}"
        self.name = f"zero-space SECDED{action}{self.target_suffix()}"

    def settings(self) -> Any:
        return {**super().settings(), "uncorrectable": self.uncorrectable}

    def check(self, model: nn.Module) -> None:
        """Raises ValueError for a model without room for the check bits in each block."""
        super().check(model)
        for blocks in self.protected(model):
            block = np.arange(blocks.blocks)
            _check_room(blocks, block, blocks.read(blocks.places(block).ravel()).reshape(-1, 8))

    def protected(self, model: nn.Module) -> "list[Blocks]":
        """The int8 tensors of the target.

        Raises:
            ValueError: it has none.
        """
        return _int8_blocks(self.target, model)

    def words_of(self, tensors_of: Callable[[Target], Iterable[TargetTensor]]) -> "Iterator[Blocks]":
        return (Blocks(tensor) for tensor in tensors_of(self.target) if tensor.format.name.startswith("int8"))

    def decode(self, protected: "Blocks", errors: Errors, stored: Mapping[str, Errors], trial: DrawContext) -> Screened:
        number = protected.number(errors.index)
        in_block = number >= 0
        block, place = number[in_block] // 8, (number[in_block] % 8).astype(np.uint64)
        mask = errors.mask[in_block]
        check = np.where(place < 7, ((mask >> _FREE) & _ONE) << place, np.uint64(0))
        data = Errors.merged(block, _fold(mask, place))
        blocks = decode_errors(secded(_DATA_BITS), data, Errors.merged(block, check), protected.blocks * _DATA_BITS)
        values = protected.read(protected.places(blocks.index).ravel()).reshape(-1, 8)
        _check_room(protected, blocks.index, values)
        parts = np.arange(8, dtype=np.uint64)
        wrong = _unfold(blocks.mask[:, None] >> (parts * np.uint64(7)), parts)
        if self.uncorrectable != "keep":
            zero = np.uint64(protected.inverse << 7)
            wrong[blocks.given_up] = (values ^ zero)[blocks.given_up] if self.uncorrectable == "zero" else 0
        index = np.append(protected.places(blocks.index).ravel(), errors.index[~in_block])
        remaining = Errors.merged(index, np.append(wrong.ravel(), errors.mask[~in_block]))
        return blocks.result(remaining, self.uncorrectable)


class RangeClipReport(NamedTuple):
    """What `reserve_bits` did to a table: changed values, all values, and the largest change (of int8 tensors in steps)."""

    changed: int
    values: int
    largest: float


def reserve_bits(model: nn.Module, target: str | Target = "all", *, how: str = "clip") -> dict[str, RangeClipReport]:
    """Prepares int8 tables for `ZeroSpaceECC`, in place. Lossy: compare the model's scores before and after.

    Args:
        model: any; tensors that are not int8 are unchanged.
        target: of its tensors.
        how: `"clip"`: the first 7 of 8 values to [-64, 63], codes of quantized rows to [64, 191]. Row-wise quantization uses
            all codes of every row, so clipping rows costs much. `"rescale"` (rows only): all codes to half their resolution,
            c' = floor(c / 2) + 64, scale' = 2 scale, bias' = bias - 127.5 scale: no value changes by more than half an old step
            (and the rounding of the new bias).

    Returns:
        changes by tensor.

    Raises:
        ValueError: the target has no int8 tensor, or `"rescale"` of a tensor without rows.

    Example:
        >>> model = nn.Module()
        >>> model.register_buffer("table", torch.tensor([[100, -3, 5, -128, 0, 1, 2, 127]], dtype=torch.int8))
        >>> reserve_bits(model, "table")["table"].changed, model.table.tolist()
        (2, [[63, -3, 5, -64, 0, 1, 2, 127]])
    """
    check_choice("way to reserve bits", how, WAYS)
    change = _clip if how == "clip" else _rescale
    return {blocks.name: change(blocks) for blocks in _int8_blocks(as_target(target), model)}


def _int8_blocks(target: Target, model: nn.Module) -> "list[Blocks]":
    tensors = [tensor for tensor in target.resolve(model).tensors if tensor.format.name.startswith("int8")]
    if not tensors:
        raise ValueError(f"target {str(target)!r} has no int8 tensor and no table of int8 rows to protect in place")
    return [Blocks(tensor) for tensor in tensors]


class Blocks(ProtectedWords):
    """The 8-byte blocks of an int8 tensor."""

    def __init__(self, tensor: TargetTensor) -> None:
        super().__init__(tensor)
        self.inverse = tensor.format.period > 1  # quantized rows: the free bit is opposite to the highest one
        self._rank, self._codes = _code_places(tensor.format)
        self.units = self.words // tensor.format.period
        self.blocks = self.units * len(self._codes) // 8

    def number(self, local: np.ndarray) -> np.ndarray:
        """The number of each byte among the bytes of blocks; -1 for others."""
        period = self.format.period
        rank = self._rank[local % period]
        number = np.where(rank >= 0, local // period * len(self._codes) + rank, -1)
        return np.where(number < 8 * self.blocks, number, -1)

    def places(self, block: np.ndarray) -> np.ndarray:
        """All bytes of some blocks, int64 [n, 8]; the reverse of `number`."""
        number = block[:, None] * 8 + np.arange(8)
        size = len(self._codes)
        return number // size * self.format.period + self._codes[number % size]

    def field_places(self, *fields: str) -> np.ndarray:
        """All bytes of some fields of quantized rows, int64 [rows, bytes of the fields]."""
        places = np.flatnonzero(np.bitwise_or.reduce([self.format.fields[field] for field in fields]))
        return np.arange(self.units)[:, None] * self.format.period + places

    def headers(self) -> tuple[np.ndarray, np.ndarray, np.dtype]:
        """Scale and bias (float64 [rows]) of quantized rows, and their dtype."""
        local = self.field_places("scale", "bias")
        dtype = np.dtype("<f2" if local.shape[1] == 4 else "<f4")
        header = self.read(local.ravel()).astype(np.uint8).view(dtype).reshape(-1, 2).astype(np.float64)
        return header[:, 0], header[:, 1], dtype

    def decoded(self, values: np.ndarray) -> np.ndarray:
        """Bytes as float64 numbers: unsigned codes of quantized rows, else int8."""
        return values.astype(np.float64) if self.inverse else values.astype(np.uint8).view(np.int8).astype(np.float64)

    def write(self, local: np.ndarray, values: np.ndarray) -> None:
        words = self.tensor.stored.words()
        index = torch.from_numpy(np.ascontiguousarray(self.flat(local))).to(words.device)
        words.write(index, words.masks(values))


@lru_cache(maxsize=64)
def _code_places(word_format: Format) -> tuple[np.ndarray, np.ndarray]:
    """For each word of a unit its number among the words of blocks (-1: not in a block), and the reverse."""
    places = np.arange(1)
    if word_format.period > 1:
        places = np.flatnonzero(word_format.fields["value"])
        places = places[: len(places) // 8 * 8]
    rank = np.full(word_format.period, -1)
    rank[places] = np.arange(len(places))
    return rank, places


def _fold(mask: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Bytes at places 0 to 7 of a block as bits of its 57 data bits: the first 7 without their free bit."""
    small = (mask & np.uint64(0x3F)) | ((mask >> _TOP) << _FREE)
    return np.where(place < 7, small, mask) << (place * np.uint64(7))


def _unfold(bits: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The reverse of `_fold`; a wrong highest bit of the first 7 bytes is repeated in the free bit."""
    top = (bits >> _FREE) & _ONE
    small = (bits & np.uint64(0x3F)) | (top << _FREE) | (top << _TOP)
    return np.where(place < 7, small, bits & np.uint64(0xFF))


def _too_large(values: np.ndarray, inverse: bool) -> np.ndarray:
    """Which bytes need the bit that should be free."""
    return ((values >> _FREE) ^ (values >> _TOP)) & _ONE != inverse


def _check_room(blocks: Blocks, block: np.ndarray, values: np.ndarray) -> None:
    wrong = np.flatnonzero(_too_large(values[:, :7], blocks.inverse).any(axis=1))
    if len(wrong):
        span = "[64, 191]" if blocks.inverse else "[-64, 63]"
        raise ValueError(
            f"{blocks.name}: block {block[wrong[0]]} holds the bytes {values[wrong[0]].tolist()}; the first 7 must be in "
            f"{span} to leave room for check bits. Call drsrobust.mitigation.reserve_bits(model) first"
        )


def _clip(blocks: Blocks) -> RangeClipReport:
    local = blocks.places(np.arange(blocks.blocks))[:, :7].ravel()
    values = blocks.read(local)
    top = (values >> _TOP) & _ONE
    # Nearest byte in range where the top bit is 1, and where it is 0: 191 and 64 of codes, -64 (192) and 63 of int8.
    with_top, without_top = (np.uint64(191), np.uint64(64)) if blocks.inverse else (np.uint64(192), np.uint64(63))
    wrong = _too_large(values, blocks.inverse)
    clipped = np.where(wrong, np.where(top == 1, with_top, without_top), values)
    change = np.abs(blocks.decoded(clipped) - blocks.decoded(values))
    if blocks.inverse:
        change *= blocks.headers()[0][local // blocks.format.period]
    blocks.write(local[wrong], clipped[wrong])
    count = blocks.field_places("value").size if blocks.inverse else blocks.words
    return RangeClipReport(int(wrong.sum()), count, float(change.max(initial=0)))


def _rescale(blocks: Blocks) -> RangeClipReport:
    if not blocks.inverse:
        raise ValueError(f"{blocks.name} is an int8 tensor without scales; use how='clip'")
    scale, bias, dtype = blocks.headers()
    local = blocks.field_places("value")
    codes = blocks.read(local.ravel()).reshape(local.shape)
    before = blocks.decoded(codes) * scale[:, None] + bias[:, None]
    with np.errstate(over="ignore"):
        header = np.stack((2 * scale, bias - 127.5 * scale), axis=1).astype(dtype)
    if not np.isfinite(header).all():
        raise ValueError(f"{blocks.name}: twice the scale of a row is more than {dtype} holds")
    codes = codes // np.uint64(2) + np.uint64(64)
    blocks.write(local.ravel(), codes.ravel())
    blocks.write(blocks.field_places("scale", "bias").ravel(), header.view(np.uint8).ravel().astype(np.uint64))
    header = header.astype(np.float64)
    change = np.abs(codes * header[:, :1] + header[:, 1:] - before)
    return RangeClipReport(int((change != 0).sum()), local.size, float(change.max(initial=0)))
