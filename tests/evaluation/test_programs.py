"""Reruns by recorded operations, held to full runs; and what makes them be given up."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.data import load_dataset
from drsrobust.evaluation import Evaluator
from drsrobust.evaluation import programs as programs_file
from drsrobust.injection import BitFlip, FixedCount, inject
from drsrobust.models import MODELS, build_model, state_digest
from drsrobust.tensors import components

SMALL = {"afn": {"neurons": 8, "deep_mlp": (16, 16)}}
TRIALS = 8  # a program is made in the third, tried in the fourth, and serves from the fifth on
ERRORS = (FixedCount(2, bits=(20, 24)), BitFlip(0.02), FixedCount(1, bits=(30,)))


@pytest.fixture(scope="module")
def data():
    """Three batches of test rows."""
    return load_dataset("synthetic-movielens/full", rows=60_000)


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    """What serves does not hang on how long anything takes just now."""
    monkeypatch.setattr(programs_file, "time", SimpleNamespace(process_time=lambda: 0.0))
    monkeypatch.setattr(programs_file.Programs, "_pays", lambda *_: True)


def gate(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x * weight) + x.tanh()


class Late(nn.Module):
    """Look-ups and a first layer, then something with tensors of its own that has a habit."""

    def __init__(self, schema, habit=""):
        super().__init__()
        self.habit, self.names = habit, [feature.name for feature in schema.features]
        self.tables = nn.ModuleList(nn.EmbeddingBag(feature.cardinality, 8, mode="sum") for feature in schema.features)
        self.first = nn.Linear(8 * len(self.names), 16)
        self.late = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
        self.scale = nn.Parameter(torch.full((16,), 0.5))
        self.place = nn.Parameter(torch.zeros(1))
        self.work, self.left = torch.zeros(2048, 16), None
        if habit == "tied":
            self.late[0].weight = nn.Parameter(self.late[0].weight.detach()[:, :16])
            self.first.weight = nn.Parameter(torch.randn(16, self.first.in_features) / 8)
            self.again = nn.Linear(16, 16)
            self.again.weight = self.late[0].weight
        if habit == "scripted":
            with pytest.warns(DeprecationWarning):
                self.gate = torch.jit.script(gate)
        if habit == "attention":
            self.mixing = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)

    def forward(self, dense_features, sparse_features):
        habit, ids = self.habit, [sparse_features[name] for name in self.names]
        found = [table(one.values().long(), one.offsets()[:-1]) for table, one in zip(self.tables, ids, strict=True)]
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
        elif habit == "many or few":
            y = h * self.scale
            h = y + y[y > 0.2].sum()
        elif habit == "numpy":
            h = h * float(self.scale.detach().numpy().max())
        elif habit == "remembers":
            self.left = h * self.scale
            h = self.left + 1
        elif habit == "one memory for all":
            self.work[:rows].copy_(h)
            h = self.work[:rows] * self.scale
        elif habit == "random with errors":
            h = h + torch.rand(rows, 16) * self.place
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


def equal(judge, error_map):
    """Whether a rerun says what a full run says, bit for bit."""
    full, quick = judge.run(), judge.rerun(error_map)
    assert (quick.outcome, quick.error, quick.auc, quick.logloss) == (full.outcome, full.error, full.auc, full.logloss)
    assert full.outcome == "raised" or np.array_equal(quick.scores, full.scores, equal_nan=True)
    return full.outcome


def trials(judge, target, error_models=ERRORS):
    """Several trials, each held to a full run; their outcomes."""
    found = set()
    for seed in range(TRIALS):
        for error_model in error_models:
            with inject(judge.model, error_model, target, seed=seed) as error_map:
                found.add(equal(judge, error_map))
    return found


def programs(judge):
    return list(judge._reach.programs._programs.values())


def serving(judge):
    return [program for program in programs(judge) if program.tried]


def made(schema, habit=""):
    torch.manual_seed(3)
    return Late(schema, habit)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "dummy"])
def test_all_models_and_components(name, data):
    torch.manual_seed(1)
    model = build_model(name, data.schema, **SMALL.get(name, {}))
    judge = Evaluator(model, data.test)
    for target in ("all", *components(model).query("parameters > 0")["component"]):
        trials(judge, target, (BitFlip(3e-2), FixedCount(3)))
    assert serving(judge) and not [program for program in programs(judge) if program.why_not]
    judge.verify()


ALLOWED = ["", "in place on results", "residual", "views", "index", "tied", "double", "half", "scripted"]
GIVEN_UP = {
    "in place on kept": "writes to memory that is kept",
    "written later": "memory that is kept, or the model's, is written to",
    "assembled": "writes to memory that is kept",
    "steered": "_local_scalar_dense",
    "many or few": "index.Tensor: dynamic_output_shape",
    "numpy": "is read by Python",
    "remembers": "results stay in the model after the batch",
    "one memory for all": "memory that is kept",
    "picky": "_local_scalar_dense",
}


@pytest.mark.parametrize("habit", ALLOWED)
def test_habits_that_a_program_follows(habit, data):
    judge = Evaluator(made(data.schema, habit), data.test)
    before = state_digest(judge.model)
    for target in ("scale", "late*", "first*", "tables*", "all"):
        trials(judge, target)
    outcomes = trials(
        judge, "place", (FixedCount(1), FixedCount(2, bits=(29, 30)))
    )  # 2 of them: index 18446744073709551616
    assert outcomes == ({"ok", "raised"} if habit == "index" else {"ok"})
    assert len(serving(judge)) >= 3 and not [program.why_not for program in programs(judge) if program.why_not]
    assert state_digest(judge.model) == before
    judge.verify()


@pytest.mark.parametrize("habit", GIVEN_UP)
def test_habits_that_no_program_follows(habit, data):
    judge = Evaluator(made(data.schema, habit), data.test)
    for target in ("scale", "late*", "first*"):
        trials(judge, target)
    why = [program.why_not for program in programs(judge) if program.why_not]
    assert why and all(GIVEN_UP[habit] in text for text in why)
    assert all(not program.tapes for program in programs(judge) if program.why_not)


def test_other_scores_than_the_model_gives(data):
    """Numbers drawn anew at each call show only when errors let them through, and a fused kernel that a program has not."""
    judge = Evaluator(made(data.schema, "random with errors"), data.test)
    for seed in range(TRIALS):
        with inject(judge.model, FixedCount(1, bits=(30,)), "place", seed=seed) as error_map:
            torch.manual_seed(seed)
            full = judge.run()
            torch.manual_seed(seed)
            assert np.array_equal(judge.rerun(error_map).scores, full.scores)
    assert [program.why_not for program in programs(judge)] == ["it gave other scores than the model"]
    judge = Evaluator(made(data.schema, "attention"), data.test)
    trials(judge, "mixing*")
    trials(judge, "scale")


def test_no_module_is_called(data, monkeypatch):
    judge = Evaluator(made(data.schema), data.test)
    trials(judge, "late*", (FixedCount(1),))
    with inject(judge.model, FixedCount(1), "late.0.weight", seed=99) as error_map:
        full = judge.run()
        monkeypatch.setattr(Late, "forward", lambda *_: pytest.fail("the model is called"))
        monkeypatch.setattr(nn.Linear, "forward", lambda *_: pytest.fail("a layer is called"))
        assert np.array_equal(judge.rerun(error_map).scores, full.scores)


def test_one_rerun_makes_no_program(data):
    judge = Evaluator(made(data.schema), data.test)
    for seed in range(2):
        with inject(judge.model, FixedCount(1), "scale", seed=seed) as error_map:
            equal(judge, error_map)
    assert [program.tapes for program in programs(judge)] == [[]] and judge._reach.programs.nbytes == 0


def test_a_program_that_is_no_quicker_is_made_ever_more_rarely(data, monkeypatch):
    steps = iter(range(10**6))
    clock = SimpleNamespace(process_time=lambda: next(steps) ** 2)  # what is measured later takes longer
    monkeypatch.setattr(programs_file, "time", clock)
    judge = Evaluator(made(data.schema), data.test)
    made_at = []
    record = programs_file.Programs._record
    monkeypatch.setattr(programs_file.Programs, "_record", lambda *args: made_at.append(trial) or record(*args))
    for trial in range(1, 60):
        with inject(judge.model, FixedCount(1), "scale", seed=trial) as error_map:
            equal(judge, error_map)
    assert made_at == [3, 3 + 1 + 6, 10 + 1 + 12, 23 + 1 + 24] and not serving(judge)


def test_a_program_is_not_made_where_the_first_batch_gains_little(data, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(programs_file, "WORTH", 0.0)
    judge = Evaluator(made(data.schema), data.test)
    trials(judge, "scale")
    assert not any(program.tapes or program.why_not for program in programs(judge)) and programs(judge)[0].due > 3


def test_few_programs_serve_many_sets_of_tensors(data):
    """Any of the 2**n sets of tensors of a chain of layers reaches what its first one does."""
    torch.manual_seed(1)
    judge = Evaluator(build_model("dlrm", data.schema), data.test)
    for seed in range(100):
        with inject(judge.model, FixedCount(1 + seed % 7), "over_mlp", seed=seed) as error_map:
            judge.rerun(error_map)
    layers = {name.rsplit(".", 1)[0] for name, _ in judge.model.over_arch.named_parameters()}
    assert 0 < len(programs(judge)) <= len(layers)
    for rate in (1e-2, 2e-3, 5e-4):  # subsets of 6 tables and of the layers before them
        for seed in range(20):
            with inject(judge.model, BitFlip(rate), "all", seed=seed) as error_map:
                judge.rerun(error_map)
    assert len(programs(judge)) <= 2 + len(layers) * 2


@pytest.mark.parametrize("refused", [False, True])
def test_sets_that_reach_most_share_one_program(refused, data, monkeypatch):
    """By a clock on which a run with any errors takes as long as a full one."""
    judge = Evaluator(made(data.schema), data.test)
    inner = judge._reach.programs
    steps = iter(range(10**6))
    monkeypatch.setattr(programs_file, "time", SimpleNamespace(process_time=lambda: next(steps)))
    if refused:
        inner._programs[inner._everything] = programs_file.Program(why_not="it cannot be recorded")
    targets = ("late.0*", "scale", "first*", "late.4*")
    for seed in range(2 if not refused else 5):
        for target in targets:
            with inject(judge.model, FixedCount(1), target, seed=seed) as error_map:
                equal(judge, error_map)
    if refused:
        assert len(serving(judge)) == len(targets) and inner._everything not in inner._most
    else:  # the third trial of all makes it; the second of each finds out that it may serve
        assert [bool(program.tapes) for program in programs(judge)].count(True) == 1
        assert len(inner._programs[inner._everything].tapes) == len(judge._reach.batches)
        trials(judge, "scale")
        assert serving(judge) == [inner._programs[inner._everything]]
        judge.verify()


def test_the_program_of_all_is_made_of_all_whatever_was_hit(data):
    """Made again after it gave way, at a time at which errors were in a few tensors alone."""
    judge = Evaluator(made(data.schema), data.test)
    inner = judge._reach.programs
    last = sum(1 << bit for name, bit in inner._flow.number.items() if name.startswith("late.4"))
    inner._most = [inner._rounded(last)]
    trials(judge, "late.4*")
    assert serving(judge) == [inner._programs[inner._everything]]
    for target in ("all", "first*", "tables*", "scale"):  # all of them reach what errors in the last layer do
        for seed in range(3):
            with inject(judge.model, BitFlip(0.02), target, seed=seed) as error_map:
                equal(judge, error_map)
    assert serving(judge) == [inner._programs[inner._everything]]


def test_a_program_that_does_not_see_all_errors_is_given_up(data):
    """It gave the right scores when it was tried, with errors in other tensors."""
    judge = Evaluator(made(data.schema), data.test)
    inner = judge._reach.programs
    last = sum(1 << bit for name, bit in inner._flow.number.items() if name.startswith("late.4"))
    inner._most = [inner._rounded(last)]
    program = inner._programs.setdefault(inner._everything, programs_file.Program())
    with inject(judge.model, FixedCount(1), "late.4*", seed=0):
        inner._record(program, inner._rounded(last))
    program.tried = True
    for target in ("late.4*", "first*"):
        assert program.why_not is None and program.tapes
        for seed in range(2):
            with inject(judge.model, BitFlip(0.02), target, seed=seed) as error_map:
                equal(judge, error_map)
    assert program.why_not == "it gave other scores than the model" and not program.tapes


def test_memory(data):
    model = made(data.schema)
    whole = Evaluator(model, data.test)
    for target in ("late.0*", "late.4*", "scale", "first*"):
        trials(whole, target, (FixedCount(1),))
    kept, taken = whole._reach.kept.nbytes, whole._reach.programs.nbytes
    assert kept > 0 and taken > 0 and len(serving(whole)) >= 3
    most = [0, kept // 2, kept, kept + taken // 3, kept + taken // 2, kept + taken]
    served = []
    for memory in most:
        judge = Evaluator(model, data.test, memory=memory)
        for target in ("late.0*", "late.4*", "scale", "first*") * 2:
            trials(judge, target, (FixedCount(1),))
            held = {}
            for program in programs(judge):
                for tape in program.tapes:
                    held |= tape.storages
            steps = sum(tape.own_bytes for program in programs(judge) for tape in program.tapes)
            assert judge._reach.programs.nbytes == sum(held.values()) + steps
            assert judge._reach.kept.nbytes + judge._reach.programs.nbytes <= memory
        served.append([len(program.tapes) for program in serving(judge)])
    assert served[0] == served[2] == [] and served[3] == [1] and served[4] == [2] and served[5] == [3, 3, 3, 3]


def test_programs_share_what_modules_outputs_keep(data):
    """The input of the last layers is a module's output that is kept anyway: it takes no memory twice."""
    torch.manual_seed(1)
    judge = Evaluator(build_model("dlrm", data.schema), data.test)
    trials(judge, "over_mlp", (FixedCount(1),))
    tapes = [tape for program in serving(judge) for tape in program.tapes]
    assert tapes and not [tape for tape in tapes if tape.storages]


def replaced_weight(model):
    model.late[0].weight = nn.Parameter(model.late[0].weight.detach().clone())


def replaced_data(model):
    model.late[0].weight.data = model.late[0].weight.data.clone()


def replaced_layer(model):
    model.late[0] = copy.deepcopy(model.late[0])


CHANGES = {
    "load_state_dict": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict())),
    "load_state_dict, assigned": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True),
    "to another type and back": lambda model: model.double().float(),
    "a new parameter": replaced_weight,
    "new data": replaced_data,
    "a new layer": replaced_layer,
}


@pytest.mark.parametrize("change", CHANGES)
def test_tensors_that_are_replaced(change, data):
    """Errors in the new tensors count, not what is left in the old ones."""
    judge = Evaluator(made(data.schema), data.test)
    trials(judge, "late*", (FixedCount(1),))
    assert serving(judge)
    CHANGES[change](judge.model)
    outcomes = trials(judge, "late*")
    assert outcomes == {"ok", "nonfinite"}


def test_hooks_that_come_later(data):
    model = made(data.schema)
    judge = Evaluator(model, data.test)
    trials(judge, "late*", (FixedCount(1),))
    assert serving(judge)
    seen = []
    for register in (model.late[4].register_forward_hook, nn.modules.module.register_module_forward_hook):
        handle = register(
            lambda module, args, output: seen.append(1) or (output + 1 if module is model.late[4] else None)
        )
        try:
            trials(judge, "late*", (FixedCount(1),))
        finally:
            handle.remove()
        assert seen
        seen.clear()
        trials(judge, "late*", (FixedCount(1),))
    assert not seen and serving(judge)


def test_kept_memory_that_is_written_to(data):
    """One batch: no other one writes there while the program is recorded, but a run of other rows does."""
    model = made(data.schema, "one memory for all")
    judge = Evaluator(model, data.test.head(500))
    trials(judge, "scale", (FixedCount(1),))
    assert not serving(judge) and [program.why_not for program in programs(judge)] == ["what it kept was written to"]
    judge = Evaluator(made(data.schema), data.test)
    trials(judge, "first*", (FixedCount(1),))
    (tape, *_) = serving(judge)[0].tapes
    (kept, _) = tape._versions[0]
    kept.data.view(-1)[5] += 1  # behind PyTorch's back
    for seconds in (None, 0.0):  # what served last is tried in any case
        with pytest.raises(RuntimeError, match="its scores without errors are not what they were"):
            judge.verify(seconds=seconds)
    trials(judge, "scale", (FixedCount(1),))
    judge.verify(seconds=0.0)
    with pytest.raises(RuntimeError, match="its scores without errors are not what they were"):
        judge.verify()


def test_an_interrupt_while_a_program_is_made(data, monkeypatch):
    judge = Evaluator(made(data.schema), data.test)
    batches = []

    def interrupted(model, batch):
        batches.append(batch)
        if len(batches) == 2:
            raise KeyboardInterrupt
        return model(batch.dense_features, batch.sparse_features)

    with monkeypatch.context() as patch:
        patch.setattr(programs_file, "logits_of", interrupted)
        for seed in range(3):
            with inject(judge.model, FixedCount(1), "scale", seed=seed) as error_map:
                if seed < 2:
                    judge.rerun(error_map)
                else:
                    with pytest.raises(KeyboardInterrupt):
                        judge.rerun(error_map)
    assert judge._reach.programs.nbytes == 0
    trials(judge, "scale", (FixedCount(1),))
    assert serving(judge)
    judge.verify()
