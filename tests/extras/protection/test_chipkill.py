"""Chipkill corrects what one chip returns, miscorrects two wrong symbols as counted, and sees faults of its check chips; SECDED
on the patterns of one chip, enumerated."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.mitigation.memory.ecc import CLEAN, CORRECTED, SECDED, UNCORRECTABLE
from drsrobust_extras.protection.chipkill import Chipkill, decode_pairs
from drsrobust_extras.protection.memory_faults import MODES, Geometry, MemoryFault
from tests.mitigation.plain import screened


def word_pairs(symbols):
    """Code words with symbols {chip: uint8 [n]} wrong."""
    n = len(next(iter(symbols.values())))
    data, check = np.zeros((2, n, 2), np.uint64)
    for chip, symbol in symbols.items():
        halves = np.stack((symbol & 15, symbol >> 4), axis=1).astype(np.uint64)
        (data if chip < 16 else check)[:] |= halves << np.uint64(4 * (chip % 16))
    return data, check


def test_one_wrong_symbol_is_corrected_whatever_it_is():
    symbol = np.arange(1, 256).astype(np.uint8)
    for chip in range(18):
        data, check, status = decode_pairs(*word_pairs({chip: symbol}))
        assert (status == CORRECTED).all() and not data.any() and not check.any()


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
    """A nibble of the check bits of (72,64): of 15 patterns and 2 chips 8 corrected, 14 detected, 8 put an error into data."""
    code, model = SECDED(64), nn.Embedding(3000, 16)
    patterns = np.array([value << 4 * chip for chip, value in product((0, 1), range(1, 16))], np.uint64)
    found = code.decode(np.zeros(30, np.uint64), patterns)
    misled = (found.status == CORRECTED) & ((found.words | found.check) != 0)
    assert [(found.status == CORRECTED).sum() - misled.sum(), (found.status == 2).sum(), misled.sum()] == [8, 14, 8]
    fault = MemoryFault("row", density=1.0)
    space = dr.resolve(model)
    for seed in (seed for seed in range(80) if fault.extent(space, seed=seed).chip >= 16):
        words, drawn = len(fault.extent(space, seed=seed).address), fault.sample(space, seed=seed)
        counts = screened(dr.ECC(), drawn, model, seed).counts
        assert not len(drawn) and sum(counts.values()) == words
        counts = screened(Chipkill(), drawn, model, seed).counts
        assert counts["corrected"] == words // 2


def test_secded_on_the_patterns_of_one_data_chip():
    counted = {}
    for bits, expected in ((64, (64, 139, 35, 2)), (32, (32, 76, 12, 0))):
        patterns = [value << 4 * chip for chip, value in product(range(bits // 4), range(1, 16))]
        found = SECDED(bits).decode(np.array(patterns, np.uint64), np.zeros(len(patterns), np.uint64))
        misled = (found.status == CORRECTED) & ((found.words | found.check) != 0)
        corrected = (found.status == CORRECTED) & ~misled
        counted[bits] = tuple(int(one.sum()) for one in (corrected, found.status == 2, misled, found.status == CLEAN))
        assert counted[bits] == expected


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
