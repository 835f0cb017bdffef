"""Error maps of bits that a GPU draws: it locates the bits, joins them to words, and keeps the words."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from drsrobust.extend import TargetTensor
from drsrobust.injection import AddressSpace, ErrorClock

# Expected flips that a GPU draws: fewer take less time on a core, and more would need over 3 GB of the GPU's memory.
FEWEST, MOST = 10_000, 1 << 25


def drawing_gpu(space: AddressSpace, rate: float) -> torch.device | None:
    """The GPU that draws flips at a rate in a space: that of all of its tensors. None: a core does."""
    if not FEWEST <= rate * space.bits <= MOST or rate == 1:
        return None
    devices = {_device(tensor) for tensor in space.tensors}
    device = devices.pop()
    on_gpu = not devices and device is not None and device.type == "cuda"
    return device if on_gpu and find_spec("triton") is not None else None


def _device(tensor: TargetTensor) -> torch.device | None:
    """Of a tensor that is targeted as a whole, in the memory of this process alone."""
    memory = tensor.stored
    whole = memory is not None and memory.spread is None and tensor.rows is None and tensor.rank is None
    return memory.tensor.device if whole else None


def drawn_places(clock: ErrorClock, rate: float, device: torch.device) -> torch.Tensor:
    """The places of `clock.until(rate)`, drawn by a GPU, on which they lie."""
    from drsrobust_extras.scale.gpu_kernels import DeviceArrivals

    return DeviceArrivals(clock.n, rate, seed=clock.seed, summand=clock.summand, device=device).places()


class DeviceWords:
    """The wrong words of an error map, on a device.

    Args:
        space: of the map, all rows of all of its tensors.
        places: of the flipped bits: int64, ascending, distinct.

    Attributes:
        word: int64 [n], flat index of the word in its tensor, sorted by tensor.
        mask: int64 [n], the bits of its XOR mask.
        ends: int64 [tensors + 1], where the words of each tensor begin, and the end of the last one's; an array.
        bits: how many are flipped.
    """

    def __init__(self, space: AddressSpace, places: torch.Tensor) -> None:
        layout = space.once((DeviceWords, places.device), lambda: _layout(space, places.device))
        start, size, period, first, words, numbers = layout
        tensor = torch.bucketize(places, start[1:], right=True)
        within, sizes = places - start[tensor], size[tensor]
        unit = within // sizes
        entry = within - unit * sizes + first[tensor]
        word, bit = unit * period[tensor] + words[entry], numbers[entry]
        is_first = torch.ones(len(places), dtype=torch.bool, device=places.device)
        is_first[1:] = (word[1:] != word[:-1]) | (tensor[1:] != tensor[:-1])
        self.word, self.bits = word[is_first], len(places)
        # Bits of a word are distinct, so that their sum is their union.
        self.mask = torch.zeros_like(self.word)
        self.mask.scatter_add_(0, is_first.cumsum(0) - 1, torch.ones_like(bit) << bit)
        self._counts = torch.bincount(64 * tensor + bit, minlength=64 * len(size))
        per_tensor = torch.bincount(tensor[is_first], minlength=len(size))
        self.ends = np.append(0, per_tensor.cumsum(0).cpu().numpy())

    def fetched(self, name: str) -> np.ndarray:
        """The array `tensor`, `word` or `mask` of the error map."""
        if name == "tensor":
            return np.repeat(np.arange(len(self.ends) - 1, dtype=np.int32), np.diff(self.ends))
        return self.word.cpu().numpy() if name == "word" else self.mask.cpu().numpy().view(np.uint64)

    def counts(self) -> np.ndarray:
        """Flipped bits of each number in each tensor: int64 [tensors, 64]."""
        return self._counts.cpu().numpy().reshape(-1, 64)


def _layout(space: AddressSpace, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Of each tensor: the place of its first bit (and the end of all), eligible bits of a unit, words of a unit, and its first
    entry in two tables of such bits, which follow: the word in the unit, and the bit's number."""
    units = [eligible.unit for eligible in space.eligible]
    sizes = np.array([len(bits) for _, bits in units])
    columns: list[Any] = [
        np.append(0, np.cumsum([eligible.bits for eligible in space.eligible])),
        sizes,
        [tensor.format.period for tensor in space.tensors],
        np.cumsum(sizes) - sizes,
        np.concatenate([words for words, _ in units]),
        np.concatenate([bits for _, bits in units]),
    ]
    return tuple(torch.from_numpy(np.asarray(column, np.int64)).to(device) for column in columns)
