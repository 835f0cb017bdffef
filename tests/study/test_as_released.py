"""What the published scripts clip and protect."""

import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.models import MODELS
from drsrobust_study import as_released
from tests.mitigation.plain import screened
from tests.mitigation.test_clipping import build


@pytest.mark.parametrize("name", MODELS)
def test_clipping(name, data):
    """Every nn.Linear but the last, and nothing else; NaN becomes 0 before values are clamped."""
    model = build(name, data)
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != "first_order_dense"]
    clips = as_released.clippings(model, [6, 100.0])
    if name == "fm":
        assert clips == [] and len(linear) <= 1
        return
    expected = {"clip as released 6": "fixed bound 6", "clip as released 100": "fixed bound 100"}
    assert as_released.display_names(clips) == {name: f"{bound}, hidden layers" for name, bound in expected.items()}
    assert clips[0].identity() == dr.ActivationClipping(6, sites="linear").identity()
    with clips[0].attach(model):
        hooked = [n for n, m in model.named_modules() if m._forward_hooks]
        assert hooked == linear[:-1] and not any("forward" in m.__dict__ for m in model.modules())
        for name_of in hooked:
            layer = model.get_submodule(name_of)
            x = torch.full((2, layer.in_features), float("nan"))
            x[1] = 1e30
            with torch.no_grad():
                out = layer(x)
            assert (out[0] == 0).all() and out[1].abs().max() == 6


def test_protection_protects_nothing():
    layer = nn.Linear(64, 64)
    drawn = dr.BitFlip(0.01).sample(dr.resolve(layer), seed=1)
    meant = dr.BitProtection(range(23, 32))
    released = as_released.AppliedTooEarly(meant)
    assert screened(released, drawn, layer).remaining is drawn and released.cost(layer).stored_bits == 0
    assert released.name == "bits 23-31, as released" and released.identity() != meant.identity()
