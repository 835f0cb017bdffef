"""The models on which mitigations are compared."""

import pytest
import torch

import drsrobust as dr
from drsrobust_study import mitigations
from drsrobust_study.mitigations import Case, with_int8_tables


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.ao.quantization")
def test_int8_tables_are_a_copy(data, trained):
    before = {name: parameter.clone() for name, parameter in trained.named_parameters()}
    small = with_int8_tables(Case("dlrm", data.name, trained, data.train, data.test))
    assert all(torch.equal(before[name], parameter) for name, parameter in trained.named_parameters())
    assert small.name == "dlrm, int8 tables" and small.int8
    assert any(tensor.format.name.startswith("int8") for tensor in dr.resolve(small.model).tensors)


def test_which_data(monkeypatch):
    asked = []
    monkeypatch.setattr(mitigations, "load_dataset", asked.append)
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    mitigations.trained(models=[])
    assert asked == list(mitigations.GENERATED)
    monkeypatch.setenv("DRSROBUST_DATA", "/somewhere")
    mitigations.trained(models=[])
    assert asked[len(mitigations.GENERATED) :] == list(mitigations.REAL)
