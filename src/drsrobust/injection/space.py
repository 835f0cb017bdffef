"""What a target resolves to: the address space of all bits that errors may hit.

The targeted tensors stand in plain string order of their names; in a tensor, words in row-major order; in a word, its
eligible bits from the lowest (0) to the highest. Numbered on in this order, they are positions 0 .. bits - 1.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from drsrobust.injection.formats import bit_numbers
from drsrobust.tensors import GROUPS, address, component_of, named_tensors, span


@dataclass(frozen=True)
class TargetTensor:
    """One targeted tensor."""

    name: str
    component: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def words(self) -> int:
        """How many numbers it holds."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def width(self) -> int:
        """Bits of one number."""
        return 8 * self.dtype.itemsize


class AddressSpace:
    """The eligible bits of some tensors.

    Args:
        tensors: in any order.
        bits: eligible bits, by number (0 the lowest) or by field of the format (`sign`, `exponent`, `mantissa`, `value`);
            None: all.

    Raises:
        ValueError: a bit number that a tensor's words do not have, or fields that none of the tensors has.
    """

    def __init__(self, tensors: Iterable[TargetTensor], bits: Iterable[int | str] | None = None) -> None:
        self.tensors = tuple(sorted((t for t in tensors if t.words), key=lambda tensor: tensor.name))
        chosen = None if bits is None else tuple(bits)
        self._bits = []
        for tensor in self.tensors:
            try:
                self._bits.append(bit_numbers(tensor.dtype, chosen))
            except ValueError as error:
                raise ValueError(f"{tensor.name}: {error}") from None
        sizes = [tensor.words * len(eligible) for tensor, eligible in zip(self.tensors, self._bits, strict=True)]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        if self.tensors and not self.bits:
            formats = sorted({str(tensor.dtype) for tensor in self.tensors})
            raise ValueError(f"bits {list(chosen)} exist in none of the targeted formats: {', '.join(formats)}")

    @property
    def bits(self) -> int:
        """How many eligible bits there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def words(self) -> int:
        """How many words there are."""
        return sum(tensor.words for tensor in self.tensors)

    def only(self, bits: Iterable[int | str] | None) -> "AddressSpace":
        """The same words with these bits eligible (None: all)."""
        return AddressSpace(self.tensors, bits)

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tensor index (int32), flat word index (int64) and bit number (int64) of ascending positions [n]."""
        bounds = np.searchsorted(positions, self._ends, side="left")  # where each tensor's positions end
        tensor = np.repeat(np.arange(len(bounds), dtype=np.int32), np.diff(bounds, prepend=0))
        word, bit = np.empty_like(positions), np.empty_like(positions)
        for index in np.unique(tensor):
            here = slice(bounds[index - 1] if index else 0, bounds[index])
            eligible = self._bits[index]
            local = positions[here] - (self._ends[index] - self.tensors[index].words * len(eligible))
            if len(eligible) == self.tensors[index].width:
                # All bits of a word: their number is a power of two, and shifting is several times faster than dividing.
                word[here], bit[here] = local >> (len(eligible).bit_length() - 1), local & (len(eligible) - 1)
            else:
                word[here] = local // len(eligible)
                bit[here] = eligible[local - word[here] * len(eligible)]
        return tensor, word, bit


def resolve(model: nn.Module, target: str = "all", components: Mapping[str, str] | None = None) -> AddressSpace:
    """The address space of a target in a model.

    Args:
        model: any module.
        target: `"all"` (parameters), `"everything"` (and buffers), a component (its parameters; its buffers when it has
            no others), a group (`mlp`: the components whose names end in `_mlp`), else a glob on names of parameters
            and buffers.
        components: overrides of which tensor belongs to which component, as in `components()`.

    Raises:
        ValueError: a target that matches nothing (with the names there are); a tensor that cannot be hit (complex, bool,
            quantized, sparse, uninitialised, on the meta device, a wrapper); words that lie in the same memory.
    """
    if not isinstance(target, str):
        raise ValueError(f"target is {target!r}; it must be 'all', 'everything', a component or a glob on tensor names")
    home = component_of(model, components)
    tensors = dict(named_tensors(model, buffers=True))
    names = _matching(target, home, {name for name, _ in named_tensors(model, buffers=False)}, set(tensors))
    for name in sorted(names):
        _check(name, tensors[name])
    space = AddressSpace(TargetTensor(n, home[n], tensors[n].dtype, tuple(tensors[n].shape)) for n in names)
    if not space.words:
        groups = {group for group, end in GROUPS.items() if any(name.endswith(end) for name in home.values())}
        raise ValueError(
            f"target {target!r} matches nothing with any element; components: "
            f"{', '.join(sorted(set(home.values()) | groups))}; tensors: {', '.join(sorted(tensors))}"
        )
    _refuse_overlaps(space, tensors)
    return space


def _matching(target: str, home: Mapping[str, str], parameters: set[str], tensors: set[str]) -> set[str]:
    """Names of the tensors that a target means."""
    if target in ("all", "everything"):
        return parameters if target == "all" else tensors
    if target in home.values():
        own = {name for name in tensors if home[name] == target}
        return own & parameters or own  # a component of buffers alone is its buffers
    if target in GROUPS and (own := {name for name in parameters if home[name].endswith(GROUPS[target])}):
        return own
    return {name for name in tensors if fnmatchcase(name, target)}


def _check(name: str, tensor: torch.Tensor) -> None:
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
    if tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"{name} is {tensor.dtype}, which has no bit positions to hit")


def _refuse_overlaps(space: AddressSpace, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError when words of one tensor, or of two, lie in the same memory: they would count twice."""
    spans = sorted((*span(tensors[tensor.name]), tensor.name) for tensor in space.tensors)
    for name in (name for *_, name in spans if not tensors[name].is_contiguous()):
        if len(np.unique(_places(tensors[name]))) < tensors[name].numel():
            raise ValueError(f"{name} repeats words of its memory (it was expanded); it cannot be hit word by word")
    reach, owner = 0, ""
    for start, end, name in spans:
        if start < reach and len(np.intersect1d(_places(tensors[owner]), _places(tensors[name]))):
            raise ValueError(f"{owner} and {name} share a part of their memory; target one of them by its name")
        if end > reach:
            reach, owner = end, name


def _places(tensor: torch.Tensor) -> np.ndarray:
    """The address of each word, int64."""
    place = np.full(1, tensor.data_ptr(), np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        place = (place[:, None] + tensor.element_size() * stride * np.arange(size)).ravel()
    return place
