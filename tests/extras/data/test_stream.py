"""Rows that are never in one place: metrics of a stream are those of the same rows in memory."""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import drsrobust as dr
from drsrobust.data.dataset import Ids
from drsrobust.metrics import StreamedMetrics, auc, log_loss, normalised_entropy, served
from drsrobust_extras.data import stream_passes
from tests.refusals import refuses

AUC, streamed_metrics = (sys.modules[f"drsrobust.metrics.{name}"] for name in ("auc", "streamed"))


def cut(rows, size):
    return lambda: (rows.take(slice(start, start + size)) for start in range(0, len(rows), size))


@pytest.fixture
def blocks(data):
    """A list of blocks, which a test may change."""
    return list(cut(data.test, 150)())


@pytest.fixture
def streamed(tmp_path):
    """Makes streamed metrics; at the end their files are gone."""
    with contextlib.ExitStack() as stack:
        yield lambda *about: stack.enter_context(StreamedMetrics(*about, tmp_path))
        assert not list(tmp_path.iterdir())  # the files never have a name


def kinds(n):
    random = np.random.default_rng(0)
    normal = random.standard_normal(n, np.float32)
    odd = np.round(normal, 1)  # ties
    odd[::7], odd[1::50], odd[2::50], odd[3::9] = np.nan, np.inf, -np.inf, -0.0
    return {"numbers": normal, "odd ones": odd, "large ones": normal * 30, "ties": np.zeros(n, np.float32)}


@pytest.mark.parametrize("kind", ["numbers", "odd ones", "large ones", "ties"])
@pytest.mark.parametrize("compare", ["probability", "logit"])
def test_metrics_of_blocks_are_those_of_all_scores(kind, compare, monkeypatch, streamed):
    scores = kinds(5000)[kind]
    labels = (np.random.default_rng(1).random(5000) < 0.3).astype(np.float32)
    expected = auc(labels, served(scores) if compare == "probability" else scores)
    for size in (37, 1000, 5000):
        monkeypatch.setattr(AUC, "RANGE", size)
        metrics = streamed(0.3, compare)
        for start in range(0, 5000, size):
            metrics.add(labels[start : start + size], scores[start : start + size])
        headline = metrics.of_clicks()
        assert headline.auc == expected and metrics.low == np.nanmin(scores) and metrics.high == np.nanmax(scores)
        assert headline.logloss == pytest.approx(log_loss(labels, scores, 0.3), rel=1e-12)
        assert headline.ne == pytest.approx(normalised_entropy(labels, scores, 0.3), rel=1e-12)
        assert (headline.nan_rows, headline.inf_rows) == (np.isnan(scores).sum(), np.isinf(scores).sum())


def test_float64_logits_are_refused(streamed):
    labels, scores = np.array([0.0, 1.0]), np.array([0.1, 0.2])
    streamed(0.5, "probability").add(labels, scores)
    refuses(lambda: streamed(0.5, "logit").add(labels, scores), ValueError, "scores are float64")


@pytest.mark.parametrize("size", [64, 150, 1000])
def test_an_evaluator_of_a_stream(trained, data, size):
    plain, evaluator = dr.Evaluator(trained, data.test), dr.Evaluator(trained, dr.data.stream(cut(data.test, size)))
    assert evaluator.golden.auc == plain.golden.auc and evaluator.golden.scores is None
    assert evaluator.golden.logloss == pytest.approx(plain.golden.logloss, rel=1e-12)
    outcomes = set()
    for rate in (1e-4, 1e-2):
        with dr.inject(trained, dr.BitFlip(rate), seed=1) as error_map:
            found, expected = evaluator.rerun(error_map), plain.rerun(error_map)
        assert (found.auc, found.nan_rows, found.inf_rows) == (expected.auc, expected.nan_rows, expected.inf_rows)
        names = ["auc", "logloss", "ne"]
        assert found.metrics(names) == pytest.approx(expected.metrics(names), rel=1e-12)
        assert found.rows_reached == len(data.test) and found.probabilities is None
        outcomes.add(found.outcome)
    assert outcomes == {"ok", "nonfinite"}
    evaluator.verify()
    assert f"{data.test.labels.mean():.1%} clicked" in evaluator._repr_html_() and "600 rows" in repr(evaluator)


def test_a_campaign_on_a_stream(trained, data):
    options = {"errors": [dr.BitFlip(1e-4)], "targets": ["embedding", "over_mlp"], "trials": 3}
    options["mitigations"] = [None, dr.NaNGuard(data.train.prior)]
    stream = dr.data.stream(cut(data.test, 150))
    campaigns = [dr.Campaign(dr.Evaluator(trained, rows), **options) for rows in (data.test, stream)]
    tables = [campaign.run(workers=1, progress=False) for campaign in campaigns]
    over_rows = [name for name in tables[0] if "_rows_" in name]  # a stream keeps no scores
    assert tables[1][over_rows].isna().all(axis=None) and tables[0][over_rows].notna().any(axis=None)
    left_out = ["rows_reached", "data", "logloss", "ne", *over_rows]
    plain, streamed = (table.drop(columns=left_out) for table in tables)
    pd.testing.assert_frame_equal(streamed, plain)
    assert tables[1]["logloss"].tolist() == pytest.approx(tables[0]["logloss"].tolist(), rel=1e-12)
    assert set(tables[1]["data"]) == {stream.fingerprint} and set(tables[1]["rows_reached"]) == {len(data.test)}


def test_what_needs_all_scores_or_other_processes_is_refused(trained, data):
    stream = dr.data.stream(cut(data.test, 300))
    evaluator, errors = dr.Evaluator(trained, stream), {"errors": [dr.BitFlip(1e-4)], "trials": 1}
    own = {"mean": lambda labels, scores, *_: scores.mean()}
    for given in (["ndcg@10"], ["decision_changed"], ["calibration"], own):
        said = f"metric '{next(iter(given))}' ", "stream"
        refuses(lambda given=given: dr.Campaign(evaluator, metrics=given, **errors), ValueError, *said)
    refuses(lambda: evaluator.golden.metric("ndgc"), ValueError, "metric 'ndgc'; did you mean 'ndcg'")
    refuses(lambda: dr.Campaign(evaluator, **errors).run(workers=2, progress=False), ValueError, "stream", "workers=1")
    refuses(lambda: dr.Evaluator(trained, stream, task="ranking"), ValueError, "stream", "task='ranking'")


class Probabilities(torch.nn.Module):
    """Probabilities; 0.5 where all users are those given, which may be logits."""

    def __init__(self, model, users=frozenset()):
        super().__init__()
        self.model, self.users = model, users

    def forward(self, dense_features, sparse_features):
        scores = self.model(dense_features=dense_features, sparse_features=sparse_features).sigmoid()
        is_plain = set(sparse_features["user"].values().tolist()) <= self.users
        return torch.full_like(scores, 0.5) if is_plain else scores


def test_probabilities_are_noticed(trained, data):
    """Also those of a later block."""
    stream, model = dr.data.stream(cut(data.test, 300)), Probabilities(trained)
    for one in (model, Probabilities(trained, set(data.test.head(300).sparse["user"].values.tolist()))):
        with pytest.warns(UserWarning, match=r"all scores lie in \[.*\] and look like probabilities"):
            dr.Evaluator(one, stream)
    evaluator = dr.Evaluator(model, stream, output="probability")
    assert evaluator.golden.logloss == pytest.approx(dr.Evaluator(trained, stream).golden.logloss, rel=1e-6)


def refused(blocks, text):
    with pytest.raises(dr.data.StreamError, match=text):
        dr.data.stream(lambda: blocks)


def test_blocks_that_are_refused(data, blocks):
    first, second = blocks[:2]
    names = list(first.sparse)
    refused([first, second.take(slice(0, 0))], "block 1 has no rows")
    refused([first, "rows"], "block 1 is a str")
    refused([first, replace(second, dense=second.dense[:, 1:])], "block 1 .* 3, and block 0 4")
    fewer = {name: second.sparse[name] for name in names[1:]}
    refused([first, replace(second, sparse=fewer)], rf"block 1 .*\['{names[1]}'.*, and block 0 \['{names[0]}'")
    lists = second.sparse | {names[0]: Ids(second.sparse[names[0]].values, np.ones(len(second), np.int32))}
    refused([first, replace(second, sparse=lists)], rf"block 1 .*lists .*\['{names[0]}', .*, and block 0 \[")
    two = replace(second, labels=np.stack([second.labels] * 2, axis=1), tasks=("click", "buy"))
    refused([first, two], "block 1 has labels of click, buy")
    items = replace(second, labels=Ids(np.zeros(len(second), np.int64), np.ones(len(second), np.int32)))
    refused([items], "block 0 has labels of items")
    refused([replace(first, labels=np.zeros_like(first.labels))], "0 clicks in 150 rows")
    refused([], "0 clicks in 0 rows")


def test_tables_of_data_sets(data):
    """Frames as blocks: their tables must have one size, and the prior is the click rate of all rows."""

    def frames(sizes):
        ids = pd.DataFrame({"item": [1, 2, 3, 0], "price": [0.1, 0.2, 0.3, 0.4]})
        options = {"label": "click", "dense": ["price"], "sparse": ["item"]}
        for clicks, size in zip(([0, 1, 1, 0], [0, 0, 0, 1]), sizes, strict=True):
            yield dr.data.from_frame(ids.assign(click=clicks), cardinalities={"item": size}, **options)

    refused(frames([9, 7]), r"^block 1 has table sizes \[7\], and block 0 \[9\]$")
    stream = dr.data.stream(lambda: frames([9, 9]))
    assert stream.prior == 3 / 8 and len(stream) == 8 and stream.sizes == [4, 4] and stream.dataset == "rows"
    assert dr.data.stream(cut(data.test, 100)).prior == data.test.prior
    assert stream.fingerprint == dr.data.stream(lambda: frames([9, 9])).fingerprint
    assert dr.data.stream(cut(data.test, 100)).fingerprint != dr.data.stream(cut(data.test, 200)).fingerprint


def test_another_pass_with_other_rows_is_refused(trained, blocks):
    """Also in a trial, where it is no error of the model."""
    given = list(blocks)
    evaluator = dr.Evaluator(trained, dr.data.stream(lambda: given))
    changed = np.array(blocks[2].dense)
    changed[0, 0] += 1
    values = np.array(blocks[1].sparse["user"].values)
    values[-1] -= 1
    first, second, third, fourth = blocks
    other_user = replace(second, sparse=second.sparse | {"user": Ids(values)})
    for other, text in (
        ([first, second, replace(third, dense=changed), fourth], "block 2 is another one"),
        ([first, other_user, third, fourth], "block 1 is another one"),
        ([replace(first, labels=1 - first.labels), second, third, fourth], "block 0 is another one"),
        ([second, first, third, fourth], "block 0 is another one"),
        ([*blocks, first], "block 4 is another one"),
        ([first, second, third], "3 blocks, and the first one 4"),
        ([], "this pass has 0 blocks"),
    ):
        given[:] = other
        refuses(evaluator.run, dr.data.StreamError, text)
        campaign = dr.Campaign(evaluator, errors=[dr.FixedCount(1)], trials=1)
        refuses(lambda campaign=campaign: campaign.run(workers=1, progress=False), dr.data.StreamError, text)
    given[:] = blocks
    assert evaluator.run().auc == evaluator.golden.auc


def test_a_source_that_fails_and_a_full_disk_are_no_errors_of_the_model(trained, blocks, monkeypatch):
    def made():
        yield blocks[0]
        if broken:
            raise OSError("disk gone")
        yield from blocks[1:]

    broken = False
    evaluator = dr.Evaluator(trained, dr.data.stream(made))
    broken = True
    refuses(evaluator.run, dr.data.StreamError, "make_blocks fails at block 1: OSError: disk gone")
    broken = False
    monkeypatch.setattr(streamed_metrics, "unnamed_file", lambda folder: full)
    text = r"No space left on device \(.*streams\); make room"
    with Path("/dev/full").open("r+b", buffering=0) as full, pytest.raises(dr.data.StreamError, match=text):
        evaluator.run()
    monkeypatch.undo()
    monkeypatch.setattr(stream_passes, "score", lambda *_, **__: 1 / 0)
    assert evaluator.run().outcome == "raised" and evaluator.run().metrics(["auc"]) == {"auc": None}
