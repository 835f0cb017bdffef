"""Weight range check: words that are no value a weight could have are put right when weights are loaded or scrubbed.

The storage's counterpart of activation clipping (Ranger, arXiv:2003.13874), as used for text models: one pass and one
comparison of each word, per tensor or per row."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust._environment import unknown
from drsrobust.injection import ErrorMap, ErrorMapMismatch, restore_leftovers
from drsrobust.injection.address_space import INTEGERS, Stored, WordView, hittable, stored
from drsrobust.mitigation.activations.bounds import widened
from drsrobust.mitigation.base import Cost, Mitigation, shown

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
    """After errors struck and before scores are made, every word is compared with the range [min, max] of its tensor, or of its
    row, in the trusted weights. A value outside of it, or NaN, becomes 0 (or the nearer bound; NaN then 0); values inside stay,
    wrong or not. So flips of high exponent bits go, while those of signs and mantissas mostly stay.

    The ranges themselves are taken to be safe. Checked are parameters and buffers of any float or integer type, by value. Not
    checked are FBGEMM's integer rows (int8, int4, int2), whose every code is a value that a weight could have: errors there
    stay, see `unchecked`.

    Use `WeightRange.fit`.

    Attributes:
        ranges: tensor name -> `Range`.
        unchecked: names of tensors that are not checked.
    """

    def __init__(
        self, ranges: Mapping[str, Range], *, per: str, margin: float, repair: str, unchecked: tuple[str, ...]
    ) -> None:
        self.ranges, self.unchecked = dict(ranges), unchecked
        self.per, self.margin, self.repair = per, margin, repair
        self.name = f"range per {per}" + ("" if margin == 1 else f" x {shown(margin)}")
        self.name += "" if repair == "zero" else ", clamped"

    @classmethod
    def fit(cls, model: nn.Module, *, per: str = "tensor", margin: float = 1.0, repair: str = "zero") -> "WeightRange":
        """The ranges of a model as it stands; errors that an interrupted `with` left in it are undone first.

        Args:
            model: any module, without errors.
            per: one range for each `tensor`, or for each `row` (entry of the first dimension; vectors have one range).
            margin: moves each bound b outwards, by (margin - 1) |b|; 1 or more.
            repair: `zero` or `clamp`.

        Raises:
            ValueError: an unknown `per` or `repair`, a margin under 1, weights that are NaN, or a model of which nothing can
                be checked.

        Example:
            >>> import drsrobust as dr
            >>> _ = torch.manual_seed(0)
            >>> model = nn.Linear(64, 64)
            >>> check = WeightRange.fit(model)
            >>> with dr.inject(model, dr.BitFlip(1e-2, bits=(30,)), seed=1, mitigation=check) as error_map:
            ...     bool(model.weight.abs().max() <= 0.125), len(error_map) == len(error_map.drawn)
            (True, True)
        """
        for what, given, known in (("per", per, PER), ("repair", repair, REPAIRS)):
            if given not in known:
                raise unknown(what, given, known)
        if not 1 <= margin < math.inf:
            raise ValueError(f"margin is {margin!r}; it must be 1 or more: a trusted weight must not be out of range")
        restore_leftovers(model)
        ranges, unchecked = {}, []
        for name, one in stored(model).items():
            if not one.tensor.numel():
                continue
            if not _checkable(one):
                unchecked.append(name)
                continue
            ranges[name] = _range(name, one.tensor, per, margin)
        if not ranges:
            raise ValueError(
                f"no tensor of this {type(model).__name__} can be checked by its range (of an integer row every code is a "
                f"value that a weight could have): {', '.join(unchecked) or 'it has none'}"
            )
        return cls(ranges, per=per, margin=margin, repair=repair, unchecked=tuple(unchecked))

    def settings(self) -> Any:
        total = hashlib.sha256()
        for name, one in sorted(self.ranges.items()):
            total.update(f"{name} {one.low.dtype} {list(one.low.shape)} {list(one.shape)}\n".encode())
            for ends in (one.low, one.high):
                total.update(ends.contiguous().view(torch.uint8).numpy().tobytes())
        return {"per": self.per, "margin": self.margin, "repair": self.repair, "ranges": total.hexdigest()}

    def screen(self, error_map: ErrorMap, model: nn.Module, *, seed: int) -> ErrorMap:
        """The errors that the check leaves: a word out of range is wrong by its original bits instead (or by what a bound
        differs in). Words of tensors without a range (optimizer states, `unchecked`) stay as they are.

        The map tells whether a word was out of range (`detected`), and whether all of these are now what they were
        (`repaired`): a weight that was not 0 before is not.

        Raises:
            ErrorMapMismatch: a tensor of another shape than the ranges were made for.
        """
        memory = stored(model)
        mask, outside = error_map.mask.copy(), np.zeros(len(error_map), bool)
        for number, entries in error_map.by_tensor():
            name = error_map.fingerprint[number].name
            if name not in self.ranges or name not in memory:
                continue
            expected, tensor = self.ranges[name], memory[name].tensor
            if tuple(tensor.shape) != expected.shape:
                raise ErrorMapMismatch(
                    f"{self.name} was fitted to {name!r} of {list(expected.shape)}; in this model it is {list(tensor.shape)}"
                )
            found, left = self._left(tensor, expected, error_map.word[entries], error_map.mask[entries])
            found += entries.start
            outside[found], mask[found] = True, left
        if not outside.any():
            return error_map.with_detection(detected=False)
        right = not mask[outside].any()
        return error_map.remaining(error_map.tensor, error_map.word, mask).with_detection(detected=True, repaired=right)

    def outside(self, model: nn.Module) -> dict[str, int]:
        """How many words of each checked tensor are out of range as the model stands now: the pass over all weights that a
        scrubber makes. Tensors without such words are left out.

        Raises:
            ValueError: the model lacks a checked tensor, or has one of another shape.
        """
        memory, found = stored(model), {}
        for name, one in self.ranges.items():
            if name not in memory or tuple(memory[name].tensor.shape) != one.shape:
                raise ValueError(f"{self.name} has a range for {name!r} of {list(one.shape)}, which this model has not")
            values = _comparable(memory[name].tensor.detach().cpu())
            shape = (-1, *[1] * (values.dim() - 1)) if len(one.low) > 1 else (1,) * values.dim()
            inside = (values >= one.low.view(shape)) & (values <= one.high.view(shape))
            if wrong := int((~inside).sum()):
                found[name] = wrong
        return found

    def _left(
        self, tensor: torch.Tensor, expected: Range, word: np.ndarray, mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of words int64 [n] of one tensor with masks uint64 [n]: which are out of range, and the masks left of these."""
        words = WordView(tensor)
        original = words.read(torch.from_numpy(np.ascontiguousarray(word)).to(words.device)).cpu()
        faulty = original ^ words.masks(mask).cpu()
        values = _comparable(faulty.view(tensor.dtype))
        low, high = expected.low, expected.high
        if len(low) > 1:
            row = torch.from_numpy(word // (tensor.numel() // tensor.shape[0]))
            low, high = low[row], high[row]
        outside = (~((values >= low) & (values <= high))).nonzero().squeeze(1)  # NaN is in no range
        if self.repair == "zero":
            repaired = torch.zeros(len(outside), dtype=INTEGERS[tensor.element_size()])
        else:
            some = values[outside]
            low, high = (ends[outside] if len(ends) > 1 else ends for ends in (low, high))
            some = torch.where(some < low, low, torch.where(some > high, high, torch.zeros_like(some)))
            repaired = some.to(tensor.dtype).view(INTEGERS[tensor.element_size()])
        left = (repaired ^ original[outside]).numpy()
        return outside.numpy(), left.view(f"uint{8 * left.dtype.itemsize}").astype(np.uint64)

    def cost(self, model: nn.Module) -> Cost:
        """Two numbers of a word's width for each range. Nothing for a sample: the check is one pass over the weights, when they
        are loaded or scrubbed."""
        return Cost(stored_bits=sum(2 * one.low.numel() * one.bits for one in self.ranges.values()))


def _checkable(one: Stored) -> bool:
    if not hittable(one.tensor) or one.tensor.layout != torch.strided or one.tensor.is_quantized or one.tensor.is_meta:
        return False
    return one.rows is None or one.dtype.is_floating_point


def _comparable(values: torch.Tensor) -> torch.Tensor:
    """Values in a type that can be compared: 8-bit floats as float32, unsigned integers of over 8 bits as the next larger."""
    wider = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.float64}
    small = values.dtype.is_floating_point and values.dtype.itemsize == 1
    return values.to(torch.float32 if small else wider.get(values.dtype, values.dtype))


def _range(name: str, tensor: torch.Tensor, per: str, margin: float) -> Range:
    values = _comparable(tensor.detach().cpu())
    values = values.reshape(len(values) if per == "row" and values.dim() > 1 else 1, -1)
    low, high = torch.aminmax(values, dim=1)
    if bool(low.isnan().any()):
        raise ValueError(f"{name} holds NaN; ranges are made of weights without errors")
    if margin != 1:
        low, high = (widened(low.double(), margin, low=True), widened(high.double(), margin, low=False))
        if not values.dtype.is_floating_point:
            low, high = low.floor(), high.ceil()
        low, high = low.to(values.dtype), high.to(values.dtype)
    return Range(low, high, tuple(tensor.shape), 8 * tensor.element_size())
