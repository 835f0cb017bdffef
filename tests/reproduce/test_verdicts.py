"""Rules on intervals: what shows, what refutes, and what decides neither way."""

import pytest

from reproduce.verdicts import RULES, VERDICTS, Rule, map_dependent, rule_options, worst

NAN = float("nan")
# kind -> options, and number with interval: shown, refuted, on the border, too wide
CASES = {
    "above": (
        {"bound": 1.0, "refuted": 1.2, "true": 2.0, "false": 0.9},
        (2, 1.8, 2.2),
        (1, 0.9, 1.1),
        (1.2, 0.99, 1.4),
        (2, 0, 4),
    ),
    "below": ({"bound": 1.0, "true": 0.0, "false": 2.0}, (0.5, 0.2, 1), (2, 1.5, 3), (1, 0.9, 1.2), (1, -1, 3)),
    "within": (
        {"least": 1.0, "greatest": 3.0, "true": 2.0, "false": 9.0},
        *((2, 1, 3), (5, 4, 6), (3, 2.5, 3.5), (3, 0, 6)),
    ),
    "reaches": (
        {"bound": 0.3, "true": 0.3, "false": 0.0},
        (0.5, 0.3, 0.7),
        (0.2, 0.1, 0.29),
        (0.2, 0.05, 0.35),
        (0.3, -0.3, 0.9),
    ),
    "differs": (
        {"refuted": 0.1, "true": 1.0, "false": 0.0},
        (-1, -2, -0.5),
        (0, -0.1, 0.1),
        (0.05, -0.01, 0.11),
        (0.3, -1, 1.6),
    ),
    "all": ({"true": 1.0, "false": 0.0}, (1, 1, 1), (0, 0, 0), (0.5, 0.4, 0.6), (1, 0, 1)),
    "some": ({"true": 1.0, "false": 0.0}, (0.5, 0.1, 0.6), (0, 0, 0), None, (0.5, 0, 1)),
}


def rule(kind, **more):
    options = CASES[kind][0] | more
    names = {name: options.pop(name) for name in ("true", "false", "log", "needs") if name in options}
    return Rule(kind, **names, options=options)


def test_all_rules_have_cases():
    assert set(CASES) == set(RULES)
    assert rule_options("above") == {"bound", "refuted"} and rule_options("all") == set()


@pytest.mark.parametrize("kind", RULES)
def test_verdicts(kind):
    _, shown, refuted, border, wide = CASES[kind]
    assert rule(kind).verdict(*shown) == "reproduced"
    assert rule(kind).verdict(*refuted) == "contradicted"
    assert border is None or rule(kind).verdict(*border) == "in part"
    assert rule(kind).verdict(*wide) == "undecided"
    for ends in ((1, NAN, 2), (1, 0, NAN), (NAN, NAN, NAN)):
        assert rule(kind).verdict(*ends) == "not testable here"


@pytest.mark.parametrize("kind", sorted(set(RULES) - {"all", "some"}))
def test_the_needed_number_decides(kind):
    """The interval narrows with the root of the number of trials."""
    wide, n = CASES[kind][-1], 100
    needed = int(rule(kind).needed(*wide, n).removeprefix("some ").replace(",", ""))
    assert rule(kind).decides(*wide, narrower=(1.3 * needed / n) ** 0.5)
    assert not rule(kind).decides(*wide, narrower=(0.6 * needed / n) ** 0.5)


def test_without_a_number_of_trials_the_width_is_told():
    assert rule("below").needed(1, -1, 3, 1).startswith("an interval 2.1 times as narrow")
    assert rule("all", needs="some 3,700 maps").needed(1, 0, 1, 3) == "some 3,700 maps"
    assert rule("all").needed(1, 0, 1, 3) == "" and rule("above").needed(NAN, 0, 9, 3) == ""


def test_ratios_keep_their_factors():
    """10 [5, 40] around 2 is [1, 8], around 1 [0.5, 4]."""
    over = {"bound": 0.9, "refuted": 5.0, "true": 2.0, "false": 1.0}
    assert rule("above", **over, log=True).decides(10, 5, 40)
    assert not rule("above", **over).decides(10, 5, 40)


def test_the_worst_of_several():
    assert worst(["reproduced", "undecided", "in part"]) == "undecided"
    assert worst(VERDICTS) == "contradicted" and worst(["reproduced"]) == "reproduced"


def test_thirds_that_contradict_each_other():
    assert map_dependent(["reproduced", "contradicted", "in part"])
    assert not map_dependent(["reproduced", "undecided"]) and not map_dependent(["contradicted"] * 3)
