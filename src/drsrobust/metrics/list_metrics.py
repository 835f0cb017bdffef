"""List metrics of scores that differ from the golden scores in few rows, for lists of any length."""

from collections.abc import Mapping

import numpy as np

from drsrobust.metrics.item_lists import ItemLists
from drsrobust.metrics.names import LISTS
from drsrobust.metrics.ranking import GoldenLists, UserClicks, UserLists, mean


class ListMetrics:
    """Means over users of what their lists are worth; users without a changed row have their golden lists.

    Args:
        lists: of all users.
        clicked: bool [n].
        golden: scores, as `lists.top` takes them.

    Attributes:
        lists: as given.
    """

    def __init__(self, lists: UserLists | ItemLists, clicked: np.ndarray, golden: np.ndarray) -> None:
        self.lists, self._golden = lists, golden
        self._clicks = UserClicks(lists, clicked)
        self._by_length: dict[int, _OneLength] = {}
        self._of(lists.k)

    def measures(
        self, names: Mapping[str, tuple[str, int | None]], scores: np.ndarray, who: np.ndarray | None
    ) -> dict[str, float]:
        """Metrics by their names; lists are ordered once for all of them.

        Args:
            names: name -> (metric of `LISTS`, length of the list; None: that of `lists`).
            scores: as `lists.top` takes them.
            who: numbers of the users with a changed row, int64 [A]; None: anyone.
        """
        requested = {name: (metric, self._of(k or self.lists.k)) for name, (metric, k) in names.items()}
        top = self.lists.cut(max(lists.lists.k for _, lists in requested.values())).top(scores, who)
        return {
            name: lists.measure(metric, top[: lists.lists.depth], who) for name, (metric, lists) in requested.items()
        }

    def arrays(self, like: "ListMetrics | None" = None) -> dict[str, np.ndarray]:
        """All arrays kept here, by name; those of the lengths that `like` has are made first."""
        for k in [] if like is None else like._by_length:
            self._of(k)
        parts = {"": (self.lists, self._clicks)}
        parts |= {f"@{k}": (lists, lists.clicks, lists.golden) for k, lists in self._by_length.items()}
        arrays = {
            f"{type(part).__name__}.{name}{at}": value
            for at, triple in parts.items()
            for part in triple
            for name, value in vars(part).items()
            if isinstance(value, np.ndarray)
        }
        for k, lists in self._by_length.items():
            arrays |= {f"golden {name}@{k}": values for name, values in lists.values.items()}
        return arrays

    def _of(self, k: int) -> "_OneLength":
        if k not in self._by_length:
            lists = self.lists.cut(k)
            self._by_length[k] = _OneLength(lists, self._clicks.cut(lists.depth), GoldenLists(lists, self._golden))
            for array in self.arrays().values():
                array.setflags(write=False)
        return self._by_length[k]


class _OneLength:
    """Metrics of lists of one length, and their golden values of every user."""

    def __init__(self, lists: UserLists | ItemLists, clicks: UserClicks, golden: GoldenLists) -> None:
        self.lists, self.clicks, self.golden = lists, clicks, golden
        everyone = np.arange(len(lists.counts))
        self.values = {name: self._of_users(name, golden.top, everyone) for name in LISTS if name != "users_harmed"}
        self.values["users_harmed"] = np.zeros(len(everyone), bool)

    def measure(self, name: str, top: np.ndarray, who: np.ndarray | None) -> float:
        """The mean of a metric by the lists [depth, A] of the users `who` (None: all); all others have their golden lists."""
        if who is None:
            values = self._of_users(name, top, None)
        else:
            values = self.values[name].copy()
            values[who] = self._of_users(name, top, who)
        return mean(values) if name in ("overlap", "list_changed") else self.clicks.mean(values)

    def _of_users(self, name: str, top: np.ndarray, who: np.ndarray | None) -> np.ndarray:
        """A metric of every user in `who` (None: all), whose lists are top [depth, A]."""
        if name == "ndcg":
            return self.clicks.ndcg(top, who)
        if name == "hit_rate":
            return self.clicks.hit(top)
        if name == "recall":
            return self.clicks.recall(top, who)
        if name == "overlap":
            return self.golden.overlap(top, who)
        if name == "list_changed":
            return self.golden.list_changed(top, who)
        golden = self.values["ndcg"]
        return self.clicks.ndcg(top, who) < (golden if who is None else golden.take(who))
