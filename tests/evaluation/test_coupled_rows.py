"""Models whose rows affect each other only while an error is there: no rerun differs from a full run without a warning."""

import math
import warnings
from concurrent.futures import Executor, Future
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.evaluation import affected_rows as reach
from drsrobust.injection import BitFlip, FixedCount, inject
from drsrobust_extras.data.load import load_dataset

COUPLINGS = ("branch", "scale", "guard", "neighbour")
WARNING = "changes the scores of other rows: this rerun and all later ones are full runs"


@pytest.fixture(scope="module")
def data():
    """Three batches of test rows."""
    return load_dataset("synthetic-movielens/ids", rows=60_000)


class Coupled(nn.Module):
    """Two tables and an MLP; without errors, a row's score does not depend on its batch."""

    def __init__(self, cardinalities, coupling):
        super().__init__()
        self.coupling = coupling
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, 8, mode="sum") for rows in cardinalities)
        self.mlp = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense_features, sparse_features):
        parts = [sparse_features[name] for name in ("user", "movie")]
        looked_up = [
            table(part.values().long(), part.offsets()[:-1].long())
            for table, part in zip(self.tables, parts, strict=True)
        ]
        x = torch.cat(looked_up, 1)
        if self.coupling == "branch" and bool(x.abs().max() > 100):
            x = x / 2
        elif self.coupling == "scale":
            x = x * (100 / x.abs().max()).clamp(max=1)
        elif self.coupling == "neighbour":
            x = x + torch.cat((x[1:], x[:1])).abs().gt(100) * 1.0
        scores = self.mlp(x)[:, 0]
        if self.coupling == "guard":
            scores = torch.where(scores.isfinite().all(), scores, torch.zeros_like(scores))
        return scores


def made(data, coupling):
    torch.manual_seed(3)
    return Coupled([feature.cardinality for feature in data.schema.features], coupling).eval()


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("target", ["tables*", "all"])
def test_no_rerun_differs_without_a_warning(coupling, target, data):
    """The first rerun that differs warns, and gives the scores of the full run already."""
    evaluator = Evaluator(made(data, coupling), data.test)
    assert evaluator.full_run is None
    differs = 0
    with pytest.warns(UserWarning, match=WARNING) as warned:
        for seed in range(40):
            with inject(evaluator.model, FixedCount(2, bits=(30,)), target, seed=seed) as error_map:
                full, rerun = evaluator.run(), evaluator.rerun(error_map)
            differs += not np.array_equal(full.scores, rerun.scores, equal_nan=True)
    assert differs == 0 and len(warned) == 1 and evaluator.full_run in str(warned[0].message)


@pytest.mark.parametrize("coupling", ["", *COUPLINGS])
def test_errors_that_couple_nothing(coupling, data):
    """Flips of low bits leave every activation below the limits: reruns stay as quick as they are."""
    evaluator = Evaluator(made(data, coupling), data.test)
    for seed in range(10):
        with inject(evaluator.model, FixedCount(2, bits=(10,)), "tables*", seed=seed) as error_map:
            full, rerun = evaluator.run(), evaluator.rerun(error_map)
        assert np.array_equal(full.scores, rerun.scores) and rerun.rows_reached < len(data.test)
    assert evaluator.full_run is None


def test_an_audit_finds_what_witnesses_do_not_see(data, monkeypatch):
    """Here no unaffected row is near enough to be changed; a comparison with a full run finds the difference."""
    monkeypatch.setattr(
        reach, "near", lambda scores, expected, *_: len(scores) < 6000 or np.array_equal(scores, expected)
    )
    evaluator = Evaluator(made(data, "branch"), data.test)
    with pytest.warns(UserWarning, match=WARNING):
        for seed in range(10_000):
            with inject(evaluator.model, FixedCount(2, bits=(30,)), "tables*", seed=seed) as error_map:
                evaluator.rerun(error_map)
            if evaluator.full_run:
                break


def campaign(evaluator, folder, **options):
    grid = {"errors": [BitFlip(1e-6), FixedCount(1, bits=(30,))], "targets": ["tables*", "mlp.*"], "trials": 20}
    return Campaign(evaluator, store=folder, **(grid | options))


class Inline(Executor):
    """Without threads: while several record or ignore warnings, one can get lost (before Python 3.14)."""

    def submit(self, function, /, *args):
        future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.parametrize("executor", [None, Inline()], ids=["here", "by workers"])
@pytest.mark.filterwarnings("ignore:Coupled. an error in one row of a batch changes")
def test_a_campaign_starts_again_with_full_runs(executor, data, tmp_path):
    factory = partial(Coupled, [feature.cardinality for feature in data.schema.features], "guard")
    expected = Evaluator(made(data, "guard"), data.test, factory=factory)
    expected.use_full_runs("to compare with")
    full = campaign(expected, tmp_path / "full").run(workers=1, progress=False)
    evaluator = Evaluator(made(data, "guard"), data.test, factory=factory)
    with pytest.warns(UserWarning, match="all trials of this campaign are computed again, as full runs"):
        table = campaign(evaluator, tmp_path / "t").run(executor=executor, progress=False)
    same = [name for name in table.columns if name != "rows_reached"]
    assert table[same].equals(full[same])
    assert (table["rows_reached"][table["bits_flipped"] > 0] == len(data.test)).all()

    again = Evaluator(made(data, "guard"), data.test, factory=factory)  # a later process goes on with full runs
    with pytest.warns(UserWarning, match="reruns are full runs: an error in one row"):
        more = campaign(again, tmp_path / "t", trials=21).run(workers=1, progress=False)
    assert len(more) == 4 * 21


class AcrossTheBatch(Coupled):
    """Scores that hang on all rows of the batch, without errors too; a batch of another size may read `rest`."""

    def __init__(self, cardinalities, coupling):
        super().__init__(cardinalities, coupling)
        self.rest = nn.Parameter(torch.ones(2))

    def forward(self, dense_features, sparse_features):
        scores = super().forward(dense_features, sparse_features)
        if self.coupling == "softmax":
            return torch.log_softmax(scores, 0)
        if self.coupling == "capacity":  # an expert takes so many rows, the others get 0
            expert = (scores > scores.median()).long()
            place = torch.nn.functional.one_hot(expert, 2).cumsum(0).gather(1, expert[:, None])[:, 0]
            return torch.where(place <= math.ceil(0.4 * len(scores)), scores, torch.zeros_like(scores))
        return scores - scores.mean() + (self.rest.sum() if len(scores) % 32 else 0)


@pytest.mark.parametrize("n", [1500, 5000, 50, 2049])
@pytest.mark.parametrize("coupling", ["softmax", "capacity", "mean"])
def test_padding_takes_no_part(coupling, n, data):
    """Golden scores are those of the module on the same batches, reruns those of full runs; `rest` is read without padding."""
    torch.manual_seed(3)
    model = AcrossTheBatch([feature.cardinality for feature in data.schema.features], coupling).eval()
    rows = data.test.head(n)
    with torch.no_grad():
        expected = [model(batch.dense_features, batch.sparse_features) for batch in rows.batches(2048)]
    evaluator = Evaluator(model, rows)
    assert np.array_equal(evaluator.golden.scores, torch.cat(expected).numpy()) and len(expected[-1]) % 32
    assert evaluator._reach.cached.batches == len(expected) - 1
    evaluator.verify()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", reach.ReachWarning)
        for seed, target in enumerate(["tables*", "mlp.*", "all", "rest"] * 3):
            with inject(model, FixedCount(2, bits=(28,)), target, seed=seed) as error_map:
                full, rerun = evaluator.run(), evaluator.rerun(error_map)
                with torch.no_grad():
                    bare = [model(batch.dense_features, batch.sparse_features) for batch in rows.batches(2048)]
            assert np.array_equal(full.scores, rerun.scores, equal_nan=True)
            assert np.array_equal(full.scores, torch.cat(bare).numpy(), equal_nan=True)
            reading = {"softmax": 0, "capacity": n, "mean": len(expected[-1])}[coupling]  # `one_hot` may be a branch
            assert rerun.rows_reached == (reading if target == "rest" else n)
