"""Protections that cannot be: refused with the argument's name and the value."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.data import from_batches
from drsrobust.mitigation import ECC, ActivationClipping, NaNGuard
from drsrobust.mitigation.activations.clipping import best_multiplier
from drsrobust.mitigation.activations.sites import check_sites, select_sites
from drsrobust.mitigation.memory.ecc import SECDED
from tests.mitigation.plain import screened, table
from tests.refusals import refuses

NAN, INF = math.nan, math.inf
MODEL = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
ROWS = from_batches([(torch.ones(4, 2), torch.tensor([0.0, 1, 0, 1]))])


def forward(model, batch):
    return model(batch[0])


def fitted(model=MODEL, **options):
    return ActivationClipping.fit(model, ROWS, forward=forward, **options)


def attached(mitigation, model=MODEL):
    return mitigation.attach(model).__enter__()


def broken():
    model = nn.Sequential(nn.Linear(2, 1))
    nn.init.constant_(model[0].bias, NAN)
    return model


def drawn_elsewhere():
    return screened(ECC(), dr.BitFlip(1e-3).sample(dr.resolve(table(10)), seed=1), table(20))


CASES = [
    *[(lambda bound=bound: ActivationClipping(bound), "bound", bound) for bound in (0, -1, INF)],
    (lambda: ActivationClipping(6, mode="saturated"), "saturated", "'saturate'"),
    (lambda: ActivationClipping(6, nan="one"), "nan", "'one'"),
    (lambda: ActivationClipping(6, mode="zero", nan="bound"), "mode", "saturate"),
    (lambda: ActivationClipping(6).scaled(0), "multiplier", 0),
    (lambda: ActivationClipping(6).bounds(), "bound", 6),
    (lambda: ActivationClipping(6).on(["0.weight"]), "bound", 6),
    (lambda: attached(ActivationClipping(6, sites="norm")), "Sequential", "norm"),
    (lambda: attached(ActivationClipping(6), torch.compile(nn.Linear(2, 1))), "the model", "compiled"),
    (lambda: attached(fitted(), nn.Linear(2, 1)), "Linear", "linear 0"),
    (lambda: fitted(quantile=1.2), "quantile", 1.2),
    (lambda: fitted(margin=0), "margin", 0),
    (lambda: fitted(rows=0), "rows", 0),
    (lambda: fitted(scope="neurons"), "neurons", "'neuron'"),
    (lambda: fitted(sites="cross"), "Sequential", "cross"),
    (lambda: fitted(broken()), "last 0", "NaN"),
    *[
        (lambda grid=grid: best_multiplier(lambda m: 0.0, grid), "multipliers", "over 0")
        for grid in ([], [0, 1], [INF])
    ],
    (lambda: best_multiplier(lambda m: NAN, [2]), "2", "NaN"),
    (lambda: check_sites(["linaer"]), "linaer", "'linear'"),
    (lambda: check_sites([]), "sites", "empty"),
    (lambda: select_sites(MODEL, ("norm", "cross")), "Sequential", "norm, cross"),
    *[(lambda given=given: NaNGuard(**given), "prior", "value") for given in ({}, {"prior": 0.5, "value": 0.0})],
    *[(lambda prior=prior: NaNGuard(prior), "prior", prior) for prior in (0, 1, 1.5, -0.1)],
    (lambda: NaNGuard(value=NAN), "value", NAN),
    (lambda: NaNGuard(0.5).on(["0.weight"]), "confined", "0.weight"),
    (lambda: ECC(16), "data_bits", 16),
    (lambda: ECC(64, "restored"), "restored", "restore"),
    (drawn_elsewhere, "weight", [10, 16]),
    *[(lambda bits=bits: SECDED(bits), "data_bits", bits) for bits in (0, 65, True, 3.0)],
    (lambda: SECDED(32).encode(np.array([1 << 32], np.uint64)), "bits", 32),
    (lambda: SECDED(32).decode(np.array([1], np.uint64), np.array([128])), "check bits", 7),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("call", "name", "value"), CASES, ids=lambda part: None if callable(part) else str(part))
def test_refused_with_name_and_value(call, name, value):
    refuses(call, (ValueError, TypeError), name, value)
