"""Reruns of a model on a GPU: within the stated bound of full runs, and of the CPU."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.campaign import Campaign
from drsrobust.data.dataset import Ids, Split
from drsrobust.evaluation import Evaluator
from drsrobust.evaluation.affected_rows import BOUND
from drsrobust.injection import BitFlip, FixedCount, inject

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


class Clicks(nn.Module):
    """Two tables and a perceptron, without TorchRec."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, 16, mode="sum") for rows in (5000, 700))
        self.mlp = nn.Sequential(nn.Linear(35, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense, ids):
        return self.mlp(torch.cat([dense, *(table(i[:, None]) for table, i in zip(self.tables, ids, strict=True))], 1))


def forward(model, batch):
    return model(batch.dense_features, batch.sparse_features.values().reshape(2, -1).long())


@pytest.fixture(scope="module")
def rows():
    random, n = np.random.default_rng(0), 70_000  # two batches
    sparse = {name: Ids(random.integers(0, size, n).astype(np.int32)) for name, size in (("a", 5000), ("b", 700))}
    dense, labels = random.normal(size=(n, 3)).astype(np.float32), (random.random(n) < 0.3).astype(np.float32)
    return Split(dense, sparse, labels, None, np.arange(n), "made", "test", 0.3, "made", n)


def test_rerun_is_run(rows):
    model = Clicks().eval().cuda()
    evaluator = Evaluator(model, rows, forward=forward, output="logit")
    assert evaluator.full_run is None
    reached = []
    for target in ("all", "tables", "mlp"):
        for error_model in (FixedCount(1), BitFlip(1e-4), BitFlip(1e-2)):
            with inject(model, error_model, target, seed=3) as error_map:
                full, quick = evaluator.run(), evaluator.rerun(error_map)
            np.testing.assert_allclose(quick.scores, full.scores, rtol=BOUND, atol=BOUND, equal_nan=True)
            assert quick.outcome == full.outcome
            reached.append(quick.rows_reached)
    assert min(reached) < len(rows) / 10
    assert np.array_equal(evaluator.run().scores, evaluator.golden.scores)


def test_scores_and_maps_are_the_cpus_within_the_bound(rows):
    on_cpu = Clicks().eval()
    model = copy.deepcopy(on_cpu).cuda()
    evaluators = [Evaluator(m, rows, forward=forward, output="logit") for m in (on_cpu, model)]
    golden = [evaluator.golden.scores for evaluator in evaluators]
    np.testing.assert_allclose(*golden, rtol=BOUND, atol=BOUND)
    maps = []
    for evaluator in evaluators:
        with inject(evaluator.model, BitFlip(1e-4), seed=5) as error_map:
            maps.append((error_map.word.tolist(), error_map.mask.tolist()))
    assert maps[0] == maps[1]


def test_campaign(rows, tmp_path):
    evaluator = Evaluator(Clicks().eval().cuda(), rows, forward=forward, output="logit")
    campaign = Campaign(
        evaluator, errors=[BitFlip(1e-5), FixedCount(3)], targets=["tables", "all"], trials=5, store=tmp_path
    )
    table = campaign.run(workers=1, progress=False)
    assert len(table) == 20 and (table["outcome"] == "ok").any()
