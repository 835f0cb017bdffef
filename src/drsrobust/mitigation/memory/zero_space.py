"""SECDED for int8 tables in bits that small numbers do not need: no bit is stored beside."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from drsrobust._environment import unknown
from drsrobust.injection import Target, as_target
from drsrobust.injection.address_space import TargetTensor, WordView
from drsrobust.injection.number_formats import Format
from drsrobust.mitigation.memory.ecc import ACTIONS, decoded, secded
from drsrobust.mitigation.memory.protected_words import Area, Errors, joined
from drsrobust.mitigation.memory.storage import StorageProtection, Trial, Verdict

_CODE = 57  # data bits of a block: 7 bytes without their second highest bit, and a whole one
_FREE, _TOP = np.uint64(6), np.uint64(7)  # the bit that is free, and the one it repeats
WAYS = ("clip", "rescale")


class ZeroSpaceECC(StorageProtection):
    """In-place zero-space ECC: a (64,57) SECDED code in blocks of 8 bytes of int8 values.

    Guan et al., "In-Place Zero-Space Memory Protection for CNN", NeurIPS 2019, arXiv:1910.14479: of a number in [-64, 63] the
    second highest bit repeats the sign. Where the first 7 of 8 neighbouring values are so small, these 7 bits hold the check
    bits of the other 57; the decoder puts the sign back into them. The paper trains networks to fulfil the condition; here
    `reserve_bits` clips tables to it, and whoever judges measures what that costs.

    Tensors of int8, blocks in memory order; FBGEMM's int8 rows, whose codes are unsigned: a code in [64, 191] (a code - 128 in
    [-64, 63]) has a second highest bit opposite to the highest one, blocks of 8 codes from a row's first. Not covered: a row's
    scale and bias (to protect these: `+ BitProtection(("scale", "bias"), code="secded")`), the last values that fill no block,
    and tensors of other formats.

    Args:
        uncorrectable: `"keep"`, `"zero"` (the value 0, in rows the code 128, the middle of the range) or `"restore"`, as in
            `ECC`.
        target: what is protected.

    `report` counts blocks as `ECC` does code words.

    Example:
        >>> import warnings
        >>> import drsrobust as dr
        >>> from drsrobust.mitigation import BitProtection
        >>> from torchrec import EmbeddingBagCollection as Tables, EmbeddingBagConfig as Table
        >>> from torchrec.inference.modules import quantize_embeddings
        >>> tables = Tables(tables=[Table(name="t", embedding_dim=16, num_embeddings=1000, feature_names=["f"])])
        >>> with warnings.catch_warnings(action="ignore"):
        ...     int8 = quantize_embeddings(nn.Sequential(tables), dtype=torch.int8, inplace=True)
        >>> room = reserve_bits(int8, how="rescale")
        >>> both = ZeroSpaceECC() + BitProtection(("scale", "bias"), code="secded")
        >>> for protection in (None, ZeroSpaceECC(), both):
        ...     with dr.inject(int8, dr.BitFlip(1e-4), seed=2, mitigation=protection) as left:
        ...         print(left.counts("field").to_dict())
        {'bias': 2, 'scale': 4, 'value': 10}
        {'bias': 2, 'scale': 4}
        {}
    """

    def __init__(self, uncorrectable: str = "keep", target: str | Target = "all") -> None:
        super().__init__(target)
        if uncorrectable not in ACTIONS:
            raise unknown("action on uncorrectable errors", uncorrectable, ACTIONS)
        self.uncorrectable = uncorrectable
        then = "" if uncorrectable == "keep" else f", {uncorrectable}"
        self.name = f"zero-space SECDED{then}{self.of_target()}"

    def settings(self) -> Any:
        return {**super().settings(), "uncorrectable": self.uncorrectable}

    def areas(self, model: nn.Module) -> "list[Blocks]":
        """The int8 tensors of the target.

        Raises:
            ValueError: it has none.
        """
        return _int8(self.target, model)

    def words(self, area: "Blocks", errors: Errors, beside: Mapping[str, Errors], trial: Trial) -> Verdict:
        covered = area.covered(errors.index)
        inside = covered >= 0
        block, place = covered[inside] // 8, (covered[inside] % 8).astype(np.uint64)
        mask = errors.mask[inside]
        code = secded(_CODE)
        own = np.where(place < 7, ((mask >> _FREE) & np.uint64(1)) << place, np.uint64(0))
        left, counts = decoded(code, joined(block, _folded(mask, place)), joined(block, own), area.blocks * _CODE)
        held = area.read_held(left.index)
        self._check(area, left.index, held)
        parts = np.arange(8, dtype=np.uint64)
        wrong = _unfolded((left.mask[:, None] >> (parts * np.uint64(7))), parts)
        if self.uncorrectable != "keep":
            zero = held ^ np.uint64(area.inverse << 7) if self.uncorrectable == "zero" else np.zeros_like(held)
            wrong[left.given_up] = zero[left.given_up]
        local = area.uncovered(left.index)
        index = np.append(local.ravel(), errors.index[~inside])
        noticed = counts["corrected"] + counts["uncorrectable"] + counts["miscorrected"] > 0
        unrepaired = counts["miscorrected"] > 0 or (counts["uncorrectable"] > 0 and self.uncorrectable != "restore")
        return Verdict(joined(index, np.append(wrong.ravel(), errors.mask[~inside])), noticed, unrepaired, counts)

    def _check(self, area: "Blocks", block: np.ndarray, held: np.ndarray) -> None:
        wrong = np.flatnonzero(_needs(held[:, :7], area.inverse).any(axis=1))
        if len(wrong):
            values = held[wrong[0]].tolist()
            span = "[64, 191]" if area.inverse else "[-64, 63]"
            raise ValueError(
                f"{area.name}: block {block[wrong[0]]} holds the bytes {values}, of which the first 7 are not all in {span}: "
                "there is no room for check bits. Prepare the model first, by reserve_bits(model)"
            )


class Room(NamedTuple):
    """What `reserve_bits` did to a table: how many of its values it changed, of how many, and the largest change of a value (of
    int8 tensors in steps)."""

    changed: int
    values: int
    largest: float


def reserve_bits(model: nn.Module, target: str | Target = "all", *, how: str = "clip") -> dict[str, Room]:
    """Makes int8 tables fit for `ZeroSpaceECC`, in place. Lossy: judge the model after it against the model before.

    Args:
        model: any; its tensors that are not int8 stay as they are.
        target: which of its tensors.
        how: `"clip"`: the first 7 of 8 values to [-64, 63], codes of quantized rows to [64, 191]. Row-wise quantization uses
            all codes of every row, so there clipping costs much. `"rescale"` (rows only): all codes to half their resolution,
            c' = floor(c / 2) + 64, scale' = 2 scale, bias' = bias - 127.5 scale: no value changes by more than half an old step
            (and what rounding of the new bias adds).

    Returns:
        by tensor, what was changed.

    Raises:
        ValueError: there is no int8 tensor; or one that is not of quantized rows is to be rescaled.

    Example:
        >>> model = nn.Module()
        >>> model.register_buffer("table", torch.tensor([[100, -3, 5, -128, 0, 1, 2, 127]], dtype=torch.int8))
        >>> reserve_bits(model, "table")["table"].changed, model.table.tolist()
        (2, [[63, -3, 5, -64, 0, 1, 2, 127]])
    """
    if how not in WAYS:
        raise unknown("way to make room", how, WAYS)
    return {area.name: _clip(area) if how == "clip" else _rescale(area) for area in _int8(as_target(target), model)}


def _int8(target: Target, model: nn.Module) -> "list[Blocks]":
    found = [tensor for tensor in target.resolve(model).tensors if tensor.format.name.startswith("int8")]
    if not found:
        raise ValueError(f"target {str(target)!r} has no int8 tensor and no table of int8 rows to protect in place")
    return [Blocks(tensor) for tensor in found]


class Blocks(Area):
    """The 8-byte blocks of an int8 tensor."""

    def __init__(self, tensor: TargetTensor) -> None:
        super().__init__(tensor)
        self.inverse = tensor.format.period > 1  # whether the free bit is the opposite of the highest one
        self._rank, self._places = _code_places(tensor.format)
        period = tensor.format.period
        self.blocks = self.words // period * len(self._places) // 8

    def covered(self, local: np.ndarray) -> np.ndarray:
        """The numbers of bytes among those that blocks are made of; -1 for others."""
        period = self.format.period
        rank = self._rank[local % period]
        found = np.where(rank >= 0, local // period * len(self._places) + rank, -1)
        return np.where(found < 8 * self.blocks, found, -1)

    def uncovered(self, block: np.ndarray) -> np.ndarray:
        """The reverse, of all bytes of some blocks: int64 [n, 8]."""
        number = block[:, None] * 8 + np.arange(8)
        size = len(self._places)
        return number // size * self.format.period + self._places[number % size]

    def read_held(self, block: np.ndarray) -> np.ndarray:
        """The bytes of some blocks: uint64 [n, 8]."""
        return self.read(self.uncovered(block).ravel()).reshape(-1, 8)


@lru_cache(maxsize=64)
def _code_places(form: Format) -> tuple[np.ndarray, np.ndarray]:
    """For each word of a unit its number among those that blocks are made of (-1: not one of them), and the reverse."""
    places = np.arange(1)
    if form.period > 1:
        places = np.flatnonzero(form.fields["value"])
        places = places[: len(places) // 8 * 8]
    rank = np.full(form.period, -1)
    rank[places] = np.arange(len(places))
    return rank, places


def _folded(mask: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Bytes at places 0 to 7 of their blocks as bits of the block's 57: of the first 7 without their free bit."""
    small = (mask & np.uint64(0x3F)) | ((mask >> _TOP) << _FREE)
    return np.where(place < 7, small, mask) << (place * np.uint64(7))


def _unfolded(bits: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The reverse; a wrong highest bit of the first 7 is repeated in the free one."""
    top = (bits >> _FREE) & np.uint64(1)
    small = (bits & np.uint64(0x3F)) | (top << _FREE) | (top << _TOP)
    return np.where(place < 7, small, bits & np.uint64(0xFF))


def _needs(held: np.ndarray, inverse: bool) -> np.ndarray:
    """Which bytes need the bit that should be free."""
    return ((held >> _FREE) ^ (held >> _TOP)) & np.uint64(1) != inverse


def _clip(area: Blocks) -> Room:
    local = area.uncovered(np.arange(area.blocks))[:, :7].ravel()
    held = area.read(local)
    top = (held >> _TOP) & np.uint64(1)
    # Below the range lies the highest number without its sign bit, above it the lowest: 63 or -64, 191 or 64.
    highest, lowest = (np.uint64(191), np.uint64(64)) if area.inverse else (np.uint64(192), np.uint64(63))
    wrong = _needs(held, area.inverse)
    clipped = np.where(wrong, np.where(top == 1, highest, lowest), held)
    by = np.abs(_number(clipped, area) - _number(held, area))
    scale = _headers(area)[0][local // area.format.period] if area.inverse else 1.0
    _write(area, local[wrong], clipped[wrong])
    return Room(int(wrong.sum()), area.words if not area.inverse else _values(area), float((by * scale).max(initial=0)))


def _rescale(area: Blocks) -> Room:
    if not area.inverse:
        raise ValueError(f"{area.name} is an int8 tensor without a scale of its own; it can only be clipped")
    period = area.format.period
    scale, bias, dtype = _headers(area)
    rows = len(scale)
    places = np.flatnonzero(area.format.fields["value"])
    local = (np.arange(rows)[:, None] * period + places).ravel()
    held = area.read(local)
    value = _number(held, area) * np.repeat(scale, len(places)) + np.repeat(bias, len(places))
    with np.errstate(over="ignore"):
        header = np.stack((2 * scale, bias - 127.5 * scale), axis=1).astype(dtype)
    if not np.isfinite(header).all():
        raise ValueError(f"{area.name}: twice a row's scale is more than {dtype} holds")
    codes = held // np.uint64(2) + np.uint64(64)
    _write(area, local, codes)
    place = np.flatnonzero(area.format.fields["scale"] | area.format.fields["bias"])
    _write(area, (np.arange(rows)[:, None] * period + place).ravel(), header.view(np.uint8).ravel().astype(np.uint64))
    now = header.astype(np.float64)
    new = codes * np.repeat(now[:, 0], len(places)) + np.repeat(now[:, 1], len(places))
    by = np.abs(new - value)
    return Room(int((by != 0).sum()), len(value), float(by.max(initial=0)))


def _headers(area: Blocks) -> tuple[np.ndarray, np.ndarray, np.dtype]:
    """Of each row the scale and the bias, and their type."""
    place = np.flatnonzero(area.format.fields["scale"] | area.format.fields["bias"])
    rows = area.words // area.format.period
    local = (np.arange(rows)[:, None] * area.format.period + place).ravel()
    dtype = np.dtype("<f2" if len(place) == 4 else "<f4")
    header = area.read(local).astype(np.uint8).view(dtype).reshape(rows, 2).astype(np.float64)
    return header[:, 0], header[:, 1], dtype


def _values(area: Blocks) -> int:
    return area.words // area.format.period * int((area.format.fields["value"] != 0).sum())


def _number(held: np.ndarray, area: Blocks) -> np.ndarray:
    """Bytes as numbers: codes as they are, int8 with its sign."""
    return held.astype(np.float64) if area.inverse else held.astype(np.uint8).view(np.int8).astype(np.float64)


def _write(area: Blocks, local: np.ndarray, held: np.ndarray) -> None:
    words = WordView(area.tensor.memory)
    index = torch.from_numpy(np.ascontiguousarray(area.flat(local))).to(words.device)
    words.write(index, words.masks(held))
