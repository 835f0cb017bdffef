"""Votes of copies: by bit and of numbers, against sorting by hand; residuals against 3 p^2."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import drsrobust as dr
from drsrobust.injection.number_formats import plain
from drsrobust_extras.protection.replication import Replication, majority, median
from tests.injection.oracle import FORMATS
from tests.mitigation.plain import (
    TRIAL,
    WIDTHS,
    errors_of,
    masks_of,
    memory_bits,
    model_of,
    random_masks,
    screened,
    table,
    words_of,
)


@given(st.sampled_from([3, 5, 7, 9]).flatmap(lambda n: st.lists(st.integers(0, 2**64 - 1), min_size=n, max_size=n)))
def test_majority(masks):
    found = int(majority([np.array([mask], np.uint64) for mask in masks])[0])
    assert all((found >> bit & 1) == (sum(mask >> bit & 1 for mask in masks) > len(masks) // 2) for bit in range(64))


@pytest.mark.parametrize("form", FORMATS)
def test_median_is_in_the_order_of_the_format(form):
    dtype = getattr(torch, form)
    width = 8 * dtype.itemsize
    raw = np.random.default_rng(1).integers(0, 2**width - 1, (3, 500), np.uint64, endpoint=True)
    narrow = torch.from_numpy(raw.astype(f"uint{width}")).view(dtype)
    values = narrow.double() if dtype.is_floating_point else narrow
    found = median(list(raw), plain(dtype))
    middle = torch.from_numpy(found.astype(f"uint{width}")).view(dtype)
    middle = middle.double() if dtype.is_floating_point else middle
    whole = ~values.isnan().any(0) if dtype.is_floating_point else torch.ones(500, dtype=torch.bool)
    expected = values.numpy().astype(object if width == 64 and not dtype.is_floating_point else values.numpy().dtype)
    assert (middle.numpy()[whole] == np.sort(expected, axis=0)[1][whole.numpy()]).all()
    assert (np.sort(raw, axis=0) == found).any(axis=0).all()  # one of the three


def test_one_nan_is_outvoted():
    one, nan, minus_nan = 0x3F800000, 0x7FC00000, 0xFFC00000
    form = plain(torch.float32)
    for words in ((one, one, nan), (one, one, minus_nan), (nan, one, minus_nan)):
        assert median([np.array([word], np.uint64) for word in words], form)[0] == one


@pytest.mark.parametrize("vote", ["median", "majority"])
@pytest.mark.parametrize("copies", [3, 5])
@pytest.mark.parametrize("form", WIDTHS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000))
def test_word_by_word(form, copies, vote, seed):
    model, mitigation = model_of(form), Replication(copies, vote, "everything")
    words, width = memory_bits(model)
    masks = [random_masks(37, width, 60, seed * 10 + number) for number in range(copies)]
    stored = {f"t (copy {number})": errors_of(mask) for number, mask in enumerate(masks) if number}
    decoded = mitigation.decode(words_of(mitigation, model), errors_of(masks[0]), stored, TRIAL)
    left = masks_of(decoded.remaining)
    for place, word in enumerate(words):
        held = [np.array([word ^ mask.get(place, 0)], np.uint64) for mask in masks]
        voted = majority(held) if vote == "majority" else median(held, plain(getattr(torch, form)))
        assert word ^ int(voted[0]) == left.get(place, 0)
    assert decoded.detected and decoded.repaired == (not left)


@pytest.mark.parametrize(("copies", "factor", "power"), [(3, 3, 2), (5, 10, 3)])
def test_residual_of_a_vote_by_bit(copies, factor, power):
    layer, p = table(20_000), 1e-2
    drawn = dr.BitFlip(p).sample(dr.resolve(layer), seed=1)
    left = screened(Replication(copies, "majority"), drawn, layer, 1).remaining
    expected = drawn.eligible_bits * factor * p**power
    assert left.bits == pytest.approx(expected, abs=5 * expected**0.5)


def test_residual_of_a_median():
    """A wrong median needs two wrong copies of one word; of single flips of one word, those to the same side."""
    layer, p = table(20_000), 1e-3
    drawn = dr.BitFlip(p).sample(dr.resolve(layer), seed=1)
    report = screened(Replication(), drawn, layer, 1)
    two = 320_000 * 3 * (1 - (1 - p) ** 32) ** 2
    assert 0.3 * two < report.counts["outvoted"] < 0.7 * two
    right = layer.weight.detach().clone()
    huge = []
    for error_map in (drawn, report.remaining):
        with error_map.applied(layer):
            huge.append(int(((layer.weight - right).abs() > 1e30).sum()))
    assert huge[1] < 10 < 100 < huge[0]  # it takes two in one place


def test_settings():
    layer = table(10)
    assert Replication().cost(layer).stored_bits == 2 * 160 * 32
    for wrong in (2, 4, 1, True, 3.0):
        with pytest.raises(ValueError, match="(an odd number|at least 3)"):
            Replication(wrong)
    with pytest.raises(ValueError, match="median"):
        Replication(vote="mean")


def test_copies_that_agree_on_a_wrong_value_are_not_noticed():
    model, mitigation = model_of("int8"), Replication(target="everything")
    same = errors_of({3: 5})
    decoded = mitigation.decode(words_of(mitigation, model), same, {"t (copy 1)": same, "t (copy 2)": same}, TRIAL)
    assert masks_of(decoded.remaining) == {3: 5} and not decoded.detected
