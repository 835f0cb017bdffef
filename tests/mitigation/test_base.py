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

NAMES = {
    "SECDED (72,64)": ECC(),
    "SECDED (39,32)": ECC(32),
    "SECDED (72,64), zero": ECC(64, "zero"),
    "SECDED (72,64), restore": ECC(64, "restore"),
    "parity, zero": ParityZero(),
    "parity, zero of mlp": ParityZero("mlp"),
    "CRC32 per row, checked at use": Scrubbing(),
    "CRC32 per row, scrubbed every 0.1 of the time": Scrubbing(1, 10),
    "CRC32 per tensor, checked at use": Scrubbing(per="tensor"),
    "sum per 4096 bytes, checked at use of mlp": Scrubbing(per=4096, checksum="sum", target="mlp"),
    "bits 30": BitProtection({30}),
    "bits 28-31": BitProtection((28, 29, 30, 31)),
    "bits sign, TMR": BitProtection("sign", code="tmr"),
    "bits 22+sign": BitProtection(("sign", 22)),
    "zero-space SECDED": ZeroSpaceECC(),
    "zero-space SECDED, zero": ZeroSpaceECC("zero"),
    "zero-space SECDED of embedding": ZeroSpaceECC(target="embedding"),
    "3 copies, median": Replication(),
    "5 copies, majority of mlp": Replication(5, "majority", "mlp"),
    "NaN guard": NaNGuard(prior=0.5),
    "NaN guard to -2.5": NaNGuard(value=-2.5),
}


def test_names_and_identities():
    assert {name: mitigation.name for name, mitigation in NAMES.items()} == {name: name for name in NAMES}
    assert len({mitigation.identity() for mitigation in NAMES.values()}) == len(NAMES)
    for mitigation in NAMES.values():
        assert pickle.loads(pickle.dumps(mitigation)).identity() == mitigation.identity()


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
