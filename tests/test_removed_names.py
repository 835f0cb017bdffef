"""What version 0.5 removed raises one line that says what to write instead."""

import importlib

import pytest
from torch import nn

import drsrobust as dr
from drsrobust.mitigation.memory.base import StorageProtection
from drsrobust.removed_names import INSTEAD

MAP = dr.FixedCount(1).sample(dr.resolve(nn.Linear(2, 2)), seed=0)
OBJECTS = (dr.ActivationClipping(6), dr.BitProtection("sign"), StorageProtection, MAP)
OBJECTS = {(each if isinstance(each, type) else type(each)).__module__: each for each in OBJECTS}
CALLS = (dr.Campaign, dr.ActivationClipping, dr.plots.mitigated_auc, dr.plots.recovery_vs_ber)
NAMES = [(where, name) for where, names in INSTEAD.items() for name in names if where != "[campaign]"]
OF_MODULES = {
    "drsrobust": ("study", "check_parameters", "FieldMixture", "Strided"),
    "drsrobust.campaign": ("strata",),
    "drsrobust.injection": ("FieldMixture", "Pattern", "Strided", "Application"),
    "drsrobust.statistics": (
        *("required_trials", "checkpoints", "is_precise", "stopping_interval", "error_count_grid", "curve_from_counts"),
        *("binomial_weights", "stratified_mean", "stratified_proportion"),
    ),
}
NAMES += [(module, name) for module, names in OF_MODULES.items() for name in names]


@pytest.mark.parametrize(("where", "name"), NAMES)
def test_a_removed_name_says_what_to_write(where, name):
    line = rf"^[\w.]+ has no '{name}' since version 0\.5; .+"
    raised = 0
    module = importlib.import_module(where)
    if hasattr(module, "__getattr__"):
        with pytest.raises(AttributeError, match=line):
            getattr(module, name)
        raised += 1
    if where in OBJECTS:
        with pytest.raises(AttributeError, match=line):
            getattr(OBJECTS[where], name)
        raised += 1
    for call in (call for call in CALLS if call.__module__ == where):
        with pytest.raises(TypeError, match=line):
            call(None, **{name: 1})
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
