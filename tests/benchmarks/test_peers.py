"""The benchmark of published tools, with a tool made up here, one that is slow, and those that are absent."""

import pandas as pd
import pytest

from benchmarks import peers
from benchmarks.__main__ import main
from drsrobust_study.injection_speed import study_model

TOOL = """
from pathlib import Path
import torch

class Injector:
    def __init__(self, targets, p):
        self.names, self.p = Path(targets).read_text().split(), p

    def inject(self, model):
        for name, parameter in model.named_parameters():
            if name in self.names:
                words = parameter.view(-1).view(torch.int32)
                words[: round(32 * self.p * len(words))] ^= 1
"""


@pytest.fixture
def absent(monkeypatch):
    for variable, *_ in peers.PLACES.values():
        monkeypatch.delenv(variable, raising=False)


def test_tools_are_measured_or_named(tmp_path, monkeypatch, absent):
    (tmp_path / "pytei").mkdir()
    (tmp_path / "pytei" / "pytei.py").write_text(TOOL)
    monkeypatch.setenv("DRSROBUST_PYTEI", str(tmp_path))
    monkeypatch.setattr(peers, "version", lambda name: "1.0")
    monkeypatch.setattr(peers.sys, "path", [*peers.sys.path])
    rows = peers.measure("PyTEI", 30_000, 1e-3, 60.0)
    assert [row["repetition"] for row in rows] == [0, 1, 2] and all(row["cpu_s"] > 0 for row in rows)
    sizes = [parameter.numel() for parameter in study_model(30_000).parameters()]
    assert {row["errors"] for row in rows} == {sum(round(32 * 1e-3 * size) for size in sizes)}


def test_a_call_over_the_limit_is_not_run(monkeypatch):
    """A call that never ends by itself."""

    def endless(*_):
        while True:
            pass

    monkeypatch.setattr(peers.Sparse, "inject", endless)
    (row,) = peers.measure("drsrobust", 30_000, 1e-3, 0.05)
    assert row["note"] == "not run: one call took over 0.05 s" and row["cpu_s"] is None


def test_the_table(tmp_path, monkeypatch, absent):
    """Without any tool: ours alone has times, and nothing has a factor."""
    run = peers.run
    monkeypatch.setattr(peers, "run", lambda: run(30_000, 1e-3, 60.0))
    assert main(["peers", "--out", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "peers.csv")
    assert tuple(table.columns) == peers.COLUMNS and table["factor"].isna().all()
    assert table["tool"].value_counts()["drsrobust"] == 3 and table["cpu_s"].notna().sum() >= 3
    assert table[table["tool"] == "PyTEI"]["note"].str.contains("DRSROBUST_PYTEI names no checkout").all()
