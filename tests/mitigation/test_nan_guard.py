"""The NaN guard: finite scores keep their bits, others become the prior and are detected."""

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, inject
from drsrobust.mitigation.activations.nan_guard import NaNGuard
from drsrobust.models import build_model, padded_batches, score, state_digest
from drsrobust_extras.protection.abft.linear import ABFTLinear
from drsrobust_extras.protection.golden_copy import GoldenCopy

SMALL = {"afn": {"neurons": 8, "deep_mlp": (16, 16)}}


class Given(nn.Module):
    """Returns its input."""

    def forward(self, scores):
        return scores


def test_values_and_watch():
    model, guard = Given(), NaNGuard(prior=0.2)
    scores = torch.tensor([1.0, math.nan, -math.inf, -0.0, math.inf])
    with guard.attach(model) as watch:
        fine = model(scores[:1])
        assert fine is not None and watch.detected is False and watch.repaired is None
        held = model(scores)
        assert watch.detected is True and watch.repaired is False
        model(scores[:1])
        assert watch.detected is True  # what was found stays found
        with guard.attach(model) as later:
            assert later.detected is False
    expected = math.log(0.2 / 0.8)
    assert torch.equal(held, torch.tensor([1.0, expected, expected, -0.0, expected]))
    assert not model._forward_hooks and scores.isnan().any()
    assert math.isclose(torch.tensor(guard.value).sigmoid(), 0.2, rel_tol=1e-6)
    with NaNGuard(value=-3).attach(model):
        assert model(scores[1:3].unsqueeze(1)).tolist() == [[-3.0], [-3.0]]


@pytest.mark.parametrize("name", ["deepfm", "dlrm_dcn", "afn"])
def test_every_model(name, data):
    torch.manual_seed(1)
    model = build_model(name, data.schema, **SMALL.get(name, {})).eval()
    before = state_digest(model)
    golden = score(model, padded_batches(data.test), len(data.test))
    guard = NaNGuard(data.train.prior)
    evaluator = Evaluator(model, data.test)
    replaced = 0
    with evaluator.under(guard) as guarded:
        assert guarded.full_run is None and np.array_equal(guarded.golden.scores, golden)
        for target, rate in (("all", 3e-2), ("embedding", 1e-2), ("all", 1e-3)):
            for seed in range(3):
                with inject(model, BitFlip(rate), target, seed=seed) as error_map:
                    with guard.attach(model) as watch:
                        quick = guarded.rerun(error_map)
                    assert np.array_equal(quick.scores, guarded.run().scores) and quick.outcome == "ok"
                with inject(model, BitFlip(rate), target, seed=seed) as error_map, guard.attach(model):
                    pass
                finite = np.float32(guard.value) != quick.scores
                assert watch.detected == (not finite.all())
                replaced += int((~finite).sum())
                assert watch.repaired is (False if watch.detected else None)
    assert replaced
    assert state_digest(model) == before and not any(module._forward_hooks for module in model.modules())
    assert np.array_equal(score(model, padded_batches(data.test), len(data.test)), golden)


def test_what_it_costs():
    guard = NaNGuard(prior=0.5)
    assert guard.value == 0 and guard.identity() == NaNGuard(value=0).identity() and not guard.ordered
    cost = guard.cost(Given())
    assert (cost.stored_bits, cost.multiply_adds, cost.bytes_touched) == (32, 1, 4)


def test_repr_shows_settings_and_short_hashes():
    assert repr(NaNGuard(value=-2.5)) == "<NaNGuard 'NaN guard to -2.5', value=-2.5>"
    assert repr(NaNGuard(value=1) + NaNGuard(value=2)) == f"{NaNGuard(value=1)!r} + {NaNGuard(value=2)!r}"
    layer = nn.Linear(3, 2)
    copy = GoldenCopy.of(layer)
    assert repr(copy) == f"<GoldenCopy of 2 tensors, 256 bits, {copy.digest()[:12]}>"
    abft = repr(ABFTLinear.fit(layer, action="restore"))
    assert abft.startswith("<ABFTLinear 'ABFT Linear (provable, restore)', action='restore', every=1, checks='")
    assert not re.search("[0-9a-f]{13}", abft)


def test_mistakes():
    for given in ({}, {"prior": 0.5, "value": 0.0}):
        with pytest.raises(ValueError, match=r"pass a prior, as NaNGuard\(data.train.prior\), or a value"):
            NaNGuard(**given)
    for prior in (0, 1, 1.5, -0.1, math.nan):
        with pytest.raises(ValueError, match="prior must be a click rate between 0 and 1"):
            NaNGuard(prior)
    with pytest.raises(ValueError, match="value must be a finite logit, got nan"):
        NaNGuard(value=math.nan)
