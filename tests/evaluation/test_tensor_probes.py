"""One probe for each tensor: what it flips, what it finds, and what it leaves."""

import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.data import from_batches, stream
from drsrobust.evaluation import Evaluator
from drsrobust.evaluation.tensor_probes import Probes, flips
from drsrobust.injection import BitFlip, FixedCount, SingleBit, inject
from drsrobust.injection.stored import stored
from drsrobust.mitigation import WeightRange
from drsrobust.models import build_model, state_digest
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.protection.abft.linear import ABFTLinear


def rows(n=512, size=128):
    torch.manual_seed(0)
    x = torch.randn(n, 8)
    labels = (x.sum(1) > 0).float()
    return from_batches([(part, label) for part, label in zip(x.split(size), labels.split(size), strict=True)])


def forward(model, batch):
    return model(batch[0])


class Keeping(nn.Module):
    """Item vectors, kept once they are computed, as an attribute, a buffer or by a closure."""

    def __init__(self, how):
        super().__init__()
        self.how, self.user, self.item, self.kept = how, nn.Linear(8, 8), nn.Linear(4, 8), None
        self.register_buffer("items", torch.eye(4))

    def forward(self, x):
        if self.how == "never" or self.kept is None:
            made = torch.tanh(self.item(self.items))
            if self.how == "array":
                made = made.detach().numpy()
            self.kept = made.tolist() if self.how == "python" else made
        kept = self.kept
        if not isinstance(kept, torch.Tensor):
            kept = torch.as_tensor(kept, dtype=torch.float32)
        return (self.user(x) @ kept.T).sum(1)


@pytest.mark.parametrize("how", ["tensor", "array", "python"])
@pytest.mark.parametrize("called_before", [False, True])
def test_a_model_that_keeps_what_it_computed(how, called_before):
    model = Keeping(how).eval()
    if called_before:
        model(torch.zeros(2, 8))
    evaluator = Evaluator(model, rows(), forward=forward)
    if called_before:  # no batch reads the weights
        assert evaluator.probe().unread == ("item.weight", "item.bias", "items")
        return
    with pytest.warns(UserWarning, match="does the model keep what it computed") as warned:
        found = evaluator.probe()
    assert found.without_effect == ("item.weight", "item.bias", "items") and "item.weight" in str(warned[0].message)
    assert evaluator.probe() is found  # once


class Factors(Keeping):
    """Item vectors of MovieLens, kept or not, and a tower that only a few rows read."""

    def __init__(self, how):
        super().__init__(how)
        self.user, self.rare = nn.Linear(4, 8), nn.Linear(1, 1, bias=False)

    def forward(self, dense):
        scores = super().forward(dense)
        return scores + self.rare(dense[:, :1])[:, 0] if float(dense[0, 0]) == self.first else scores


@pytest.mark.parametrize(("how", "unread"), [("tensor", ("item.weight", "item.bias", "items")), ("never", ())])
def test_a_stream(how, unread):
    """A tower that the first block does not read is no false alarm."""
    data = load_dataset("synthetic-movielens/full", rows=6000)
    model = Factors(how).eval()
    model.first = float(data.test.dense[200, 0])
    blocks = [data.test.take(np.arange(first, first + 200)) for first in (0, 200, 400)]
    rows = stream(lambda: iter(blocks))
    evaluator = Evaluator(model, rows, forward=lambda model, batch: model(batch.dense_features))
    assert evaluator.probe().unread == unread


class Latching(nn.Module):
    """Once an activation was large, all scores are 0."""

    def __init__(self):
        super().__init__()
        self.top, self.broken, self.limit = nn.Linear(8, 1), False, None
        nn.init.ones_(self.top.weight)  # a flip makes it 1.5

    def forward(self, x):
        scores = self.top(x)
        if self.limit is not None and float(scores.abs().max()) > self.limit:
            self.broken = True
        return scores * 0 if self.broken else scores


def test_a_state_that_errors_leave_is_named():
    model = Latching().eval()
    evaluator = Evaluator(model, rows(), forward=forward)
    model.limit = float(np.abs(evaluator.golden.scores).max())
    with pytest.warns(UserWarning, match="top.weight, top.bias leaves a state in the model"):
        evaluator.probe()
    assert "leaves a state" in evaluator.full_run


FORMATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.uint8]


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_flips_change_every_word_and_leave_it_finite(dtype):
    model = nn.Module()
    model.register_buffer("b", torch.cat((torch.randn(50), torch.zeros(3), -torch.zeros(1))).to(dtype))
    error_map = flips(model, stored(model), "b")
    before = model.b.clone()
    with error_map.applied(model):
        after = model.b.double().clone()
    assert len(error_map) == 54 and (after != before.double()).all() and after.isfinite().all()
    if dtype.is_floating_point:
        assert (after[50:].abs() == 1).all()
    assert torch.equal(model.b.view(torch.uint8), before.view(torch.uint8))


def test_flips_of_chosen_rows():
    model = nn.Embedding(10, 4)
    error_map = flips(model, stored(model), "weight", np.array([2, 7]))
    assert np.unique(error_map.word // 4).tolist() == [2, 7] and len(error_map) == 8


def test_the_first_rerun_probes_without_the_errors():
    """Errors that are in the model are out of it meanwhile, and back afterwards."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).eval()
    evaluator = Evaluator(model, rows(), forward=forward)
    with inject(model, BitFlip(0.01), "all", seed=1), inject(model, FixedCount(3), "0.weight", seed=2) as error_map:
        wrong, full = state_digest(model), evaluator.run()
        rerun = evaluator.rerun(error_map)
        assert state_digest(model) == wrong and np.array_equal(rerun.scores, full.scores)
    assert state_digest(model) == evaluator.checkpoint and evaluator.probe() == Probes()


def test_a_protection_that_removes_errors_is_no_tensor_without_effect():
    data = load_dataset("synthetic-movielens/ids", rows=6000)
    torch.manual_seed(0)
    evaluator = Evaluator(build_model("fm", data.schema).eval(), data.test)
    with evaluator.under(WeightRange.fit(evaluator.model)) as guarded:
        assert guarded.probe() == Probes()


@pytest.mark.parametrize("every", [1, 2])
def test_what_checks_detect_in_probes_is_no_detection_of_the_rerun(every):
    """The lowest bit of a weight moves no sum by more than its threshold; the flips of the probes do."""
    data = load_dataset("synthetic-movielens/ids", rows=3000)
    model = build_model("wide_deep", data.schema)
    checks = ABFTLinear.fit(model, data.train, every=every)
    with Evaluator(model, data.test).under(checks) as evaluator:
        for bit, seed in ((0, 1), (30, 0)):
            with (
                inject(model, SingleBit(bit), target="deep_mlp", seed=seed) as error_map,
                checks.attach(model) as found,
            ):
                evaluator.rerun(error_map)
            assert found.detected == (bit == 30)
