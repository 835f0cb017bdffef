"""Weights that no target holds are named once; what is no weight is no false alarm."""

import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import drsrobust as dr


@dataclass
class Settings:
    scale: torch.Tensor
    name: str = "a"


class Metric(nn.Module):
    """As torchmetrics has them: states are attributes."""

    def __init__(self):
        super().__init__()
        self.total = torch.zeros(3)

    def update(self): ...

    def compute(self): ...

    def reset(self): ...


class Holder(nn.Module): ...


def told(**attributes):
    model = Holder()
    model.known = nn.Linear(2, 2)
    for name, value in attributes.items():
        setattr(model, name, value(model) if callable(value) and not isinstance(value, nn.Module) else value)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            dr.resolve(model, "all")
    return [str(one.message) for one in said]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([nn.Linear(2, 2)], "held[0]"),
        ({"a": nn.Linear(2, 2)}, "held['a']"),
        ({"a": [nn.Sequential(nn.Linear(2, 2))]}, "held['a'][0]"),
        (torch.ones(3), "held"),
        ((torch.ones(3), 1), "held[0]"),
        (Settings(torch.ones(2)), "held.scale"),
    ],
)
def test_what_no_target_holds_is_named_once(value, path):
    (text,) = told(held=value)
    assert text.startswith(f"errors cannot hit {path}: modules in a plain list")


@pytest.mark.parametrize(
    "value",
    [
        lambda model: [model.known],
        lambda model: {"w": model.known.weight},
        lambda model: model.known.weight.data[0],
        lambda model: torch.optim.Adam(model.parameters()),
        lambda model: [nn.ReLU(), nn.BCELoss()],
        Metric(),
        torch.ones(3, dtype=torch.bool),
        torch.empty(0),
        Settings(None),
    ],
)
def test_no_false_alarm(value):
    assert told(held=value) == []


def test_parameters_in_a_list_keep_their_sentence():
    (text,) = told(held=[nn.Parameter(torch.ones(2))])
    assert "not registered as parameters" in text


def test_all_of_a_model_without_parameters_names_everything():
    model = nn.Module()
    model.register_buffer("table", torch.ones(3))
    with pytest.raises(
        ValueError, match="'all' matches nothing: the model has no parameters; 'everything' takes its buffers"
    ):
        dr.resolve(model, "all")
    assert dr.resolve(model, "everything").words == 3
