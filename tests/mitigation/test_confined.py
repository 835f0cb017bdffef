"""A mitigation confined to some tensors (`on`): errors, hooks and cost are those of the whole one there, none elsewhere."""

import pytest
import torch
from torch import nn

import drsrobust as dr
from tests.mitigation.plain import screened

MODEL = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 8))
NAMES = {"0.weight", "0.bias", "2.weight", "2.bias"}
STORAGE = [
    dr.ParityZero(),
    dr.ECC(),
    dr.BitProtection(range(23, 32), code="tmr"),
    dr.BitProtection({"0.*": [30], "2.*": [29, 30]}, code="secded"),
    dr.Replication(),
    dr.Scrubbing(period=0.5),
    dr.Chipkill(),
]
RANGE = dr.WeightRange.fit(MODEL)
DRAWN = dr.BitFlip(3e-3).sample(dr.resolve(MODEL), seed=5)


def entries(error_map, inside):
    """Word and mask of each error of the tensors."""
    frame = error_map.frame()
    return frame[frame["tensor"].isin(inside)][["tensor", "word", "mask"]].to_numpy().tolist()


@pytest.mark.parametrize("mitigation", [*STORAGE, RANGE, RANGE + dr.ParityZero()], ids=lambda one: one.name)
def test_memory(mitigation):
    inside = {"0.weight", "2.bias"}
    confined = mitigation.on(inside)
    left = screened(confined, DRAWN, MODEL, 5).remaining
    assert entries(left, NAMES - inside) == entries(DRAWN, NAMES - inside)
    assert entries(left, inside) != entries(DRAWN, inside)
    assert confined.covers(MODEL) == inside and mitigation.covers(MODEL) == NAMES
    parts = [mitigation.on([name]).cost(MODEL).stored_bits for name in sorted(NAMES)]
    assert sum(parts) == mitigation.cost(MODEL).stored_bits
    assert confined.cost(MODEL).stored_bits == mitigation.on(["0.weight"]).cost(MODEL).stored_bits + parts[2]
    assert len({mitigation.identity(), confined.identity(), mitigation.on(["0.weight"]).identity()}) == 3
    assert mitigation.on(inside).identity() == confined.identity() and confined.name != mitigation.name


def test_checks_of_layers():
    abft = dr.ABFTLinear.fit(MODEL, action="restore")
    first = abft.on(["0.weight"])
    assert first.covered == ["0"] and first.covers(MODEL) == {"0.weight", "0.bias"}
    assert first.golden.names == ["0.weight", "0.bias"] and abft.golden.names != first.golden.names
    one, other, whole = (mitigation.cost(MODEL) for mitigation in (first, abft.on(["2.bias"]), abft))
    assert one + other == whole and first.identity() != abft.identity()
    x = torch.randn(64, 40, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer, found in ((0, True), (2, False)):
            errors = dr.SingleBit(30)
            with dr.inject(MODEL, errors, f"{layer}.weight", seed=1), first.attach(MODEL) as detection:
                MODEL(x)
                assert detection.detected is found


def test_learnt_bounds(trained, data):
    clip = dr.ActivationClipping.fit(trained, data.train, rows=512)
    name = "over_arch.model.1.weight"
    confined = clip.on([name])
    assert {site.module for site in confined.learnt} == {"over_arch.model.1"} and name in confined.covers(trained)
    assert 0 < confined.cost(trained).stored_bits < clip.cost(trained).stored_bits
    assert confined.identity() != clip.identity() and dr.NaNGuard(value=0.0).covers(trained) == set()


def test_confining_twice_keeps_what_both_hold():
    twice = dr.ECC().on(["0.weight", "2.weight"]).on(["2.weight", "2.bias"])
    assert twice.covers(MODEL) == {"2.weight"}
    assert twice.cost(MODEL) == dr.ECC().on(["2.weight"]).cost(MODEL)
