"""Rules give the right word to what is clearly so, and seldom the wrong one."""

import numpy as np
import pytest

from reproduce.simulation import BORDER, FALSE, TRUE, simulated
from reproduce.statements import CONTRADICTED, REPRODUCED, UNDECIDED, load_rules

RULES = {f"{rule.statement} {rule.part}".strip(): rule for rule in load_rules()}


@pytest.fixture(params=RULES, scope="module")
def rule(request):
    rule = RULES[request.param]
    assert all(np.isfinite([one.spread, one.true, one.false]).all() for one in rule.conditions)
    return rule


def test_right_words(rule):
    """At least 80 % right, at most 5 % wrong; at the bound mostly neither."""
    true, false, border = (simulated(rule, case) for case in (TRUE, FALSE, BORDER))
    assert true.count(REPRODUCED) >= 0.8 * len(true) and true.count(CONTRADICTED) <= 0.05 * len(true)
    assert false.count(CONTRADICTED) >= 0.8 * len(false) and false.count(REPRODUCED) <= 0.05 * len(false)
    assert border.count(UNDECIDED) > 0.5 * len(border)


def test_a_wider_interval_reproduces_no_more(rule):
    for case in (TRUE, FALSE, BORDER):
        shares = [simulated(rule, case, wider=wider).count(REPRODUCED) for wider in (1.0, 1.5, 3.0)]
        assert shares == sorted(shares, reverse=True)
