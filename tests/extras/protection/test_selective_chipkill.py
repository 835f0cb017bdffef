"""The symbol code over the chips of exponents: check symbols in mantissas, enumerated miscorrections, faults of every chip."""

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.mitigation.memory.ecc import CORRECTED, UNCORRECTABLE
from drsrobust_extras.protection.symbol_code import SymbolCode
from tests.mitigation.plain import screened
from tests.refusals import refuses


@pytest.mark.parametrize(("symbols", "bits"), [(4, 4), (8, 4), (18, 8)])
def test_pairs_of_wrong_symbols_are_miscorrected_by_the_formula(symbols, bits):
    code, order = SymbolCode(symbols, bits), 2**bits - 1
    values = np.arange(1, order + 1).astype(np.uint8)
    for places in list(combinations(range(symbols), 2))[:8]:
        one, other = (part.ravel() for part in np.meshgrid(values, values))
        wrong = [np.zeros(len(one), np.uint8) for _ in range(symbols)]
        wrong[places[0]], wrong[places[1]] = one, other
        place, status = code.locate(*code.syndromes(wrong))
        assert (status == CORRECTED).sum() == order * (symbols - 2)
        assert (status == UNCORRECTABLE).sum() == order * order - order * (symbols - 2)
        assert not np.isin(place[status == CORRECTED], places).any()


def test_single_wrong_symbols_are_found():
    code = SymbolCode(4, 4)
    for at in range(4):
        wrong = [np.arange(1, 16).astype(np.uint8) * np.uint8(place == at) for place in range(4)]
        place, status = code.locate(*code.syndromes(wrong))
        assert (place == at).all() and (status == CORRECTED).all()


def model():
    torch.manual_seed(3)
    return nn.ModuleDict({"table": nn.EmbeddingBag(700, 5), "layer": nn.Linear(5, 3), "last": nn.Linear(3, 1)})


def test_faults_of_chips_of_exponents_are_corrected_and_others_remain():
    net = model()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    protection = dr.SelectiveChipkill.store(net)
    for name, tensor in net.state_dict().items():
        change = (tensor / before[name] - 1).abs().max()
        assert 0 < change < 2**-19 * 1.0001, name
    assert protection.cost(net).stored_bits == 0
    space = dr.resolve(net)
    for chip in range(18):
        drawn = dr.MemoryFault("ranks", chips=(chip,)).sample(space, seed=chip)
        after = screened(protection, drawn, net, chip)
        left, counts = after.remaining, after.counts
        if chip in (5, 6, 7, 13, 14, 15, 0, 8):
            # The last word of an odd tensor has no second half, whose symbols count as right.
            assert drawn.bits > 500 and not len(left) and counts["corrected"] > 300
        else:
            assert left.bits == drawn.bits and not counts.get("corrected")


def test_two_faults_are_detected_or_miscorrected():
    net = model()
    protection = dr.SelectiveChipkill.store(net)
    both = dr.MemoryFault("ranks", chips=(7,)) + dr.MemoryFault("ranks", chips=(8,))
    drawn = both.sample(dr.resolve(net), seed=1)
    after = screened(protection, drawn, net, 1)
    left, counts = after.remaining, after.counts
    several = counts["uncorrectable"] + counts["miscorrected"]
    assert 0.3 < counts["miscorrected"] / several < 0.5 and after.detected and after.repaired is False
    assert 0 < left.bits < drawn.bits + 4 * counts["miscorrected"]


def test_settings():
    net = model()
    few = dr.SelectiveChipkill.store(net, (7,))
    fault = dr.MemoryFault("ranks", chips=(6,)).sample(dr.resolve(net), seed=0)
    assert screened(few, fault, net, 0).remaining.bits > 500
    refuses(lambda: dr.SelectiveChipkill(range(1, 8)), ValueError, "nibbles", "range(1, 8)")  # of 15 symbols at most
    assert few.identity() != dr.SelectiveChipkill().identity() and few.name == "selective chipkill [7]"
