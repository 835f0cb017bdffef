"""Rules on claims: what a number with its interval says, and how narrow the interval must be for it to say anything."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from inspect import signature

# From best to worst: a claim has the worst verdict of the checks that its words need.
VERDICTS = ("reproduced", "in part", "map-dependent", "undecided", "not testable here", "contradicted")
REPRODUCED, IN_PART, MAP_DEPENDENT, UNDECIDED, NOT_TESTABLE, CONTRADICTED = VERDICTS
OTHER = "another thing was measured"  # of a whole claim, whose words are of something else


def _above(low: float, high: float, bound: float, refuted: float | None = None) -> tuple[bool, bool]:
    return low > bound, high <= (bound if refuted is None else refuted)


def _below(low: float, high: float, bound: float) -> tuple[bool, bool]:
    return high <= bound, low > bound


def _within(low: float, high: float, least: float, greatest: float) -> tuple[bool, bool]:
    return low >= least and high <= greatest, high < least or low > greatest


def _reaches(low: float, high: float, bound: float) -> tuple[bool, bool]:
    return low >= bound / 3 and high >= bound, high < bound


def _differs(low: float, high: float, refuted: float) -> tuple[bool, bool]:
    return low > 0 or high < 0, -refuted <= low and high <= refuted


def _all(low: float, high: float) -> tuple[bool, bool]:
    return low >= 1, high <= 0


def _some(low: float, high: float) -> tuple[bool, bool]:
    return low > 0, high <= 0


# Of an interval: whether it shows the claim, and whether it refutes it.
RULES: dict[str, Callable[..., tuple[bool, bool]]] = {
    "above": _above,  # refuted: at most the smallest effect that would be worth the claim, by default the bound
    "below": _below,
    "within": _within,
    "reaches": _reaches,  # at least the bound: clearly a third of it, and not clearly less
    "differs": _differs,  # from 0; refuted: by less than an effect worth the claim, either way
    "all": _all,  # of a share of parts; low: the share that clearly holds, high: that is not clearly wrong
    "some": _some,
}
_OF_PARTS = ("all", "some")


@dataclass(frozen=True)
class Rule:
    """How a number with an interval becomes a verdict.

    Attributes:
        kind: in `RULES`.
        true, false: the number if the claim were exactly true, and exactly false.
        options: of the kind, as `rule_options` names them.
        log: whether the interval keeps its factors, not its lengths, around another number (a ratio).
        needs: of a finding whose `n` is not the number of trials: how many would decide, in words.

    Example:
        >>> over_one = Rule("above", true=3.0, false=1.0, options={"bound": 1.0, "refuted": 1.5})
        >>> ends = ((2, 1.5, 2.5), (1, 0.7, 1.3), (1.3, 0.9, 1.7), (2, 0.5, 3.5), (1.2, 1.1, 1.3))
        >>> [over_one.verdict(*of_one) for of_one in ends]
        ['reproduced', 'contradicted', 'in part', 'undecided', 'in part']
    """

    kind: str
    true: float
    false: float
    options: dict[str, float] = field(default_factory=dict)
    log: bool = False
    needs: str = ""

    def verdict(self, value: float, low: float, high: float) -> str:
        """`reproduced` or `contradicted` where the interval shows or refutes the claim, `in part` where it does both (an effect
        that is clear, and clearly smaller than what would be worth the claim); `undecided` where an interval of this
        width could not have done both, or holds parts of which none is clear; else `in part`; `not testable here` without an
        interval."""
        if low != low or high != high:
            return NOT_TESTABLE
        is_shown, is_refuted = self._says(low, high)
        if is_shown or is_refuted:
            return IN_PART if is_shown and is_refuted else REPRODUCED if is_shown else CONTRADICTED
        if self.kind in _OF_PARTS:
            return IN_PART if low > 0 and high < 1 else UNDECIDED
        return IN_PART if value == value and self.decides(value, low, high) else UNDECIDED

    def decides(self, value: float, low: float, high: float, narrower: float = 1.0) -> bool:
        """Whether an interval of this width, or so much narrower, would show the claim if it were exactly true, and refute
        it if it were exactly false."""
        shown, _ = self._says(*self._moved(self.true, value, low, high, narrower))
        _, refuted = self._says(*self._moved(self.false, value, low, high, narrower))
        return shown and refuted

    def needed(self, value: float, low: float, high: float, n: int) -> str:
        """How many trials would decide, in words; the interval narrows with the root of their number."""
        if self.needs or self.kind in _OF_PARTS or value != value:
            return self.needs
        narrower = next(
            (step for step in (1.1**k for k in range(1, 100)) if self.decides(value, low, high, step)), None
        )
        if narrower is None:
            return ""
        return (
            f"some {float(f'{n * narrower**2:.1g}'):,.0f}" if n > 1 else f"an interval {narrower:.1f} times as narrow"
        )

    def _says(self, low: float, high: float) -> tuple[bool, bool]:
        return RULES[self.kind](low, high, **self.options)

    def _moved(self, to: float, value: float, low: float, high: float, narrower: float) -> tuple[float, float]:
        if self.log:
            return to * (low / value) ** (1 / narrower), to * (high / value) ** (1 / narrower)
        return to - (value - low) / narrower, to + (high - value) / narrower


def rule_options(kind: str) -> set[str]:
    """Names of the options of a kind."""
    return set(signature(RULES[kind]).parameters) - {"low", "high"}


def worst(words: Iterable[str]) -> str:
    """The worst of some verdicts."""
    return max(words, key=VERDICTS.index)


def map_dependent(words: Iterable[str]) -> bool:
    """Whether verdicts on thirds of the error maps contradict each other: one is `reproduced` and another `contradicted`."""
    return {REPRODUCED, CONTRADICTED} <= set(words)
