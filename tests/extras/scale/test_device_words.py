"""Words of an error map on a device, which is the CPU here: the same map, memory and reruns as by NumPy."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.campaign.trial import audit
from drsrobust.injection import AddressSpace, error_models
from drsrobust.injection.address_space import TargetTensor
from drsrobust.injection.error_models import from_bits, from_sorted_words
from drsrobust.injection.number_formats import quantized_rows
from drsrobust_extras.scale import gpu
from drsrobust_extras.scale.device_words import DeviceWords, drawing_gpu

RATES = (1e-3, 0.05, 0.7)


class Mixed(nn.Module):
    """Tensors of four formats, one of them a scalar."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Parameter(torch.randn(7, 33))
        self.b = nn.Parameter(torch.randn(()))
        self.c = nn.Parameter(torch.randn(50).half())
        self.d = nn.Parameter(torch.randn(9, 8).bfloat16())
        self.e = nn.Parameter(torch.randn(31).double())


def maps(space, rate, seed=3):
    """The map by NumPy, and the one whose words lie on the device."""
    model = dr.BitFlip(rate)
    clock, about = model.clock(space.bits, seed), {"requested_rate": rate, "n_sites": space.bits}
    here = from_bits(model, space, clock.until_in_parts(rate), seed, **about)
    words = DeviceWords(space, torch.from_numpy(clock.until(rate)))
    none = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint64)
    return here, from_sorted_words(model, space, *none, seed, n_events=words.bits, **about).lying_on(words)


def memory(model):
    return [
        tensor.detach().view(torch.uint8).clone() if tensor.ndim else tensor.item() for tensor in model.parameters()
    ]


@pytest.mark.parametrize("bits", [None, "exponent", ("sign", 3)])
@pytest.mark.parametrize("rate", RATES)
def test_the_same_map_and_memory(rate, bits):
    model = Mixed()
    space = dr.resolve(model, "all").only(bits)
    here, there = maps(space, rate)
    before = memory(model)
    assert _here(there) == set()
    assert (len(there), there.bits, there.n_events) == (len(here), here.bits, here.n_events)
    assert list(there.by_tensor()) == list(here.by_tensor())
    assert audit(there).equals(audit(here))
    with here.applied(model):
        wrong = memory(model)
    with there.applied(model):
        assert all(map(_same, memory(model), wrong))
    assert all(map(_same, memory(model), before)) and repr(there) == repr(here)
    assert _here(there) == set()  # nothing was fetched
    for name in ("tensor", "word", "mask"):
        array, other = getattr(here, name), getattr(there, name)
        assert array.dtype == other.dtype and np.array_equal(array, other)
    assert there.frame().equals(here.frame())


def _here(error_map):
    """The arrays that were fetched."""
    return {name for name in ("tensor", "word", "mask") if vars(error_map)[name] is not None}


def _same(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_other_maps_of_it_have_arrays():
    here, there = maps(dr.resolve(Mixed(), "all"), 0.05)
    others = (replace(there), copy.copy(there), copy.deepcopy(there), pickle.loads(pickle.dumps(there)), there | there)
    for other in others:
        assert other.on_device is None and other.frame().equals(here.frame())
    for other in (there.restrict("sign"), there.drop(np.arange(len(there)) < 9)):
        assert other.on_device is None and 0 < len(other) < len(here)
    assert there.restrict("sign").frame().equals(here.restrict("sign").frame())
    with pytest.raises(AttributeError, match="'ErrorMap' object has no attribute 'nothing'"):
        there.nothing  # noqa: B018


@pytest.mark.parametrize("bits", [None, ("scale", "value")])
def test_quantized_rows(bits):
    tables = [
        TargetTensor(name, "embedding", (40, form.period), form)
        for name, form in (("a", quantized_rows("int4", 5, 4, 16)), ("b", quantized_rows("int8", 12, 4, 16)))
    ]
    here, there = maps(AddressSpace(tables).only(bits), 0.02)
    assert there.frame().equals(here.frame()) and len(here) > 100


def test_a_core_draws_what_a_gpu_does_not_hold():
    model = Mixed()
    space = dr.resolve(model, "all")
    assert drawing_gpu(space, 0.5) is None and drawing_gpu(space, 1e-9) is None


def test_a_campaign_has_the_same_table(trained, data, tmp_path, monkeypatch):
    """Under protections too, which change the errors in memory, or take part in the computation."""
    protections = [None, dr.ECC(), dr.WeightRange.fit(trained), dr.ActivationClipping(2.0)]
    grid = {"errors": [dr.BitFlip(1e-3)], "targets": ["all", "embedding"], "mitigations": protections, "trials": 3}
    evaluator = dr.Evaluator(trained, data.test)
    here = dr.Campaign(evaluator, store=tmp_path / "here", **grid).run(workers=1, progress=False)
    monkeypatch.setattr(error_models, "accelerator_of", lambda device: gpu.GPU())
    monkeypatch.setattr(gpu, "drawing_gpu", lambda *_: torch.device("cpu"))
    drawn = []

    def places(clock, rate, device):
        drawn.append(rate)
        return torch.from_numpy(clock.until(rate))

    monkeypatch.setattr(gpu, "drawn_places", places)
    there = dr.Campaign(evaluator, store=tmp_path / "there", **grid).run(workers=1, progress=False)
    assert len(drawn) >= len(there) == 24 and there.equals(here)
