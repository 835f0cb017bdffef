"""A tensor's memory as integers of the width of its words, read and written by flat index.

Words that lie in the same memory: they would be hit twice, and put back wrongly.

What a model, and an optimizer beside it, keeps in memory: every tensor that errors can lie in, with its format.

The eligible bits of one targeted tensor, numbered on: rows ascending, words in row-major order, bits from the lowest.

What a target resolves to: the address space of all bits that errors may hit.

The targeted tensors stand in plain string order of their names; in a tensor, words in row-major order; in a word, its
eligible bits from the lowest (0) to the highest. Numbered on in this order, they are positions 0 .. bits - 1. Words that have
an eligible bit are numbered on in the same way; so are rows of storage, those that a tensor's words fill (of a tensor of which
some rows are targeted: those that hold a word of them)."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from drsrobust.injection.error_clock import scaled
from drsrobust.injection.number_formats import Format, bit_set, plain, quantized_rows
from drsrobust.introspection.tensors import address, component_of, listed, named_modules, named_tensors, span

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a word


class Words:
    """A tensor's words as integers; its memory, not a copy."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device, self.type, self.span = tensor.device, INTEGERS[tensor.element_size()], span(tensor)
        self._inference = tensor.is_inference()
        # Not .detach(): its writes would count as changes that autograd knows of. Hardware does not tell autograd.
        view = tensor.data.view(self.type)
        if view.is_inference() and not self._inference:  # made in inference mode, it could not be written to after it
            with torch.inference_mode(False):
                view = tensor.data.view(self.type)
        self._shape = view.shape
        self._flat = view.view(-1) if view.is_contiguous() else None
        self._view = view

    def read(self, index: torch.Tensor) -> torch.Tensor:
        """The words [n] at int64 indices [n]."""
        if self._flat is not None:
            return self._flat.index_select(0, index)
        return self._view[torch.unravel_index(index, self._shape)]

    def write(self, index: torch.Tensor, words: torch.Tensor) -> None:
        """Puts words [n] at distinct int64 indices [n]."""
        if self._inference and not torch.is_inference_mode_enabled():
            with torch.inference_mode():  # PyTorch allows writes to inference tensors nowhere else
                return self.write(index, words)
        if self._flat is not None:
            self._flat.scatter_(0, index, words)
        else:
            self._view[torch.unravel_index(index, self._shape)] = words

    def read_uint64(self, index: np.ndarray) -> np.ndarray:
        """The words [n] at int64 indices [n] as uint64."""
        found = self.read(torch.from_numpy(np.ascontiguousarray(index)).to(self.device)).cpu().numpy()
        return found.view(f"uint{8 * found.dtype.itemsize}").astype(np.uint64)

    def masks(self, mask: np.ndarray) -> torch.Tensor:
        """XOR masks uint64 [n] as integers of the words' type, where the words are."""
        width = 8 * self.type.itemsize
        narrow = mask.astype(f"uint{width}")
        return torch.from_numpy(narrow if width == 8 else narrow.view(f"int{width}")).to(self.device)


def refuse_overlaps(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError when words of one tensor, or of two, lie in the same memory."""
    spans = sorted((*span(tensor), name) for name, tensor in tensors.items())
    open_spans: list[tuple[int, str]] = []
    for start, end, name in spans:
        if not _apart(tensors[name]):
            raise ValueError(f"{name} repeats words of its memory (it was expanded); it cannot be hit word by word")
        open_spans = [(reach, other) for reach, other in open_spans if reach > start]
        for _, other in open_spans:
            if len(np.intersect1d(_places(tensors[other]), _places(tensors[name]))):
                raise ValueError(f"{other} and {name} share a part of their memory; target one of them by its name")
        open_spans.append((end, name))


def _apart(tensor: torch.Tensor) -> bool:
    """Whether each word of a tensor has a place of its own."""
    if tensor.is_contiguous() or not tensor.numel():
        return True
    reach = 1  # words that the smaller dimensions span
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ):
        if stride < reach:  # not one dimension inside the next: look at each word
            return len(np.unique(_places(tensor))) == tensor.numel()
        reach += stride * (size - 1)
    return True


def _places(tensor: torch.Tensor) -> np.ndarray:
    """The address of each word, int64."""
    place = np.full(1, tensor.data_ptr(), np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        place = (place[:, None] + tensor.element_size() * stride * np.arange(size)).ravel()
    return place


OPTIMIZER = "optimizer."  # what names of optimizer states begin with
_WARNED: WeakSet[nn.Module] = WeakSet()  # models of which `warn_of_hidden_words` has warned


class Stored(NamedTuple):
    """A tensor in memory, the layout of its rows if they are quantized, and whether it is what "all" means: a parameter or a
    quantized table."""

    tensor: torch.Tensor
    rows: Format | None = None
    parameter: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Of its words."""
        return self.tensor.dtype if self.rows is None else self.rows.dtype

    @property
    def format(self) -> Format:
        """The format of its words.

        Raises:
            ValueError: a dtype whose bits are not known here.
        """
        return self.rows or plain(self.tensor.dtype)

    @property
    def format_name(self) -> str:
        """The name of that format, or of the dtype."""
        return str(self.tensor.dtype).removeprefix("torch.") if self.rows is None else self.rows.name


class Memory(dict[str, Stored]):
    """Tensor name -> what is stored there. `component` says which component each name belongs to, `first` the name that
    further names of a tied tensor stand for."""

    component: dict[str, str]
    first: dict[str, str]


def stored(model: nn.Module, optimizer: Any = None, components: Mapping[str, str] | None = None) -> Memory:
    """Parameters, buffers and, of an optimizer, the states of the model's parameters (`optimizer.<parameter>.<state>`).

    Raises:
        TypeError: `model` is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    found, everything = Memory(), listed(model)
    for name, tensor, parameter, table, _ in everything:
        rows = table and quantized_rows(table.values, table.dim, table.header, table.row_bytes)
        found[name] = Stored(tensor, rows, parameter)
    found.first = {alias: one.name for one in everything for alias in one.aliases}
    found.component = component_of(model, components, everything)
    if optimizer is not None:
        for name, tensor in optimizer_states(model, optimizer).items():
            found[name] = Stored(tensor)
            parameter = name.removeprefix(OPTIMIZER).rpartition(".")[0]
            found.component[name] = found.component.get(parameter, "optimizer")
    return found


def warn_of_hidden_words(model: nn.Module) -> None:
    """Warns once of a model's modules with weights that no target can name: weights packed for a quantized kernel
    (`torch.ao` keeps them in a script object), and parameters in a plain list or dict."""
    if model in _WARNED:
        return
    _WARNED.add(model)
    known = {id(parameter) for parameter in model.parameters()}
    hidden = []
    for name, module in named_modules(model):
        own = [value for key, value in vars(module).items() if key not in ("_parameters", "_buffers", "_modules")]
        if any(_packs_weights(value) or _is_unknown(value, known) for value in tree_leaves(own)):
            hidden.append(name or type(module).__name__)
    if hidden:
        warnings.warn(
            f"errors cannot hit the weights of {', '.join(hidden)}: they are packed for a quantized kernel, or not registered "
            "as parameters; no target holds them, and shares and rates are of the other words alone",
            stacklevel=4,
        )


def _packs_weights(value: Any) -> bool:
    """Whether it is a script object, other than a scripted module itself and the counters of FBGEMM's look-ups."""
    if isinstance(value, torch._C.ScriptModule):
        return False
    return isinstance(value, torch.ScriptObject) and ".fbgemm." not in value._type().qualified_name()


def _is_unknown(value: Any, known: set[int]) -> bool:
    return isinstance(value, nn.Parameter) and id(value) not in known


def optimizer_states(model: nn.Module, optimizer: Any) -> dict[str, torch.Tensor]:
    """The optimizer's state tensors by name: those of the model's parameters, once `step` has made them.

    Args:
        optimizer: a `torch.optim.Optimizer`, or one of TorchRec's keyed optimizers (also of fused tables).

    Raises:
        TypeError: it is no optimizer.
    """
    if not isinstance(getattr(optimizer, "state", None), Mapping):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}; it must be a torch.optim.Optimizer or one of TorchRec's"
        )
    names = {id(tensor): name for name, tensor in named_tensors(model, buffers=False)}
    # TorchRec's keyed optimizers know their parameters by name themselves.
    keyed = getattr(optimizer, "params", None)
    if isinstance(keyed, Mapping):
        names = {id(tensor): name for name, tensor in keyed.items()} | names
    found = {}
    for parameter, state in optimizer.state.items():
        name = parameter if isinstance(parameter, str) else names.get(id(parameter))
        for key, value in state.items() if name else ():
            if isinstance(value, torch.Tensor):
                found[f"{OPTIMIZER}{name}.{key}"] = value
    return found


def hittable(tensor: torch.Tensor) -> bool:
    """Whether its words have bits: all but complex numbers and booleans."""
    return not (tensor.dtype.is_complex or tensor.dtype == torch.bool)


def check(name: str, tensor: torch.Tensor) -> None:
    """Raises ValueError for a tensor whose words cannot be hit."""
    if is_lazy(tensor):
        raise ValueError(f"{name} is not initialised yet: run the model once before injecting into it")
    if tensor.is_meta:
        raise ValueError(f"{name} is on the meta device and has no storage to hit")
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = tensor.dtype if tensor.is_quantized else tensor.layout
        raise ValueError(f"{name} is {kind}; only plain dense tensors can be hit")
    if tensor.numel() and address(tensor) is None:
        raise ValueError(f"{name} is a {type(tensor).__name__}, which has no memory of its own to hit")
    if not hittable(tensor):
        raise ValueError(f"{name} is {tensor.dtype}, which has no bit positions to hit")
    try:
        plain(tensor.dtype)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


@dataclass(frozen=True)
class TargetTensor:
    """One targeted tensor.

    Attributes:
        name: in the model.
        component: that it belongs to.
        shape: in words.
        format: of its words.
        rows: int64 ascending, which rows (of the first dimension) are targeted; None: all.
        stored: the tensor as it lies in its model's memory; None where a space is not of a model at hand.
    """

    name: str
    component: str
    shape: tuple[int, ...]
    format: Format
    rows: np.ndarray | None = field(default=None, compare=False)
    stored: Stored | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, name: str, component: str, dtype: torch.dtype, shape: tuple[int, ...]) -> "TargetTensor":
        """A tensor of plain numbers, all rows of it."""
        return cls(name, component, tuple(shape), plain(dtype))

    @property
    def memory(self) -> torch.Tensor | None:
        """The tensor itself."""
        return None if self.stored is None else self.stored.tensor

    @property
    def size(self) -> int:
        """Words of the whole tensor."""
        return prod(self.shape)

    @property
    def row_words(self) -> int:
        """Words of one row."""
        return prod(self.shape[1:])

    @property
    def targeted(self) -> int:
        """Words in the targeted rows."""
        return self.size if self.rows is None else len(self.rows) * self.row_words


class Region:
    """The eligible bits of one tensor. Its words come in units of the format's period (one word, or a quantized row).

    Attributes:
        masks: uint64 [period], the eligible bits of the words of one unit.

    Args:
        tensor: which.
        bits: eligible bits by number or field; None: all but padding.

    Raises:
        ValueError: a bit number that the format does not have.
    """

    def __init__(self, tensor: TargetTensor, bits: tuple[int | str, ...] | None) -> None:
        self.tensor = tensor
        self._period = tensor.format.period
        layout = _layout(tensor.format, bits)
        self.masks, self._word, self._bit, self._live, self._counts = layout
        self._units = tensor.targeted // self._period
        self._whole = self._period == 1 and len(self._bit) == tensor.format.width and tensor.rows is None
        self.bits = self._units * len(self._bit)
        self.words = self._units * len(self._live)

    @property
    def everything(self) -> bool:
        """Whether all bits but padding are eligible."""
        return self.masks is _layout(self.tensor.format, None).masks or self._whole

    def locate(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Flat word index and bit number of eligible bits [n], by their number in this region."""
        if self._whole:
            # All bits of a word: their number is a power of two, and shifting is several times faster than dividing.
            width = len(self._bit)
            return position >> (width.bit_length() - 1), position & (width - 1)
        unit = position // len(self._bit)
        which = position - unit * len(self._bit)
        return self._start(unit) + self._word[which], self._bit[which]

    def locate_word(self, position: np.ndarray) -> np.ndarray:
        """Flat word index of the n-th words that have an eligible bit."""
        if len(self._live) == 1 and self._period == 1:
            return self._start(position)
        unit = position // len(self._live)
        return self._start(unit) + self._live[position - unit * len(self._live)]

    def run_end(self, position: np.ndarray) -> np.ndarray:
        """Where the run of neighbouring rows ends that an eligible bit lies in (the tensor's end, when all are targeted)."""
        if self.tensor.rows is None:
            return np.full_like(position, self.bits)
        row_bits = self.bits // len(self.tensor.rows)
        ends = self._run_ends
        return ends[np.searchsorted(ends, position // row_bits, side="right")] * row_bits

    def runs(self) -> np.ndarray:
        """Eligible bits in each run of neighbouring rows."""
        if self.tensor.rows is None:
            return np.array([self.bits])
        return np.diff(self._run_ends, prepend=0) * (self.bits // len(self.tensor.rows))

    @cached_property
    def _run_ends(self) -> np.ndarray:
        """Numbers (among the targeted rows) of the first rows behind each run."""
        rows = self.tensor.rows
        return np.append(np.flatnonzero(np.diff(rows) != 1) + 1, len(rows))

    def eligible(self, word: np.ndarray) -> np.ndarray:
        """Masks uint64 [n] of the eligible bits of words given by flat index; 0 for words that are not targeted."""
        masks = self.masks[word % self._period] if self._period > 1 else np.full(len(word), self.masks[0])
        rows = self.tensor.rows
        if rows is not None:
            row = word // self.tensor.row_words
            place = np.minimum(np.searchsorted(rows, row), len(rows) - 1)
            masks = np.where(rows[place] == row, masks, np.uint64(0))
        return masks

    def count(self, word: np.ndarray) -> np.ndarray:
        """How many eligible bits words have (int64 [n]), as if all rows were targeted."""
        return self._counts[word % self._period]

    def bit_at(self, word: np.ndarray, number: np.ndarray) -> np.ndarray:
        """The bit (0 the lowest) that is eligible bit `number` (0 .. count - 1) of each word."""
        first = np.cumsum(self._counts) - self._counts
        return self._bit[first[word % self._period] + number]

    @property
    def fewest(self) -> int:
        """Eligible bits of the word that has the fewest (of those that have any)."""
        return int(self._counts[self._live].min(initial=self.tensor.format.width))

    def expected_flips(self, bits_per_word: int | None) -> float:
        """Expected flips when every word has this many distinct eligible bits flipped (none, if it has fewer), or each of
        them with probability 1/2 (None)."""
        if bits_per_word is None:
            return self.bits / 2
        return float(self._units * bits_per_word * (self._counts >= bits_per_word).sum())

    def subset(self, word: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """For each word a uniform set of its eligible bits, as masks uint64 [n], by Floyd's algorithm (Bentley and Floyd, CACM
        30, 1987): of b eligible bits, numbered from the lowest, step j = 0 .. k - 1 takes number
        floor(raw_j * (b - k + j + 1) / 2**64), or number b - k + j if that was taken.

        Args:
            word: int64 [n], flat indices; each has at least k eligible bits.
            raw: uint64 [n, k], a raw word for each bit to draw.
        """
        count = self.count(word)
        chosen = np.zeros(len(word), np.uint64)  # by number among the eligible bits
        drawn = np.zeros(len(word), np.uint64)  # by bit
        for step in range(raw.shape[1]):
            last = count - raw.shape[1] + step
            number = scaled(raw[:, step], last + 1)
            taken = (chosen >> number) & np.uint64(1) != 0
            number = np.where(taken, last.astype(np.uint64), number)
            chosen |= np.uint64(1) << number
            drawn |= np.uint64(1) << self.bit_at(word, number.astype(np.int64)).astype(np.uint64)
        return drawn

    def storage_rows(self, row_bytes: int) -> int:
        """How many rows of `row_bytes` the tensor's words fill; of a tensor of which only some rows are targeted, how many of
        those storage rows hold some of them."""
        if self.tensor.rows is None:
            return -(-self.tensor.size * self.tensor.format.dtype.itemsize // row_bytes)
        return len(self._touched(row_bytes))

    def locate_storage_row(self, position: np.ndarray, row_bytes: int) -> np.ndarray:
        """Number in the tensor of the n-th of these storage rows."""
        return position if self.tensor.rows is None else self._touched(row_bytes)[position]

    def _touched(self, row_bytes: int) -> np.ndarray:
        """Which storage rows hold words of the targeted rows: int64, ascending."""
        length = self.tensor.row_words * self.tensor.format.dtype.itemsize
        first, last = self.tensor.rows * length // row_bytes, ((self.tensor.rows + 1) * length - 1) // row_bytes
        every = first[:, None] + np.arange(int((last - first).max(initial=0)) + 1)
        return np.unique(every[every <= last[:, None]])

    def _start(self, unit: np.ndarray) -> np.ndarray:
        """Flat index of the first word of each unit."""
        rows = self.tensor.rows
        if rows is None:
            return unit * self._period if self._period > 1 else unit
        per_row = self.tensor.row_words // self._period
        row = unit // per_row
        return rows[row] * self.tensor.row_words + (unit - row * per_row) * self._period


class _Layout(NamedTuple):
    """Of one unit of a format: masks uint64 [period] of the eligible bits; of each of these its word and its bit; the words
    that have any; how many each word has."""

    masks: np.ndarray
    word: np.ndarray
    bit: np.ndarray
    live: np.ndarray
    counts: np.ndarray


@lru_cache(maxsize=256)
def _layout(form: Format, bits: tuple[int | str, ...] | None) -> _Layout:
    masks = form.eligible(bits)
    held = (masks[:, None] >> np.arange(form.width, dtype=np.uint64)) & np.uint64(1)
    return _Layout(masks, *np.nonzero(held), np.flatnonzero(masks), held.sum(axis=1).astype(np.int64))


class AddressSpace:
    """The eligible bits of some tensors.

    Args:
        tensors: in any order.
        bits: eligible bits, by number (0 the lowest) or by field of the format (`sign`, `exponent`, `mantissa`, `value`,
            `scale`, `bias`, `padding`); None: all but padding. Numbers must exist in every targeted format, fields in one.

    Raises:
        ValueError: a bit number that a tensor's words do not have, or fields that none of the tensors has.
    """

    def __init__(self, tensors: Iterable[TargetTensor], bits: Iterable[int | str] | None = None) -> None:
        self.tensors = tuple(sorted((t for t in tensors if t.targeted), key=lambda tensor: tensor.name))
        chosen = bit_set(bits)
        self.regions = regions(self.tensors, chosen)
        self._ends = np.cumsum([region.bits for region in self.regions], dtype=np.int64)
        self._word_ends = np.cumsum([region.words for region in self.regions], dtype=np.int64)
        if self.tensors and not self.bits:
            formats = sorted({tensor.format.name for tensor in self.tensors})
            raise ValueError(f"bits {list(chosen or ())} exist in none of the targeted formats: {', '.join(formats)}")

    def __repr__(self) -> str:
        names = ", ".join(tensor.name for tensor in self.tensors[:3]) + (", ..." if len(self.tensors) > 3 else "")
        return f"<AddressSpace: {self.bits:,} bits in {self.words:,} words of {len(self.tensors)} tensors: {names}>"

    @property
    def bits(self) -> int:
        """How many eligible bits there are."""
        return int(self._ends[-1]) if self.regions else 0

    @property
    def words(self) -> int:
        """How many words have an eligible bit."""
        return int(self._word_ends[-1]) if self.regions else 0

    def rows(self, row_bytes: int) -> int:
        """How many storage rows of `row_bytes` there are; each tensor begins with a row of its own.

        Raises:
            ValueError: fewer than 1 byte.
        """
        if row_bytes < 1:
            raise ValueError(f"row_bytes is {row_bytes!r}; it must be 1 or more")
        return sum(region.storage_rows(row_bytes) for region in self.regions)

    def only(self, bits: Iterable[int | str] | None) -> "AddressSpace":
        """The same words with these bits eligible (None: all but padding)."""
        if bits is None and all(region.everything for region in self.regions):
            return self
        return AddressSpace(self.tensors, bits)

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tensor index (int32), flat word index (int64) and bit number (int64) of ascending positions [n] of bits."""
        tensor, word, bit = np.empty(len(positions), np.int32), np.empty_like(positions), np.empty_like(positions)
        for index, here, local in _parts(positions, self._ends):
            tensor[here] = index
            word[here], bit[here] = self.regions[index].locate(local)
        return tensor, word, bit

    def locate_words(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tensor index (int32) and flat word index (int64) of ascending positions [n] of words."""
        tensor, word = np.empty(len(positions), np.int32), np.empty_like(positions)
        for index, here, local in _parts(positions, self._word_ends):
            tensor[here], word[here] = index, self.regions[index].locate_word(local)
        return tensor, word

    def locate_rows(self, positions: np.ndarray, row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Tensor index (int32) and storage row in that tensor (int64) of ascending positions [n] of storage rows."""
        ends = np.cumsum([region.storage_rows(row_bytes) for region in self.regions], dtype=np.int64)
        tensor, row = np.empty(len(positions), np.int32), np.empty_like(positions)
        for index, here, local in _parts(positions, ends):
            tensor[here], row[here] = index, self.regions[index].locate_storage_row(local, row_bytes)
        return tensor, row

    def extend(self, positions: np.ndarray, length: int) -> np.ndarray:
        """Positions of bits and of the `length` - 1 behind each (ascending, distinct), cut where their tensor, or their run
        of neighbouring rows, ends."""
        parts = [positions[:0]]
        for index, _, start in _parts(positions, self._ends):
            region = self.regions[index]
            end = region.run_end(start)
            end = np.where(end - start > length, start + length, end)
            end[:-1] = np.minimum(end[:-1], start[1:])  # where the next one begins, it goes on
            sizes = end - start
            within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            parts.append(np.repeat(start, sizes) + within + (self._ends[index] - region.bits))
        return np.concatenate(parts)

    def read(self, tensor: np.ndarray, word: np.ndarray) -> np.ndarray:
        """The present words, uint64 [n], at tensor indices and flat word indices [n].

        Raises:
            ValueError: the space was made without a model.
        """
        found = np.empty(len(word), np.uint64)
        for index in np.unique(tensor):
            memory = self.tensors[index].memory
            if memory is None:
                raise ValueError(f"{self.tensors[index].name}: an address space without a model has no words to read")
            here = tensor == index
            found[here] = Words(memory).read_uint64(word[here])
        return found

    def by_tensor(self, tensor: np.ndarray) -> Iterator[tuple[Region, np.ndarray]]:
        """For each tensor index in an array [n]: its region, and where it stands (boolean [n])."""
        for index in np.unique(tensor):
            yield self.regions[index], tensor == index


def regions(tensors: Iterable[TargetTensor], bits: tuple[int | str, ...] | None) -> list[Region]:
    """The eligible bits of each tensor.

    Raises:
        ValueError: a bit number that a tensor's words do not have.
    """
    found = []
    for tensor in tensors:
        try:
            found.append(Region(tensor, bits))
        except ValueError as error:
            raise ValueError(f"{tensor.name}: {error}") from None
    return found


def union_bits(spaces: Iterable[AddressSpace]) -> int:
    """How many bits are eligible in one or more of some spaces of one model; each counts once."""
    by_name: dict[str, list[Region]] = {}
    for region in (region for space in spaces for region in space.regions):
        by_name.setdefault(region.tensor.name, []).append(region)
    total = 0
    for found in by_name.values():
        tensor = found[0].tensor
        if len(found) == 1 or all(region.tensor.rows is None for region in found):  # all have the same rows
            masks = np.bitwise_or.reduce([region.masks for region in found])
            total += int(np.bitwise_count(masks).sum()) * (tensor.targeted // len(masks))
            continue
        inside = np.zeros((tensor.shape[0], len(found)), bool)
        for number, region in enumerate(found):
            inside[slice(None) if region.tensor.rows is None else region.tensor.rows, number] = True
        for combination, rows in zip(*np.unique(inside, axis=0, return_counts=True), strict=True):
            if chosen := [region.masks for region, there in zip(found, combination, strict=True) if there]:
                masks = np.bitwise_or.reduce(chosen)
                total += int(np.bitwise_count(masks).sum()) * (tensor.row_words // len(masks)) * int(rows)
    return total


def _parts(positions: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, slice, np.ndarray]]:
    """Ascending positions cut by tensor: tensor index, which of the positions, and these counted from its first one."""
    bounds = np.searchsorted(positions, ends, side="left")
    start, first = 0, 0
    for index, (bound, end) in enumerate(zip(bounds.tolist(), ends.tolist(), strict=True)):
        if bound > start:
            here = slice(start, bound)
            yield index, here, positions[here] - first
        start, first = bound, end
