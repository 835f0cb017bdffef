"""Reruns of a model on a GPU: within the stated bound of full runs."""

import copy

import numpy as np
import pytest
import torch

from drsrobust.evaluation import Evaluator
from drsrobust.evaluation.affected_rows import BOUND
from drsrobust.injection import BitFlip, FixedCount, inject

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_rerun_is_run(trained, data):
    model = copy.deepcopy(trained).cuda()
    evaluator = Evaluator(model, data.test)
    assert evaluator.full_run is None
    reached = []
    for target in ("all", "embedding", "dense_mlp", "over_mlp"):
        for error_model in (FixedCount(1), BitFlip(1e-4), BitFlip(1e-2)):
            with inject(model, error_model, target, seed=3) as error_map:
                full, quick = evaluator.run(), evaluator.rerun(error_map)
            np.testing.assert_allclose(quick.scores, full.scores, rtol=BOUND, atol=BOUND, equal_nan=True)
            assert quick.outcome == full.outcome
            reached.append(quick.rows_reached)
    assert min(reached) < len(data.test) / 10
    assert np.array_equal(evaluator.run().scores, evaluator.golden.scores)
