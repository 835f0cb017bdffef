"""Which stored trials are computed again, and what other code they show that no digest sees; and probes of targets whose trials
reach no row."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.campaign import repeat
from drsrobust.campaign.store import StoreError
from drsrobust.campaign.table import stored_schema
from drsrobust.evaluation import evaluator as evaluators
from tests.refusals import refuses


class Net(nn.Module):
    """The sum of two dense features."""

    def __init__(self):
        super().__init__()
        self.hidden, self.last = nn.Linear(2, 64, bias=False), nn.Linear(64, 1, bias=False)
        sign = torch.tensor([1.0, -1.0]).repeat_interleave(32)
        self.hidden.weight.data[:], self.last.weight.data[:] = sign[:, None], sign / 32

    def forward(self, x):
        return self.last(torch.relu(self.hidden(x)))


def plain(logits):
    return logits


def guarded(logits):
    return logits.nan_to_num(0.0).clamp(-9, 9)


def chosen_by_name(model, batch):
    """As a registry does: no name of the guard is in the code."""
    return globals()["gua" + "rded" if os.environ.get("DRSROBUST_TEST_GUARD") else "plain"](model(batch["x"]))


def read_from_a_file(model, batch):
    logits = model(batch["x"])
    with open(os.environ["DRSROBUST_TEST_FILE"]) as file:
        limit = float(file.read())
    return logits.nan_to_num(0.0).clamp(-limit, limit) if limit < 1e9 else logits


@pytest.fixture(scope="module")
def rows():
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    return dr.data.from_batches([{"x": x, "labels": (x.sum(dim=1) > 0).int()}])


def made(rows, folder, forward=read_from_a_file, model=None, error=None):
    evaluator = dr.Evaluator(model or Net(), rows, forward=forward)
    return dr.Campaign(
        evaluator, errors=[error or dr.BitFlip(2e-5)], trials=120, seed=20, sampling="plain", store=folder
    )


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "limit.txt"
    path.write_text("1e9")
    monkeypatch.setenv("DRSROBUST_TEST_FILE", str(path))
    return path


@pytest.mark.parametrize("forward", [chosen_by_name, read_from_a_file])
def test_other_code_at_a_low_rate_is_refused(rows, file, tmp_path, monkeypatch, forward):
    """The first trial has no error at all, and would agree."""
    table = made(rows, tmp_path / "s", forward).run(progress=False)
    assert table["bits_flipped"][0] == 0 and (table["auc_drop"] > 1e-3).any()
    pd.testing.assert_frame_equal(made(rows, tmp_path / "s", forward).run(progress=False), table)
    monkeypatch.setenv("DRSROBUST_TEST_GUARD", "1")
    file.write_text("9")
    harmed = table.sort_values(["outcome", "auc"], kind="stable")["trial"].iloc[0]  # nonfinite comes before ok
    with pytest.raises(StoreError, match=f"holds other results than the code and data of now give: trial {harmed} of "):
        made(rows, tmp_path / "s", forward).run(progress=False)
    pd.testing.assert_frame_equal(made(rows, tmp_path / "s", forward).table(), table)


def trial(number, auc=0.8, reached=9, **other):
    """A stored one, as far as it matters here."""
    found = {"condition": 0, "trial": number, "outcome": "ok", "auc": auc, "logloss": 0.5, "rows_reached": reached}
    return found | other


def stored(*trials, metric=()):
    schema = stored_schema(metric)
    return pa.Table.from_pylist(trials, pa.schema([schema.field(name) for name in (*repeat.HARM, *metric)]))


TWO = trial(0), trial(1, 0.7)
RAISED, UNKNOWN = {"auc": None, "logloss": None, "outcome": "raised"}, {"logloss": None, "condition": 1}
CASES = {
    "the largest loss": ([trial(0, reached=0), trial(1, 0.7), trial(2, 0.6)], {0: [0, 2]}),
    "no finite score": ([trial(3, 0.1, logloss=9.0), trial(4, outcome="nonfinite", reached=1)], {0: [3, 4]}),
    "a score before none": ([trial(0), trial(1, **RAISED), trial(2, 0.7, outcome="nonfinite")], {0: [0, 2]}),
    "the model raised": ([trial(0, reached=5), trial(1, **RAISED)], {0: [0, 1]}),
    "no row reached": ([trial(0, reached=0), trial(1, reached=0)], {0: [0]}),
    "the first is the most harmed": ([trial(0, 0.2), trial(1)], {0: [0]}),
    "equal AUC: the log loss": ([trial(5), trial(6, logloss=0.6), trial(7)], {0: [5, 6]}),
    "rows that nobody counts": ([trial(0, 0.8, None, **UNKNOWN), trial(1, 0.7, None, **UNKNOWN)], {1: [0, 1]}),
    "several conditions": ([*TWO, trial(0, 0.6, condition=3), trial(9, condition=3)], {0: [0, 1], 3: [0]}),
    "none": ([], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_trials_that_tell_most(case):
    trials, expected = CASES[case]
    first, later = repeat.trials_to_repeat(stored(*trials), np.zeros(4, int))
    assert len(first) == bool(trials) and len({*first, *later}) == len(first) + len(later)
    assert {c: sorted(t for at, t in first + later if at == c) for c, _ in first + later} == expected
    each, _ = repeat.trials_to_repeat(stored(*trials), np.arange(4))
    assert {c: [t] for c, t in each} == {c: t[-1:] for c, t in expected.items()}


def test_a_metric_counts_where_there_is_no_auc():
    trials = [trial(n, None, logloss=None, ndcg=value) for n, value in enumerate((0.5, 0.5, 0.1, 0.5, 0.6))]
    assert repeat.trials_to_repeat(stored(*trials, metric=["ndcg"]), np.zeros(1, int)) == ([(0, 2)], [(0, 0)])


def test_later_trials_take_a_twentieth_of_the_time(monkeypatch):
    """Here each takes a second; the first one of a kind is no later one."""
    clock, checked = SimpleNamespace(now=0.0, monotonic=lambda: clock.now), []

    def check(store, runner, *place):
        checked.append(place[:2])
        clock.now += 1

    for name, value in {"time": clock, "_check_trial": check, "_differing": lambda made_by: ""}.items():
        monkeypatch.setattr(repeat, name, value)
    condition = SimpleNamespace(kind=(), error_model="", target="")
    table = stored(*(trial(0, condition=number) for number in range(9)))
    repeats = repeat.Repeats(SimpleNamespace(made_by={}), None, [condition] * 9, table)
    repeats.begin()
    for now, n in ((0, 1), (39, 1), (40, 2), (100, 5), (1000, 9)):
        clock.now = max(clock.now, now)
        repeats.go_on()
        assert len(set(checked)) == len(checked) == n


def test_a_guard_that_no_stored_trial_shows_is_refused(rows, file, tmp_path):
    def run():
        return made(rows, tmp_path / "s", error=dr.BitFlip(1e-12)).run(workers=1, progress=False)

    table = run()
    assert table["rows_reached"].tolist() == [0] * 120 and run().equals(table)
    file.write_text("9")
    refuses(run, StoreError, "a probe of all under none")
    file.write_text("1e9")
    assert run().equals(table)


def test_tensors_are_probed_once_for_a_store(rows, file, tmp_path, monkeypatch):
    """And targets whose trials reach rows never."""

    def run():
        made(rows, tmp_path / "s", error=dr.FixedCount(5)).run(workers=1, progress=False)

    run()
    probes = tmp_path / "s" / "probes.json"
    assert json.loads(probes.read_text())["targets"] == {}
    monkeypatch.setattr(evaluators, "probe_tensors", lambda *_, **__: pytest.fail("they were probed again"))
    run()
    probes.write_text("{")  # what cannot be read is made again
    refuses(run, pytest.fail.Exception)


def test_targeted_tensors_that_no_batch_reads_are_named(rows, file, tmp_path):
    model = Net()
    model.training_head = nn.Linear(16, 1)
    with pytest.warns(UserWarning, match=r"no batch reads training_head.bias, training_head.weight, and no score"):
        table = made(rows, tmp_path / "s", model=model, error=dr.FixedCount(5)).run(workers=1, progress=False)
    assert len(table) == 120
