"""What a training run does when a detector alarms."""

from dataclasses import dataclass
from typing import ClassVar

from drsrobust.extend import check_items, check_text, check_whole
from drsrobust_extras.experiments.training_errors.steps import Run, Step


@dataclass(frozen=True)
class Action:
    """What is done with a step in which a detector alarms, or that raises. This class does nothing.

    Attributes:
        on: names of the detectors that start it.
        kind: what it is.
    """

    kind: ClassVar[str] = "none"
    on: tuple[str, ...] = ("gradient_norm",)

    def __post_init__(self) -> None:
        names = check_items("on", self.on, "a list of names", str)
        object.__setattr__(self, "on", tuple(check_text("each of on", name) for name in names))

    @property
    def name(self) -> str:
        """Of its columns in tables: the kind, with the detectors unless they are those by default."""
        return self.kind if self.on == type(self)().on else f"{self.kind}_on_{'_or_'.join(self.on)}"

    def before(self, run: Run, kept: list) -> None:
        """Called before each step; `kept` belongs to this run."""

    def respond(self, run: Run, step: Step, kept: list) -> Step | None:
        """The step that updates the model; None: no update, and the run goes on from its present step."""
        return step


@dataclass(frozen=True)
class Skip(Action):
    """The model is not updated by this batch."""

    kind = "skip"

    def respond(self, run: Run, step: Step, kept: list) -> None:
        run.number += 1


@dataclass(frozen=True)
class Recompute(Action):
    """The step is computed again, from the same state."""

    kind = "recompute"

    def respond(self, run: Run, step: Step, kept: list) -> Step:
        return run.again()


@dataclass(frozen=True)
class RollBack(Action):
    """Training goes back to the last state that was kept; at the next alarm before a new one is kept, to the one before.

    Args:
        every: steps from one kept state to the next, the first at the beginning of the continuation.
        keep: how many states are kept.

    Raises:
        ValueError: under one.
    """

    kind = "roll_back"
    every: int = 10
    keep: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("every", "keep"):
            check_whole(name, getattr(self, name), 1)

    def before(self, run: Run, kept: list) -> None:
        # kept: the states, and last the step from which new ones are due.
        if not kept:
            kept.append(run.number)
        if run.number >= kept[-1]:
            kept[:] = [*kept[:-1], run.state(), run.number + self.every][-self.keep - 1 :]

    def respond(self, run: Run, step: Step, kept: list) -> Step | None:
        if len(kept) < 2:  # no state is left: go on
            return step
        run.load(kept.pop(-2))
        return None
