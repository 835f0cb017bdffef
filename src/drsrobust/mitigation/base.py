"""What every mitigation is: a side in memory, a side in the computation, and a price.

Several mitigations as one."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Protocol

from torch import nn

from drsrobust._hashing import digest
from drsrobust.injection import ErrorMap


class Handle(Protocol):
    """Something put on a model that can be taken off, as a hook's handle."""

    def remove(self) -> None:
        """Takes it off."""


@dataclass
class Watch:
    """What an attached mitigation noticed since this watch began: None where it cannot tell.

    Attributes:
        detected: whether an error was noticed.
        repaired: whether all that was noticed was put right.
    """

    detected: bool | None = None
    repaired: bool | None = None

    def note(self, *, repaired: bool | None = None) -> None:
        """An error was noticed, and put right or not (None: nobody tried). One that was not stays not."""
        self.detected = True
        if repaired is not None:
            self.repaired = repaired if self.repaired is None else self.repaired and repaired


@dataclass(frozen=True)
class Cost:
    """What a mitigation takes, beside the model without it.

    Time and traffic are those of inference. Work on memory itself (encoding, a memory controller's decoder and the check bits
    that it reads along, votes, scrubbing, loading) is not counted, so protections of storage have only stored bits.

    Attributes:
        stored_bits: extra bits in memory, for the whole model.
        multiply_adds: extra multiply-adds per sample.
        bytes_touched: extra bytes read or written per sample.
    """

    stored_bits: int = 0
    multiply_adds: int = 0
    bytes_touched: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.stored_bits + other.stored_bits,
            self.multiply_adds + other.multiply_adds,
            self.bytes_touched + other.bytes_touched,
        )


class Mitigation(ABC):
    """A protection. `a + b` is both, from left to right.

    To write one: a class that names itself (`name`), tells its settings and what it learnt (`settings`), and overrides what it
    has of the two sides, `screen` and `put_on`, and `cost`.

    Attributes:
        name: its label in tables and legends. Several settings may share one; conditions, stores and tables go by `identity`.
        ordered: whether what it does to a sample depends on the batches before (as repair of weights does, or a check of every
            n-th batch): then evaluators score all rows in their order.
    """

    name: str
    ordered: bool = False

    @abstractmethod
    def settings(self) -> Any:
        """JSON value that tells it apart from others of its class: settings, and hashes of what it learnt."""

    def identity(self) -> str:
        """SHA-256 (hex) of its class and settings."""
        return digest([type(self).__name__, self.settings()])

    def screen(self, error_map: ErrorMap, model: nn.Module, *, seed: int) -> ErrorMap:
        """The errors that protected memory leaves of some; all, unless overridden.

        Args:
            error_map: what was drawn; not applied.
            model: without these errors.
            seed: of the trial, for errors in what the protection itself stores.
        """
        return error_map

    def put_on(self, model: nn.Module, watch: "Current") -> Iterator[Handle]:
        """Puts hooks on a model, and gives each handle as soon as it is on; nothing, unless overridden.

        Args:
            model: any module.
            watch: `watch.now` is to be told of what is noticed.
        """
        return iter(())

    def cost(self, model: nn.Module) -> Cost:
        """What it takes on this model; nothing, unless overridden."""
        return Cost()

    def tells(self) -> Watch:
        """A fresh watch: `Watch()` cannot tell; override with `Watch(detected=False)` for what detects."""
        return Watch()

    @contextmanager
    def attach(self, model: nn.Module) -> Iterator[Watch]:
        """The side in the computation, while the block runs. Where it is on already only a new watch begins, and the one before
        goes on afterwards. Everything is taken off at the end, in the reverse order."""
        current = next((one for one in _ON if one.mitigation is self and one.model is model), None)
        if current is not None:
            before, current.now = current.now, self.tells()
            try:
                yield current.now
            finally:
                current.now = before
            return
        current = Current(self, model, self.tells())
        handles: list[Handle] = []
        try:
            _ON.append(current)
            for handle in self.put_on(model, current):
                handles.append(handle)
            yield current.now
        finally:
            for handle in reversed(handles):
                handle.remove()
            _ON.remove(current)

    def __add__(self, other: "Mitigation") -> "Mitigation":
        if not isinstance(other, Mitigation):
            return NotImplemented
        pass

        return Composed((self, other))

    def __repr__(self) -> str:
        """Its class, label and settings; of hashes the first 12 digits."""
        settings = self.settings()
        parts = (
            [f"{name}={value!r}" for name, value in settings.items()]
            if isinstance(settings, dict)
            else [repr(settings)]
        )
        text = f"<{type(self).__name__} {self.name!r}" + "".join(f", {part}" for part in parts) + ">"
        return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)


def shown(number: float) -> str:
    """A number in a label: six digits, or as many as identify the float.

    Example:
        >>> shown(1.0), shown(0.35), shown(1.00000001)
        ('1', '0.35', '1.00000001')
    """
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))


@dataclass(eq=False)
class Current:
    """A mitigation that is on a model, and the watch that counts now."""

    mitigation: Mitigation
    model: nn.Module
    now: Watch


_ON: list[Current] = []


def attached(model: nn.Module) -> tuple[Mitigation, ...]:
    """The mitigations that are on a model now, in the order in which they came."""
    return tuple(current.mitigation for current in _ON if current.model is model)


class Composed(Mitigation):
    """Mitigations that screen and attach from left to right.

    Args:
        parts: which; those that are composed themselves count by their parts.
    """

    def __init__(self, parts: Sequence[Mitigation]) -> None:
        self.parts = tuple(one for part in parts for one in (part.parts if isinstance(part, Composed) else (part,)))
        self.name = " + ".join(part.name for part in self.parts)
        self.ordered = any(part.ordered for part in self.parts)

    def settings(self) -> Any:
        return [part.identity() for part in self.parts]

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))

    def screen(self, error_map: ErrorMap, model: nn.Module, *, seed: int) -> ErrorMap:
        for part in self.parts:
            error_map = part.screen(error_map, model, seed=seed)
        return error_map

    def cost(self, model: nn.Module) -> Cost:
        return reduce(add, (part.cost(model) for part in self.parts))

    @contextmanager
    def attach(self, model: nn.Module) -> Iterator[Watch]:
        with ExitStack() as stack:
            yield Together([stack.enter_context(part.attach(model)) for part in self.parts])


class Together(Watch):
    """What several watches noticed together.

    Args:
        watches: whatever has `detected` and `repaired`, as an error map that protected memory left.
    """

    def __init__(self, watches: Sequence[Any]) -> None:
        self._watches = watches

    @property
    def detected(self) -> bool | None:
        """True if any noticed something, None if none can tell."""
        found = [one.detected for one in self._watches if one.detected is not None]
        return any(found) if found else None

    @property
    def repaired(self) -> bool | None:
        """True if all that tried put right what they noticed, None if none tried."""
        found = [one.repaired for one in self._watches if one.repaired is not None]
        return all(found) if found else None
