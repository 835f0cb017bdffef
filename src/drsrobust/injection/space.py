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

from drsrobust.tensors import GROUPS, component_of, named_tensors


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
        bits: eligible bit numbers, 0 the lowest; None: all.

    Raises:
        ValueError: a bit number that a tensor's words do not have.
    """

    def __init__(self, tensors: Iterable[TargetTensor], bits: Iterable[int] | None = None) -> None:
        self.tensors = tuple(sorted((t for t in tensors if t.words), key=lambda tensor: tensor.name))
        chosen = None if bits is None else sorted(set(bits))
        for tensor in self.tensors:
            for bit in chosen or ():
                if not 0 <= bit < tensor.width:
                    raise ValueError(
                        f"bit {bit} does not exist in {tensor.name} ({tensor.dtype}); its words have bits 0 to "
                        f"{tensor.width - 1}"
                    )
        self._bits = [np.arange(t.width) if chosen is None else np.array(chosen, np.int64) for t in self.tensors]
        sizes = [tensor.words * len(eligible) for tensor, eligible in zip(self.tensors, self._bits, strict=True)]
        self._ends = np.cumsum(sizes, dtype=np.int64)

    @property
    def bits(self) -> int:
        """How many eligible bits there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def words(self) -> int:
        """How many words there are."""
        return sum(tensor.words for tensor in self.tensors)

    def only(self, bits: Iterable[int] | None) -> "AddressSpace":
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
            word[here] = local // len(eligible)
            bit[here] = eligible[local - word[here] * len(eligible)]
        return tensor, word, bit


def resolve(model: nn.Module, target: str = "all", components: Mapping[str, str] | None = None) -> AddressSpace:
    """The address space of a target in a model.

    Args:
        model: any module.
        target: `"all"` (parameters), `"everything"` (and buffers), a component or group (its parameters), else a glob on
            names of parameters and buffers.
        components: overrides of which tensor belongs to which component, as in `components()`.

    Raises:
        ValueError: a target that matches nothing (with the names there are), or a tensor that cannot be hit: complex,
            bool, or without storage (on the meta device).
    """
    if not isinstance(target, str):
        raise ValueError(f"target is {target!r}; it must be 'all', 'everything', a component or a glob on tensor names")
    home = component_of(model, components)
    parameters = {name for name, _ in named_tensors(model, buffers=False)}
    tensors = dict(named_tensors(model, buffers=True))
    wanted = set(GROUPS.get(target, (target,)))
    if target in ("all", "everything"):
        names = parameters if target == "all" else set(tensors)
    elif wanted & set(home.values()):
        names = {name for name in parameters if home[name] in wanted}
    else:
        names = {name for name in tensors if fnmatchcase(name, target)}
    chosen = [TargetTensor(n, home[n], tensors[n].dtype, tuple(tensors[n].shape)) for n in names]
    space = AddressSpace(chosen)
    if not space.words:
        known = sorted(
            set(home.values()) | {group for group, parts in GROUPS.items() if set(parts) & set(home.values())}
        )
        raise ValueError(
            f"target {target!r} matches no parameter with any element; components: {', '.join(known)}; tensors: "
            f"{', '.join(sorted(tensors))}"
        )
    for tensor in space.tensors:
        if tensor.dtype.is_complex or tensor.dtype == torch.bool:
            raise ValueError(f"{tensor.name} is {tensor.dtype}, which has no bit positions to hit")
        if tensors[tensor.name].is_meta:
            raise ValueError(f"{tensor.name} is on the meta device and has no storage to hit")
    return space
