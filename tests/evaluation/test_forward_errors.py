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


HAS = (
    "forward failed on the first batch, which has dense_features float32 [224, 2], sparse_features (user_id, item_id; "
    "values() int32 [448]), labels float32 [224], in "
)
SELF_TOP = "`return self.top(torch.cat((dense, self.user(user)), dim=1))`: "


@pytest.mark.parametrize(
    ("model", "forward", "kind", "line", "said"),
    [
        (
            ByName(),
            lambda m, b: m(b),
            TypeError,
            '`return self.top(x["dense"])`: ',
            "'Batch' object is not subscriptable",
        ),
        (Pairs(), no_values, TypeError, SELF_TOP, r"argument 'indices' .* must be Tensor, not JaggedTensor"),
        (
            Pairs().bfloat16(),
            by_ids,
            RuntimeError,
            SELF_TOP,
            r"must have the same dtype.*; parameters are bfloat16: forward must cast, as x.to\(torch.bfloat16\)$",
        ),
        (
            Pairs(),
            items,
            IndexError,
            SELF_TOP,
            "IndexError: index out of range in self; rows of the model's tables: user 5; largest ids: user_id 4, item_id 8$",
        ),
        (
            Pairs(),
            lambda m, b: ids_of(b, "usr"),
            KeyError,
            "`return batch.sparse_features[name].values()`: ",
            "KeyError: 'usr'$",
        ),
        (Pairs(), assertion, AssertionError, "`raise AssertionError`: ", "AssertionError$"),
        (Pairs(), two_parts, RuntimeError, '`raise TwoParts("a", 3)`: ', r"TwoParts: \('a', 3\)$"),
    ],
)
def test_the_message_has_the_batch_and_the_line(rows, model, forward, kind, line, said):
    with pytest.raises(kind, match=said) as caught:
        dr.Evaluator(model, rows, forward=forward)
    text = caught.value.args[0]
    assert type(caught.value) is kind and text.startswith(f"{HAS}{__file__}:") and line in text
    cause = caught.value.__cause__
    assert cause is not None and "forward failed" not in str(cause)


def test_a_model_with_other_arguments_has_the_fields_of_the_batch(rows):
    with pytest.raises(TypeError, match=r"user_id, item_id; .*: Pairs.forward takes dense, user, not dense_features"):
        dr.Evaluator(Pairs(), rows)


@pytest.mark.parametrize(
    ("batch", "seen"),
    [
        ((torch.ones(4, 2), torch.ones(4)), r"tuple \(float32 \[4, 2\], float32 \[4\]\)"),
        ({"x": torch.ones(4, 2), "y": torch.ones(4)}, r"dict \('x' float32 \[4, 2\], 'y' float32 \[4\]\)"),
        (
            [{n: torch.ones(1) for n in "abcdefghij"}, 3],
            r"list \(dict \('a' .*, 'h' float32 \[1\], \.\.\. \(10\)\), int\)",
        ),
        (torch.ones(4, 2).double(), r"float64 \[4, 2\]"),
        (np.ones((4, 2)), r"float64 \[4, 2\]"),
    ],
)
def test_batches_of_other_kinds(batch, seen):
    rows = dr.data.from_batches([batch], label=lambda batch: torch.tensor([0.0, 1, 0, 1]), name="same")
    with pytest.raises(
        ZeroDivisionError, match=f"the first batch, which has {seen}, in .*: ZeroDivisionError: division by zero"
    ):
        dr.Evaluator(Pairs(), rows, forward=lambda model, batch: 1 / 0)


def test_a_later_batch_is_named_by_its_number():
    batches = [(torch.full((4, 2), float(i)), torch.tensor([0.0, 1, 0, 1])) for i in range(3)]

    def forward(model, batch):
        if batch[0][0, 0] == 2:
            raise OverflowError("large")
        return model(batch[0])

    with pytest.raises(OverflowError, match=r"forward failed on batch 2, which has tuple .*: large"):
        dr.Evaluator(nn.Linear(2, 1), dr.data.from_batches(batches), forward=forward)


def test_protections_and_traces_say_it_too(rows):
    model = Pairs()
    calls = [
        lambda: dr.ActivationClipping.fit(model, rows.test, forward=no_values),
        lambda: dr.ABFTLinear.fit(model, rows.test, mode="calibrated", forward=no_values),
    ]
    with dr.inject(model, dr.FixedCount(1), seed=0) as error_map:
        pass
    calls.append(lambda: dr.trace(model, next(rows.test.batches(64)), error_map, forward=no_values))
    for run in calls:
        with pytest.raises(
            TypeError, match=r"forward failed on the first batch, which has dense_features .* JaggedTensor"
        ):
            run()


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
    assert evaluator.run().error == "ValueError: not finite"
