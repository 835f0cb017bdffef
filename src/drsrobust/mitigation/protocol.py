"""What a mitigation is to evaluators and campaigns."""

from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from torch import nn

from drsrobust.injection import ErrorMap


class Watch(Protocol):
    """What an attached mitigation noticed since it was attached: None where it cannot tell.

    Attributes:
        detected: whether an error was noticed.
        repaired: whether what was noticed was put right.
    """

    detected: bool | None
    repaired: bool | None


@runtime_checkable
class Mitigation(Protocol):
    """Two sides, of which either may do nothing: protected storage, and checks while the model computes.

    Attributes:
        name: for tables and legends.
    """

    name: str

    def identity(self) -> str:
        """Text that tells it apart from all others: settings, and hashes of what it learnt."""

    def screen(self, error_map: ErrorMap, model: nn.Module, *, seed: int) -> ErrorMap:
        """The errors that protected storage leaves of some.

        Args:
            error_map: what was drawn; not applied.
            model: without these errors.
            seed: of the trial, for errors in what the protection itself stores.
        """

    def attach(self, model: nn.Module) -> AbstractContextManager[Watch]:
        """Puts bounds, checks and repair on a model while the block runs. Where they are on already, a new watch begins."""
