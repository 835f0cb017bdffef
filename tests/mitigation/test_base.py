"""Attached mitigations belong to one model object: not to its copies, its state, or the model after the block."""

import copy
import pickle

from torch import nn

from drsrobust.mitigation import Mitigation, NaNGuard
from drsrobust.mitigation.base import attached_mitigations


class NoHooks(Mitigation):
    """A mitigation without hooks, so that its model can be pickled while it is attached."""

    name = "no hooks"

    def settings(self):
        return {}


def test_attached_mitigations_are_those_of_the_model_inside_the_block():
    model, other = nn.Sequential(nn.Linear(2, 1)), nn.Linear(2, 1)
    before = set(model.__dict__)
    first, second = NoHooks(), NaNGuard(value=0.0)
    with first.attach(model), (first + second).attach(model):
        assert attached_mitigations(model) == (first, second)
        assert not attached_mitigations(other) and not attached_mitigations(model[0])
        assert len(list(model.modules())) == 2 and set(model.state_dict()) == {"0.weight", "0.bias"}
    assert not attached_mitigations(model) and set(model.__dict__) == before


def test_copies_of_a_protected_model_are_not_protected():
    model, mitigation = nn.Linear(2, 1), NoHooks()
    with mitigation.attach(model):
        copies = [copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))]
        assert not any(attached_mitigations(each) for each in copies)
        with mitigation.attach(copies[1]):
            assert attached_mitigations(copies[1]) == attached_mitigations(model) == (mitigation,)
        assert attached_mitigations(model) == (mitigation,) and not attached_mitigations(copies[1])
    assert not any(attached_mitigations(each) for each in (model, *copies))
