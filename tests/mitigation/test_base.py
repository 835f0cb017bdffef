"""Names and identities of mitigations; attached ones belong to one model object: not to its copies, nor its state."""

import copy
import pickle

from torch import nn

from drsrobust.mitigation import ECC, Mitigation, NaNGuard
from drsrobust.mitigation.base import attached_mitigations
from drsrobust_extras.protection.bit_protection import BitProtection
from drsrobust_extras.protection.parity import ParityZero
from drsrobust_extras.protection.replication import Replication
from drsrobust_extras.protection.scrubbing import Scrubbing
from drsrobust_extras.protection.zero_space import ZeroSpaceECC

DIFFERENT = [
    *(ECC(), ECC(32), ECC(64, "zero"), ECC(64, "restore"), ParityZero(), ParityZero("mlp"), Replication()),
    *(Replication(5, "majority", "mlp"), Scrubbing(), Scrubbing(1, 10), Scrubbing(per="tensor")),
    *(Scrubbing(per=4096, checksum="sum", target="mlp"), BitProtection({30}), BitProtection((28, 29, 30, 31))),
    *(BitProtection("sign", code="tmr"), BitProtection(("sign", 22)), ZeroSpaceECC(), ZeroSpaceECC("zero")),
    *(ZeroSpaceECC(target="embedding"), NaNGuard(prior=0.5), NaNGuard(value=-2.5)),
]


def test_names_and_identities():
    """Settings that differ have names that differ, by which tables tell them apart; pickles keep both."""
    assert len({one.name for one in DIFFERENT}) == len({one.identity() for one in DIFFERENT}) == len(DIFFERENT)
    assert ECC(64, "zero").name == "SECDED (72,64), zero" and BitProtection(("sign", 22)).name == "bits 22+sign"
    for one in DIFFERENT:
        again = pickle.loads(pickle.dumps(one))
        assert (again.name, again.identity()) == (one.name, one.identity())


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
