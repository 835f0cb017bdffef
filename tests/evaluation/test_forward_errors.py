"""Errors inside a user's forward: the message has the batch and the user's line, and the type stays."""

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr

N = 200


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.top = nn.Embedding(5, 4), nn.Linear(6, 1)

    def forward(self, dense, user):
        return self.top(torch.cat((dense, self.user(user)), dim=1))


class ByName(Pairs):
    def forward(self, x):
        return self.top(x["dense"])


class TwoParts(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(0)
    ids = {"user_id": random.integers(5, size=N), "item_id": random.integers(9, size=N)}
    return dr.data.from_tensors(label=np.arange(N) % 2, dense=random.random((N, 2), np.float32), sparse=ids)


def ids_of(batch, name="user_id"):
    return batch.sparse_features[name].values()


def no_values(model, batch):
    return model(batch.dense_features, batch.sparse_features["user_id"])


def by_ids(model, batch):
    return model(batch.dense_features, ids_of(batch))


def items(model, batch):
    return model(batch.dense_features, ids_of(batch, "item_id"))


def assertion(model, batch):
    raise AssertionError


def two_parts(model, batch):
    raise TwoParts("a", 3)


HAS = ["first batch", "dense_features float32 [224, 2]", "user_id, item_id", "labels float32 [224]", __file__]
SELF_TOP = "`return self.top(torch.cat((dense, self.user(user)), dim=1))`"
CASES = [
    (ByName(), lambda m, b: m(b), TypeError, '`return self.top(x["dense"])`', "'Batch' object"),
    (Pairs(), no_values, TypeError, SELF_TOP, "not JaggedTensor"),
    (Pairs().bfloat16(), by_ids, RuntimeError, SELF_TOP, "x.to(torch.bfloat16)"),
    (Pairs(), items, IndexError, SELF_TOP, "user 5; largest ids: user_id 4, item_id 8"),
    (Pairs(), lambda m, b: ids_of(b, "usr"), KeyError, "`return batch.sparse_features[name].values()`", "'usr'"),
    (Pairs(), assertion, AssertionError, "`raise AssertionError`", "AssertionError"),
    (Pairs(), two_parts, RuntimeError, '`raise TwoParts("a", 3)`', "TwoParts: ('a', 3)"),
]


@pytest.mark.parametrize(("model", "forward", "kind", "line", "said"), CASES)
def test_the_message_has_the_batch_and_the_line(rows, model, forward, kind, line, said):
    with pytest.raises(kind) as caught:
        dr.Evaluator(model, rows, forward=forward)
    text = caught.value.args[0]
    assert type(caught.value) is kind and all(part in text for part in (*HAS, line, said))
    cause = caught.value.__cause__
    assert cause is not None and "forward failed" not in str(cause)


def test_a_later_batch_is_named_by_its_number():
    batches = [(torch.full((4, 2), float(i)), torch.tensor([0.0, 1, 0, 1])) for i in range(3)]
    with pytest.raises(ZeroDivisionError, match=r"batch 2, which has tuple \(float32 \[4, 2\], float32 \[4\]\)"):
        dr.Evaluator(
            nn.Linear(2, 1),
            dr.data.from_batches(batches),
            forward=lambda model, batch: model(batch[0]) + 1 / (2 - int(batch[0][0, 0])),
        )


def test_errors_of_trials_come_as_they_are(rows):
    """They say what the injected error did, and are stored for each trial."""
    model = Pairs()

    def forward(model, batch):
        scores = by_ids(model, batch)
        if not scores.isfinite().all():
            raise ValueError("not finite")
        return scores

    evaluator = dr.Evaluator(model, rows, forward=forward)
    with torch.no_grad():
        model.top.bias.fill_(float("nan"))
    result = evaluator.run()
    assert (result.outcome, result.error, result.auc) == ("raised", "ValueError: not finite", None)
