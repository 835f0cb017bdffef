"""Bit flips that are drawn and made on a GPU, in Triton: the places of `ErrorClock.until`, equal in every bit.

One lane computes one step of Philox: four words, so twelve arrivals of a block (`block_arrivals` says which). All streams of a
block share one launch. Nothing is sorted: the original word of each arrival is saved first; then each hit bit is set to the
inverse of its original value, so that a place with several arrivals is flipped once; undo writes the originals back. Places are
drawn again in each launch, so that they need no memory. Triton comes with PyTorch's CUDA wheels; with
TRITON_INTERPRET=1, set before this module is imported, its interpreter runs the kernels on the CPU, slowly."""

import numpy as np
import torch
import triton
import triton.language as tl

from drsrobust.extend import check_seed, streams, thresholds
from drsrobust.injection import LARGEST, PARTS, BlockArrivals

_LANES = 128  # of a program
_WORDS = tl.constexpr(4)  # of a step of Philox
_PARTS = tl.constexpr(PARTS)
_LARGEST = tl.constexpr(LARGEST)
_MULTIPLIERS = tl.constexpr((0xD2E7470EE14C6C93, 0xCA5A826395121157))
_WEYL = tl.constexpr((0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B))
# What a lane does with its arrivals.
_SAVE = tl.constexpr(0)
_FLIP = tl.constexpr(1)
_UNDO = tl.constexpr(2)
_NAME = tl.constexpr(3)


@triton.jit
def _philox(c0, k0, k1):
    """The words of Philox4x64-10 of counter (c0, 0, 0, 0) and key (k0, k1): uint64."""
    m0 = tl.full(c0.shape, _MULTIPLIERS[0], tl.uint64)
    m1 = tl.full(c0.shape, _MULTIPLIERS[1], tl.uint64)
    c1 = c0 * 0
    c2 = c1
    c3 = c1
    for _ in tl.static_range(10):
        high0 = tl.umulhi(c0, m0)
        high1 = tl.umulhi(c2, m1)
        low0 = c0 * m0
        low1 = c2 * m1
        c0 = high1 ^ c1 ^ k0
        c1 = low1
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 += tl.full(k0.shape, _WEYL[0], tl.uint64)
        k1 += tl.full(k1.shape, _WEYL[1], tl.uint64)
    return c0, c1, c2, c3


@triton.jit
def _key(key, LANES: tl.constexpr):
    """The key's two words, in each lane: uint64."""
    zero = tl.zeros([LANES], tl.uint64)
    return zero + tl.load(key).to(tl.uint64, bitcast=True), zero + tl.load(key + 1).to(tl.uint64, bitcast=True)


@triton.jit
def _count(counts, ends, key, low, m, blocks, ROUNDS: tl.constexpr, LANES: tl.constexpr):
    """Writes the number of arrivals of each block; a lane has four blocks. `ends`: the m thresholds, m < 2**ROUNDS."""
    step = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    k0, k1 = _key(key, LANES)
    drawn = _philox(step.to(tl.uint64), k0, k1)
    for i in tl.static_range(_WORDS):
        reached = tl.zeros([LANES], tl.int32)  # thresholds that are not larger
        for k in tl.static_range(ROUNDS):
            candidate = reached + (1 << (ROUNDS - 1 - k))
            end = tl.load(ends + candidate - 1, mask=candidate <= m, other=0).to(tl.uint64, bitcast=True)
            reached = tl.where((candidate <= m) & (end <= drawn[i]), candidate, reached)
        block = step * _WORDS + i
        tl.store(counts + block, low + reached, mask=block < blocks)


@triton.jit(do_not_specialize=["n", "steps", "lanes"])
def _arrivals(
    words, saved, counts, table, key, n, steps, lanes, BITS: tl.constexpr, ACTION: tl.constexpr, LANES: tl.constexpr
):
    """Does `ACTION` for all arrivals. Lane `steps` b + s has step s of block b, of which `table` (int32 [3, steps]) has the
    stream, the step within the stream, and the stream's words a block."""
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    lanes = tl.cast(lanes, tl.int64)
    exists = lane < lanes
    block = lane // steps
    step = lane % steps
    stream = tl.load(table + step, mask=exists, other=0)
    within = tl.load(table + steps + step, mask=exists, other=0)
    width = tl.load(table + 2 * steps + step, mask=exists, other=0)
    count = tl.load(counts + block, mask=exists, other=0)
    k0, k1 = _key(key, LANES)
    drawn = _philox((block * (width // _WORDS) + within).to(tl.uint64), k0, k1 + (1 + stream).to(tl.uint64))
    first = _PARTS * _WORDS * (step - within) + _WORDS * within  # the number of the first word's first arrival
    for i in tl.static_range(_WORDS):
        for part in tl.static_range(_PARTS):
            place = (drawn[i] >> (64 - _LARGEST * part - BITS)).to(tl.int64) & ((1 << BITS) - 1)
            place += block << BITS
            hit = exists & (first + part * width + i < count) & (place < n)
            word = words + (place >> 5)
            slot = saved + (i * _PARTS + part) * lanes + lane
            if ACTION == _SAVE:
                tl.store(slot, tl.load(word, mask=hit, other=0), mask=hit)
            elif ACTION == _FLIP:
                original = tl.load(slot, mask=hit, other=0)
                bit = tl.full([LANES], 1, tl.int32) << (place & 31).to(tl.int32)
                is_set = (original & bit) != 0
                tl.atomic_or(word, bit, mask=hit & (is_set == 0), sem="relaxed")
                tl.atomic_and(word, ~bit, mask=hit & is_set, sem="relaxed")
            elif ACTION == _UNDO:
                tl.store(word, tl.load(slot, mask=hit, other=0), mask=hit)
            else:
                tl.store(slot, tl.where(hit, place, -1), mask=exists)


class DeviceArrivals:
    """Arrivals of `ErrorClock(n, seed=seed, summand=summand)` at a rate, on a device. `draw` does not wait for the host.

    Args:
        n: number of places.
        rate: over 0 and under 1.
        seed, summand: as of `ErrorClock`.
        device: a GPU.

    Raises:
        ValueError: another rate or device, or a seed out of range.
    """

    def __init__(self, n: int, rate: float, *, seed: int, summand: int = 0, device: torch.device) -> None:
        if not 0 < rate < 1:
            raise ValueError(f"rate is {rate!r}; it must be a number over 0 and under 1")
        check_seed(seed)
        if device.type != "cuda" and not triton.knobs.runtime.interpret:
            raise ValueError(f"device is {device}; it must be a GPU (TRITON_INTERPRET=1 interprets kernels on a CPU)")
        self.device, self._n = device, n
        blocks = BlockArrivals(n, int(seed), summand)
        self._bits, self._blocks = blocks.bits, blocks.blocks
        self._low, ends = thresholds(float(rate), self._bits)
        self._ends = torch.from_numpy(ends.view(np.int64)).to(device)
        table = _steps(self._low + len(ends))
        self._table, self._steps = torch.from_numpy(table).to(device), table.shape[1]
        self._lanes = self._blocks * self._steps
        self._key = torch.tensor([int(seed), summand << 32], dtype=torch.uint64).view(torch.int64).to(device)
        self._counts = torch.empty(self._blocks, dtype=torch.int32, device=device)

    def draw(self) -> torch.Tensor:
        """The place of each arrival, in no order and with repeats; -1 where there is none: int64 [slots]."""
        places = self._slots(torch.int64)
        self._count()
        self._launch(_NAME, self._counts, places)
        return places

    def places(self) -> torch.Tensor:
        """The places of `ErrorClock.until`: int64, ascending, distinct."""
        places = self.draw()
        return torch.unique(places[places >= 0])

    def _slots(self, dtype: torch.dtype) -> torch.Tensor:
        """An element for each arrival that a block can have, uninitialised."""
        return torch.empty(self._lanes * PARTS * _WORDS.value, dtype=dtype, device=self.device)

    def _count(self) -> None:
        rounds, per_program = len(self._ends).bit_length(), _LANES * _WORDS.value
        with torch.cuda.device_of(self._counts):
            _count[(triton.cdiv(self._blocks, per_program),)](
                self._counts,
                self._ends,
                self._key,
                self._low,
                len(self._ends),
                self._blocks,
                ROUNDS=rounds,
                LANES=_LANES,
            )

    def _launch(self, action: tl.constexpr, words: torch.Tensor, slots: torch.Tensor) -> None:
        """Does an action, in words (int32; of `_NAME` any)."""
        numbers = self._n, self._steps, self._lanes
        with torch.cuda.device_of(self._counts):
            _arrivals[(triton.cdiv(self._lanes, _LANES),)](
                *(words, slots, self._counts, self._table, self._key, *numbers),
                **{"BITS": self._bits, "ACTION": action, "LANES": _LANES},
            )


class DeviceFlips(DeviceArrivals):
    """Flips of the bits of a tensor at `ErrorClock(32 * words.numel(), seed=seed, summand=summand).until(rate)`, on its device.
    Bit i of word w is place 32 w + i. `inject` and `undo` do not wait for the host, so CUDA graphs can capture them; the seed
    is in device memory, and a captured graph follows `reseed`.

    Args:
        words: float32 or int32, of any shape, contiguous, with at least one element; changed in place.
        rate, seed, summand: as of `DeviceArrivals`.

    Raises:
        ValueError: words of another kind, or as of `DeviceArrivals`.
    """

    def __init__(self, words: torch.Tensor, rate: float, *, seed: int, summand: int = 0) -> None:
        if words.dtype not in (torch.float32, torch.int32) or not words.is_contiguous() or not words.numel():
            have = f"{words.dtype} {list(words.shape)}" + ("" if words.is_contiguous() else ", not contiguous")
            raise ValueError(f"words is {have}; it must be a contiguous float32 or int32 tensor with an element")
        super().__init__(32 * words.numel(), rate, seed=seed, summand=summand, device=words.device)
        self._words, self._saved = words.detach().view(torch.int32), self._slots(torch.int32)
        self._injected = False

    def reseed(self, seed: int) -> None:
        """Sets the seed of the next injection.

        Raises:
            ValueError: a seed out of range.
            RuntimeError: the flips of the last seed are not undone.
        """
        check_seed(seed)
        self._expect(injected=False)
        self._key[:1].copy_(torch.tensor([int(seed)], dtype=torch.uint64).view(torch.int64))

    def inject(self) -> None:
        """Flips the bits.

        Raises:
            RuntimeError: they are flipped already.
        """
        self._expect(injected=False)
        self._count()
        self._launch(_SAVE, self._words, self._saved)
        self._launch(_FLIP, self._words, self._saved)
        self._injected = True

    def undo(self) -> None:
        """Writes the original words back.

        Raises:
            RuntimeError: nothing was injected.
        """
        self._expect(injected=True)
        self._launch(_UNDO, self._words, self._saved)
        self._injected = False

    def _expect(self, injected: bool) -> None:
        if self._injected is not injected:
            raise RuntimeError("nothing was injected" if injected else "the words have flips; call undo() first")


def _steps(most: int) -> np.ndarray:
    """The stream, the step within it and its words a block, of each step of a block with up to `most` arrivals: int32
    [3, steps]."""
    columns = []
    for stream, _, words in streams(most):
        steps = np.arange(words // _WORDS.value)
        columns.append(np.stack([np.full_like(steps, stream), steps, np.full_like(steps, words)]))
    return np.concatenate(columns, axis=1).astype(np.int32)
