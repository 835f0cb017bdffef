"""Parity: odd numbers of errors set a word to 0, even ones pass; the parity bit errs too."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import drsrobust as dr
from tests.extras.protection.decoding import decoded
from tests.mitigation.plain import WIDTHS, memory_bits, model_of, screened, table

PARITY = dr.ParityZero("everything")


@pytest.mark.parametrize("form", WIDTHS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_word_by_word(form, data):
    model = model_of(form)
    words, width = memory_bits(model)
    masks = data.draw(st.dictionaries(st.integers(0, 36), st.integers(1, 2**width - 1), max_size=37))
    own = data.draw(st.dictionaries(st.integers(0, 36), st.just(1), max_size=37))
    left, report = decoded(PARITY, model, masks, {"t": own})
    expected, zeroed = {}, 0
    for place, word in enumerate(words):
        mask, parity = masks.get(place, 0), own.get(place, 0)
        odd = (mask.bit_count() + parity) % 2
        zeroed += odd
        expected[place] = word if odd else mask
    assert left == {place: mask for place, mask in expected.items() if mask}
    assert report.counts["zeroed"] == zeroed and report.detected == bool(zeroed)


def test_in_a_model():
    layer = table(1000)
    drawn = dr.BitFlip(1e-4).sample(dr.resolve(layer), seed=1)
    after = screened(dr.ParityZero(), drawn, layer, 1)
    assert (after.detected, after.repaired) == (True, False)
    with dr.inject(layer, dr.BitFlip(1e-4), seed=1, mitigation=dr.ParityZero()) as left:
        assert np.array_equal(left.word, after.remaining.word) and left.words >= drawn.words
        assert (layer.weight.view(-1)[left.frame().word.to_numpy().copy()] == 0).all()
    assert dr.ParityZero().cost(layer).stored_bits == 16_000
    assert screened(dr.ParityZero(), dr.BitFlip(0.0).sample(dr.resolve(layer), seed=1), layer, 1).detected is False


def test_an_error_in_a_word_that_is_0_already_is_put_right():
    layer = table(100)
    layer.weight.data.zero_()
    drawn = dr.BitFlip(1e-4, bits=range(32)).sample(dr.resolve(layer), seed=1)
    left = screened(dr.ParityZero(), drawn, layer, 1)
    assert drawn.bits and not left.remaining.bits and (left.detected, left.repaired) == (True, True)
