"""Ranking as people evaluate it: seen items at -inf, and one relevant candidate before many others."""

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr

ROWS, ITEMS = 128, 40


class Factors(nn.Module):
    """Scores of all items, or of a row's candidates; `seen` [ROWS, ITEMS] are masked."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.users, self.items = nn.Embedding(ROWS, 8), nn.Parameter(torch.randn(ITEMS, 8))

    def forward(self, users, seen=None, candidates=None):
        if candidates is not None:
            return (self.users(users)[:, None] * self.items[candidates]).sum(-1)
        scores = self.users(users) @ self.items.T
        return scores if seen is None else scores.masked_fill(seen, float("-inf"))


def batches(*parts):
    return [tuple(part[i : i + 64] for part in parts) for i in range(0, ROWS, 64)]


@pytest.fixture
def seen():
    return torch.rand(ROWS, ITEMS, generator=torch.Generator().manual_seed(2)) < 0.2


def test_masked_items_are_no_errors(seen):
    """Metrics are those of scores whose masked items are far below all others, and NaN or infinities of errors are found."""
    model, users = Factors(), torch.arange(ROWS)
    relevant = torch.tensor([int((~row).nonzero()[0]) for row in seen])
    rows = dr.data.from_batches(iter(batches(users, seen, relevant)), task="ranking")
    least = torch.finfo(torch.float32).min
    low = dr.Evaluator(
        model, rows, task="ranking", forward=lambda model, batch: model(batch[0]).masked_fill(batch[1], least)
    )
    evaluator = dr.Evaluator(model, rows, task="ranking", forward=lambda model, batch: model(batch[0], batch[1]))
    assert (evaluator.golden.outcome, evaluator.golden.nan_rows, evaluator.golden.inf_rows) == ("ok", 0, 0)
    lists = ["ndcg@10", "hit_rate@10", "recall@5", "overlap", "list_changed", "users_harmed"]
    names = [*lists, "score_changed", "deviated_0.01", "median_change"]
    assert evaluator.golden.metrics(names[6:]) == {"score_changed": 0.0, "deviated_0.01": 0.0, "median_change": 0.0}
    outcomes = set()
    for seed in range(12):
        bits = [30, 29] if seed % 2 else [31, 22]
        with dr.inject(model, dr.FixedCount(3, bits=bits), seed=seed) as error_map:
            result, rerun, other = evaluator.run(), evaluator.rerun(error_map), low.run()
        assert result.scores.tobytes() == rerun.scores.tobytes()
        finite = np.isfinite(np.where(seen.numpy(), 0, result.scores)).all()
        assert result.outcome == rerun.outcome == ("ok" if finite else "nonfinite")
        assert (result.nan_rows, result.inf_rows) == (rerun.nan_rows, rerun.inf_rows)
        assert result.metrics(names) == rerun.metrics(names)
        assert result.metrics(lists) == other.metrics(lists)
        if finite:  # of a masked score neither differs
            assert result.metrics(names[6:8]) == other.metrics(names[6:8])
        outcomes.add(result.outcome)
    evaluator.verify()


def test_a_masked_item_that_errors_unmask_and_a_new_mask_count():
    golden = np.array([[1.0, -np.inf, 0.5], [2.0, 1.0, -np.inf]], np.float32)
    metrics = dr.metrics.tasks.RankMetrics(np.array([0, 0]), golden, k=2)
    scores = golden.copy()
    scores[0, 1], scores[1, 1] = 3.0, -np.inf
    measured = metrics.measures(["score_changed", "deviated_0.01", "list_changed"], scores, np.array([0, 1]))
    assert measured == {"score_changed": 2 / 6, "deviated_0.01": 2 / 6, "list_changed": 0.5}
    assert dr.evaluation.evaluation.non_finite_rows(scores, golden) == (0, 1)


@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_the_first_of_some_candidates_is_the_relevant_one(kind):
    """Labels are 0 everywhere, the number of the relevant candidate; before they were taken for those of clicks."""
    model, users = Factors(), torch.arange(ROWS)
    candidates = torch.randint(ITEMS, (ROWS, 20), generator=torch.Generator().manual_seed(3))

    def ndcg(labels, **options):
        rows = dr.data.from_batches(iter(batches(users, candidates, labels)), **options)
        forward = lambda model, batch: model(batch[0], candidates=batch[1])  # noqa: E731
        evaluator = dr.Evaluator(model, rows, forward=forward, task="ranking")
        return evaluator.golden.metric("ndcg@10"), evaluator.rows.fingerprint if kind is torch.int64 else None

    with torch.no_grad():
        scores = model(users, candidates=candidates).numpy()
    places = (scores > scores[:, :1]).sum(1) + 1
    expected = np.where(places <= 10, 1 / np.log2(1 + places), 0).mean()
    zeros, flags = torch.zeros(ROWS, dtype=kind), torch.eye(20)[torch.zeros(ROWS, dtype=torch.int64)].to(kind)
    assert ndcg(zeros)[0] == pytest.approx(expected)
    assert ndcg(zeros) == ndcg(zeros, task="ranking")
    assert ndcg(flags, task="ranking")[0] == pytest.approx(expected)
