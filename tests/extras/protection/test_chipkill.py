"""Chipkill corrects what one chip returns, miscorrects two wrong symbols as counted, and sees faults of its check chips; the
symbol code over the chips of exponents has its check symbols in mantissas; SECDED on the patterns of one chip."""

from itertools import combinations, product

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.mitigation.memory.ecc import CLEAN, CORRECTED, SECDED, UNCORRECTABLE
from drsrobust_extras.protection.chipkill import Chipkill, decode_pairs
from drsrobust_extras.protection.memory_faults import MODES, Geometry, MemoryFault
from drsrobust_extras.protection.symbol_code import SymbolCode
from tests.mitigation.plain import screened
from tests.refusals import refuses


def word_pairs(symbols):
    """Code words with symbols {chip: uint8 [n]} wrong."""
    n = len(next(iter(symbols.values())))
    data, check = np.zeros((2, n, 2), np.uint64)
    for chip, symbol in symbols.items():
        halves = np.stack((symbol & 15, symbol >> 4), axis=1).astype(np.uint64)
        (data if chip < 16 else check)[:] |= halves << np.uint64(4 * (chip % 16))
    return data, check


@pytest.mark.parametrize("chips", [(0, 1), (3, 16), (7, 15), (16, 17)])
def test_two_wrong_symbols_are_miscorrected_16_times_in_255(chips):
    one, other = (part.ravel().astype(np.uint8) for part in np.meshgrid(range(1, 256), range(1, 256)))
    given = word_pairs(dict(zip(chips, (one, other), strict=True)))
    data, check, status = decode_pairs(*given)
    assert (status == CORRECTED).sum() == 255 * 255 * 16 // 255 and not (status == CLEAN).any()
    kept = status == UNCORRECTABLE
    assert np.array_equal(data[kept], given[0][kept]) and np.array_equal(check[kept], given[1][kept])


@pytest.mark.parametrize("mode", MODES)
def test_one_fault_leaves_nothing(mode):
    model = nn.Sequential(nn.Embedding(3000, 16), nn.Linear(16, 7))
    fault, space = MemoryFault(mode, geometry=Geometry(rows=64)), dr.resolve(model)
    seen = set()
    for seed in range(40):
        drawn = fault.sample(space, seed=seed)
        after = screened(Chipkill(), drawn, model, seed)
        counts = after.counts
        assert not len(after.remaining) and not counts.get("miscorrected") and not counts.get("uncorrectable")
        seen |= {name for name, count in counts.items() if count}
    assert seen == {"corrected"}


def test_faults_of_check_chips_are_seen_by_codes():
    model, fault = nn.Embedding(3000, 16), MemoryFault("row", density=1.0)
    space = dr.resolve(model)
    for seed in (seed for seed in range(80) if fault.extent(space, seed=seed).chip >= 16):
        words, drawn = len(fault.extent(space, seed=seed).address), fault.sample(space, seed=seed)
        counts = screened(dr.ECC(), drawn, model, seed).counts
        assert not len(drawn) and sum(counts.values()) == words
        counts = screened(Chipkill(), drawn, model, seed).counts
        assert counts["corrected"] == words // 2


def test_secded_on_the_patterns_of_one_chip():
    """Of data chips, and of the two with the check bits of (72,64), where 8 of 30 patterns put an error into data."""
    for bits, chips, expected in ((64, 16, (64, 139, 35, 2)), (32, 8, (32, 76, 12, 0)), (64, 2, (8, 14, 8, 0))):
        patterns = np.array([value << 4 * chip for chip, value in product(range(chips), range(1, 16))], np.uint64)
        wrong = (patterns, np.zeros_like(patterns))
        found = SECDED(bits).decode(*(wrong if chips > 2 else wrong[::-1]))
        misled = (found.status == CORRECTED) & ((found.words | found.check) != 0)
        corrected = (found.status == CORRECTED) & ~misled
        kinds = (corrected, found.status == UNCORRECTABLE, misled, found.status == CLEAN)
        assert tuple(int(kind.sum()) for kind in kinds) == expected


def test_two_chips_at_once_and_random_flips():
    model = nn.Embedding(3000, 16)
    space = dr.resolve(model)
    both = MemoryFault("ranks", density=1.0, chips=(3,)) + MemoryFault("ranks", chips=(9,))
    drawn = both.sample(space, seed=5)
    after = screened(Chipkill(), drawn, model, 5)
    assert after.counts["uncorrectable"] > 0 and len(after.remaining)
    zeroed = screened(Chipkill("zero"), drawn, model, 5).remaining
    with zeroed.applied(model):
        words = model.weight.detach().reshape(-1)[torch.from_numpy(zeroed.word)]
        assert (words == 0).float().mean() > 0.9
    restored = screened(Chipkill("restore"), drawn, model, 5).remaining
    assert restored.bits < after.remaining.bits
    random = dr.BitFlip(1e-3).sample(space, seed=1)
    after = screened(Chipkill(), random, model, 1)
    counts = after.counts
    assert after.remaining.bits < random.bits and counts["corrected"] > counts["uncorrectable"] > 0


def test_a_short_last_code_word_and_costs():
    model = nn.Linear(3, 1, bias=False)  # 96 bits: one code word, not full
    for seed in range(200):
        drawn = dr.FixedCount(2).sample(dr.resolve(model), seed=seed)
        remaining = screened(Chipkill(), drawn, model, seed).remaining
        assert (remaining.word < 3).all()
    assert Chipkill().cost(nn.Embedding(100, 16)).stored_bits == 100 * 16 * 32 // 8


def test_the_last_code_word_of_an_odd_number_of_doubles_is_short():
    model = nn.Linear(3, 1, bias=False).double()
    drawn = dr.BitFlip(0.3).sample(dr.resolve(model), seed=1)
    after = screened(Chipkill("zero"), drawn, model, 1)
    assert after.counts["uncorrectable"] == 2 and after.remaining.word.max() <= 2


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


def network():
    torch.manual_seed(3)
    return nn.ModuleDict({"table": nn.EmbeddingBag(700, 5), "layer": nn.Linear(5, 3), "last": nn.Linear(3, 1)})


def test_faults_of_chips_of_exponents_are_corrected_and_others_remain():
    net = network()
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
    net = network()
    protection = dr.SelectiveChipkill.store(net)
    both = dr.MemoryFault("ranks", chips=(7,)) + dr.MemoryFault("ranks", chips=(8,))
    drawn = both.sample(dr.resolve(net), seed=1)
    after = screened(protection, drawn, net, 1)
    left, counts = after.remaining, after.counts
    several = counts["uncorrectable"] + counts["miscorrected"]
    assert 0.3 < counts["miscorrected"] / several < 0.5 and after.detected and after.repaired is False
    assert 0 < left.bits < drawn.bits + 4 * counts["miscorrected"]


def test_settings():
    net = network()
    few = dr.SelectiveChipkill.store(net, (7,))
    fault = dr.MemoryFault("ranks", chips=(6,)).sample(dr.resolve(net), seed=0)
    assert screened(few, fault, net, 0).remaining.bits > 500
    refuses(lambda: dr.SelectiveChipkill(range(1, 8)), ValueError, "nibbles", "range(1, 8)")  # of 15 symbols at most
    assert few.identity() != dr.SelectiveChipkill().identity() and few.name == "selective chipkill [7]"
