"""Which stored trials are computed again, and what other code they show that no digest sees."""

import os

import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.campaign.repeat import HARM, trials_to_repeat
from drsrobust.campaign.store import StoreError


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


def made(rows, folder, forward):
    evaluator = dr.Evaluator(Net(), rows, forward=forward)
    return dr.Campaign(evaluator, errors=[dr.BitFlip(2e-5)], trials=120, seed=20, store=folder)


@pytest.mark.parametrize("forward", [chosen_by_name, read_from_a_file])
def test_other_code_at_a_low_rate_is_refused(rows, tmp_path, monkeypatch, forward):
    """The first trial has no error at all, and would agree."""
    file = tmp_path / "limit.txt"
    file.write_text("1e9")
    monkeypatch.setenv("DRSROBUST_TEST_FILE", str(file))
    table = made(rows, tmp_path / "s", forward).run(progress=False)
    assert table["bits_flipped"][0] == 0 and (table["auc_drop"] > 1e-3).any()
    pd.testing.assert_frame_equal(made(rows, tmp_path / "s", forward).run(progress=False), table)
    monkeypatch.setenv("DRSROBUST_TEST_GUARD", "1")
    file.write_text("9")
    harmed = table.sort_values(["outcome", "auc"], kind="stable")["trial"].iloc[0]  # nonfinite comes before ok
    with pytest.raises(StoreError, match=f"holds other results than the code and data of now give: trial {harmed} of "):
        made(rows, tmp_path / "s", forward).run(progress=False)
    pd.testing.assert_frame_equal(made(rows, tmp_path / "s", forward).table(), table)


def stored(*trials, metric=()):
    names = [*HARM, *metric]
    types = dict.fromkeys(names, pa.float64()) | {
        "condition": pa.int64(), "trial": pa.int64(), "outcome": pa.string(), "rows_reached": pa.int64()
    }  # fmt: skip
    return pa.table({n: pa.array([t[i] for t in trials], types[n]) for i, n in enumerate(names)})


CASES = {
    "the largest loss": (
        [(0, 0, "ok", 0.8, 0.5, 0), (0, 1, "ok", 0.7, 0.5, 9), (0, 2, "ok", 0.6, 0.5, 9)],
        {0: [0, 2]},
    ),
    "no finite score": ([(0, 3, "ok", 0.1, 9.0, 9), (0, 4, "nonfinite", 0.8, 0.5, 1)], {0: [3, 4]}),
    "a score, however bad, before none": (
        [(0, 0, "ok", 0.8, 0.5, 0), (0, 1, "raised", None, None, 9), (0, 2, "nonfinite", 0.7, 0.6, 9)],
        {0: [0, 2]},
    ),
    "the model raised": ([(0, 0, "ok", 0.8, 0.5, 5), (0, 1, "raised", None, None, 9)], {0: [0, 1]}),
    "no row reached": ([(0, 0, "ok", 0.8, 0.5, 0), (0, 1, "ok", 0.8, 0.5, 0)], {0: [0]}),
    "the first is the most harmed": ([(0, 0, "ok", 0.2, 0.5, 9), (0, 1, "ok", 0.8, 0.5, 9)], {0: [0]}),
    "equal AUC: the log loss": (
        [(2, 5, "ok", 0.8, 0.5, 9), (2, 6, "ok", 0.8, 0.6, 9), (2, 7, "ok", 0.8, 0.5, 9)],
        {2: [5, 6]},
    ),
    "rows that nobody counts": ([(1, 0, "ok", 0.8, None, None), (1, 1, "ok", 0.7, None, None)], {1: [0, 1]}),
    "several conditions": (
        [(0, 0, "ok", 0.8, 0.5, 1), (0, 1, "ok", 0.7, 0.5, 1), (3, 0, "ok", 0.6, 0.5, 1), (3, 9, "ok", 0.8, 0.5, 1)],
        {0: [0, 1], 3: [0]},
    ),
    "none": ([], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_trials_that_tell_most(case):
    trials, expected = CASES[case]
    assert trials_to_repeat(stored(*trials)) == expected


def test_a_metric_counts_where_there_is_no_auc():
    trials = [(0, n, "ok", None, None, 9, value) for n, value in enumerate((0.5, 0.5, 0.1, 0.5, 0.6))]
    assert trials_to_repeat(stored(*trials, metric=["ndcg"])) == {0: [0, 2]}
