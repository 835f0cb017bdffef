"""A partition of a model's bits by component, number format and class of bits, for trials of single errors."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn

from drsrobust.extend import bit_classes
from drsrobust.injection import AddressSpace, Dtype, Target, as_target

if TYPE_CHECKING:
    import pandas as pd


def bit_partition(
    model: nn.Module, target: str | Target = "all", components: Mapping[str, str] | None = None
) -> "pd.DataFrame":
    """Components times number formats times classes of bits: a partition of the bits that errors may hit.

    A trial of a part is `FixedCount(1, bits=bits)` in its `target`.

    Args:
        model: any module.
        target: what may be hit.
        components: overrides, as in `components()`.

    Returns:
        one row per part: `component`, `format` (`float32`, `int8 rows`), `bit_class`, `bits` (a tuple), `target` (string
        or Target), `eligible` (bits), `weight` (their share of all).

    Raises:
        ValueError: as `drsrobust.injection.resolve`; a target that takes chosen rows of several components.

    Example:
        >>> from torch import nn
        >>> model = nn.ModuleDict({"bottom": nn.Linear(4, 8), "top": nn.Linear(8, 1)})
        >>> bit_partition(model)[["component", "bit_class", "eligible", "weight"]].head(3)
          component      bit_class  eligible    weight
        0    bottom           sign        40  0.025510
        1    bottom   exponent_top        40  0.025510
        2    bottom  exponent_high       120  0.076531
    """
    import pandas as pd

    space = as_target(target).resolve(model, components)
    parts: dict[tuple[str, str], list] = {}
    for tensor in space.tensors:
        parts.setdefault((tensor.component, tensor.format.name.partition(":")[0]), []).append(tensor)
    rows = []
    for (component, kind), tensors in sorted(parts.items()):
        part = _target(model, target, component, tensors, components)
        for name, bits in bit_classes(tensors[0].format).items():
            eligible = AddressSpace(tensors, bits).bits
            rows.append({"component": component, "format": kind, "bit_class": name, "bits": bits, "target": part})
            rows[-1] |= {"eligible": eligible, "weight": eligible / space.bits}
    return pd.DataFrame(rows)


def _target(
    model: nn.Module,
    space: str | Target,
    component: str,
    tensors: list,
    components: Mapping[str, str] | None,
) -> str | Target:
    """The simplest target that resolves to these tensors of a component, and these rows of them."""
    dtype = tensors[0].format.dtype
    candidates: list[str | Target] = [component, space, Dtype(dtype, component), Dtype(dtype, space)]
    if all(tensor.rows is None for tensor in tensors):
        named: str | Target = tensors[0].name
        for tensor in tensors[1:]:
            named = as_target(named) | tensor.name
        candidates.append(named)
    names = _names(tensors)
    for candidate in candidates:
        try:
            if _names(as_target(candidate).resolve(model, components).tensors) == names:
                return candidate
        except ValueError:  # another component of this group holds something that cannot be hit
            continue
    raise ValueError(f"{space}: no target selects only its rows in {component}; pass rows of one component at a time")


def _names(tensors: Sequence) -> set:
    return {(tensor.name, None if tensor.rows is None else tensor.rows.tobytes()) for tensor in tensors}
