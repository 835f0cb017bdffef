"""Training on a GPU, where there is one."""

import numpy as np
import pytest
import torch

from drsrobust.models import build_model, padded_batches, score
from drsrobust.training import Settings, fit, load_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("more", [{}, {"table_optimizer": "rowwise_adagrad"}, {"precision": "bfloat16"}], ids=str)
def test_learns_what_a_cpu_learns(data, more):
    aucs = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = build_model("dlrm", data.schema).to(device)
        aucs.append(fit(model, data, Settings(epochs=3, batch_size=256, **more), progress=False)[-1].valid_auc)
        assert {parameter.device.type for parameter in model.parameters()} == {device}
    assert abs(aucs[0] - aucs[1]) < 0.02


def test_the_cached_model_is_on_the_cpu(data, empty_cache):
    model = load_model("wide_deep", data, settings=Settings(epochs=1, batch_size=512), progress=False)
    assert model.manifest["device"] == "cuda" and {p.device.type for p in model.parameters()} == {"cpu"}
    assert np.isfinite(score(model, padded_batches(data.test), len(data.test))).all()
