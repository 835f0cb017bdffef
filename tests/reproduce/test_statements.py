"""Rules of statements: what an interval says, what a verdict needs, and mistakes in a file of rules."""

import io
import subprocess

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drsrobust_study.statements import interval
from reproduce import statements
from reproduce.notebooks import ROOT
from reproduce.simulation import BORDER, FALSE, TRUE, simulated
from reproduce.statements import CONTRADICTED, MAYBE, NO, NOT_RUN, REPRODUCED, UNDECIDED, YES, Condition
from reproduce.statements_page import SAME, against_judged, statement_rows

PUBLISHED = "312f2844"  # the commit that published the judged run

RULE = """
[[rule]]
statement = "S6"
figure = "03_test"
items = 5
reproduced = 0.8
contradicted = 0.2
[[rule.condition]]
what = "lost at 1e-6"
below = 0.005
spread = 0.001
true = 0.002
false = 0.02
"""
RULES = {f"{rule.statement} {rule.part}".strip(): rule for rule in statements.load_rules()}


@pytest.mark.parametrize(
    ("condition", "ends", "said"),
    [
        (Condition("x", above=1), (1.1, 2), YES),
        (Condition("x", above=1), (0.9, 2), MAYBE),
        (Condition("x", above=1), (0.5, 0.9), NO),
        (Condition("x", below=1), (1.1, 2), NO),
        (Condition("x", above=30, below=300), (40, 200), YES),
        (Condition("x", above=30, below=300), (301, 400), NO),
        (Condition("x", above=30, below=300), (200, 400), MAYBE),
        (Condition("x", above=1), (float("nan"), float("nan")), MAYBE),
    ],
)
def test_what_an_interval_says(condition, ends, said):
    assert condition.says(*ends) == said


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(0, 3), st.floats(0, 3), st.floats(-5, 5), st.floats(0.1, 5))
def test_a_wider_interval_says_no_more(low, high, below, above, bound, width):
    low, high = sorted((low, high))
    for condition in (Condition("x", above=bound), Condition("x", below=bound), Condition("x", bound, bound + width)):
        assert condition.says(low - below, high + above) in (MAYBE, condition.says(low, high))


def test_shares_of_items():
    rule = statements.Rule("S6", "", "03_test", (Condition("x", above=0),), 0.8, 0.2, 5)
    words = {(5, 0, 0): REPRODUCED, (4, 0, 1): REPRODUCED, (3, 2, 0): UNDECIDED, (1, 0, 4): CONTRADICTED}
    words |= {(0, 1, 4): CONTRADICTED, (1, 1, 3): UNDECIDED, (0, 0, 0): NOT_RUN}
    for (clear, unclear, not_so), word in words.items():
        assert rule.verdict([YES] * clear + [MAYBE] * unclear + [NO] * not_so) == word


def test_intervals():
    assert interval(np.array([1.0, 2.0, 3.0])) == pytest.approx((2, -0.484, 4.484), abs=1e-3)
    assert interval(np.array([10.0, 100.0, 1000.0]), log=True)[0] == pytest.approx(100)
    # Units that agree by chance have at least the error of their maps.
    assert interval(np.full(5, 2.0), np.full(5, 1.0)) == pytest.approx((2, 2 - 1.2417, 2 + 1.2417), abs=1e-3)
    assert np.isnan(interval(np.full(5, 2.0))[1]) and np.isnan(interval(np.array([1.0, 2.0]))[1])
    assert interval(np.ones(5), share=True) == pytest.approx((1, 1 - 0.4507, 1), abs=1e-3)
    assert np.isnan(interval(np.array([0.0, 1.0, 2.0]), log=True)[1])


def table(lost, *, item="fm", dataset="d"):
    units = {"statement": "S6", "part": "", "dataset": dataset, "item": item, "what": "lost at 1e-6", "error": np.nan}
    return pd.DataFrame({"unit": range(100, 100 + len(lost)), "value": lost}).assign(**units)


def test_verdicts_of_a_run(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULE)
    rules, low, high = statements.load_rules(path), [0.001, 0.002, 0.003, 0.001, 0.002], [0.01, 0.02, 0.03, 0.02, 0.01]
    values = [table(low, item=name) for name in ("fm", "dcn", "afm", "deepfm")] + [table(high, item="wide_deep")]
    others = [one.assign(dataset="e") for one in values[3:]]
    found = statements.verdicts_of(rules, {"03_test": pd.concat([*values, *others])})
    whole = found[found["item"] == ""].set_index("dataset")
    assert whole["verdict"].to_dict() == {"d": REPRODUCED, "e": UNDECIDED} and whole["what"]["d"] == "4 of 5"
    assert found[found["item"] != ""]["n"].eq(5).all()
    assert statements.verdicts_of(rules, {})["verdict"].tolist() == [NOT_RUN]
    with pytest.raises(ValueError, match="S6, fm, lost at 1e-6: a unit is there twice"):
        statements.verdicts_of(rules, {"03_test": pd.concat([values[0], values[0]])})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("reproduced = 0.8", "reproduces = 0.8", "reproduce"),
        ("below = 0.005", "under = 0.005", "condition"),
        ("below = 0.005\n", "", "lost at 1e-6 needs"),
        ("below = 0.005", "below = 1\nabove = 2", "lost at 1e-6 needs"),
        ("spread = 0.001\n", "", "no spread"),
    ],
)
def test_mistakes_are_named(tmp_path, old, new, says):
    path = tmp_path / "rules.toml"
    path.write_text(RULE.replace(old, new))
    with pytest.raises(ValueError, match=says):
        statements.load_rules(path)


@pytest.mark.parametrize("name", RULES)
def test_right_words(name):
    """At least 80 % right, at most 5 % wrong; at the bound mostly neither."""
    rule = RULES[name]
    assert all(np.isfinite([one.spread, one.true, one.false]).all() for one in rule.conditions)
    true, false, border = (simulated(rule, case) for case in (TRUE, FALSE, BORDER))
    assert true.count(REPRODUCED) >= 0.8 * len(true) and true.count(CONTRADICTED) <= 0.05 * len(true)
    assert false.count(CONTRADICTED) >= 0.8 * len(false) and false.count(REPRODUCED) <= 0.05 * len(false)
    assert border.count(UNDECIDED) > 0.5 * len(border)


def test_verdicts_of_the_judged_run_are_next_to_those_of_a_later_one(tmp_path):
    judged, path = pd.read_csv(statements.JUDGED_RUN, keep_default_na=False), tmp_path / "statements.csv"
    stored = ["git", "show", f"{PUBLISHED}:figures/statements.csv"]
    if (there := subprocess.run(stored, cwd=ROOT, capture_output=True, text=True)).returncode == 0:
        first = pd.read_csv(io.StringIO(there.stdout), keep_default_na=False)
        assert judged.equals(first.loc[first["item"] == "", judged.columns].reset_index(drop=True))
    others = judged.assign(item="", known_before="", by_construction="")
    others.loc[others["statement"] == "S4", "verdict"] = UNDECIDED
    others.to_csv(path, index=False)
    of = {row["name"]: row for row in statement_rows(path)}
    assert of["S1"]["judged"] == SAME and REPRODUCED in of["S4"]["judged"] and UNDECIDED in of["S4"]["movielens"]
    count = len(judged)
    assert against_judged(path).startswith(f"{count - 1} of {count} ") and "S4" in against_judged(path)
