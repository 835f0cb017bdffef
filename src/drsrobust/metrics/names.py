"""Names of metrics: `ndcg`, and `ndcg@10` with the length of the list."""

import re
from collections.abc import Sequence

from drsrobust._choices import unknown
from drsrobust.metrics.changes import DEVIATED, DEVIATIONS
from drsrobust.statistics.columns import DECISIONS

OF_CLICKS = ("auc", "logloss", "ne")  # columns of every campaign
LISTS = ("ndcg", "hit_rate", "recall", "overlap", "list_changed", "users_harmed")
NAMES = ("calibration", *LISTS, *DECISIONS, "score_changed", *DEVIATIONS)
CLICK = (*OF_CLICKS, *NAMES)
RANK = (*OF_CLICKS, *LISTS, "score_changed", *DEVIATED, "median_change")


def split_name(name: str, names: Sequence[str] = NAMES) -> tuple[str, int | None]:
    """A metric's name and the length of its list; None without one.

    Raises:
        ValueError: a name that is not among the known ones, a length of a metric without lists, or no length of a list.

    Example:
        >>> split_name("ndcg@10"), split_name("ndcg")
        (('ndcg', 10), ('ndcg', None))
    """
    base, at, length = name.partition("@") if isinstance(name, str) else (name, "", "")
    # gauc is another metric than auc, and no typing error.
    if isinstance(base, str) and base not in names and base.isalpha() and base.endswith(tuple(names)):
        raise ValueError(
            f"unknown metric {base!r}; known: {', '.join(names)}; metrics={{{base!r}: function}} takes one of your own"
        )
    if not isinstance(base, str) or base not in names:
        raise unknown("metric", base, names)
    if not at:
        return base, None
    if base not in LISTS:
        raise ValueError(f"metric {name!r}: {base} is not of lists; those that take a length are {', '.join(LISTS)}")
    if not re.fullmatch("[1-9][0-9]*", length):
        raise ValueError(f"metric {name!r}: the length of a list must be a whole number, 1 or more, as in '{base}@10'")
    return base, int(length)
