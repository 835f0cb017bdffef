import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score
from torchmetrics.retrieval import RetrievalHitRate, RetrievalNormalizedDCG, RetrievalRecall

from drsrobust.metrics import UserLists, hit_rate, list_changed, ndcg, recall, topk_overlap, users_harmed

SCORE = st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0, 2.0, math.nan, math.inf, -math.inf]))
ROW = st.tuples(st.integers(0, 1), SCORE, SCORE, st.sampled_from([3, -7, 2**40, 11, 12, 13]))
EXTREMES = np.array([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf])


def user_lists(scores, users, k):
    """User by user: his rows that are shown, sorted, cut."""
    lists = {}
    for user in sorted(set(users.tolist())):
        rows = [row for row in np.flatnonzero(users == user).tolist() if not math.isnan(scores[row])]
        lists[user] = sorted(rows, key=lambda row: -scores[row])[:k]
    return lists


def ndcgs(labels, scores, users, k):
    """User by user, those with a click."""
    found = {}
    for user, rows in user_lists(scores, users, k).items():
        clicks = int(labels[users == user].sum())
        if clicks:
            gain = sum(1 / math.log2(2 + rank) for rank, row in enumerate(rows) if labels[row])
            found[user] = gain / sum(1 / math.log2(2 + rank) for rank in range(min(k, clicks)))
    return found


def average(values):
    values = list(values)
    return sum(values) / len(values) if values else math.nan


@settings(max_examples=400, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=40), st.integers(1, 12), st.sampled_from([np.float32, np.float64]))
def test_the_definitions_user_by_user(rows, k, dtype):
    labels, users = np.array([r[0] for r in rows]), np.array([r[3] for r in rows])
    scores, golden = np.array([r[1] for r in rows], dtype), np.array([r[2] for r in rows], dtype)
    lists, golden_lists = user_lists(scores, users, k), user_lists(golden, users, k)
    own, golden_own = ndcgs(labels, scores, users, k), ndcgs(labels, golden, users, k)

    def close(value):
        return pytest.approx(value, abs=1e-12, nan_ok=True)

    assert ndcg(labels, scores, users, k) == close(average(own.values()))
    assert hit_rate(labels, scores, users, k) == close(average(bool(labels[lists[u]].sum()) for u in own))
    found = (labels[lists[u]].sum() / labels[users == u].sum() for u in own)
    assert recall(labels, scores, users, k) == close(average(found))
    overlaps = (len({*lists[u]} & {*golden_lists[u]}) / min(k, int((users == u).sum())) for u in lists)
    assert topk_overlap(scores, golden, users, k) == close(average(overlaps))
    assert list_changed(scores, golden, users, k) == close(average(lists[u] != golden_lists[u] for u in lists))
    worse = (own[u] < golden_own[u] - 1e-12 for u in own)
    assert users_harmed(labels, scores, golden, users, k) == close(average(worse))


def test_lists_of_many_users():
    """As sorting by user, score and row; float32 and float64, few and many users, lists longer than any user's rows."""
    rng = np.random.default_rng(0)
    for n, people in ((5000, 7), (5000, 3000), (70_000, 66_000)):
        users = rng.integers(0, people, n) * 1000
        scores = rng.normal(size=n).round(1)
        scores[rng.integers(0, n, n // 10)] = rng.choice(EXTREMES, n // 10)
        missing = np.isnan(scores)
        order = np.lexsort((np.where(missing, 0, -scores), missing, users))
        for k in (1, 5, 10_000):
            lists = UserLists(users, k)
            assert lists.depth == min(k, lists.longest)
            starts = np.append(0, np.cumsum(lists.counts))
            top = lists.top(scores.astype(np.float32))
            for number in rng.integers(0, len(lists.users), 50):
                rows = order[starts[number] : starts[number + 1]]
                rows = rows[~np.isnan(scores[rows])][:k]
                assert (top[: len(rows), number] == rows).all() and (top[len(rows) :, number] == -1).all()
            assert (lists.top(scores) == top).all()
            who = np.unique(rng.integers(0, len(lists.users), 40))
            assert (lists.top(scores.astype(np.float32), who) == top[:, who]).all()


@pytest.mark.parametrize("k", [1, 3, 5, 50])
def test_against_torchmetrics_and_scikit_learn(k):
    """On finite scores without ties, where the definitions are the same."""
    rng = np.random.default_rng(k)
    users, labels = rng.integers(0, 40, 600), rng.integers(0, 6, 600) == 0
    scores = rng.permutation(600).astype(np.float32)
    inputs = torch.tensor(scores), torch.tensor(labels), torch.tensor(users)
    peers = {ndcg: RetrievalNormalizedDCG, hit_rate: RetrievalHitRate, recall: RetrievalRecall}
    for metric, peer in peers.items():
        expected = peer(empty_target_action="skip", top_k=k)(*inputs[:2], indexes=inputs[2]).item()
        assert metric(labels, scores, users, k) == pytest.approx(expected, abs=1e-6)
    per_user = [
        ndcg_score([labels[mine].astype(int)], [scores[mine]], k=k)
        for mine in (users == user for user in range(40))
        if labels[mine].any()
    ]
    assert ndcg(labels, scores, users, k) == pytest.approx(np.mean(per_user), abs=1e-12)


def test_a_row_without_a_score_is_not_shown():
    labels, users, nan = np.array([1, 0, 1]), np.array([4, 4, 9]), math.nan
    scores, golden = np.array([nan, 1.0, nan]), np.array([2.0, 1.0, 0.0])
    assert [metric(labels, scores, users, 5) for metric in (ndcg, hit_rate, recall)] == [0.0] * 3
    assert topk_overlap(scores, golden, users, 5) == 0.25 and list_changed(scores, golden, users, 5) == 1.0
    assert users_harmed(labels, scores, golden, users, 5) == 1.0
    assert topk_overlap(scores, scores, users, 5) == 0.25 and list_changed(scores, scores, users, 5) == 0.0
    nothing, none = np.array([]), np.array([], np.int64)
    assert math.isnan(ndcg(nothing, nothing, none, 5)) and math.isnan(topk_overlap(nothing, nothing, none, 5))
