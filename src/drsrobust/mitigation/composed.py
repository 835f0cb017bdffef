"""Several mitigations as one."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from operator import add
from typing import Any

from torch import nn

from drsrobust.injection import ErrorMap
from drsrobust.mitigation.base import Cost, Mitigation, Watch


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
