"""How much of a run is done, and the time left, in seconds of an earlier run of the same notebooks.

A share of notebooks or of trials says little about time: a trial at a high rate costs a hundred times one at a low rate, and a
trial or model of an earlier run costs nothing. So a record has the steps of each notebook with their seconds, counts are laid
over them in their order, and what was computed so far says how fast this run is compared with the record.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

COMPUTED = 0.03  # of what a run has to compute; with less of it done, its speed is a guess
KINDS = ("models", "trials", "other")  # other work is not counted while it runs
START = 6.0  # seconds until a notebook's kernel has imported its libraries, at most
STEPS = 20  # of a notebook at most, but for steps that end since another kind follows


class Event(NamedTuple):
    """A line of the file in which a notebook counts: that it `started` or `ended`, or how many `models` or `trials` are done,
    or trials an earlier run had `stored`; and the time in seconds since 1970."""

    what: str
    number: int
    time: float


class Step(NamedTuple):
    """Some work of a notebook in its record: one of `KINDS`, how many, and the seconds of all together, with none stored."""

    kind: str
    count: int
    seconds: float


def parsed(text: str) -> tuple[str, int, float]:
    """The text of an event or of a step."""
    word, count, seconds = text.split()
    return word, int(count), float(seconds)


class Work(NamedTuple):
    """What a notebook has done by now: recorded seconds by kind of all steps, of what is done, and of these what was stored;
    `elapsed` seconds until it last counted some of them, and `since` then."""

    planned: Counter
    done: Counter
    stored: Counter
    elapsed: float
    since: float
    ended: bool


def read_events(path: Path) -> list[Event]:
    """What a notebook counted so far; nothing where there is no file."""
    with suppress(FileNotFoundError):
        return [Event(*parsed(line)) for line in path.read_text().splitlines()]
    return []


def totals(events: Iterable[Event]) -> Counter:
    """How many were counted of each."""
    counts: Counter = Counter()
    for what, number, _ in events:
        counts[what] += number
    return counts


def steps_of(events: Sequence[Event]) -> list[Step]:
    """The steps of a notebook that has ended; none if trials of an earlier run were in the cache: their time is not known."""
    if len(events) < 2 or totals(events)["stored"]:
        return []
    (_, _, start), *counted, (_, _, end) = events
    last = min(start + START, events[1].time)
    steps = [Step("other", 1, last - start)]
    for what, number, time in counted:
        if steps[-1].kind == what and steps[-1].seconds < (end - start) / STEPS:
            _, count, seconds = steps.pop()
        else:
            count, seconds = 0, 0.0
        steps.append(Step(what, count + number, seconds + time - last))
        last = time
    return [*steps, Step("other", 1, end - last)]


def work_of(steps: Sequence[Step], events: Sequence[Event], now: float, *, ended: bool) -> Work:
    """The work of a notebook. A step is over as soon as a later one has trials; a model that was not trained until then was
    stored.

    Args:
        steps: of the notebook in its record, in its order.
        events: of the notebook so far; empty before it starts.
        now: in seconds since 1970.
        ended: whether the notebook has.
    """
    planned, done, stored, counts = Counter(), Counter(), Counter(), totals(events)
    for place, (kind, count, seconds) in enumerate(steps, 1):
        counted = min(counts[kind], count)
        earlier = min(counts["stored"], counted) if kind == "trials" else 0
        counts -= Counter({kind: counted, "stored": earlier})
        later = counts["trials"] > 0 or (kind == "other" and counts["models"] > 0)
        over = ended or (later and place < len(steps))
        share = 1.0 if over else counted / count
        if kind == "models":
            earlier = share * count - counted
        planned[kind] += seconds
        done[kind] += seconds * share
        stored[kind] += seconds * earlier / count
    start, last = (events[0].time, events[-1].time) if events else (now, now)
    last = last if done.total() else start
    return Work(planned, done, stored, last - start, now - last, ended)


def seconds_left(works: Mapping[str, Work]) -> dict[str, float] | None:
    """The time that each notebook has left. What is not done is taken to be stored if the latest work of its kind was, and to
    be computed otherwise: so it is after an interruption, and if a whole run is repeated.

    Args:
        works: of all notebooks of a run, in its order.

    Returns:
        seconds by notebook; None before anything was computed, and while models were loaded and trials may be, too.
    """
    computed = []
    for kind in KINDS:
        begun = [work for work in works.values() if work.done[kind]]
        latest = [work for work in begun if not work.ended] or begun[-1:]
        if not latest or sum(work.done[kind] - work.stored[kind] for work in latest) > 0:
            computed.append(kind)
    spent = sum(work.done.total() - work.stored.total() for work in works.values())
    left = {name: sum(work.planned[kind] - work.done[kind] for kind in computed) for name, work in works.items()}
    unsure = "models" not in computed and not any(work.done["trials"] for work in works.values())
    if unsure or not spent or spent < COMPUTED * (spent + sum(left.values())):
        return None
    speed = sum(work.elapsed for work in works.values()) / spent
    return {name: max(0.0, speed * seconds - works[name].since) for name, seconds in left.items()}
