import pytest
import torch
from torch import nn

from drsrobust.introspection.tensors import component_of, components


class Foreign(nn.Module):
    """A plain PyTorch recommender that is not ours."""

    def __init__(self):
        super().__init__()
        self.items = nn.EmbeddingBag(10, 4)
        self.tower = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.scale = nn.Parameter(torch.ones(1))


def test_rule_for_unknown_models():
    home = component_of(Foreign())
    assert home["items.weight"] == "embedding" and home["scale"] == "scale"
    assert {component for name, component in home.items() if name.startswith("tower")} == {"tower"}


def test_overrides_go_first():
    home = component_of(Foreign(), {"head": "tower.2.*"})
    assert home["tower.2.bias"] == "head" and home["tower.0.bias"] == "tower"
    for wrong, says in (
        ({"x": "y*"}, "component 'x'.*'y"),
        ({"a": "tower.*", "b": "*.bias"}, "tower.0.bias.*'a' and 'b'"),
    ):
        with pytest.raises(ValueError, match=says):
            component_of(Foreign(), wrong)


def test_sizes():
    frame = components(Foreign()).set_index("component")
    assert frame.loc["embedding", "parameters"] == 40 and frame.loc["embedding", "bits"] == 1280
    assert frame.loc["tower", "parameters"] == 15 + 6 + 4 and frame.loc["tower", "buffers"] == 7
    assert frame["share"].sum() == pytest.approx(1)
