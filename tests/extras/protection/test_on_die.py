"""ECC inside of chips: one wrong bit of 128 is corrected, more may become one more; blocks follow the banks."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from torch import nn

import drsrobust as dr
from drsrobust.mitigation.memory.protected_words import ProtectedWords
from drsrobust_extras.protection.memory_faults import Geometry
from drsrobust_extras.protection.on_die import CODE_COLUMNS, OnDieECC
from tests.mitigation.plain import screened


@pytest.mark.parametrize("banks", [1, 8])
def test_places_and_words_are_inverse(banks):
    code = OnDieECC(banks)
    words = np.arange(4096)
    block, place = code._places(words)
    assert np.array_equal(code._word(block, place), words)
    counts = np.bincount(block)
    assert (counts == 32).all() and place.max() == 31
    bank = words // 8 % banks
    assert all(len(set(bank[block == one])) == 1 for one in range(len(counts)))


def oracle(error_map, words):
    """Decoding bit by bit: {(code word, chip): wrong bits} of 64-bit words in order."""
    found = {}
    for word, mask in zip(error_map.word.tolist(), error_map.mask.tolist(), strict=True):
        for bit in (bit for bit in range(32) if mask >> bit & 1):
            place = word % 2 * 32 + bit
            found.setdefault((word // 64, place // 4), set()).add(word // 2 % 32 * 4 + place % 4)
    left = set()
    for (block, chip), bits in found.items():
        syndrome = 0
        for bit in bits:
            syndrome ^= int(CODE_COLUMNS[bit])
        if syndrome in CODE_COLUMNS:
            (flip,) = np.flatnonzero(syndrome == CODE_COLUMNS).tolist()
            bits ^= {flip} if block * 64 + flip // 4 * 2 + chip // 8 < words else set()
        left |= {(block * 32 + bit // 4, chip * 4 + bit % 4) for bit in bits}
    return left


@pytest.mark.parametrize(("rate", "rows", "columns"), [(1e-3, 500, 6), (2e-2, 500, 6), (0.2, 11, 3)])
def test_random_flips_against_decoding_bit_by_bit(rate, rows, columns):
    table = nn.Embedding(rows, columns)
    drawn = replace(dr.BitFlip(rate).sample(dr.resolve(table), seed=4), sources=())  # no check bits are drawn
    after = screened(OnDieECC(), drawn, table, 4)
    left = after.remaining
    pairs = product(zip(left.word.tolist(), left.mask.tolist(), strict=True), range(32))
    flat = {(word // 2, word % 2 * 32 + bit) for (word, mask), bit in pairs if mask >> bit & 1}
    assert flat == oracle(drawn, rows * columns) and after.detected is None


def test_faults():
    table = nn.Embedding(4000, 16)
    space = dr.resolve(table)
    for seed in range(12):
        fault = dr.MemoryFault("bit").sample(space, seed=seed)
        assert not len(screened(OnDieECC(), fault, table, seed).remaining)
    # 32 numbers have as many check bits here as of (72,64).
    both = nn.Sequential(nn.Embedding(400, 16), nn.Linear(32, 1))
    for seed in range(6):  # faults of check chips, which on-die codes do not use
        fault = dr.MemoryFault("ranks", chips=(16, 17)).sample(dr.resolve(both), seed=seed)
        assert not screened(OnDieECC(), fault, both, seed).remaining.bits
    spread = Geometry(mapping="spread")
    for banks, geometry in ((1, Geometry()), (8, spread)):
        drawn = dr.MemoryFault("bank", chips=(3,), geometry=geometry).sample(space, seed=1)
        left = screened(OnDieECC(banks), drawn, table, 1).remaining
        assert set(np.unique(left.word % 2)) == {0} and np.bitwise_or.reduce(left.mask) == 0xF000  # of the same chip
        # 128 of 256 syndromes are those of a data bit, and half of these bits were right.
        code_words = 4000 * 16 // 64 // (1 if geometry is not spread else 8)
        assert (left | drawn).bits - drawn.bits == pytest.approx(code_words / 4, rel=0.35)


def test_check_bits_take_errors_of_rates_and_costs():
    table = nn.Embedding(1000, 16)
    drawn = dr.BitFlip(3e-3).sample(dr.resolve(table), seed=2)
    left = screened(OnDieECC(), drawn, table, 2).remaining
    assert 0 < left.bits < drawn.bits
    assert OnDieECC().cost(table).stored_bits == 1000 * 16 * 32 // 16
    (tensor,) = dr.resolve(table).tensors
    protected, code = ProtectedWords(tensor), OnDieECC()
    assert code.check_bits(protected).units == 250 * 16
