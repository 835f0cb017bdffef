import copy

import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.data import from_batches
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, inject
from drsrobust.metrics import auc
from drsrobust.mitigation import ECC, NaNGuard


def test_golden_run(evaluator, trained, data):
    golden = evaluator.golden
    assert golden.outcome == "ok" and golden.nan_rows == golden.inf_rows == 0 and golden.rows_reached == len(data.test)
    with torch.no_grad():
        batch = data.test.batch()
        logits = trained(batch.dense_features, batch.sparse_features).numpy()
    np.testing.assert_allclose(golden.scores, logits, rtol=1e-5, atol=1e-6)
    assert golden.auc == auc(data.test.labels, golden.scores)
    again = evaluator.run()
    assert np.array_equal(again.scores, golden.scores) and again.auc == golden.auc


def test_faulty_runs_and_outcomes(evaluator, trained):
    with inject(trained, BitFlip(1e-4), "embedding", seed=1) as error_map:
        assert len(error_map)
        broken = evaluator.run()
    assert not np.array_equal(broken.scores, evaluator.golden.scores)
    weight = trained.over_arch.model[1].weight
    with torch.no_grad():
        old = weight.clone()
        weight.fill_(float("nan"))
        nothing = evaluator.run()
        weight.copy_(old)
    assert nothing.outcome == "nonfinite" and nothing.nan_rows == len(evaluator.rows) and nothing.auc == 0.5
    assert np.array_equal(evaluator.run().scores, evaluator.golden.scores)


def test_what_an_interrupted_with_left_is_undone(trained, data):
    golden = Evaluator(trained, data.test).golden
    left_open = inject(trained, BitFlip(0.1), seed=1)
    left_open.__enter__()
    with pytest.warns(UserWarning, match=r"1 error map\(s\) or hooks were still in the model"):
        evaluator = Evaluator(trained, data.test)
    assert np.array_equal(evaluator.golden.scores, golden.scores)


def test_a_protection_of_memory_alone_needs_no_golden_run_of_its_own(evaluator, trained):
    with evaluator.under(ECC()) as guarded, inject(trained, BitFlip(1e-4), seed=1) as error_map:
        assert guarded.golden is evaluator.golden
        assert guarded.rerun(error_map).auc == evaluator.run().auc
    with pytest.raises(RuntimeError, match="was made under 'SECDED"):
        guarded.run()
    with evaluator.under(NaNGuard(0.5) + ECC()) as guarded:
        assert guarded.golden is not evaluator.golden and guarded.golden.auc == evaluator.golden.auc


def test_auc_of_logits_and_of_served_probabilities(trained, data):
    """Logits of 1e30 keep their order; as float32 probabilities they are 0 or 1, so only their signs rank."""
    model = copy.deepcopy(trained)
    with torch.no_grad():
        model.over_arch.model[-1].bias -= float(np.median(Evaluator(trained, data.test).golden.scores))
        for parameter in model.over_arch.model[-1].parameters():
            parameter.mul_(1e30)
    logits = Evaluator(model, data.test, scores="logit").golden
    served = Evaluator(model, data.test).golden
    assert (
        logits.auc
        == auc(data.test.labels, logits.scores)
        == pytest.approx(Evaluator(trained, data.test).golden.auc, abs=1e-5)
    )
    assert served.auc == auc(data.test.labels, served.scores > 0) < logits.auc
    assert set(served.probabilities.tolist()) == {0.0, 1.0} and served.probabilities.dtype == np.float32
    assert np.array_equal(served.scores, logits.scores) and served.logloss == logits.logloss


@pytest.mark.filterwarnings("default:.*the AUC without errors is")
@pytest.mark.parametrize(("signal", "warned"), [(0.0, True), (2.0, False)])
def test_a_model_that_has_not_learned_is_told_once(signal, warned, recwarn):
    torch.manual_seed(0)
    x = torch.randn(500, 1)
    labels = (signal * x[:, 0] + torch.randn(500) > 0).float()
    model = nn.Linear(1, 1)
    nn.init.ones_(model.weight)
    evaluator = Evaluator(model, from_batches([(x, labels)]), forward=lambda model, batch: model(batch[0]))
    with evaluator.under(NaNGuard(value=0.0)):
        pass
    assert ["the AUC without errors is" in str(warning.message) for warning in recwarn] == [True] * warned
