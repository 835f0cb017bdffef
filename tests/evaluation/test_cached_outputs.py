"""Reruns with kept outputs, compared with full runs, for models with habits of their own."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, FixedCount, inject
from drsrobust.models import state_digest
from drsrobust_extras.data.load import load_dataset
from tests.conftest import long_but

# The scratch memory of `Late` is an attribute, as in models that people write.
pytestmark = pytest.mark.filterwarnings(
    "ignore:errors cannot hit (work|left)", "ignore:.* leaves out .*num_batches_tracked"
)
TRIALS = 3
ERRORS = (FixedCount(2, bits=(20, 24)), BitFlip(0.02), FixedCount(1, bits=(30,)))


@pytest.fixture(scope="module")
def data():
    """Three batches of test rows."""
    return load_dataset("synthetic-movielens/full", rows=60_000)


def gate(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x * weight) + x.tanh()


class Reversed(nn.EmbeddingBag):
    """Looks up other rows than it is called with."""

    def forward(self, values, offsets):
        return super().forward(self.num_embeddings - 1 - values, offsets)


class Late(nn.Module):
    """Look-ups and a first layer, then something with tensors of its own that has a habit."""

    def __init__(self, schema, habit=""):
        super().__init__()
        self.habit, self.names = habit, [feature.name for feature in schema.features]
        self.tables = nn.ModuleList(nn.EmbeddingBag(feature.cardinality, 8, mode="sum") for feature in schema.features)
        self.first = nn.Linear(8 * len(self.names), 16)
        relu = nn.ReLU(inplace=habit == "inplace")
        self.late = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), relu, nn.Dropout(0.5), nn.Linear(16, 1))
        self.scale = nn.Parameter(torch.full((16,), 0.5))
        self.place = nn.Parameter(torch.zeros(1))
        self.work, self.left = torch.zeros(2048, 16), None
        if habit == "tied":
            self.late[0].weight = nn.Parameter(self.late[0].weight.detach()[:, :16])
            self.first.weight = nn.Parameter(torch.randn(16, self.first.in_features) / 8)
            self.again = nn.Linear(16, 16)
            self.again.weight = self.late[0].weight
        if habit == "tied tables":
            self.single = nn.Embedding.from_pretrained(self.tables[0].weight, freeze=False)
            self.single.weight = self.tables[0].weight
        if habit == "own forward":
            self.tables[0] = Reversed(*self.tables[0].weight.shape, mode="sum")
        if habit == "tied output":
            self.all_rows = nn.Linear(8, len(self.tables[0].weight), bias=False)
            self.all_rows.weight = self.tables[0].weight
        if habit == "counts":
            self.register_buffer("seen", torch.zeros(1))
        if habit == "scripted":
            with pytest.warns((DeprecationWarning, FutureWarning)):
                self.gate = torch.jit.script(gate)
        if habit == "attention":
            self.mixing = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)

    def forward(self, dense_features, sparse_features):
        habit, ids = self.habit, [sparse_features[name] for name in self.names]
        found = []
        for table, one in zip(self.tables, ids, strict=True):
            values = one.values().long()
            if habit == "hashed":
                values = (values * 7 + 1) % table.num_embeddings
            found.append(table(values, one.offsets()[:-1]))
        h = torch.relu(self.first(torch.cat(found, dim=1)) + 0.1)
        rows = len(h)
        if habit == "in place on kept":
            h += self.scale
        elif habit == "written later":
            y = h * self.scale
            h.mul_(2)
            h = h + y
        elif habit == "in place on results":
            h = (h * self.scale).add_(self.scale).relu_()
            h[:, 3:5] = 1
            h.t()[7].mul_(self.scale[0])
        elif habit == "residual":
            y = self.late[0](h * self.scale)
            h = torch.relu(y) + y
        elif habit == "views":
            a, b = (h * self.scale).view(rows, 2, 8).unbind(1)
            a, c = torch.cat((a, b), 1).t().chunk(2)
            h = torch.stack((a, c.flip(0)), 1).permute(2, 0, 1).flatten(1)[:, self.scale.argsort()]
        elif habit == "assembled":
            whole = torch.empty(rows, 16)
            whole[:, :8] = (h * self.scale)[:, :8]
            whole[:, 8:] = h[:, 8:]
            h = whole
        elif habit == "steered":
            y = h * self.scale
            h = y * 2 if float(y.abs().max()) > 100 else y
        elif habit == "tied tables":
            h = h + self.single(ids[0].values().long())[:, :1]
        elif habit == "tied output":
            h = h + self.all_rows(h[:, :8]).tanh().mean(1, keepdim=True)
        elif habit == "norm":
            h = h * self.tables[0].weight.norm()
        elif habit == "together":
            h = h - h.mean(dim=0)
        elif habit == "random":
            h = torch.dropout(h, 0.5, True)
        elif habit == "counts":
            self.seen += 1
        elif habit == "numpy":
            h = h * float(self.scale.detach().numpy().max())
        elif habit == "remembers":
            self.left = h * self.scale
            h = self.left + 1
        elif habit == "one memory for all":
            self.work[:rows].copy_(h)
            h = self.work[:rows] * self.scale
        elif habit == "index":
            h = h * self.scale + h.index_select(1, self.place.round().long())
        elif habit == "tied":
            h = self.again(h).tanh()
        elif habit == "attention":
            h = self.mixing(h.view(rows, 1, 16)).view(rows, 16)
        elif habit == "scripted":
            h = self.gate(h, self.scale)
        elif habit == "picky" and not (h * self.scale).isfinite().all():
            raise ArithmeticError("not finite")
        elif habit == "double":
            return (self.late(h) * self.scale[0]).double()
        elif habit == "half":
            return (self.late(h) * self.scale[0]).bfloat16()
        return self.late(h * self.scale)[:, 0]


def equal(evaluator, error_map):
    """Whether a rerun gives what a full run gives, bit for bit; the outcome."""
    full, quick = evaluator.run(), evaluator.rerun(error_map)
    assert (quick.outcome, quick.error, quick.auc, quick.logloss) == (full.outcome, full.error, full.auc, full.logloss)
    assert full.outcome == "raised" or np.array_equal(quick.scores, full.scores, equal_nan=True)
    return full.outcome


def trials(evaluator, target, error_models=ERRORS):
    """Several trials, each compared with a full run; their outcomes."""
    found = set()
    for seed in range(TRIALS):
        for error_model in error_models:
            with inject(evaluator.model, error_model, target, seed=seed) as error_map:
                found.add(equal(evaluator, error_map))
    return found


def made(schema, habit=""):
    torch.manual_seed(3)
    return Late(schema, habit)


HABITS = [
    *("", "in place on results", "residual", "views", "index", "tied", "double", "half", "scripted", "attention"),
    *("in place on kept", "written later", "assembled", "steered", "numpy", "remembers", "one memory for all", "picky"),
    *("inplace", "norm", "hashed", "tied tables"),
]


@pytest.mark.filterwarnings("ignore:Late. an error in one row of a batch changes the scores of other rows")
@pytest.mark.filterwarnings("ignore:.* count as affecting every row")
@pytest.mark.parametrize("habit", long_but(HABITS[::2], HABITS))
def test_habits(habit, data):
    evaluator = Evaluator(made(data.schema, habit), data.test)
    before = state_digest(evaluator.model)
    for target in ("scale", "late*", "first*", "tables*", "all"):
        trials(evaluator, target)
    outcomes = trials(evaluator, "place", (FixedCount(1), FixedCount(2, bits=(29, 30))))
    assert outcomes == ({"ok", "raised"} if habit == "index" else {"ok"})  # 2 of them: index 18446744073709551616
    assert (evaluator.full_run is not None) == (habit == "steered")
    assert state_digest(evaluator.model) == before
    evaluator.verify()


@pytest.mark.parametrize(
    ("habit", "said"),
    [
        ("hashed", "tables.0.weight count as affecting every row: it looks up other ids than the split's"),
        ("norm", "tables.0.weight count as affecting every row: it reads the table outside of the look-up too"),
        ("tied output", "tables.0.weight count as affecting every row: it reads the table outside of the look-up too"),
        ("own forward", "tables.0.weight count as affecting every row: the module that looks up in it has a forward"),
        ("together", "affecting every row: its scores depend on which rows are scored together"),
        ("counts", "reruns are full runs: it writes to its own tensors while it scores"),
        ("random", "reruns are full runs: its scores change from run to run"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*the AUC without errors is")
def test_what_cannot_be_known_is_said_once(habit, said, data):
    model, rows = made(data.schema, habit), data.test.head(450)
    with pytest.warns(UserWarning, match=said) as warned:
        evaluator = Evaluator(model, rows)
        for _ in range(2):
            with inject(model, FixedCount(1), "tables.0.weight", seed=1) as error_map:
                assert evaluator.rerun(error_map).rows_reached == len(rows)
                assert habit == "random" or equal(evaluator, error_map)
    assert [one.filename for one in warned if said in str(one.message)] == [__file__]


def test_attention_after_a_mixture_of_targets(data):
    """PyTorch computes attention by a fused kernel or not, as it finds the model."""
    evaluator = Evaluator(made(data.schema, "attention"), data.test)
    for seed in range(12):
        target = ("mixing*", "late*", "tables*", "all")[seed % 4]
        with inject(evaluator.model, FixedCount(1 + seed % 3, bits=(30,)), target, seed=seed) as error_map:
            equal(evaluator, error_map)
    evaluator.verify()


def again(tensor):
    return tensor.detach().clone()


CHANGES = {
    "load_state_dict": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict())),
    "load_state_dict, assigned": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True),
    "to another type and back": lambda model: model.double().float(),
    "a new parameter": lambda model: setattr(model.late[0], "weight", nn.Parameter(again(model.late[0].weight))),
    "new data": lambda model: setattr(model.late[0].weight, "data", again(model.late[0].weight)),
    "a new layer": lambda model: model.late.__setitem__(0, copy.deepcopy(model.late[0])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tensors_that_are_replaced(change, data):
    """Errors in the new tensors count, not what is left in the old ones."""
    evaluator = Evaluator(made(data.schema), data.test)
    trials(evaluator, "late*", (FixedCount(1),))
    CHANGES[change](evaluator.model)
    assert trials(evaluator, "late*") == {"ok", "nonfinite"}


def test_hooks_that_come_later(data):
    model = made(data.schema)
    evaluator = Evaluator(model, data.test)
    evaluator.probe()
    seen = []
    for register in (model.late[4].register_forward_hook, nn.modules.module.register_module_forward_hook):
        handle = register(
            lambda module, args, output: seen.append(1) or (output + 1 if module is model.late[4] else None)
        )
        try:
            trials(evaluator, "late*", (FixedCount(1),))
        finally:
            handle.remove()
        assert seen
        seen.clear()
        trials(evaluator, "late*", (FixedCount(1),))
    assert not seen
