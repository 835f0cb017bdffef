"""Pairs counted on a device, which is the CPU here: the same numbers as by NumPy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drsrobust.metrics import BaselineMetrics, incremental
from drsrobust.metrics.auc import twice_won as expected
from drsrobust_extras.scale.device_pairs import twice_won

CPU = torch.device("cpu")
SCORES = st.one_of(st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan]), st.floats(width=32))


@given(st.lists(st.tuples(st.booleans(), SCORES), max_size=40), st.sampled_from([np.float32, np.float64]))
def test_any_scores(rows, dtype):
    clicked, scores = np.array([row[0] for row in rows], bool), np.array([row[1] for row in rows], dtype)
    assert twice_won(clicked, scores, device=CPU) == expected(clicked, scores)


@pytest.mark.parametrize("compare", ["logit", "probability"])
def test_metrics_count_by_it_where_many_rows_changed(monkeypatch, compare):
    random, n = np.random.default_rng(0), 4000
    labels, golden = (random.random(n) < 0.3).astype(np.float32), random.normal(size=n).astype(np.float32)
    monkeypatch.setattr(incremental, "FEW_CHANGED", 20)
    counted = []

    def count(clicked, scores):
        counted.append(len(scores))
        return twice_won(clicked, scores, device=CPU)

    here = BaselineMetrics(labels, golden, 0.3, compare=compare)
    there = BaselineMetrics(labels, golden, 0.3, compare=compare, count_pairs=count)
    for m in (0, 1, 20, 21, 100, n):
        scores, rows = golden.copy(), random.permutation(n)[:m]
        scores[rows] *= random.choice([-1, 1, 1e30, np.nan], size=m).astype(np.float32)
        assert there.of_clicks(scores, rows) == pytest.approx(here.of_clicks(scores, rows), abs=0, nan_ok=True)
    assert counted == [n] * 3
    assert there.auc(scores) == here.auc(scores)
    there.check(golden)
