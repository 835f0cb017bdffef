"""Rows of which batches are made when asked, indexes lie in files and metrics are computed part by part: the same bits."""

import itertools
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from drsrobust._files import cache_folder
from drsrobust.data.dataset import Ids
from drsrobust.evaluation import Evaluator, affected_rows, lookups
from drsrobust.evaluation.lookups import Readers
from drsrobust.injection import BitFlip, FixedCount, inject
from drsrobust.metrics import BaselineMetrics, auc, incremental, log_loss
from drsrobust.metrics.auc import best_first_keys, twice_won, twice_won_by_ranges, twice_won_of_keys
from drsrobust.models.scoring import PaddedBatches, padded_batches

AUC, LOG_LOSS = (sys.modules[f"drsrobust.metrics.{name}"] for name in ("auc", "log_loss"))


@pytest.fixture
def small_parts(monkeypatch):
    """Thresholds far below the rows of tests."""
    for module in (affected_rows, lookups):
        monkeypatch.setattr(module, "IN_MEMORY", 100)
    for module in (incremental, LOG_LOSS):
        monkeypatch.setattr(module, "BLOCK", 300)
    monkeypatch.setattr(AUC, "RANGE", 500)


def equal(first, other):
    names = ("outcome", "rows_reached", "auc", "logloss", "ne", "nan_rows", "inf_rows")
    same = all(repr(getattr(first, name)) == repr(getattr(other, name)) for name in names)
    return same and first.scores.tobytes() == other.scores.tobytes()


def test_results_are_the_same(trained, data, request):
    """Of all kinds of errors: in single- and multi-hot tables, in layers, anywhere; scores that are not finite among them."""
    plain = Evaluator(trained, data.train)
    request.getfixturevalue("small_parts")
    for memory in (0, "2GB"):
        large = Evaluator(trained, data.train, memory=memory)
        assert isinstance(large._reach.batches, PaddedBatches) and isinstance(plain._reach.batches, list)
        assert equal(large.golden, plain.golden) and large.golden.metric("calibration") == plain.golden.metric(
            "calibration"
        )
        outcomes = set()
        for error, target in ((BitFlip(1e-3), "all"), (FixedCount(40), "embedding"), (FixedCount(3), "over_mlp")):
            for seed in range(3):
                with inject(trained, error, target, seed=seed) as error_map:
                    found, expected = large.rerun(error_map), plain.rerun(error_map)
                    assert equal(found, expected) and equal(large.run(), plain.run())
                outcomes.add(found.outcome)
                assert found.metrics(["calibration", "ndcg", "score_changed"]) == expected.metrics(
                    ["calibration", "ndcg", "score_changed"]
                )
        assert outcomes == {"ok", "nonfinite"}
        large.verify()


class Centred(nn.Module):
    """Its scores depend on the whole batch, so padding must not take part."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, dense_features, sparse_features):
        scores = self.model(dense_features=dense_features, sparse_features=sparse_features).reshape(-1)
        return scores - scores.mean()


def test_the_last_batch_without_padding(trained, data, request):
    model = Centred(trained).eval()
    plain = Evaluator(model, data.train.head(4100))
    request.getfixturevalue("small_parts")
    large = Evaluator(model, data.train.head(4100))
    assert [len(batch.labels) for batch in large._reach.batches] == [2048, 2048, 4]
    assert equal(large.golden, plain.golden) and equal(large.run(), plain.run())


@pytest.mark.parametrize("rows", [None, np.array([7, 3, 3, 599, *range(200)])])
def test_batches_made_when_asked_are_those_of_the_list(data, rows):
    split = data.train.head(620)
    made, numbers = PaddedBatches(split, 128, rows), np.arange(620) if rows is None else rows
    parts = [numbers[start : start + 128] for start in range(0, len(numbers), 128)]
    parts[-1] = np.append(parts[-1], np.full((128 if rows is None else 96) - len(parts[-1]), numbers[-1]))
    whole = [split.batch(part) for part in parts]

    def content(batches):
        return [
            [batch.dense_features.tolist(), batch.sparse_features.values().tolist(), batch.labels.tolist()]
            for batch in batches
        ]

    n = len(whole)
    assert len(made) == n and content(made) == content(whole) == content(made[:]) == content(made)
    assert isinstance(padded_batches(split, 128, rows), list)
    assert content(made[:1]) == content(whole[:1]) and content([made[-1]]) == content(whole[-1:])
    assert content(made[-2:]) == content(whole[-2:]) and made[0] is not made[0]
    for number in (n, -n - 1):
        with pytest.raises(IndexError):
            made[number]
    made[-1] = whole[0]
    assert made[n - 1] is whole[0] and content(made[:-1]) == content(whole[:-1])


def mapped_files():
    """Maps of files in the folder of indexes."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(cache_folder("indexes")) in line]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="maps are read from /proc")
def test_an_index_in_files_is_that_in_memory_and_leaves_nothing(monkeypatch, empty_cache):
    """The files have no name from the start, so a killed process leaves none either."""
    random = np.random.default_rng(0)
    values = random.zipf(1.2, 5000).clip(max=3000).astype(np.int32)
    lengths = random.multinomial(5000, np.ones(1000) / 1000).astype(np.int32)
    for ids in (Ids(values), Ids(values, lengths)):
        plain = Readers(ids)
        with monkeypatch.context() as lowered:
            lowered.setattr(lookups, "IN_MEMORY", 900)
            large = Readers(ids)
        assert len(mapped_files()) >= 2 and all("(deleted)" in line for line in mapped_files())
        assert not any(path.is_file() for path in empty_cache.rglob("*"))
        for number in (1, 2, 10, 500, 3000):
            asked = np.unique(random.integers(0, 4000, number))
            rows = np.arange(len(values)) if ids.lengths is None else np.repeat(np.arange(1000), lengths)
            expected = np.unique(rows[np.isin(values, asked)])
            for scanned, repeated in itertools.product((0, lookups.SCANNED), (asked, np.repeat(asked, 2))):
                monkeypatch.setattr(lookups, "SCANNED", scanned)  # 0: by the index
                assert np.array_equal(large.of(repeated), expected) and np.array_equal(plain.of(repeated), expected)
        del large
        assert not mapped_files()


def test_a_full_disk_is_an_error_that_names_the_folder(monkeypatch, empty_cache):
    monkeypatch.setattr(lookups, "IN_MEMORY", 10)
    monkeypatch.setattr(lookups, "unnamed_file", lambda folder: full)
    with (
        Path("/dev/full").open("r+b", buffering=0) as full,
        pytest.raises(OSError, match=r"indexes\); make room, or set DRSROBUST_CACHE"),
    ):
        Readers(Ids(np.arange(1000, dtype=np.int32)))


def kinds_of_scores(n):
    random = np.random.default_rng(1)
    normal = random.standard_normal(n, np.float32)
    infinite = normal.copy()
    infinite[:40] = np.repeat(np.float32([np.nan, np.inf, -np.inf, -0.0]), 10)
    neighbours = np.float32(1) + random.integers(0, 50, n).astype(np.float32) * np.float32(2**-23)
    zeros = np.where(random.random(n) < 0.5, np.float32(0), np.float32(-0.0))
    ties = np.round(normal)
    ties[random.random(n) < 0.3] = np.nan
    equal_ones = np.full(n, np.float32(0.25))
    return [normal, infinite, neighbours, zeros, ties, equal_ones, np.full(n, np.nan, np.float32)]


@pytest.mark.parametrize("size", [60, 400, 1999, 2000])
def test_pairs_won_range_by_range(size, monkeypatch):
    """Ties, NaN, infinities, zeros of both signs; ranges of one key, and keys of which more than a range share a high half."""
    clicked = np.random.default_rng(0).random(2000) < 0.3
    for scores in kinds_of_scores(2000):
        keys = best_first_keys(scores)
        expected = twice_won_of_keys(clicked, keys)
        monkeypatch.setattr(AUC, "RANGE", size)
        assert twice_won_by_ranges(clicked, keys) == twice_won(clicked, scores) == expected
        assert twice_won(clicked, scores.astype(np.float64)) == expected
        assert twice_won_by_ranges(np.ones(2000, bool), keys) == 0
        monkeypatch.undo()
        assert auc(clicked, scores) == expected / (2 * clicked.sum() * (~clicked).sum())


def test_metrics_part_by_part(small_parts, monkeypatch):
    random = np.random.default_rng(0)
    labels, golden = (random.random(2000) < 0.3).astype(np.float32), random.standard_normal(2000, np.float32)
    parts = BaselineMetrics(labels, golden, 0.3, compare="probability")
    results = [(parts.of_clicks(scores), log_loss(labels, scores, 0.3)) for scores in kinds_of_scores(2000)]
    arrays = incremental._arrays(parts) | incremental._arrays(parts._pairs)
    monkeypatch.undo()
    whole = BaselineMetrics(labels, golden, 0.3, compare="probability")
    expected = incremental._arrays(whole) | incremental._arrays(whole._pairs)
    assert arrays.keys() == expected.keys() and len(arrays) == 9
    assert all(array.tobytes() == expected[name].tobytes() for name, array in arrays.items())
    for (headline, loss), scores in zip(results, kinds_of_scores(2000), strict=True):
        assert headline == whole.of_clicks(scores) and loss == log_loss(labels, scores, 0.3) == headline[1]


@pytest.mark.parametrize("name", ["golden", "_compared", "_factors", "_probabilities", "_clicks", "_others", "_won"])
def test_what_is_written_to_is_noticed(name):
    random = np.random.default_rng(0)
    labels, golden = (random.random(50) < 0.3).astype(np.float32), random.standard_normal(50, np.float32)
    metrics = BaselineMetrics(labels, golden, 0.3)
    assert metrics.calibration(golden) > 0  # its array is made when it is first asked for
    metrics.check(golden)
    array = getattr(metrics if hasattr(metrics, name) else metrics._pairs, name)
    array.setflags(write=True)
    array[3] += 1
    with pytest.raises(RuntimeError, match="something wrote to it"):
        metrics.check(golden)


def test_memory_of_metrics():
    """At most 60 bytes a row, the scores of the evaluator and of the result among them."""
    n, random = 3 << 20, np.random.default_rng(0)
    labels, golden = (random.random(n) < 0.25).astype(np.float32), random.standard_normal(n, np.float32)
    tracemalloc.start()
    try:
        metrics = BaselineMetrics(labels, golden, 0.25, compare="probability")
        metrics.of_clicks(golden + np.float32(1))
        metrics.check(golden)
        constant = 80 * AUC.RANGE + 100 * incremental.BLOCK
        assert 30 * n < tracemalloc.get_traced_memory()[1] + 8 * n < 60 * n + constant
    finally:
        tracemalloc.stop()
