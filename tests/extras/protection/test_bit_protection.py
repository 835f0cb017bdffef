"""Protected bits in every format: ideal, voted and coded, against a computation bit by bit; their cost."""

import numpy as np
import pytest
from torch import nn

import drsrobust as dr
from drsrobust.injection.address_space import AddressSpace
from drsrobust.mitigation.memory.ecc import SECDED
from tests.extras.protection.decoding import decoded
from tests.injection.oracle import FORMATS, field
from tests.mitigation.plain import WIDTHS, memory_bits, model_of, random_masks, screened, table, words_of

TOP = ("sign", "exponent", 0)


def protected(form, width):
    """The bits of a word that TOP means."""
    return [bit for bit in range(width) if bit == 0 or field(form, bit) in ("sign", "exponent")]


def test_ideal_protection_is_the_map_without_these_bits():
    layer = nn.Linear(64, 64)
    drawn = dr.BitFlip(0.01).sample(dr.resolve(layer), seed=1)
    for bits, rest in ((range(23, 32), range(23)), ("exponent", ("sign", "mantissa")), ({30}, {*range(32)} - {30})):
        after, expected = screened(dr.BitProtection(bits), drawn, layer, 1), drawn.restrict(rest)
        left = after.remaining
        assert np.array_equal(left.word, expected.word) and np.array_equal(left.mask, expected.mask)
        assert after.detected is None


@pytest.mark.parametrize("form", WIDTHS)
def test_two_of_three(form):
    model, mitigation = model_of(form), dr.BitProtection(TOP, "everything", "tmr")
    _, width = memory_bits(model)
    bits = protected(form, width)
    inside = sum(1 << bit for bit in bits)
    masks = [random_masks(37, width, 37 * width // 4, seed) for seed in range(3)]
    copies = [{word: mask & inside for word, mask in one.items()} for one in masks]
    left, report = decoded(mitigation, model, masks[0], {"t (copy 1)": copies[1], "t (copy 2)": copies[2]})
    for word in range(37):
        for bit in range(width):
            wrong = [one.get(word, 0) >> bit & 1 for one in masks]
            expected = sum(wrong) >= 2 if bit in bits else wrong[0]
            assert left.get(word, 0) >> bit & 1 == expected
    assert report.detected and report.counts["outvoted"] > 0


@pytest.mark.parametrize("form", FORMATS)
def test_code_words_of_protected_bits(form):
    model, mitigation = model_of(form), dr.BitProtection(TOP, "everything", "secded")
    _, width = memory_bits(model)
    area = words_of(mitigation, model)
    code_words = mitigation.check_bits(area).units
    bits = protected(form, width)
    size = 64 // len(bits) * len(bits)
    places = [(word, bit) for word in range(37) for bit in bits]  # in the order of the code words' data bits
    code = SECDED(size)
    assert area.code.data_bits == size and code_words == -(-len(places) // size)
    masks, own = random_masks(37, width, 60, 1), random_masks(code_words, code.check_bits, 4, 2)
    expected = {word: mask & ~sum(1 << bit for bit in bits) for word, mask in masks.items()}
    for number in range(code_words):
        here = places[number * size : (number + 1) * size]
        data = sum(1 << k for k, (word, bit) in enumerate(here) if masks.get(word, 0) >> bit & 1)
        after = int(code.decode(np.array([data], np.uint64), np.array([own.get(number, 0)])).words[0])
        after = data if after >> len(here) else after  # behind the last one's end
        for k, (word, bit) in enumerate(here):
            expected[word] = expected.get(word, 0) | (after >> k & 1) << bit
    left, _ = decoded(mitigation, model, masks, {"t": own})
    assert left == {word: mask for word, mask in expected.items() if mask}


def test_what_it_costs():
    layer = table(1008)
    words = 1008 * 16
    for code, stored in (("ideal", 0), ("tmr", 18 * words), ("secded", words // 7 * 8)):
        assert dr.BitProtection(range(23, 32), code=code).cost(layer).stored_bits == stored
    assert dr.BitProtection({30}, code="secded").cost(layer).stored_bits == words // 64 * 8


def test_sets_by_component():
    model = nn.ModuleDict({"a": table(50), "b": nn.Linear(50, 50)})
    mitigation = dr.BitProtection({"a.*": {31}, "b": "exponent"})
    assert mitigation.name == "bits 31 of a.*; exponent of b"
    drawn = dr.BitFlip(0.05).sample(dr.resolve(model), seed=1)
    left = screened(mitigation, drawn, model, 1).remaining
    lost = drawn.bits - left.bits
    a = drawn.drop((drawn.frame().tensor != "a.weight").to_numpy()).restrict({31}).bits
    b = drawn.drop((drawn.frame().tensor == "a.weight").to_numpy()).restrict("exponent").bits
    assert lost == a + b > 0


def test_composed():
    """From left to right: what protected bits leave is decoded; bits that are not protected are left to the code alone."""
    layer = table(2000)
    drawn = dr.BitFlip(3e-3).sample(dr.resolve(layer), seed=5)
    bits, ecc = dr.BitProtection("exponent"), dr.ECC()
    both = screened(bits + ecc, drawn, layer, 5).remaining
    by_hand = screened(ecc, screened(bits, drawn, layer, 5).remaining, layer, 5).remaining
    assert np.array_equal(both.word, by_hand.word) and np.array_equal(both.mask, by_hand.mask)
    turned = screened(ecc + bits, drawn, layer, 5)
    assert turned.remaining.restrict("exponent").bits == 0 < both.restrict("exponent").bits  # miscorrected ones
    assert turned.detected and (bits + ecc).cost(layer) == ecc.cost(layer)


def test_two_sets_of_bits_in_one_process_have_copies_of_their_own():
    """Formats of the same name and other masks were one format to a cache, so the second set had the copies of the first."""
    model = table(1000)
    for bits, each in (((30,), 1), ("exponent", 8), ((30, 31), 2)):
        protection = dr.BitProtection(bits, code="tmr")
        (area,) = protection.protected(model)
        assert AddressSpace(protection.stored_tensors(area, None)).bits == 2 * each * area.words
