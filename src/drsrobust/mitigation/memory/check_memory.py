"""The memory that a protection's check bits and copies lie in.

Errors in what a protection stores itself: check bits, checksums, copies.

The error model of the trial is drawn over that memory too, by the same clock from a stream of its own: its seed there is the
first raw word of `PCG64(SeedSequence(seed, spawn_key=(s, 4)))`, s the first 4 bytes (big-endian) of SHA-256 over the
protection's label. So errors are nested over rates there as everywhere, and settings outside of the label (as what is done
with errors that cannot be corrected) meet the same ones.

- Only what belongs to targeted tensors and rows is hit (and what shares a word of check bits with it).
- A fixed count is drawn over data and check bits together: of `FixedCount(k)` over N data bits and C check bits, k' errors fall
  on data, the hypergeometric share (the first k arrivals of a clock over N + C places say so); they are the first k' of the
  map's k, and the others are taken out of it.
- Error models that name bits (`bits=`, `SingleBit`) speak of the data's bits: check bits stay clean. So they do under a loaded
  map, which does not know what it was drawn from, and under models that cannot hit such words.
- `StuckAt` errs where the check bit that belongs to the model's words is the other one. `RandomValue` has no numbers to put
  into check bits: there it is `RandomWord` of the same rate. In copies both do what they do to data."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from drsrobust.injection import (
    AddressSpace,
    ErrorMap,
    ErrorModel,
    FixedCount,
    RandomValue,
    RandomWord,
    SingleBit,
    StuckAt,
)
from drsrobust.injection.address_space import TargetTensor
from drsrobust.injection.error_clock import SCREEN
from drsrobust.injection.error_map import Source
from drsrobust.injection.number_formats import Format, format_named
from drsrobust.mitigation.memory.protected_words import NOTHING, Area, Errors, distinct, flips, joined, ones


class CheckBits(NamedTuple):
    """Check bits of an area: `bits` for each of `units` (code words, words, rows). They lie densely, one unit behind the other,
    in words as wide as the area's; the last word's unused bits mean nothing. So a model whose rate is per word hits as large a
    share of them as of the data."""

    units: int
    bits: int

    def tensor(self, area: Area, units: np.ndarray | None) -> TargetTensor:
        """The tensor that they lie in, under the area's name. Of some units alone (ascending; None: all) it is the words with
        any of their check bits."""
        width = area.width
        form = Format("check bits", getattr(torch, f"uint{width}"), {"value": np.array([ones(width)])})
        rows = None
        if units is not None:
            first, last = units * self.bits // width, ((units + 1) * self.bits - 1) // width
            spread = np.arange(int((last - first).max(initial=0)) + 1)
            rows = distinct(np.sort(np.minimum(first[:, None] + spread, last[:, None]).ravel()))
        return TargetTensor(area.name, area.tensor.component, (-(-self.units * self.bits // width),), form, rows)

    def unpacked(self, area: Area, errors: Errors) -> Errors:
        """Errors in words of that tensor as errors in the check bits of units."""
        word, bit = flips(errors)
        place = word * area.width + bit
        unit = place // self.bits
        return joined(
            *(
                one[unit < self.units]
                for one in (unit, np.left_shift(np.uint64(1), (place % self.bits).astype(np.uint64)))
            )
        )

    def packed(self, area: Area, word: np.ndarray, content: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """What words of that tensor hold (uint64 [n]), from what units do."""
        place = word[:, None] * area.width + np.arange(area.width)
        unit = np.minimum(place // self.bits, self.units - 1)
        every = distinct(np.sort(unit.ravel()))
        held = content(every)[np.searchsorted(every, unit)] >> (place % self.bits).astype(np.uint64)
        held = np.where(place < self.units * self.bits, held & np.uint64(1), np.uint64(0))
        return np.bitwise_or.reduce(held << np.arange(area.width, dtype=np.uint64), axis=1)


def copy_name(area: Area, number: int) -> str:
    """The name of a further copy of an area's words."""
    return f"{area.name} (copy {number})"


def copy_tensor(area: Area, number: int, rows: np.ndarray | None, masks: np.ndarray | None = None) -> TargetTensor:
    """A further copy of an area's words: it holds what the model does, and its errors are its own.

    Args:
        area: whose.
        number: of the copy.
        rows: only of these rows of the tensor; None: all.
        masks: uint64 [period], only these bits of each word; None: all but padding.
    """
    form = area.format if masks is None else Format(f"some of {area.format.name}", area.format.dtype, {"value": masks})
    tensor = area.tensor
    if rows is None:
        rows = tensor.rows
    elif tensor.rows is not None:
        rows = np.intersect1d(tensor.rows, rows, assume_unique=True)
    return TargetTensor(copy_name(area, number), tensor.component, tensor.shape, form, rows, tensor.stored)


def copy_errors(area: Area, number: int, beside: Mapping[str, Errors]) -> Errors:
    """The errors in a further copy, by the area's word numbers."""
    errors = beside.get(copy_name(area, number), NOTHING)
    local, _ = area.local(errors.index)
    return Errors(local, errors.mask)


Content = Callable[[str, np.ndarray], np.ndarray]  # name of a tensor of check bits, words of it -> what stands there


def own_stream(seed: int, label: str) -> np.random.PCG64:
    """The stream of raw words that a protection of this label draws from."""
    summand = int.from_bytes(hashlib.sha256(label.encode()).digest()[:4], "big")
    return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(summand, SCREEN)))


def check_errors(
    error_map: ErrorMap,
    memory: Callable[[Mapping[str, np.ndarray | None]], Iterable[TargetTensor]],
    content: Content,
    *,
    seed: int,
    label: str,
) -> tuple[ErrorMap, dict[str, Errors]]:
    """Draws the errors in what a protection stores.

    Args:
        error_map: of the data.
        memory: given the targeted tensors and rows, the tensors that hold what is stored about them. Those without memory of
            their own are check bits, the others copies.
        content: the words of check bits that belong to the model's words.
        seed: of the trial.
        label: of the protection.

    Returns:
        the errors in the data (fewer for `FixedCount`), and those in each tensor of check bits by its name, by word.
    """
    own = int(own_stream(seed, label).random_raw())
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    seen: Counter[str] = Counter()
    for source in error_map.sources:
        model, before = source.error_model, Counter(seen)
        seen[model.canonical()] += 1
        if isinstance(model, SingleBit) or getattr(model, "bits", None) is not None:
            continue
        tensors = list(memory(source.rows))
        space = AddressSpace(tensors)
        if not space.bits:
            continue
        if isinstance(model, FixedCount):
            error_map, tensor, word, mask = _together(error_map, source, space, own, before)
        else:
            tensor, word, mask = _beside(model, space, content, own, before)
        ends = np.searchsorted(tensor, np.arange(len(space.tensors)), side="right").tolist()
        for one, start, end in zip(space.tensors, [0, *ends], ends, strict=False):
            if end > start:
                found.setdefault(one.name, []).append((word[start:end], mask[start:end]))
    return error_map, {
        name: joined(*(np.concatenate(column) for column in zip(*parts, strict=True))) for name, parts in found.items()
    }


Found = tuple[np.ndarray, np.ndarray, np.ndarray]  # tensor index (ascending), word, mask [n]


def _beside(model: ErrorModel, space: AddressSpace, content: Content, seed: int, before: Counter) -> Found:
    """Errors of a model with a rate."""
    if not all(tensor.memory is not None for tensor in space.tensors):
        if isinstance(model, StuckAt):
            return _stuck(model, space, content, seed, before)
        if isinstance(model, RandomValue):
            model = RandomWord(model.rate)
    try:
        model.expected_share(space)
    except ValueError:  # as more bits per word than these words have
        return np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint64)
    drawn = model.sample(space, seed=seed, before=before)
    return drawn.tensor, drawn.word, drawn.mask


def _stuck(model: StuckAt, space: AddressSpace, content: Content, seed: int, before: Counter) -> Found:
    """Check bits that are stuck at the other value than they should hold."""
    tensor, word, bit = space.locate(model.clock(space.bits, seed, before).until(model.rate))
    bit = bit.astype(np.uint64)
    wrong = np.zeros(len(word), bool)
    for index in np.unique(tensor):
        here = np.flatnonzero(tensor == index)
        held = content(space.tensors[index].name, word[here])
        wrong[here] = ((held >> bit[here]) & np.uint64(1)) != model.value
    return tensor[wrong], word[wrong], np.left_shift(np.uint64(1), bit[wrong])


def _together(
    error_map: ErrorMap, source: Source, space: AddressSpace, seed: int, before: Counter
) -> tuple[ErrorMap, np.ndarray, np.ndarray, np.ndarray]:
    """The errors of a fixed count that fall on check bits, and the map without as many of its last ones."""
    model = source.error_model
    data = AddressSpace(
        TargetTensor(one.name, one.component, one.shape, format_named(one.format), source.rows[one.name])
        for one in error_map.fingerprint
        if one.name in source.rows
    )
    places = model.clock(data.bits + space.bits, seed, before).first(model.k)
    beside = places[places >= data.bits] - data.bits
    if len(beside):
        clock = model.clock(data.bits, error_map.seed, before)
        gone = np.setdiff1d(clock.first(model.k), clock.first(model.k - len(beside)), assume_unique=True)
        tensor, word, bit = data.locate(gone)
        numbers = np.array([error_map.targets.index(one.name) for one in data.tensors])
        error_map = _without(error_map, numbers[tensor], word, np.left_shift(np.uint64(1), bit.astype(np.uint64)))
    tensor, word, bit = space.locate(beside)
    return error_map, tensor, word, np.left_shift(np.uint64(1), bit.astype(np.uint64))


def _without(error_map: ErrorMap, tensor: np.ndarray, word: np.ndarray, mask: np.ndarray) -> ErrorMap:
    """A map without some flips, where it has them."""
    kept = error_map.mask.copy()
    for number, here in error_map.by_tensor():
        gone = joined(word[tensor == number], mask[tensor == number])
        place = np.searchsorted(error_map.word[here], gone.index)
        place = np.minimum(place, here.stop - here.start - 1)
        there = error_map.word[here][place] == gone.index
        kept[here.start + place[there]] &= ~gone.mask[there]
    return error_map.remaining(error_map.tensor, error_map.word, kept)
