"""The conditions of a campaign: what goes wrong, where, and under which protection."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import nn

from drsrobust.injection import (
    AddressSpace,
    BitFlip,
    ErrorModel,
    Gradients,
    Injection,
    Target,
    Transient,
    resolve,
)
from drsrobust.injection.storage import Memory
from drsrobust.mitigation import Mitigation

NONE = "none"  # what the column `mitigation` holds where there is none


@dataclass(frozen=True)
class Condition:
    """One cell of a campaign's grid. `hits` is what errors are drawn over: an address space, or a transient target."""

    error_model: ErrorModel
    target: str | Target | Transient
    hits: AddressSpace | Transient
    mitigation: Mitigation | None = None

    @property
    def key(self) -> tuple[str, float | None, str, str | None]:
        """Error model, rate and target as the table names them, and the mitigation's identity."""
        return self.error_model.label, self.error_model.rate, str(self.target), self.identity

    @property
    def protection(self) -> str:
        """The mitigation's label, which several settings may share."""
        return NONE if self.mitigation is None else self.mitigation.name

    @cached_property
    def identity(self) -> str | None:
        """The mitigation's identity; None without one."""
        return None if self.mitigation is None else self.mitigation.identity()

    @property
    def mitigation_id(self) -> str | None:
        """The identity as tables hold it: its first 12 digits."""
        return None if self.identity is None else self.identity[:12]

    @property
    def ber(self) -> float | None:
        """Expected share of eligible bits that flip; None where it is not known beforehand."""
        if isinstance(self.hits, Transient):
            return self.error_model.rate if isinstance(self.error_model, BitFlip) else None
        return self.error_model.expected_share(self.hits)

    def check(self, model: nn.Module) -> None:
        """Raises ValueError for an error model or a target that does not fit the model, and for gradients, which no evaluator
        takes. (Whether a transient target's tensors have the bits asked for shows when the model runs.)"""
        if isinstance(self.hits, AddressSpace):
            self.error_model.expected_share(self.hits)
            return
        if isinstance(self.hits, Gradients):
            raise ValueError(f"{self.hits}: an evaluator takes no gradients; use inject while the model is trained")
        hooks = Injection(model, [(self.error_model, self.hits)], seed=0)
        try:
            hooks.apply()
        finally:
            hooks.undo()

    @cached_property
    def resolved(self) -> list:
        """What the target resolves to, as JSON: tensor names, with the rows where some are chosen; a transient one's text."""
        if isinstance(self.hits, Transient):
            return [str(self.hits)]
        return [
            tensor.name if tensor.rows is None else [tensor.name, hashlib.sha256(tensor.rows).hexdigest()]
            for tensor in self.hits.tensors
        ]


def resolved(model: nn.Module, target: str | Target | Transient) -> AddressSpace | Transient:
    """What errors of a target are drawn over in a model's present memory."""
    return target if isinstance(target, Transient) else resolve(model, target)


@dataclass(frozen=True, eq=False)
class Named(Target):
    """A target by what it resolved to before: the same text, tensors and rows."""

    text: str
    rows: Mapping[str, np.ndarray | None]

    def __str__(self) -> str:
        return self.text

    def choose(self, model: nn.Module, memory: Memory) -> dict[str, np.ndarray | None]:
        return dict(self.rows)
