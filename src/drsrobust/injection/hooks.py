"""What puts transient errors in: hooks on a model, and the drawing of errors at each of their calls."""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from drsrobust.injection.application import LOCK, OPEN, refuse_other_threads, share_modules
from drsrobust.injection.base import Before, ErrorModel
from drsrobust.injection.clock import HOOK
from drsrobust.injection.formats import plain
from drsrobust.injection.log import Hit, Log
from drsrobust.injection.region import TargetTensor
from drsrobust.injection.space import AddressSpace
from drsrobust.injection.storage import Stored, check
from drsrobust.injection.words import Words


class InjectionError(ValueError):
    """Errors could not be drawn while a model ran: a mistake in what was asked for, not something that the model did."""


class Attachable(Protocol):
    """What hooks are put on for: a transient target."""

    def attach(self, model: nn.Module, draw: "Draw") -> Iterator[tuple[str | None, Any]]:
        """Puts hooks on the model, and gives the place (None: none of its own) and the handle of each as soon as it is on."""


class Draw:
    """Draws the errors of each call of one (error model, transient target) pair, and writes them down."""

    def __init__(self, error_model: ErrorModel, seed: int, before: Before, log: Log) -> None:
        self.error_model, self.seed, self.before, self.log = error_model, seed, before, log
        self.over = True  # a hook that an interrupt left behind does nothing any more
        self.begin()

    def begin(self) -> None:
        """Starts from the first call (again)."""
        self._seeds: dict[str, np.random.PCG64] = {}
        self._calls: dict[str, int] = {}
        self._samples: dict[str, int] = {}

    def reached(self, place: str) -> bool:
        """Whether something of that place was there to be hit, at any call."""
        return any(call == place or call.startswith(f"{place}[") for call in self._calls)

    def hit(self, where: str, tensor: torch.Tensor, samples: Sequence[np.ndarray] | None = None) -> torch.Tensor:
        """A copy of a tensor with the errors of this call in it; the tensor itself when there are none.

        Args:
            where: the place's name.
            tensor: any plain tensor.
            samples: for each sample, which words (flat indices) are its own; None: errors are drawn per call.
        """
        if torch.compiler.is_compiling():  # a compiler would trace the drawing of errors, and draw them once for ever
            return torch.compiler.disable(self._hit)(where, tensor, samples)
        return self._hit(where, tensor, samples)

    def _hit(self, where: str, tensor: torch.Tensor, samples: Sequence[np.ndarray] | None) -> torch.Tensor:
        if self.over:
            return tensor
        call = self._calls.get(where, 0)
        self._calls[where] = call + 1
        self.log.calls[where] = self.log.calls.get(where, 0) + 1
        flat = tensor.detach().reshape(-1)
        found = []
        for part in [None] if samples is None else samples:
            number = None
            seed = self._next_seed(where)
            if part is not None:
                number = self._samples.get(where, 0)
                self._samples[where] = number + 1
            memory = flat if part is None else flat[torch.from_numpy(part).to(flat.device)]
            if not memory.numel():
                continue
            shape = tuple(tensor.shape) if part is None else (memory.numel(),)
            try:
                check(where, tensor)
                target = TargetTensor(where, where, shape or (1,), plain(tensor.dtype), None, Stored(memory))
                drawn = self.error_model.sample(AddressSpace([target]), seed=seed, before=self.before)
            except ValueError as error:
                raise InjectionError(f"{self.error_model} cannot hit {where}: {error}") from error
            self._count(drawn)
            if len(drawn):
                self.log.hits.append(Hit(where, call, number, drawn.word, drawn.mask))
                found.append((drawn.word if part is None else part[drawn.word], drawn.mask))
        if not found:
            return tensor
        copy = tensor.clone(memory_format=torch.contiguous_format)
        words = Words(copy)
        index = torch.from_numpy(np.concatenate([word for word, _ in found])).to(words.device)
        words.write(index, words.read(index) ^ words.masks(np.concatenate([mask for _, mask in found])))
        return copy

    def _next_seed(self, where: str) -> int:
        if where not in self._seeds:
            place = int.from_bytes(hashlib.sha256(where.encode()).digest()[:4], "big")
            self._seeds[where] = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(place, HOOK)))
        return int(self._seeds[where].random_raw())

    def _count(self, drawn: Any) -> None:
        self.log.eligible_bits += drawn.eligible_bits
        for name in ("places", "events"):
            now, more = getattr(self.log, name), getattr(drawn, name)
            setattr(self.log, name, None if now is None or more is None else now + more)


@dataclass(eq=False)
class Hooks:
    """The hooks of one transient target on one model. `undo` may run twice."""

    model: nn.Module
    target: Attachable
    draw: Draw
    handles: list[Any] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def apply(self) -> None:
        """Puts the hooks on.

        Raises:
            RuntimeError: they are on already, or another thread has errors in the model.
        """
        with LOCK:
            if self in OPEN:
                raise RuntimeError(f"{self.target} has its hooks on the model already")
            self.thread = threading.get_ident()
            refuse_other_threads(self.model)
            OPEN.append(self)
        self.draw.begin()
        self.draw.over, self.places = False, []
        for place, handle in self.target.attach(self.model, self.draw):
            self.handles.append(handle)
            self.places += [] if place is None else [place]

    def undo(self) -> None:
        """Takes them off."""
        self.draw.over = True
        while self.handles:
            self.handles[-1].remove()
            self.handles.pop()
        with LOCK:
            if self in OPEN:
                OPEN.remove(self)

    def unreached(self) -> list[str]:
        """Places that were never called."""
        return [place for place in self.places if not self.draw.reached(place)]

    def concerns(self, model: nn.Module, spans: list[tuple[int, int]]) -> bool:
        """Whether the model is, holds or is held by the one that has the hooks."""
        return share_modules(model, self.model)
