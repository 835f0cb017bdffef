"""Models and rows that an evaluator cannot take: refused with what is wrong and its value."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.introspection.calling import call
from tests.injection.spaces import holder
from tests.refusals import refuses

N, NAN = 64, float("nan")
FRAME = pd.DataFrame({"age": np.linspace(-1, 1, N), "user": np.arange(N) % 20, "clicked": np.arange(N) % 2})


class Net(nn.Module):
    """Forward takes its own names."""

    def __init__(self, users=20, outputs=1):
        super().__init__()
        self.user, self.top = nn.Embedding(users, 4), nn.Linear(5, outputs)

    def forward(self, age, user):
        return self.top(torch.cat((age[:, None], self.user(user)), dim=1))


def data(frame=FRAME, label="clicked"):
    return dr.data.from_frame(frame, label=label, dense=["age"], sparse=["user"])


def by_column(model, batch):
    return model(batch.dense_features[:, 0], batch.sparse_features["user"].values())


def evaluator(change=lambda scores: scores, rows=None, model=None, **options):
    forward = lambda model, batch: change(by_column(model, batch))  # noqa: E731
    return dr.Evaluator(model or Net(), data() if rows is None else rows, forward=forward, **options)


def of_batches(labels, outputs=1, add=0.0, **options):
    """An evaluator of rows of one batch with these labels."""
    rows = dr.data.from_batches([(torch.ones(N, 2), labels)])
    return dr.Evaluator(nn.Linear(2, outputs), rows, forward=lambda model, batch: model(batch[0]) + add, **options)


def with_extra(extra):
    """A model that has a module which nobody calls."""
    model = Net()
    model.extra = extra
    return model


def frozen():
    return torch.jit.freeze(torch.jit.script(nn.Linear(2, 1).eval()))


def campaign(**options):
    return dr.Campaign(evaluator(), errors=[dr.FixedCount(1)], trials=1, **options)


FROZEN = [
    lambda model: dr.Evaluator(model, data(), forward=by_column),
    dr.components,
    dr.resolve,
    lambda model: dr.inject(model, dr.BitFlip(0.1), seed=0).__enter__(),
]


def jagged():
    return torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)


def broken():
    model = Net()
    with torch.no_grad():
        model.top.bias.fill_(float("inf"))
    return model


BATCHES = dr.data.from_batches([(torch.ones(4, 3), torch.arange(4) % 2)])
RANKS, TWO = torch.arange(N) % 5, data(FRAME.assign(liked=1 - FRAME["clicked"]), ["clicked", "liked"])
DRAWN = dr.FixedCount(1).sample(dr.resolve(Net()), seed=1)
CASES = [
    (lambda: dr.Evaluator(Net(), FRAME), TypeError, "rows", "from_frame"),
    (lambda: dr.Evaluator(Net(), data()), TypeError, "Net.forward", "age, user"),
    (lambda: dr.Evaluator(Net(), BATCHES), TypeError, "forward=", "model, batch"),
    (lambda: evaluator(rows=data().train), ValueError, "train", "no rows"),
    (lambda: evaluator(rows=data().test.take(data().test.labels == 0)), ValueError, "0 clicks", "both classes"),
    (lambda: evaluator(rows=data().test.take(data().test.labels == 1)), ValueError, "32 clicks", "both classes"),
    (lambda: evaluator(model=Net(users=7)), IndexError, "user 7", "user 19"),
    (lambda: evaluator(model=broken()), ValueError, "0 NaN", f"{N} infinite"),
    (lambda: evaluator(lambda scores: {"ctr": scores}), ValueError, "ctr", "click"),
    (lambda: evaluator(lambda scores: scores.expand(-1, 2)), ValueError, "[64, 2]", "click"),
    (lambda: evaluator(lambda scores: scores[:5]), ValueError, "[5, 1]", "click"),
    (lambda: evaluator(rows=TWO), ValueError, "multi", "click"),
    (lambda: evaluator(lambda s: {"a": s, "b": s}, rows=TWO, task="multi"), ValueError, "'clicked'", "'liked'"),
    (lambda: of_batches(RANKS, 5, NAN, task="ranking"), ValueError, f"{N} NaN", "-inf of masked items"),
    (lambda: call(Net(), (torch.ones(2), torch.ones(2))), TypeError, "tuple of 2 tensors", "batch[0]"),
    (lambda: call(Net(), {"x": torch.ones(2), "y": 1}), TypeError, "dict with the keys 'x', 'y'", "batch['x']"),
    (lambda: call(Net(), None), TypeError, "NoneType", "batch"),
    (lambda: evaluator().rerun(DRAWN), ValueError, "not in the model", "inside"),
    (lambda: evaluator(memory="lots"), ValueError, "memory", "'lots'"),
    (lambda: of_batches((torch.arange(N - 1) % 2).float()), ValueError, f"{N - 1} labels", f"{N} scores"),
    (lambda: of_batches(RANKS, 5, task="ranking", scores="probability"), ValueError, "scores", "'probability'"),
    (lambda: of_batches(torch.arange(N) % 2, 5, task="ranking"), ValueError, "click", "task='ranking'"),
    (lambda: of_batches(torch.eye(5)[RANKS], 5, task="ranking"), ValueError, "multi", "task='ranking'"),
    (lambda: evaluator(model=with_extra(nn.LazyLinear(1))), ValueError, "extra.weight", "not initialised"),
    (lambda: evaluator(model=with_extra(nn.Linear(2, 2, device="meta"))), ValueError, "extra.weight", "no values"),
    (lambda: evaluator(model=with_extra(holder(x=jagged()))), ValueError, "extra.x", "nested"),
    (lambda: evaluator(model=with_extra(holder(x=torch.ones(2, 2).to_mkldnn()))), ValueError, "extra.x", "mkldnn"),
    *[(lambda use=use: use(frozen()), ValueError, "frozen", "torch.jit.freeze") for use in FROZEN],
    (lambda: campaign(metrics=by_column), TypeError, "metrics", "by_column"),
]


@pytest.mark.filterwarnings("ignore:.*the AUC without errors is", "ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:Lazy modules", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("call", "kind", "name", "value"), CASES)
def test_refused_with_name_and_value(call, kind, name, value):
    refuses(call, kind, name, value)


def test_metrics_without_a_value_are_said():
    with pytest.warns(UserWarning, match="ndcg@10: no value on these rows"):
        campaign(metrics=["ndcg@10"])
