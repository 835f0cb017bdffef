"""How much of a run is done, in seconds of its plan, and the time left.

A share of notebooks or of trials says little about time: a trial at a high rate costs a hundred times one at a low rate, and a
trial or model of an earlier run costs nothing. So each condition has its cost as `reproduce.plan` measures it on this machine,
counts are laid over the plan in its order, and what was computed so far says how fast this run is compared with its plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COMPUTED = 0.02  # of what a phase has to compute; with less of it done, its speed is not known
KINDS = ("models", "trials", "other")


@dataclass(frozen=True)
class Step:
    """Some planned work of a notebook.

    Attributes:
        kind: one of `KINDS`; `other` is not counted while it runs.
        count: of models or trials.
        seconds: of all of them together, if none was stored by an earlier run.
    """

    kind: str
    count: int
    seconds: float


def _zeros() -> dict[str, float]:
    return dict.fromkeys(KINDS, 0.0)


@dataclass(frozen=True)
class Work:
    """Planned seconds by kind: of all steps, of those that are done, and of these what an earlier run had stored."""

    planned: dict[str, float] = field(default_factory=_zeros)
    done: dict[str, float] = field(default_factory=_zeros)
    stored: dict[str, float] = field(default_factory=_zeros)

    @property
    def share(self) -> float:
        """That is done."""
        return sum(self.done.values()) / (sum(self.planned.values()) or 1.0)


def work_of(steps: Sequence[Step], counts: Mapping[str, int], *, ended: bool) -> Work:
    """The work of a notebook. A step is over as soon as a later one has trials; a model that was not trained until then was
    stored.

    Args:
        steps: of the notebook, in its order.
        counts: `trials`, of these `stored`, and `models` that were trained.
        ended: whether the notebook has.
    """
    work, models = Work(), counts.get("models", 0)
    trials = [0 if step.kind != "trials" else step.count for step in steps]
    done, stored = (_laid_over(trials, counts.get(name, 0)) for name in ("trials", "stored"))
    current = max((number for number, counted in enumerate(done) if counted), default=-1)
    for number, step in enumerate(steps):
        trained = min(models, step.count) if step.kind == "models" else 0
        models -= trained
        share = 1.0 if ended or number < current else (done[number] or trained) / step.count
        work.planned[step.kind] += step.seconds
        work.done[step.kind] += step.seconds * share
        if step.kind == "models":
            work.stored["models"] += step.seconds * (share - trained / step.count)
        work.stored["trials"] += step.seconds * stored[number] / step.count
    return work


def _laid_over(planned: Sequence[int], counted: int) -> list[int]:
    """How many of the planned trials of each step are counted, the first ones first."""
    laid = []
    for number in planned:
        laid.append(min(number, counted))
        counted -= laid[-1]
    return laid


def together(works: Sequence[Work]) -> Work:
    """The sum."""

    def total(name: str) -> dict[str, float]:
        return {kind: sum(getattr(work, name)[kind] for work in works) for kind in KINDS}

    return Work(total("planned"), total("done"), total("stored"))


def seconds_left(phases: Sequence[tuple[Work, float]], ended: Sequence[Work], running: Sequence[Work]) -> float | None:
    """The time left. What is not done is taken to be stored if the latest work of its kind was, and to be computed otherwise:
    so it is after an interruption, and if a whole run is repeated. A phase whose speed is not known yet is as fast, compared
    with the plan, as the one before it.

    Args:
        phases: of the run, one after another: the work of each, and the seconds that it has taken.
        ended, running: the work of the notebooks that have, and of those that run.

    Returns:
        seconds; None without a plan, before anything was computed, and while models were loaded and trials may be, too.
    """
    latest = {}
    for kind in KINDS:
        last = [work for work in running if work.done[kind]] or [work for work in ended if work.done[kind]][-1:]
        latest[kind] = (sum(work.done[kind] for work in last), sum(work.stored[kind] for work in last))
    computed = {kind: not 0 < done <= stored for kind, (done, stored) in latest.items()}
    if not computed["models"] and not latest["trials"][0]:
        return None
    left, speed = 0.0, None
    for work, elapsed in phases:
        spent = sum(work.done[kind] - work.stored[kind] for kind in KINDS)
        rest = sum((work.planned[kind] - work.done[kind]) * computed[kind] for kind in KINDS)
        if spent and spent >= COMPUTED * (spent + rest):
            speed = elapsed / spent
        if rest and speed is None:
            return None
        left += rest * (speed or 0.0)
    return left if any(sum(work.planned.values()) for work, _ in phases) else None
