"""Codes over blocks: all single and double errors of a code word against sums of columns and of powers, bit by bit."""

from itertools import combinations

import numpy as np
import pytest
from torch import nn

import drsrobust as dr
from drsrobust.mitigation import UNCORRECTABLE, LinearCode, SymbolBlocks, crc, miscorrected, odd_columns, parity
from tests.mitigation.plain import screened
from tests.refusals import refuses

SEC = LinearCode(dr.mitigation.random_columns(128, 8, seed=3), 8, name="SEC")
SECDED = LinearCode(odd_columns(256, 16, seed=1), 16, name="SEC-DED")
LOWEST = LinearCode(odd_columns(256, 16), 16, name="lowest columns")
BITS = {"SEC": SEC, "SECDED": SECDED, "CRC": crc(0x1021, 16, 256), "parity": parity(32)}


def blocks(code, patterns):
    """Patterns of wrong bits as data and check masks."""
    data, check = np.zeros((len(patterns), -(-code.data_bits // 64)), np.uint64), np.zeros(len(patterns), np.uint64)
    for row, pattern in enumerate(patterns):
        for bit in pattern:
            if bit < code.data_bits:
                data[row, bit // 64] ^= np.uint64(1 << bit % 64)
            else:
                check[row] ^= np.uint64(1 << (bit - code.data_bits))
    return data, check


def plain(code, pattern):
    """The bits that are wrong afterwards, and the status."""
    syndrome = 0
    for bit in pattern:
        syndrome ^= int(code.columns[bit])
    if not syndrome or not code.corrects:
        return set(pattern), 2 if syndrome else 0
    found = [bit for bit, column in enumerate(code.columns.tolist()) if column == syndrome]
    return (set(pattern) ^ set(found), 1) if found else (set(pattern), 2)


@pytest.mark.parametrize("name", BITS)
def test_all_single_and_double_errors_of_a_code_word(name):
    code = BITS[name]
    patterns = [pattern for n in (1, 2) for pattern in combinations(range(len(code.columns)), n)]
    data, check, status = code.decode(*blocks(code, patterns))
    for n, (pattern, found) in enumerate(zip(patterns, status.tolist(), strict=True)):
        left, known = plain(code, pattern)
        wanted = blocks(code, [tuple(left)])
        assert found == known and (data[n] == wanted[0][0]).all() and check[n] == wanted[1][0], pattern
    if code.corrects:
        twice = status[len(code.columns) :] == 1
        assert miscorrected(code, 2) == pytest.approx(twice.mean()) and (code is not SECDED or not twice.any())


def test_a_cyclic_code_is_division_by_its_polynomial():
    def remainder(value):
        while value.bit_length() > 16:
            value ^= 0x11021 << (value.bit_length() - 17)
        return value

    assert BITS["CRC"].columns[:256].tolist() == [remainder(1 << (16 + bit)) for bit in range(256)]


def times(a, b, polynomial, bits):
    product = 0
    for bit in range(bits):
        product ^= (a << bit) * (b >> bit & 1)
    for bit in range(2 * bits - 2, bits - 1, -1):
        product ^= (polynomial << (bit - bits)) * (product >> bit & 1)
    return product


@pytest.mark.parametrize(
    ("bits", "polynomial", "shape"), [(16, 0x1100B, "hbm4"), (8, 0x11D, "lpddr6"), (8, 0x11D, "ddr5")]
)
def test_symbol_codes_against_sums_in_the_field(bits, polynomial, shape):
    code = SymbolBlocks.in_order(256, bits) if shape != "ddr5" else dr.Chipkill(memory="ddr5")._devices.code
    n, powers, random = code.data_bits // bits + 2, [1], np.random.default_rng(5)
    for _ in range(n):
        powers.append(times(powers[-1], 2, polynomial, bits))
    # Bits of each symbol by their number in the block: in order, or the two parts of 4 bits of a device.
    own = [[s * bits + b for b in range(bits)] for s in range(n)]
    if shape == "ddr5":
        own[:8] = [[4 * (s + 8 * part) + b for part in (0, 1) for b in range(4)] for s in range(8)]
    pairs = [*((s, s) for s in range(n)), *combinations(range(n), 2)]
    drawn = [[(s, int(random.integers(1, 2**bits))) for s in sorted(set(pair))] for pair in pairs for _ in range(20)]
    drawn += [[(s, 1 << b)] for s in range(n) for b in range(bits)]
    as_bits = [tuple(own[s][b] for s, value in one for b in range(bits) if value >> b & 1) for one in drawn]
    data, check, status = code.decode(*blocks(code, as_bits))
    for row, one in enumerate(drawn):
        first = second = 0
        for s, value in one:
            first ^= value
            second ^= times(value, powers[s], polynomial, bits)
        at = [s for s in range(n) if first and times(first, powers[s], polynomial, bits) == second]
        left = dict(one)
        if at:
            left[at[0]] = left.get(at[0], 0) ^ first
        wanted = blocks(code, [tuple(own[s][b] for s, value in left.items() for b in range(bits) if value >> b & 1)])
        assert status[row] == (1 if at else 2) and (data[row] == wanted[0][0]).all() and check[row] == wanted[1][0]
        assert len(one) > 1 or not any(left.values())


def test_published_shares_are_those_of_counting():
    """Of `dr.memory`: what random errors of a block pass each code."""
    published = {layer.code: layer.passes for layer in dr.memory("hbm4").layers["system"]}
    assert published["CRC16"] == pytest.approx(2**-16, abs=5e-6)  # written as .002 %
    assert published["SEC-DED"] == pytest.approx(LOWEST.passes, abs=5e-4)  # as .4 %
    for name, where, place, bits in (("hbm4", "on die", 0, 16), ("lpddr6", "system", 1, 8)):
        layer = dr.memory(name).layers[where][place]  # wrong symbols look like one at any of its places
        places = (layer.data_bits + layer.check_bits) / bits
        assert layer.passes == pytest.approx(places / (2**bits - 1), abs=5e-4)


@pytest.mark.parametrize("code", [LOWEST, SECDED, BITS["CRC"]], ids=lambda code: code.name)
def test_random_blocks_pass_as_counted_where_check_bits_are_clean(code):
    data = np.random.default_rng(1).integers(0, 2**64, (200_000, 4), np.uint64)
    passed = (code.decode(data, np.zeros(len(data), np.uint64))[2] != UNCORRECTABLE).mean()
    assert passed == pytest.approx(code.passes, rel=0.15, abs=3e-5) and not len(code.decode(data[:0], data[:0, 0])[2])


def test_lowest_odd_columns_are_those_of_hsiao():
    for bits, check in ((64, 8), (32, 7), (57, 7)):
        assert odd_columns(bits, check) == dr.mitigation.secded(bits).columns[:bits].tolist()


def test_codes_that_decode_differently_are_different_protections():
    turned = SymbolBlocks([[(0, place)] for place in range(56, -1, -8)], 8, 8)
    for one, other in (
        (SymbolBlocks.in_order(64, 8), turned),
        (LinearCode(odd_columns(64, 8), 8), LinearCode(odd_columns(64, 8), 8, corrects=False)),
    ):
        assert dr.BlockCode(one).name == dr.BlockCode(other).name
        assert dr.BlockCode(one).identity() != dr.BlockCode(other).identity()


def test_the_chain_depends_on_the_matrix():
    columns = [dr.mitigation.mixed_columns(128, 8, even=even, seed=0) for even in (8, 32, 64)]
    doubles = [miscorrected(LinearCode(one, 8), 2) for one in columns]
    assert doubles == pytest.approx([0.167, 0.45, 0.53], abs=0.01)
    assert miscorrected(dr.OnDieECC().code, 2) == pytest.approx(0.883, abs=1e-3)
    triples = [miscorrected(LinearCode(odd_columns(64, 8, seed=seed), 8), 3) for seed in (None, 0)]
    code, n, hits = LinearCode(odd_columns(11, 5, seed=0), 5), 0, 0
    for triple in combinations(range(16), 3):
        n, hits = n + 1, hits + (plain(code, triple)[1] == 1)
    assert triples == pytest.approx([0.563, 0.553], abs=2e-3) and miscorrected(code, 3) == pytest.approx(hits / n)


@pytest.mark.parametrize("code", [SECDED, SEC, parity(32), SymbolBlocks.in_order(256, 16)], ids=lambda code: code.name)
@pytest.mark.parametrize("action", ["keep", "zero", "restore"])
def test_as_a_protection_of_any_format(code, action):
    for table in (nn.Embedding(203, 5), nn.Linear(7, 9).half(), nn.Linear(5, 15).double()):
        drawn = dr.FixedCount(1).sample(dr.resolve(table), seed=2)
        found = screened(dr.BlockCode(code, action), drawn, table, 2)
        left = 1 if (code.name.startswith("parity") and action == "keep") else 0
        assert found.detected and (found.remaining.bits == left or action == "zero")
        many = screened(dr.BlockCode(code, action), dr.BitFlip(0.02).sample(dr.resolve(table), seed=2), table, 2)
        assert many.counts["uncorrectable"] and bool(many.stopped) == (action == "keep")


def test_refusals():
    refuses(lambda: LinearCode([3, 3], 4), ValueError, "columns")
    refuses(lambda: LinearCode([3, 16], 4), ValueError, "columns", 16)
    refuses(lambda: odd_columns(300, 8), ValueError, "300")
    refuses(lambda: odd_columns(-1, 8), ValueError, "data_bits", -1)
    refuses(lambda: dr.mitigation.mixed_columns(64, 8, even=100, seed=0), ValueError, "even", 100)
    refuses(lambda: SymbolBlocks.in_order(4096, 8), ValueError, "symbols", 514)
    refuses(lambda: SymbolBlocks.in_order(100, 16), ValueError, "data_bits", 100)
    refuses(lambda: SymbolBlocks.in_order(240, 24), ValueError, "bits", 24)
    refuses(lambda: dr.BlockCode(3), TypeError, "code", 3)
    refuses(lambda: dr.BlockCode(LinearCode([], 8)), ValueError, "code", 0)
    refuses(lambda: dr.BlockCode(parity(48)), ValueError, "code", 48)
    refuses(lambda: dr.OnDieECC(columns=[3, 5]), ValueError, "columns", 2)
