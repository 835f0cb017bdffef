"""`inject`: draws errors and applies them for the length of a `with` block; `Injection` is the same in single steps."""

import copy
import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from torch import nn

from drsrobust._arguments import check_instance, check_items, check_seed, wrong
from drsrobust.injection.address_space import AddressSpace, TargetTensor, union_bits
from drsrobust.injection.apply import OPEN, AppliedMap, Change
from drsrobust.injection.error_map import ErrorMap, union
from drsrobust.injection.error_models import ErrorModel, drawing_order, equal_before
from drsrobust.injection.stored import Stored, stored
from drsrobust.injection.targets import TargetLike, as_target
from drsrobust.injection.transient import Transient
from drsrobust.introspection.tensors import span, unwrapped

InjectionTarget = TargetLike | Transient | AddressSpace
Pair = tuple[ErrorModel, InjectionTarget]


class Protection(Protocol):
    """The part of `drsrobust.mitigation.Mitigation` that `inject` uses."""

    def screen(self, error_map: ErrorMap, space: AddressSpace, *, seed: int) -> Any: ...

    def attach(self, model: nn.Module) -> AbstractContextManager[Any]: ...


@contextmanager
def inject(
    model: nn.Module,
    error_model: ErrorModel | Sequence[Pair],
    target: InjectionTarget = "all",
    *,
    seed: int,
    components: Mapping[str, str] | None = None,
    mitigation: Protection | None = None,
) -> Iterator[ErrorMap]:
    """Errors in a model inside a `with` block; afterwards the model is bit for bit what it was, also if the block raises or is
    interrupted. (An interrupt while Python itself enters or leaves the block may leave errors as long as its exception is
    kept, as Jupyter keeps the last one; `restore(model)` undoes them.)

    Args:
        model: any module.
        error_model: as `BitFlip(ber=1e-6)`; or several (error model, target) pairs at once.
        target: what may be hit: `"all"` (parameters and quantized tables), `"everything"` (and buffers), a component, a module,
            or a glob on names; a `Target`, as `Rows(...)`; a union of them with `|`, or as a list; what `resolve` made of one,
            so that a loop looks it up once; or, while the model runs, `Inputs(...)`, `Activations(...)`, `Gradients(...)`.
        seed: decides everything that is drawn.
        components: overrides of which tensor belongs to which component.
        mitigation: protects the model inside the block: its memory side removes errors, its compute side is attached.

    Yields:
        the error map that was applied; with a mitigation, the errors that it leaves in memory (`mitigation.screen` says what it
        did). Its `log` holds the errors of each call while the model runs.

    Raises:
        TypeError: not an error model.
        ValueError: a target that matches nothing, a bit that the targeted words do not have, a seed out of range, or a model
            that is sharded over several ranks.

    Example:
        >>> import torch
        >>> from drsrobust.injection import BitFlip
        >>> layer = torch.nn.Linear(64, 64)
        >>> with inject(layer, BitFlip(ber=1e-3), seed=1) as error_map:
        ...     print(len(error_map), "of", layer.weight.numel() + layer.bias.numel(), "words are wrong")
        147 of 4160 words are wrong
    """
    pairs = [(error_model, target)] if isinstance(error_model, ErrorModel) else _checked_pairs(error_model, target)
    if mitigation is not None and (isinstance(mitigation, type) or not hasattr(mitigation, "screen")):
        raise wrong("mitigation", "a mitigation, as ECC(), or None", mitigation)
    injection = Injection(model, pairs, seed=seed, components=components)
    if mitigation is not None:
        screened = mitigation.screen(injection.error_map, injection.space, seed=injection.error_map.seed)
        injection = injection.replaced(screened if isinstance(screened, ErrorMap) else screened.remaining)
    with nullcontext() if mitigation is None else mitigation.attach(model):
        try:
            injection.apply()
            yield injection.error_map
            # Not in `finally`: after an exception sites may be unreached for that reason.
            if unreached := injection.unreached():
                warnings.warn(
                    f"no error was injected at {', '.join(unreached)}: not called inside the `with` block (not used by this "
                    "forward, called as .forward(), compiled before, or no backward pass)",
                    stacklevel=3,
                )
        finally:
            try:
                injection.undo()
            except KeyboardInterrupt:
                injection.undo()  # from wherever it was interrupted
                raise


def _checked_pairs(pairs: object, target: object) -> list[Pair]:
    right = "an error model, as BitFlip(ber=1e-6), or a list of (error model, target)"
    listed = check_items("error_model", pairs, right)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in listed):
        raise wrong("error_model", right, pairs)
    if target != "all":
        raise ValueError(f"pass targets in the pairs or by target=, not both; target is {target!r}")
    return listed


class Injection:
    """Errors drawn for a model, to be applied and undone: `inject` in single steps, for code that must be safe from interrupts
    at any point, as `try: injection.apply(); ... finally: injection.undo()`.

    Args:
        model: any module.
        pairs: (error model, target) each.
        seed: decides everything that is drawn.
        components: overrides of which tensor belongs to which component.

    Attributes:
        error_map: what was drawn; transient errors are added to its `log` later.
        space: the address space of what it may hit in memory.

    Raises:
        TypeError, ValueError: as `inject`.
    """

    def __init__(
        self, model: nn.Module, pairs: Sequence[Pair], *, seed: int, components: Mapping[str, str] | None = None
    ) -> None:
        right = "a list of (error model, target)"
        pairs = check_items("pairs", pairs, right)
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise wrong("pairs", right, pairs)
        if not pairs:
            raise ValueError("no (error model, target) pair was given")
        resolved = []
        for error_model, target in pairs:
            check_instance("error_model", error_model, ErrorModel, "an error model, as BitFlip(ber=1e-6)")
            if isinstance(target, AddressSpace):
                _check_space(target, model)
            elif not isinstance(target, Transient):
                target = as_target(target).resolve(model, components)
            resolved.append((error_model, target))
        if len(resolved) > 1:  # equal models draw from streams of their own, and the order of the pairs does not matter
            resolved.sort(key=lambda pair: (pair[0].canonical(), _identity(pair[1]), *drawing_order(pair[0])))
        while_running = [target for _, target in resolved if not target.in_memory]
        log = while_running[0].new_log(len(while_running)) if while_running else None
        maps: list[ErrorMap] = []
        changes: list[Change] = []
        in_memory: list[tuple[ErrorModel, AddressSpace]] = []
        memory: dict[str, Stored] = {}
        copies = equal_before([error_model for error_model, _ in resolved])
        for (error_model, target), copy_number in zip(resolved, copies, strict=True):
            if not target.in_memory:
                changes.append(target.change(model, error_model, check_seed(seed), copy_number, log))
                continue
            maps.append(error_model.sample(target, seed=seed, copy=copy_number))
            in_memory.append((error_model, target))
            for tensor in target.tensors:
                memory[tensor.name] = tensor.stored
        self._changes = changes
        self.space = in_memory[0][1] if len(in_memory) == 1 else _joined(space for _, space in in_memory)
        if maps:
            joined = maps[0]
            if len(maps) > 1:
                eligible = [error_model.eligible(space) for error_model, space in in_memory]
                joined = replace(union(maps), eligible_bits=union_bits(eligible))
            self.error_map = joined if log is None else replace(joined, log=log)
            self._changes = [AppliedMap(self.error_map, memory, model), *changes]
        else:
            nothing = (np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint64))
            text = " + ".join(error_model.label for error_model, _ in resolved)
            self.error_map = ErrorMap(*nothing, (), int(seed), text, 0, log=log)

    def replaced(self, error_map: ErrorMap) -> "Injection":
        """The same with another map in memory, as protected storage leaves it; hooks stay."""
        other = copy.copy(self)
        other.error_map = error_map
        other._changes = [
            AppliedMap(error_map, change.memory, change.model) if isinstance(change, AppliedMap) else change
            for change in self._changes
        ]
        return other

    def apply(self) -> None:
        """Writes the errors into memory and registers the hooks. After an undo it may run again, with the same errors.

        Raises:
            RuntimeError: it is applied already.
        """
        for change in self._changes:
            change.apply()

    def __repr__(self) -> str:
        state = "applied" if any(change in OPEN for change in self._changes) else "not applied"
        return f"<Injection, {state}: {self.error_map!r}>"

    def undo(self) -> None:
        """Removes the hooks and restores the original words; does nothing if that was done before.

        Raises:
            RuntimeError: as `AppliedMap.undo`; if the order is wrong, before anything is undone.
        """
        for change in self._changes:
            if isinstance(change, AppliedMap):
                change.check_order()
        for change in reversed(self._changes):
            change.undo()

    def unreached(self) -> list[str]:
        """Sites of transient targets that were never called, so that nothing could be hit there."""
        return [site for change in self._changes for site in change.unreached()]


def _joined(spaces: Iterable[AddressSpace]) -> AddressSpace:
    """The space of all words of some spaces of one model; empty without any."""
    tensors: dict[str, TargetTensor] = {}
    joined = AddressSpace(())
    for space in spaces:
        joined = space
        for tensor in space.tensors:
            other = tensors.setdefault(tensor.name, tensor)
            if other.rows is not None and other is not tensor:
                rows = None if tensor.rows is None else np.union1d(other.rows, tensor.rows)
                tensors[tensor.name] = replace(tensor, rows=rows)
    return AddressSpace(tensors.values()).like(joined)


def _check_space(space: AddressSpace, model: nn.Module) -> None:
    """Raises ValueError for an address space whose memory is not the model's (any more)."""
    # Looking at the tensors alone takes a tenth of listing the model, in every trial.
    plain = unwrapped(model)
    spread = any(tensor.stored is not None and tensor.stored.spread is not None for tensor in space.tensors)
    modules = set(map(id, plain.modules())) if spread else set()
    doubtful = [tensor for tensor in space.tensors if not _is_registered(plain, tensor, modules)]
    memory = stored(model) if doubtful else {}
    for tensor in doubtful:
        present = memory.get(tensor.name)
        if present is None or tensor.stored is None or not _same_memory(tensor.stored, present):
            raise ValueError(
                f"{tensor.name}: the address space is of another model, or of a tensor that was replaced since it was resolved"
            )


def _is_registered(model: nn.Module, tensor: TargetTensor, modules: set[int]) -> bool:
    """Whether the parameter or buffer of that name has the same memory: nearly always, and known without listing all. Of a
    spread one, whether its module is in `modules`, the `id` of each module."""
    if tensor.stored is not None and tensor.stored.spread is not None:
        return id(tensor.stored.spread.module) in modules
    *path, name = tensor.name.split(".")
    module = model
    for part in path:  # TorchScript's dictionaries have no `get`
        if part not in module._modules or (inner := module._modules[part]) is None:
            return False
        module = inner
    if tensor.stored is None:
        return False
    holds = next((tensors for tensors in (module._parameters, module._buffers) if name in tensors), {})
    present, resolved = holds[name] if holds else None, tensor.stored.tensor
    return present is not None and (present is resolved or span(present) == span(resolved))


def _same_memory(resolved: Stored, present: Stored) -> bool:
    return list(map(span, resolved.memory())) == list(map(span, present.memory()))


def _identity(target: Transient | AddressSpace) -> str:
    if isinstance(target, Transient):
        return str(target)
    rows = ("" if tensor.rows is None else hashlib.sha256(tensor.rows.data).hexdigest() for tensor in target.tensors)
    return ",".join(f"{tensor.name}:{digest}" for tensor, digest in zip(target.tensors, rows, strict=True))
