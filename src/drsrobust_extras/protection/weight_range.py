"""Weight ranges: words outside the range of their tensor or row are repaired when weights are loaded or scrubbed.

The storage counterpart of activation clipping (Ranger, arXiv:2003.13874), as used for text models."""

import hashlib
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.extend import (
    Stored,
    check_choice,
    check_number,
    confined_name,
    format_number,
    stored,
    tensor_names,
    widen,
)
from drsrobust.injection import INTEGER_OF_BYTES, AddressSpace, ErrorMap, ErrorMapMismatch, restore_leftovers
from drsrobust.mitigation import Cost, Mitigation, Screened

PER = ("tensor", "row")
REPAIRS = ("zero", "clamp")


@dataclass(frozen=True, eq=False)
class Range:
    """The range of a tensor's values.

    Attributes:
        low, high: of the tensor's dtype (float32 for 8-bit floats), [1], or [rows].
        shape: of the tensor.
        bits: of a word.
    """

    low: torch.Tensor
    high: torch.Tensor
    shape: tuple[int, ...]
    bits: int


class WeightRange(Mitigation):
    """Compares every word with the range [min, max] of its tensor, or of its row, in the trusted weights, after errors and
    before scoring. A value outside, or NaN, becomes 0 (or the nearer bound; NaN then 0); values inside stay, wrong or not. So
    flips of high exponent bits are removed, while flips of signs and mantissas mostly stay.

    The ranges themselves are assumed free of errors. Parameters and buffers of any float or integer type are checked by value.
    FBGEMM's integer rows (int8, int4, int2) are not: every code is a possible weight. Their names are in `unchecked`.

    Use `WeightRange.fit`.

    Attributes:
        ranges: tensor name -> `Range`.
        unchecked: names of tensors that are not checked.
    """

    spread = "word"

    def __init__(
        self, ranges: Mapping[str, Range], *, per: str, margin: float, repair: str, unchecked: tuple[str, ...]
    ) -> None:
        self.ranges, self.unchecked = dict(ranges), unchecked
        self.per, self.margin, self.repair = per, margin, repair
        self.name = f"range per {per}" + ("" if margin == 1 else f" x {format_number(margin)}")
        self.name += "" if repair == "zero" else ", clamped"

    @classmethod
    def fit(cls, model: nn.Module, *, per: str = "tensor", margin: float = 1.0, repair: str = "zero") -> "WeightRange":
        """The ranges of a model's present weights; errors that an interrupted `with` left are undone first.

        Args:
            model: any module, without errors.
            per: one range for each `tensor`, or for each `row` (entry of the first dimension; vectors have one range).
            margin: moves each bound b outwards, by (margin - 1) |b|; 1 or more.
            repair: `zero` or `clamp`.

        Raises:
            ValueError: an unknown `per` or `repair`, a margin under 1, weights that are NaN, or a model without a tensor that
                can be checked.

        Example:
            >>> import drsrobust as dr
            >>> _ = torch.manual_seed(0)
            >>> model = nn.Linear(64, 64)
            >>> check = WeightRange.fit(model)
            >>> with dr.inject(model, dr.BitFlip(1e-2, bits=(30,)), seed=1, mitigation=check) as error_map:
            ...     bool(model.weight.abs().max() <= 0.125), len(error_map)
            (True, 27)
        """
        check_choice("per", per, PER)
        check_choice("repair", repair, REPAIRS)
        right = "at least 1, so that trusted weights are in range"
        margin = check_number("margin", margin, right, lambda margin: margin >= 1)
        restore_leftovers(model)
        entries = {name: entry for name, entry in stored(model).items() if entry.tensor.numel()}
        checkable = {name: entry for name, entry in entries.items() if _checkable(entry)}
        unchecked = tuple(name for name in entries if name not in checkable)
        if not checkable:
            raise ValueError(
                f"no tensor of this {type(model).__name__} has a range to check (every code of an integer row is a possible "
                f"weight): {', '.join(unchecked) or 'it has none'}"
            )
        ranges = {name: _range(name, entry.values(), per, margin) for name, entry in checkable.items()}
        return cls(ranges, per=per, margin=margin, repair=repair, unchecked=unchecked)

    def settings(self) -> Any:
        total = hashlib.sha256()
        for name, bounds in sorted(self.ranges.items()):
            total.update(f"{name} {bounds.low.dtype} {list(bounds.low.shape)} {list(bounds.shape)}\n".encode())
            for ends in (bounds.low, bounds.high):
                total.update(ends.contiguous().view(torch.uint8).numpy().tobytes())
        return {"per": self.per, "margin": self.margin, "repair": self.repair, "ranges": total.hexdigest()}

    def screen(self, error_map: ErrorMap, space: AddressSpace, *, seed: int) -> Screened:
        """The errors that remain: a word out of range now differs from the original by its repair. Words without a range
        (optimizer states, `unchecked`) stay as they are.

        It detects words out of range, and repaired them all if they have their original values now: a weight set to 0 has it
        only if it was 0.

        Raises:
            ErrorMapMismatch: a tensor of another shape than the ranges were made for.
        """
        mask, is_outside = error_map.mask.copy(), np.zeros(len(error_map), bool)
        for number, entries in error_map.by_tensor():
            name = error_map.fingerprint[number].name
            if name not in self.ranges or name not in space.by_name:
                continue
            expected, entry = self.ranges[name], space.by_name[name].stored
            if (shape := tuple(entry.tensor.shape)) != expected.shape:
                raise ErrorMapMismatch(
                    f"{self.name} was fitted to {name!r} of {list(expected.shape)}; in this model it is {list(shape)}"
                )
            hit, remaining = self._repaired(entry, expected, error_map.word[entries], error_map.mask[entries])
            hit += entries.start
            is_outside[hit], mask[hit] = True, remaining
        if not is_outside.any():
            return Screened(error_map, detected=False)
        remaining = error_map.with_words(error_map.tensor, error_map.word, mask)
        return Screened(remaining, detected=True, repaired=not mask[is_outside].any())

    def outside(self, model: nn.Module) -> dict[str, int]:
        """How many present words of each checked tensor are out of range, without tensors that have none: one pass over all
        weights, as a scrubber makes it.

        Raises:
            ValueError: the model lacks a checked tensor, or has one of another shape.
        """
        memory, counts = stored(model), {}
        for name, bounds in self.ranges.items():
            if name not in memory or tuple(memory[name].tensor.shape) != bounds.shape:
                raise ValueError(
                    f"{self.name} has a range for {name!r} of {list(bounds.shape)}, which this model lacks"
                )
            values = _comparable(memory[name].values().detach().cpu())
            shape = (-1, *[1] * (values.dim() - 1)) if len(bounds.low) > 1 else (1,) * values.dim()
            is_inside = (values >= bounds.low.view(shape)) & (values <= bounds.high.view(shape))
            if wrong := int((~is_inside).sum()):
                counts[name] = wrong
        return counts

    def _repaired(
        self, entry: Stored, expected: Range, word: np.ndarray, mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which of some words int64 [n] of a tensor, with error masks uint64 [n], are out of range, and their masks after
        repair."""
        words, tensor = entry.words(), entry.tensor
        original = words.read(torch.from_numpy(np.ascontiguousarray(word)).to(words.device)).cpu()
        faulty = original ^ words.masks(mask).cpu()
        values = _comparable(faulty.view(tensor.dtype))
        low, high = expected.low, expected.high
        if len(low) > 1:
            row = torch.from_numpy(word // (tensor.numel() // tensor.shape[0]))
            low, high = low[row], high[row]
        wrong = (~((values >= low) & (values <= high))).nonzero().squeeze(1)  # NaN is in no range
        if self.repair == "zero":
            repaired = torch.zeros(len(wrong), dtype=INTEGER_OF_BYTES[tensor.element_size()])
        else:
            values = values[wrong]
            low, high = (ends[wrong] if len(ends) > 1 else ends for ends in (low, high))
            values = torch.where(values < low, low, torch.where(values > high, high, torch.zeros_like(values)))
            repaired = values.to(tensor.dtype).view(INTEGER_OF_BYTES[tensor.element_size()])
        remaining = (repaired ^ original[wrong]).numpy()
        return wrong.numpy(), remaining.view(f"uint{8 * remaining.dtype.itemsize}").astype(np.uint64)

    def cost(self, model: nn.Module) -> Cost:
        """Two numbers of a word's width for each range. Inference is unchanged: the check runs when weights are loaded or
        scrubbed."""
        return Cost(stored_bits=sum(2 * bounds.low.numel() * bounds.bits for bounds in self.ranges.values()))

    def covers(self, model: nn.Module) -> set[str]:
        return set(self.ranges)

    def on(self, tensors: Iterable[str]) -> "WeightRange":
        confined = copy(self)
        confined.ranges = {name: self.ranges[name] for name in sorted(tensor_names(tensors)) if name in self.ranges}
        confined.name = confined_name(self.name, confined.ranges)
        return confined


def _checkable(entry: Stored) -> bool:
    tensor = entry.tensor
    has_memory = entry.spread is not None or not tensor.is_meta
    has_bits = not (tensor.dtype.is_complex or tensor.dtype == torch.bool)
    if not has_bits or tensor.layout != torch.strided or tensor.is_quantized or not has_memory:
        return False
    return entry.rows is None or entry.dtype.is_floating_point


def _comparable(values: torch.Tensor) -> torch.Tensor:
    """Values in a type that PyTorch can compare: 8-bit floats as float32, unsigned integers of over 8 bits as the next larger
    type."""
    larger = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.float64}
    small = values.dtype.is_floating_point and values.dtype.itemsize == 1
    return values.to(torch.float32 if small else larger.get(values.dtype, values.dtype))


def _range(name: str, tensor: torch.Tensor, per: str, margin: float) -> Range:
    values = _comparable(tensor.detach().cpu())
    values = values.reshape(len(values) if per == "row" and values.dim() > 1 else 1, -1)
    low, high = torch.aminmax(values, dim=1)
    if bool(low.isnan().any()):
        raise ValueError(f"{name} holds NaN; ranges need weights without errors")
    if margin != 1:
        low, high = (widen(low.double(), margin, low=True), widen(high.double(), margin, low=False))
        if not values.dtype.is_floating_point:
            low, high = low.floor(), high.ceil()
        low, high = low.to(values.dtype), high.to(values.dtype)
    return Range(low, high, tuple(tensor.shape), 8 * tensor.element_size())
