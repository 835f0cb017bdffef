import functools
import pickle
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
import torchmetrics
from sklearn.metrics import roc_auc_score

import drsrobust.metrics as metrics
from drsrobust.metrics import OwnMetric

RNG = np.random.default_rng(0)
LABELS, USERS = RNG.integers(0, 2, 200).astype(np.float32), RNG.integers(0, 12, 200) * 2**40
GOLDEN = RNG.random(200).astype(np.float32)
SCORES = np.where(RNG.random(200) < 0.2, RNG.random(200), GOLDEN).astype(np.float32)


def moved(labels, scores, golden_scores, users, by=0.1):
    return np.mean(np.abs(scores - golden_scores) > by)


def gives(value):
    return OwnMetric("mine", lambda labels, scores, golden_scores, users: value)


def test_a_function_gets_everything():
    seen = []

    def mine(*arrays):
        seen.extend(arrays)
        return np.abs(arrays[1] - arrays[2]).max()

    assert OwnMetric("mine", mine)(LABELS, SCORES, GOLDEN, USERS) == float(np.abs(SCORES - GOLDEN).max())
    for array, given in zip(seen, (LABELS, SCORES, GOLDEN, USERS), strict=True):
        assert (array == given).all() and array.dtype == given.dtype and given.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    OwnMetric("mine", mine).check_golden(LABELS, GOLDEN, None)
    assert (seen[5] == GOLDEN).all() and (seen[6] == GOLDEN).all() and seen[7] is None


def test_lists_of_relevant_items_are_read_only_too():
    from drsrobust.data.dataset import Ids

    ids, seen = Ids(np.array([1, 2, 3]), np.array([2, 1])), []
    OwnMetric("mine", lambda labels, *_: seen.append(labels) or 1.0)(ids, GOLDEN, GOLDEN, None)
    assert type(seen[0]) is Ids and not seen[0].values.flags.writeable and not seen[0].lengths.flags.writeable
    assert ids.values.flags.writeable


@pytest.mark.parametrize(
    "value",
    [
        0.5,
        np.float32(0.5),
        np.array(0.5),
        np.array([[0.5]]),
        torch.tensor(0.5),
        torch.tensor([0.5]),
        Fraction(1, 2),
        3,
        True,
    ],
    ids=str,
)
def test_numbers(value):
    found = gives(value)(LABELS, SCORES, GOLDEN, USERS)
    assert type(found) is float and found == (value if isinstance(value, int) else 0.5)


def test_objects_of_torchmetrics():
    area = OwnMetric("area", torchmetrics.classification.BinaryAUROC())
    for scores in (SCORES, GOLDEN, SCORES):  # nothing is left of earlier scores
        assert area(LABELS, scores, GOLDEN, None) == pytest.approx(roc_auc_score(LABELS, scores), abs=1e-6)
    found = OwnMetric("found", torchmetrics.retrieval.RetrievalRecall(empty_target_action="skip", top_k=5))
    expected = metrics.recall(LABELS, SCORES, USERS, 5)
    assert found(LABELS, SCORES, GOLDEN, USERS) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match=r"'found' of \(scores, labels\) fails.*groups rows by user.*have no users"):
        found.check_golden(LABELS, GOLDEN, None)


def test_torchmetrics_of_rankings():
    scores, relevant = RNG.normal(size=(50, 9)).astype(np.float32), RNG.integers(0, 9, 50)
    own = OwnMetric("top3", torchmetrics.classification.MulticlassAccuracy(num_classes=9, top_k=3, average="micro"))
    expected = metrics.RankMetrics(relevant, scores, k=3).measures(["hit_rate"], scores)["hit_rate"]
    assert own(relevant, scores, scores, None) == pytest.approx(expected, abs=1e-6)
    from drsrobust.data.dataset import Ids

    with pytest.raises(ValueError, match="takes one label per row; pass a function"):
        own.check_golden(Ids(relevant), scores, None)


def test_the_given_object_is_left_alone():
    given = torchmetrics.MeanSquaredError()
    given.update(torch.ones(4), torch.zeros(4))
    OwnMetric("error", given)(LABELS, SCORES, GOLDEN, None)
    assert given.compute().item() == 1.0


def test_what_a_worker_can_import(monkeypatch):
    def inner(*_):
        return 0.0

    def of_a_notebook(*_):
        return 0.0

    of_a_notebook.__module__, of_a_notebook.__qualname__ = "__main__", "of_a_notebook"
    monkeypatch.setattr(sys.modules["__main__"], "of_a_notebook", of_a_notebook, raising=False)
    assert pickle.loads(pickle.dumps(of_a_notebook)) is of_a_notebook  # here alone
    renamed = functools.wraps(moved)(lambda *_: 0.0)  # another object under this name
    private = (inner, of_a_notebook, renamed, lambda *_: 0.0, functools.partial(inner, 1))
    public = (moved, functools.partial(moved, by=0.2), np.max, torchmetrics.MeanSquaredError())
    assert [OwnMetric("mine", one).importable for one in private] == [False] * len(private)
    assert [OwnMetric("mine", one).importable for one in public] == [True] * len(public)


def test_pickled_metrics_compute_the_same():
    for one in (moved, functools.partial(moved, by=0.2), torchmetrics.MeanSquaredError()):
        own = OwnMetric("mine", one)
        own(LABELS, GOLDEN, GOLDEN, USERS)
        again = pickle.loads(pickle.dumps(own))
        assert again(LABELS, SCORES, GOLDEN, USERS) == own(LABELS, SCORES, GOLDEN, USERS) != 0
        assert again.code == own.code and len(pickle.dumps(own)) < 5000


def limited(k):
    def mine(labels, scores, golden_scores, users):
        return k

    return mine


def test_identities():
    def text(function):
        return OwnMetric("mine", function).code.text

    assert text(moved) == text(moved) != text(np.max)
    assert text(limited(3)) == text(limited(3)) != text(limited(4))
    assert text(lambda *_: 0.1) != text(lambda *_: 0.2)
    assert text(functools.partial(moved, by=0.2)) != text(functools.partial(moved, by=0.3))
    assert text(functools.partial(moved, by=np.zeros(3))) != text(functools.partial(moved, by=np.ones(3)))
    accuracy = torchmetrics.classification.BinaryAccuracy
    assert text(accuracy(threshold=0.4)) == text(accuracy(threshold=0.4)) != text(accuracy(threshold=0.6))
    used = OwnMetric("mine", accuracy())
    before = used.code
    used(LABELS, SCORES, GOLDEN, USERS)
    assert used.code == before == OwnMetric("mine", accuracy()).code
