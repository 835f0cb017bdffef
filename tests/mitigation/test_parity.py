"""Parity: odd numbers of errors set a word to 0, even ones pass; the parity bit errs too."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import drsrobust as dr
from drsrobust.mitigation.memory.parity import ParityZero
from tests.mitigation.plain import TRIAL, WIDTHS, errors_of, masks_of, memory_bits, model_of, table, words_of

PARITY = ParityZero("everything")


@pytest.mark.parametrize("form", WIDTHS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_word_by_word(form, data):
    model = model_of(form)
    words, width = memory_bits(model)
    masks = data.draw(st.dictionaries(st.integers(0, 36), st.integers(1, 2**width - 1), max_size=37))
    own = data.draw(st.dictionaries(st.integers(0, 36), st.just(1), max_size=37))
    decoded = PARITY.decode(words_of(PARITY, model), errors_of(masks), {"t": errors_of(own)}, TRIAL)
    expected, zeroed = {}, 0
    for place, word in enumerate(words):
        mask, parity = masks.get(place, 0), own.get(place, 0)
        odd = (mask.bit_count() + parity) % 2
        zeroed += odd
        expected[place] = word if odd else mask
    assert masks_of(decoded.errors) == {place: mask for place, mask in expected.items() if mask}
    assert decoded.counts["zeroed"] == zeroed and decoded.detected == bool(zeroed)


@pytest.mark.parametrize("form", WIDTHS)
def test_the_stored_parity(form):
    model = model_of(form)
    words, _ = memory_bits(model)
    area = words_of(PARITY, model)
    parities = [word.bit_count() % 2 for word in words]
    assert PARITY.content(area, np.arange(37)).tolist() == parities
    tensor = next(PARITY.stored_tensors(area, None))  # one behind the other, in words as wide as the data's
    assert tensor.format.width == area.width and tensor.shape == (-(-37 // area.width),)
    packed = (
        PARITY.check_bits(area).packed(area, np.arange(tensor.size), lambda unit: PARITY.content(area, unit)).tolist()
    )
    assert sum(word << area.width * place for place, word in enumerate(packed)) == sum(
        parity << place for place, parity in enumerate(parities)
    )


def test_share_of_words_that_are_set_to_0():
    layer = table(20_000)
    drawn = dr.BitFlip(1e-3).sample(dr.resolve(layer), seed=1)
    counts = ParityZero().report(drawn, layer, seed=1).counts
    expected = 320_000 * (1 - (1 - 2e-3) ** 33) / 2
    assert abs(counts["zeroed"] - expected) < 5 * expected**0.5
    sound = 320_000 * 1e-3 * (1 - 1e-3) ** 32
    assert abs(counts["sound"] - sound) < 5 * sound**0.5


def test_in_a_model():
    layer = table(1000)
    with dr.inject(layer, dr.BitFlip(1e-4), seed=1, mitigation=ParityZero()) as left:
        wrong = left.frame().word.to_numpy().copy()
        assert (layer.weight.view(-1)[wrong] == 0).all() and left.words >= left.drawn.words
        assert (left.detected, left.repaired) == (True, False)
    assert ParityZero().cost(layer).stored_bits == 16_000
    assert ParityZero().screen(dr.BitFlip(0.0).sample(dr.resolve(layer), seed=1), layer, seed=1).detected is False


def test_an_error_in_a_word_that_is_0_already_is_put_right():
    layer = table(100)
    layer.weight.data.zero_()
    drawn = dr.BitFlip(1e-4, bits=range(32)).sample(dr.resolve(layer), seed=1)
    left = ParityZero().screen(drawn, layer, seed=1)
    assert drawn.bits and not left.bits and (left.detected, left.repaired) == (True, True)
