"""SECDED codes by enumeration of errors; memory under them against a decoder of one code word at a time."""

from collections import Counter
from functools import reduce
from itertools import combinations
from operator import xor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

import drsrobust as dr
from drsrobust.mitigation.base import Screened
from drsrobust.mitigation.memory.ecc import CLEAN, CORRECTED, ECC, SECDED, UNCORRECTABLE
from tests.mitigation.plain import (
    TRIAL,
    WIDTHS,
    errors_of,
    map_of,
    masks_of,
    memory_bits,
    model_of,
    random_masks,
    screened,
    table,
    words_of,
)


def by_hand(model, masks, own, data_bits, action):
    """What is left of errors {word: mask} with errors {code word: mask} in the check bits, and the counts."""
    words, width = memory_bits(model)
    code = SECDED(data_bits)
    columns = code.columns.tolist()
    memory = sum(word << width * place for place, word in enumerate(words))
    wrong = sum(mask << width * place for place, mask in masks.items())
    size, ones, left = width * len(words), (1 << data_bits) - 1, 0
    counts = dict.fromkeys(("corrected", "uncorrectable", "miscorrected", "unnoticed"), 0)
    for number in range(-(-size // data_bits)):
        data, check = wrong >> number * data_bits & ones, own.get(number, 0)
        if not data and not check:
            continue
        syndrome, after = 0, data
        for bit, column in enumerate(columns):
            if (data | check << data_bits) >> bit & 1:
                syndrome ^= column
        bit = columns.index(syndrome) if syndrome in columns else None
        if syndrome == 0:
            counts["unnoticed"] += 1
        elif bit is None or (bit < data_bits and number * data_bits + bit >= size):
            counts["uncorrectable"] += 1
            held = memory >> number * data_bits & ones
            after = {"keep": data, "zero": held, "restore": 0}[action]
        else:
            fixed = (data | check << data_bits) ^ 1 << bit
            after = fixed & ones
            counts["miscorrected" if fixed else "corrected"] += 1
        left |= after << number * data_bits
    ones = (1 << width) - 1
    found = {place: left >> width * place & ones for place in range(len(words))}
    return {place: mask for place, mask in found.items() if mask}, counts


@pytest.mark.parametrize("action", ["keep", "zero", "restore"])
@pytest.mark.parametrize("data_bits", [32, 64])
@pytest.mark.parametrize("form", WIDTHS)
def test_what_is_left_of_each_code_word(form, data_bits, action):
    model, mitigation = model_of(form), ECC(data_bits, action, target="everything")
    area = words_of(mitigation, model)
    code_words = -(-area.words * area.width // data_bits)
    for seed, flips in enumerate((0, 1, 3, 40)):
        masks = random_masks(area.words, area.width, flips, seed)
        own = random_masks(code_words, mitigation.code.check_bits, min(flips, 12), 100 + seed)
        decoded = mitigation.decode(area, errors_of(masks), {"t": errors_of(own)}, TRIAL)
        left, counts = by_hand(model, masks, own, data_bits, action)
        assert masks_of(decoded.remaining) == left and decoded.counts == counts
        assert decoded.detected == any(counts[name] for name in ("corrected", "uncorrectable", "miscorrected"))
        bad = counts["miscorrected"] or (counts["uncorrectable"] and action != "restore")
        assert decoded.repaired == (not bad)
        clean = screened(mitigation, map_of(model, masks), model, 1).remaining  # of a map that was not drawn here
        assert (
            dict(zip(clean.word.tolist(), clean.mask.tolist(), strict=True))
            == by_hand(model, masks, {}, data_bits, action)[0]
        )


def test_zeroed_and_restored_words_in_the_model():
    layer = table(100)
    drawn = dr.BitFlip(0.01).sample(dr.resolve(layer), seed=1)
    before = layer.weight.detach().clone()
    given_up = screened(ECC(64, "zero"), drawn, layer, 1)
    with given_up.remaining.applied(layer):
        assert (layer.weight == 0).sum() >= 2 * given_up.counts["uncorrectable"] - 8 > 0
    assert torch.equal(layer.weight, before)
    restored = screened(ECC(64, "restore"), drawn, layer, 1)
    assert restored.counts == given_up.counts
    assert restored.remaining.words < screened(ECC(64), drawn, layer, 1).remaining.words


@pytest.mark.parametrize("ber", [1e-4, 1e-2])
@pytest.mark.parametrize("data_bits", [32, 64])
def test_how_often_two_and_more_bits_of_a_code_word_are_wrong(data_bits, ber):
    """1 - (1 - p)^n - n p (1 - p)^(n - 1); all of them, and none else, are not corrected."""
    layer = table(20_000)
    code = SECDED(data_bits)
    n = layer.weight.numel() * 32 // data_bits
    lost = 0
    for seed in range(2):
        drawn = dr.BitFlip(ber).sample(dr.resolve(layer), seed=seed)
        counts = screened(ECC(data_bits), drawn, layer, seed).counts
        lost += counts["uncorrectable"] + counts["miscorrected"] + counts["unnoticed"]
    expected = 2 * n * binom.sf(1, code.bits, ber)
    assert abs(lost - expected) < 5 * np.sqrt(expected) + 1


def test_what_it_costs():
    layer = table(64)
    assert ECC(64).cost(layer).stored_bits == 64 * 16 * 32 // 8
    assert ECC(32).cost(layer).stored_bits == 64 * 16 * 7
    assert ECC(64, target="everything").cost(model_of("int8", 37)).stored_bits == 5 * 8  # the last word is short


def test_only_its_target_is_protected():
    model = torch.nn.ModuleDict({"a": table(50), "b": table(50)})
    drawn = dr.BitFlip(3e-3).sample(dr.resolve(model), seed=1)
    left = screened(ECC(target="b.*"), drawn, model, 1).remaining
    before, after = drawn.counts("tensor"), left.counts("tensor")
    assert after["a.weight"] == before["a.weight"] and after["b.weight"] < before["b.weight"]
    rows = dr.Rows("a", range(10, 20))
    left = screened(ECC(target=rows), drawn, model, 1).remaining
    outside = drawn.frame().query("tensor == 'b.weight' or row < 10 or row >= 20")
    assert (
        left.frame()
        .query("tensor == 'b.weight' or row < 10 or row >= 20")
        .reset_index(drop=True)
        .equals(outside.reset_index(drop=True))
    )
    assert ECC(target=rows).cost(model).stored_bits == 10 * 16 * 32 // 8


def test_what_is_detected_and_repaired():
    layer = table(100)
    drawn = dr.BitFlip(1e-2).sample(dr.resolve(layer), seed=1)
    after = screened(ECC(), drawn, layer, 1)
    assert (after.detected, after.repaired) == (True, False) and after.remaining.bits < drawn.bits
    one = dr.BitFlip(1e-5).sample(dr.resolve(layer), seed=4)
    after = screened(ECC(), one, layer, 4)
    assert len(one) > 0 and len(after.remaining) == 0 and (after.detected, after.repaired) == (True, True)
    none = dr.BitFlip(0.0).sample(dr.resolve(layer), seed=4)
    after = screened(ECC(), none, layer, 4)
    assert (after.detected, after.repaired) == (False, None)


def test_stuck_bits():
    """Masks say which bits are wrong now, whatever made them: the map of stuck bits is decoded as any other."""
    layer = table(500)
    drawn = dr.StuckAt(1, 2e-3).sample(dr.resolve(layer), seed=1)
    left = screened(ECC(), drawn, layer, 1).remaining
    assert 0 < left.bits < drawn.bits / 2
    with left.applied(layer):
        pass


def test_mistakes():
    with pytest.raises(ValueError, match="must be 32"):
        ECC(16)
    with pytest.raises(ValueError, match="restore"):
        ECC(64, "restored")
    other = dr.BitFlip(1e-3).sample(dr.resolve(table(10)), seed=1)
    with pytest.raises(dr.injection.ErrorMapMismatch, match=r"\[10, 16\] float32"):
        screened(ECC(), other, table(20), 1)


def test_what_several_protections_noticed():
    layer = table(100)
    drawn = dr.BitFlip(1e-2).sample(dr.resolve(layer), seed=1)
    both = screened(ECC(64, "restore") + ECC(32), drawn, layer, 1)
    assert both.detected and both.repaired is False  # miscorrected ones are not right
    yes, no, unable = Screened(drawn, True, True), Screened(drawn, detected=False), Screened(drawn)
    assert (Screened.joined(drawn, [yes, no]).detected, Screened.joined(drawn, [yes, no]).repaired) == (True, True)
    assert Screened.joined(drawn, [yes, Screened(drawn, True, False)]).repaired is False
    assert Screened.joined(drawn, [unable]).detected is None and Screened.joined(drawn, [no, unable]).detected is False


def test_transient_errors_are_not_in_memory():
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4))
    with (
        torch.no_grad(),
        dr.inject(layer, dr.BitFlip(0.1), dr.injection.Activations("*"), seed=1, mitigation=ECC()) as left,
    ):
        layer(torch.ones(2, 4))
    assert left.log is not None and left.log.bits


SIZES = [1, 8, 32, 57, 63, 64]


@pytest.mark.parametrize(
    ("data", "check"), [(1, 3), (8, 5), (26, 6), (27, 7), (32, 7), (57, 7), (58, 8), (63, 8), (64, 8)]
)
def test_sizes(data, check):
    code = SECDED(data)
    columns = code.columns.tolist()
    assert (code.data_bits, code.check_bits, code.bits) == (data, check, data + check) == (data, check, len(columns))
    assert len(set(columns)) == len(columns) and all(column.bit_count() % 2 for column in columns)
    assert columns[data:] == [1 << row for row in range(check)]
    assert max(columns) < 1 << check


def test_hsiaos_codes_have_few_and_balanced_ones():
    """Ones of the check matrix as in Hsiao's paper: 3 per column where there are enough, rows as equal as can be."""
    for data, total in ((32, 32 * 3), (64, 56 * 3 + 8 * 5)):
        code = SECDED(data)
        rows = [sum(column >> row & 1 for column in code.columns[:data].tolist()) for row in range(code.check_bits)]
        assert sum(rows) == total and max(rows) - min(rows) <= 1


@pytest.mark.parametrize("data", SIZES)
def test_encoding_is_the_sum_of_columns(data):
    code = SECDED(data)
    words = np.random.default_rng(1).integers(0, 2**64, 200, np.uint64) >> np.uint64(64 - data)
    columns = code.columns.tolist()
    for word, check in zip(words.tolist(), code.encode(words).tolist(), strict=True):
        assert check == reduce(xor, (columns[bit] for bit in range(data) if word >> bit & 1), 0)


@pytest.mark.parametrize("data", SIZES)
def test_every_single_and_double_error(data):
    code = SECDED(data)
    word = np.uint64(0x9E3779B97F4A7C15 >> (64 - data))
    right = np.array([word]), code.encode(np.array([word]))
    for count, status in ((0, CLEAN), (1, CORRECTED), (2, UNCORRECTABLE)):
        sets = list(combinations(range(code.bits), count))
        wrong = [sum(1 << bit for bit in bits) for bits in sets]
        data_mask = np.array([mask & ((1 << data) - 1) for mask in wrong], np.uint64)
        check_mask = np.array([mask >> data for mask in wrong], np.uint64)
        decoded = code.decode(right[0] ^ data_mask, right[1] ^ check_mask)
        assert (decoded.status == status).all()
        if count < 2:
            assert (decoded.words == right[0]).all() and (decoded.check == right[1]).all()
        else:  # given back as they came
            assert (decoded.words == right[0] ^ data_mask).all() and (decoded.check == right[1] ^ check_mask).all()


@pytest.mark.parametrize(("data", "share"), [(32, 0.5), (57, 1.0), (64, 0.5)])
def test_triple_errors_are_miscorrected_as_often_as_there_are_code_words_of_weight_4(data, share):
    code = SECDED(data)
    columns = code.columns.tolist()
    pairs = Counter(one ^ other for one, other in combinations(columns, 2))
    weight_4 = sum(count * (count - 1) // 2 for count in pairs.values()) // 3
    triples = np.array(list(combinations(range(code.bits), 3)))
    masks = np.zeros((len(triples), 2), np.uint64)
    for bit in range(3):
        inside = triples[:, bit] < data
        place = np.where(inside, triples[:, bit], triples[:, bit] - data).astype(np.uint64)
        masks[np.arange(len(triples)), (~inside).astype(int)] |= np.uint64(1) << place
    decoded = code.decode(masks[:, 0], masks[:, 1])
    miscorrected = decoded.status == CORRECTED
    assert (decoded.status != CLEAN).all() and miscorrected.sum() == 4 * weight_4
    assert (np.bitwise_count(decoded.words) + np.bitwise_count(decoded.check))[miscorrected].tolist() == [4] * (
        4 * weight_4
    )
    assert miscorrected.mean() == pytest.approx(share, abs=0.1)


@given(st.integers(1, 64), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 255))
def test_errors_alone_are_decoded_as_in_a_word(data, word, mask, own):
    code = SECDED(data)
    word, mask, own = word >> (64 - data), mask >> (64 - data), own & ((1 << code.check_bits) - 1)
    word, mask, own = (np.array([one], np.uint64) for one in (word, mask, own))
    check = code.encode(word)
    there, alone = code.decode(word ^ mask, check ^ own), code.decode(mask, own)
    assert there.words == word ^ alone.words and there.check == check ^ alone.check and there.status == alone.status


def test_mistakes_of_a_code():
    for wrong in (0, 65, True, 3.0):
        with pytest.raises(ValueError, match="data_bits must be "):
            SECDED(wrong)
    with pytest.raises(ValueError, match="more than 32 bits"):
        SECDED(32).encode(np.array([1 << 32], np.uint64))
    with pytest.raises(ValueError, match="more than 7 check bits"):
        SECDED(32).decode(np.array([1], np.uint64), np.array([128]))
    assert SECDED(64).encode(np.empty(0, np.uint64)).shape == (0,)
