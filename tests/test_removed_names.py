"""What version 0.5 removed raises one line that says what to write instead."""

import importlib

import pytest
from torch import nn

import drsrobust as dr
from drsrobust.mitigation.memory.storage import StorageProtection
from drsrobust.removed_names import INSTEAD

MAP = dr.FixedCount(1).sample(dr.resolve(nn.Linear(2, 2)), seed=0)
OBJECTS = {
    "ActivationClipping": dr.ActivationClipping(6),
    "BitProtection": dr.BitProtection("sign"),
    "StorageProtection": dr.ECC(),
    "ErrorMap": MAP,
}
CALLS = {
    "Campaign": dr.Campaign,
    "ActivationClipping": dr.ActivationClipping,
    "mitigated_auc": dr.plots.mitigated_auc,
    "recovery_vs_ber": dr.plots.recovery_vs_ber,
}
NAMES = [(where, name) for where, names in INSTEAD.items() for name in names if where != "[campaign]"]


@pytest.mark.parametrize(("where", "name"), NAMES)
def test_a_removed_name_says_what_to_write(where, name):
    line = rf"^{where} has no '{name}' since version 0\.5; .+"
    raised = 0
    if where.startswith("drsrobust"):
        with pytest.raises(AttributeError, match=line):
            getattr(importlib.import_module(where), name)
        raised += 1
    if where in OBJECTS:
        with pytest.raises(AttributeError, match=line):
            getattr(OBJECTS[where], name)
        assert not hasattr(type(OBJECTS[where]), name)
        raised += 1
    if where in CALLS:
        with pytest.raises(TypeError, match=line):
            CALLS[where](None, **{name: 1})
        raised += 1
    assert raised


def test_other_names_fail_as_ever():
    with pytest.raises(AttributeError, match="module 'drsrobust.injection' has no attribute 'nothing'"):
        dr.injection.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="'ErrorMap' object has no attribute 'nothing'"):
        MAP.nothing  # noqa: B018
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        dr.Campaign(None, nothing=1)
    assert issubclass(dr.ECC, StorageProtection) and dr.ECC().screen(MAP, dr.resolve(nn.Linear(2, 2)), seed=0)
