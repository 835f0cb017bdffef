"""The `Mitigation` base class: a side in memory (`screen`), a side in the computation (`attach`), and a cost.

Also sums of mitigations, and which mitigations are attached to a model."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, field
from functools import reduce
from operator import add
from typing import Any, Protocol

import torch
from torch import nn

from drsrobust._arguments import check_instance, check_items
from drsrobust._hashing import digest
from drsrobust.injection import AddressSpace, ErrorMap

FIT_BATCH = 2048  # rows per batch when a mitigation learns from a split


class Handle(Protocol):
    """A removable change of a model, such as the handle of a hook."""

    def remove(self) -> None:
        """Undoes the change."""


@dataclass
class Detection:
    """What an attached mitigation detected since the `with` block began; None where it cannot detect.

    Attributes:
        detected: whether an error was detected.
        repaired: whether every detected error was repaired; None if no repair was tried.
    """

    detected: bool | None = None
    repaired: bool | None = None

    def record(self, *, repaired: bool | None = None) -> None:
        """Records a detected error. `repaired=False` is final; None means that no repair was tried."""
        self.detected = True
        if repaired is not None:
            self.repaired = repaired if self.repaired is None else self.repaired and repaired


class CombinedDetection(Detection):
    """The detections of several sources as one.

    Args:
        sources: each a `Detection` or a `Screened`.
    """

    def __init__(self, sources: Sequence["Detection | Screened"]) -> None:
        self._sources = sources

    @property
    def detected(self) -> bool | None:
        """True if any source detected an error, None if none can detect."""
        return _known(any, (source.detected for source in self._sources))

    @property
    def repaired(self) -> bool | None:
        """True if every source that tried to repair succeeded, None if none tried."""
        return _known(all, (source.repaired for source in self._sources))


def _known(rule: Callable[[list[bool]], bool], values: Iterable[bool | None]) -> bool | None:
    """`any` or `all` of the values that are not None; None if all are."""
    values_known = [value for value in values if value is not None]
    return rule(values_known) if values_known else None


@dataclass(frozen=True)
class Screened:
    """What protected memory made of errors.

    Attributes:
        remaining: the errors that it leaves: an `ErrorMap`; of the words of one tensor, `Errors`.
        detected: whether it detected any error; None: it cannot tell.
        repaired: whether it repaired all that it detected; None: it detected nothing, or does not repair.
        stopped: whether a code left a word that it cannot correct: a server stops there. None without a code.
        counts: of events, as `corrected`; each protection names its own.
    """

    remaining: Any
    detected: bool | None = None
    repaired: bool | None = None
    stopped: bool | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def by(cls, mitigation: "Mitigation", error_map: ErrorMap, space: AddressSpace, *, seed: int) -> "Screened":
        """What a mitigation makes of errors, whose `screen` may return only the errors that remain."""
        screened = mitigation.screen(error_map, space, seed=seed)
        return cls(screened) if isinstance(screened, ErrorMap) else screened

    @classmethod
    def joined(cls, remaining: Any, parts: Sequence["Screened"]) -> "Screened":
        """The same for several tensors, or for protections one after the other."""
        counts: Counter[str] = Counter()
        for part in parts:
            counts.update(part.counts)
        detected = _known(any, [part.detected for part in parts])
        repaired = _known(all, [part.repaired for part in parts])
        return cls(remaining, detected, repaired, _known(any, [part.stopped for part in parts]), counts)


@dataclass(frozen=True)
class Cost:
    """What a mitigation adds to a model.

    `multiply_adds` and `bytes_touched` are those of inference. Work on memory itself (encoding, decoding in a memory
    controller, votes, scrubbing, loading) is not counted, so protections of memory have only `stored_bits`.

    Attributes:
        stored_bits: extra bits in memory, for the whole model.
        multiply_adds: extra multiply-adds per sample.
        bytes_touched: extra bytes read or written per sample.
    """

    stored_bits: int = 0
    multiply_adds: int = 0
    bytes_touched: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*map(add, astuple(self), astuple(other)))


class Mitigation(ABC):
    """A protection. `a + b` applies both, from left to right.

    A subclass sets `name`, implements `settings`, and overrides `screen`, `register_hooks` (with `new_detection`) and `cost` as
    far as it has these sides; `covers` and `on` too, if `dr.plan` shall place it on single tensors.
    `run_trial` gives the drawn map to `screen`, and evaluates what it leaves with the hooks; `inject` and `dr.plan` screen too.

    Attributes:
        name: label in tables and legends. Several settings may share it; conditions, stores and tables use `identity`.
        corrects_mode: the mode of memory faults of which it corrects every single one, or `any`; None: it does not.
        spread: how far a repair may move errors: within the `chip`, within the `word`, or `anywhere`.
        ordered: whether its effect on a sample depends on earlier batches (repair of weights, a check of every n-th batch).
            Evaluators then score all rows in order.
        reports_only: whether it detects errors and changes nothing.
    """

    name: str
    corrects_mode: str | None = None
    spread: str = "anywhere"
    ordered: bool = False
    reports_only: bool = False

    @abstractmethod
    def settings(self) -> Any:
        """JSON value that identifies it within its class: settings, and hashes of fitted values."""

    def identity(self) -> str:
        """SHA-256 (hex) of class and settings."""
        return digest([type(self).__name__, self.settings()])

    def screen(self, error_map: ErrorMap, space: AddressSpace, *, seed: int) -> "ErrorMap | Screened":
        """What protected memory makes of errors: those that remain, alone or with what it detected. All remain unless
        overridden.

        Args:
            error_map: the drawn errors, not applied.
            space: what they could hit, with the tensors in the model's memory, which hold no errors.
            seed: of the trial, for errors in the check bits.
        """
        return error_map

    def check(self, model: nn.Module) -> None:
        """Raises ValueError for a model that it cannot protect, before any trial. Its computation side is attached once."""
        with self.attach(model):
            pass

    def register_hooks(self, model: nn.Module, active: "ActiveMitigation") -> Iterator[Handle]:
        """Registers hooks and yields each handle at once; none unless overridden.

        Args:
            model: any module.
            active: `active.detection.record()` records a detected error.
        """
        return iter(())

    @property
    def computes(self) -> bool:
        """Whether it has a side in the computation, so that scores without errors may differ."""
        return type(self).register_hooks is not Mitigation.register_hooks or type(self).attach is not Mitigation.attach

    def cost(self, model: nn.Module) -> Cost:
        """Cost on this model; nothing unless overridden."""
        return Cost()

    def covers(self, model: nn.Module) -> set[str]:
        """Names of the model's tensors that it can be confined to (`on`); none unless overridden."""
        return set()

    def on(self, tensors: Iterable[str]) -> "Mitigation":
        """The same protection of some tensors alone, with the cost of these.

        Args:
            tensors: their names; others are left without it.

        Raises:
            TypeError: a mitigation that belongs to no tensor.
        """
        raise TypeError(f"{self.name} belongs to no tensor, so it cannot be confined to {', '.join(sorted(tensors))}")

    def new_detection(self) -> Detection:
        """The detection state at the start of a `with` block. Override with `Detection(detected=False)` if hooks detect."""
        return Detection()

    @contextmanager
    def attach(self, model: nn.Module) -> Iterator[Detection]:
        """Attaches the computation side inside the `with` block and removes it afterwards.

        If it is attached already, only a new `Detection` begins; the previous one continues after the block.
        """
        attached = model.__dict__.setdefault(_ATTRIBUTE, _Attached())
        active = next((entry for entry in attached if entry.mitigation is self and entry.model is model), None)
        if active is not None:
            previous, active.detection = active.detection, self.new_detection()
            try:
                yield active.detection
            finally:
                active.detection = previous
            return
        active = ActiveMitigation(self, model, self.new_detection())
        handles: list[Handle] = []
        try:
            attached.append(active)
            for handle in self.register_hooks(model, active):
                handles.append(handle)
            yield active.detection
        finally:
            for handle in reversed(handles):
                handle.remove()
            attached.remove(active)
            if not attached_mitigations(model):
                model.__dict__.pop(_ATTRIBUTE, None)

    def __add__(self, other: "Mitigation") -> "Mitigation":
        if not isinstance(other, Mitigation):
            return NotImplemented
        return Composed((self, other))

    def __repr__(self) -> str:
        """Class, label and settings; hashes by their first 12 digits."""
        settings = self.settings()
        named = isinstance(settings, dict)
        parts = [f"{name}={value!r}" for name, value in settings.items()] if named else [repr(settings)]
        text = f"<{type(self).__name__} {self.name!r}" + "".join(f", {part}" for part in parts) + ">"
        return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)


@dataclass(eq=False)
class ActiveMitigation:
    """A mitigation that is attached to a model, with its current detection."""

    mitigation: Mitigation
    model: nn.Module
    detection: Detection


class _Attached(list[ActiveMitigation]):
    """The attached mitigations of one model. Copies and pickles of the model start with none: their hooks belong to it."""

    def __reduce__(self) -> Any:
        return _Attached, ()


_ATTRIBUTE = "_attached_mitigations"  # in the model's `__dict__`: no submodule, not in its state_dict


def attached_mitigations(model: nn.Module) -> tuple[Mitigation, ...]:
    """The mitigations that are attached to a model now, in order of attachment."""
    # A shallow copy of a model shares its list.
    return tuple(entry.mitigation for entry in model.__dict__.get(_ATTRIBUTE, ()) if entry.model is model)


class Composed(Mitigation):
    """Mitigations that screen and attach from left to right.

    Args:
        parts: the mitigations; sums count by their parts.
    """

    def __init__(self, parts: Sequence[Mitigation]) -> None:
        parts = [
            check_instance("each of parts", part, Mitigation, "a mitigation")
            for part in check_items("parts", parts, "a list of mitigations")
        ]
        self.parts = tuple(leaf for part in parts for leaf in (part.parts if isinstance(part, Composed) else (part,)))
        self.name = " + ".join(part.name for part in self.parts)
        self.ordered = any(part.ordered for part in self.parts)

    @property
    def computes(self) -> bool:
        return any(part.computes for part in self.parts)

    def settings(self) -> Any:
        return [part.identity() for part in self.parts]

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))

    def screen(self, error_map: ErrorMap, space: AddressSpace, *, seed: int) -> Screened:
        steps = [Screened(error_map)]
        for part in self.parts:
            steps.append(Screened.by(part, steps[-1].remaining, space, seed=seed))
        return Screened.joined(steps[-1].remaining, steps)

    def check(self, model: nn.Module) -> None:
        for part in self.parts:
            part.check(model)

    def cost(self, model: nn.Module) -> Cost:
        return reduce(add, (part.cost(model) for part in self.parts), Cost())

    def covers(self, model: nn.Module) -> set[str]:
        return set().union(*(part.covers(model) for part in self.parts))

    def on(self, tensors: Iterable[str]) -> "Composed":
        tensors = tensor_names(tensors)
        return Composed([part.on(tensors) for part in self.parts])

    @contextmanager
    def attach(self, model: nn.Module) -> Iterator[Detection]:
        with ExitStack() as stack:
            yield CombinedDetection([stack.enter_context(part.attach(model)) for part in self.parts])


def tensor_names(tensors: str | Iterable[str]) -> frozenset[str]:
    """Names of tensors as a set; a text is one name."""
    return frozenset([tensors] if isinstance(tensors, str) else tensors)


def confined_name(name: str, tensors: Collection[str]) -> str:
    """The name of a mitigation that is confined to some tensors."""
    return f"{name} on {next(iter(tensors)) if len(tensors) == 1 else f'{len(tensors)} tensors'}"


def within(module: str, tensors: Iterable[str]) -> set[str]:
    """The tensors, by name, of a module and of the modules in it."""
    return {name for name in tensors if not module or name.startswith(f"{module}.")}


def widen(ends: torch.Tensor, margin: float, *, low: bool) -> torch.Tensor:
    """Lower or upper ends of ranges, moved outwards by (margin - 1) times their magnitude."""
    return ends - (margin - 1) * ends.abs() if low else ends + (margin - 1) * ends.abs()


def format_number(number: float) -> str:
    """A number in a label: six digits, or as many as identify the float.

    Example:
        >>> format_number(1.0), format_number(0.35), format_number(1.00000001)
        ('1', '0.35', '1.00000001')
    """
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))
