"""`inject`: draw errors and have them in the model for the length of a `with` block."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from torch import nn

from drsrobust.injection.address_space import AddressSpace, TargetTensor, stored, union_bits
from drsrobust.injection.apply import OPEN, Application
from drsrobust.injection.error_clock import check_seed
from drsrobust.injection.error_map import ErrorMap, Log, union
from drsrobust.injection.error_models import ErrorModel, order, parts_of
from drsrobust.injection.targets import Target, as_target
from drsrobust.injection.transient import Draw, Hooks, Transient
from drsrobust.introspection.tensors import span, unwrapped

Pair = tuple[ErrorModel, str | Target | Transient]


class Mitigation(Protocol):
    """What `inject` uses of a mitigation. `drsrobust.mitigation.Mitigation` has both sides."""

    def screen(self, error_map: ErrorMap, model: nn.Module, *, seed: int) -> ErrorMap: ...

    def attach(self, model: nn.Module) -> AbstractContextManager[Any]: ...


class Injection:
    """Errors drawn for a model, to be put in and taken out. What `inject` does in a `with`, for those who must be safe from
    interrupts at any point: `try: injection.apply(); ... finally: injection.undo()`.

    Args:
        model: any module.
        pairs: (error model, target) each; for a target at rest its address space serves too.
        seed: decides everything that is drawn.
        components: overrides of which tensor belongs to which component.

    Attributes:
        error_map: what was drawn; what transient errors hit comes into its `log` later.

    Raises:
        TypeError, ValueError: as `inject`.
    """

    def __init__(
        self,
        model: nn.Module,
        pairs: Sequence[tuple[ErrorModel, str | Target | Transient | AddressSpace]],
        *,
        seed: int,
        components: Mapping[str, str] | None = None,
    ) -> None:
        if not pairs:
            raise ValueError("no (error model, target) pair was given")
        ready = []
        for error_model, target in pairs:
            if not isinstance(error_model, ErrorModel):
                raise TypeError(f"error_model is {error_model!r}; it must be an error model, as BitFlip(ber=1e-6)")
            if isinstance(target, AddressSpace):
                _check_space(target, model)
            elif not isinstance(target, Transient):
                target = as_target(target).resolve(model, components)
            ready.append((error_model, target))
        if len(ready) > 1:  # equal models draw from streams of their own, and the order of the pairs does not matter
            ready.sort(key=lambda pair: (pair[0].canonical(), _name(pair[1]), *order(pair[0])))
        several = sum(isinstance(target, Transient) for _, target in ready)
        log = Log(several) if several else None
        maps, spaces, memory, seen = [], [], {}, Counter()
        self._open: list[Application | Hooks] = []
        for error_model, target in ready:
            before = Counter(seen)
            seen.update(parts_of(error_model))
            if isinstance(target, Transient):
                check_seed(seed)
                self._open.append(Hooks(model, target, Draw(error_model, int(seed), before, log)))
                continue
            maps.append(error_model.sample(target, seed=seed, before=before))
            spaces.append(error_model.eligible(target))
            memory |= {tensor.name: tensor for tensor in target.tensors}
        if maps:
            joined = maps[0]
            if len(maps) > 1:
                joined = replace(union(maps), eligible_bits=union_bits(spaces))
            self.error_map = replace(joined, log=log)
            here = {name: tensor.stored for name, tensor in memory.items()}
            self._open.insert(0, Application(self.error_map, here, model))
        else:
            nothing = (np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint64))
            text = " + ".join(error_model.label for error_model, _ in ready)
            self.error_map = ErrorMap(*nothing, (), int(seed), text, 0, None, log=log)

    def replaced(self, error_map: ErrorMap) -> "Injection":
        """The same with another map in memory, as what protected storage has left of it; hooks stay."""
        other = copy(self)
        other.error_map = error_map
        other._open = [
            Application(error_map, one.memory, one.model) if isinstance(one, Application) else one for one in self._open
        ]
        return other

    def apply(self) -> None:
        """Puts the errors into memory and the hooks on. After an undo it may be done again: the same errors.

        Raises:
            RuntimeError: it was done already.
        """
        for one in self._open:
            one.apply()

    def __repr__(self) -> str:
        state = "applied" if any(one in OPEN for one in self._open) else "not applied"
        return f"<Injection, {state}: {self.error_map!r}>"

    def undo(self) -> None:
        """Takes the hooks off and writes the original words back; nothing when that was done before.

        Raises:
            RuntimeError: as `Application.undo`; when the order is wrong, before anything is undone.
        """
        for one in self._open:
            if isinstance(one, Application):
                one.check_order()
        for one in reversed(self._open):
            one.undo()

    def unreached(self) -> list[str]:
        """Places of transient targets that were never called, so that nothing could be hit there."""
        return [place for one in self._open if isinstance(one, Hooks) for place in one.unreached()]


@contextmanager
def inject(
    model: nn.Module,
    error_model: ErrorModel | Sequence[Pair],
    target: str | Target | Transient = "all",
    *,
    seed: int,
    components: Mapping[str, str] | None = None,
    mitigation: Mitigation | None = None,
) -> Iterator[ErrorMap]:
    """Errors in a model inside a `with` block; afterwards the model is bit for bit what it was, also when the block
    raises or is interrupted (at any point: `restore(model)` undoes what a rare interrupt between two instructions left).

    Args:
        model: any module.
        error_model: as `BitFlip(ber=1e-6)`; or several (error model, target) pairs at once.
        target: what may be hit: `"all"` (parameters and quantized tables), `"everything"` (and buffers), a component, or a glob
            on names; a `Target`, as `Rows(...)`, or a union of them with `|`; or, while the model runs, `Inputs(...)`,
            `Activations(...)`, `Gradients(...)`.
        seed: decides everything that is drawn.
        components: overrides of which tensor belongs to which component.
        mitigation: protects the model meanwhile: its side in memory leaves fewer errors, its side in the computation is on.

    Yields:
        the error map that was applied; with a mitigation, what that left of the one in `.drawn`. Of errors while the
        model runs, its `log` tells what was hit at each call.

    Raises:
        TypeError: not an error model.
        ValueError: a target that matches nothing, a bit that the targeted words do not have, a seed out of range.

    Example:
        >>> import torch
        >>> from drsrobust.injection import BitFlip
        >>> layer = torch.nn.Linear(64, 64)
        >>> with inject(layer, BitFlip(ber=1e-3), seed=1) as error_map:
        ...     print(len(error_map), "of", layer.weight.numel() + layer.bias.numel(), "words are wrong")
        135 of 4160 words are wrong
    """
    pairs = [(error_model, target)] if isinstance(error_model, ErrorModel) else _pairs(error_model, target)
    injection = Injection(model, pairs, seed=seed, components=components)
    if mitigation is not None:
        injection = injection.replaced(mitigation.screen(injection.error_map, model, seed=injection.error_map.seed))
    with nullcontext() if mitigation is None else mitigation.attach(model):
        try:
            injection.apply()
            yield injection.error_map
            if unreached := injection.unreached():
                warnings.warn(
                    f"nothing was hit at {', '.join(unreached)}: never called while errors were to be there (not used by this "
                    "forward, called as .forward(), compiled before, or no backward pass)",
                    stacklevel=3,
                )
        finally:
            injection.undo()


def _pairs(given: object, target: object) -> list[Pair]:
    if not isinstance(given, Sequence) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in given):
        raise TypeError(
            f"error_model is {given!r}; it must be an error model, as BitFlip(ber=1e-6), or a list of (error model, target)"
        )
    if target != "all":
        raise ValueError(f"with pairs each target stands in its pair, and target= has no meaning; it is {target!r}")
    return list(given)


def _check_space(space: AddressSpace, model: nn.Module) -> None:
    """Raises ValueError for an address space whose memory is not the model's (any more)."""
    plain = unwrapped(model)
    doubtful = [tensor for tensor in space.tensors if not _still_there(plain, tensor)]
    now = stored(model) if doubtful else {}
    for tensor in doubtful:
        here = now.get(tensor.name)
        if here is None or tensor.memory is None or span(tensor.memory) != span(here.tensor):
            raise ValueError(
                f"{tensor.name}: the address space is of another model, or of a tensor that was replaced since it was resolved"
            )


def _still_there(model: nn.Module, tensor: TargetTensor) -> bool:
    """Whether the tensor of that name is a parameter or buffer of the model, in the same memory: nearly always, and known
    without listing all of them."""
    *path, name = tensor.name.split(".")
    module: nn.Module | None = model
    for part in path:
        module = None if module is None else module._modules.get(part)
    if module is None or tensor.memory is None:
        return False
    here = module._parameters.get(name)
    here = module._buffers.get(name) if here is None else here
    return here is not None and span(here) == span(tensor.memory)


def _name(target: Transient | AddressSpace) -> str:
    if isinstance(target, Transient):
        return str(target)
    rows = ("" if tensor.rows is None else hashlib.sha256(tensor.rows).hexdigest() for tensor in target.tensors)
    return ",".join(f"{tensor.name}:{chosen}" for tensor, chosen in zip(target.tensors, rows, strict=True))
