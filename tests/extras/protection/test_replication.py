"""Votes of copies: by bit and of numbers, against sorting by hand; residuals against 3 p^2."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drsrobust.injection.number_formats import plain
from drsrobust_extras.protection.replication import Replication, majority, median
from tests.extras.protection.decoding import decoded
from tests.injection.oracle import FORMATS
from tests.mitigation.plain import WIDTHS, memory_bits, model_of, random_masks, table


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
    copies_of = {f"t (copy {number})": mask for number, mask in enumerate(masks) if number}
    left, report = decoded(mitigation, model, masks[0], copies_of)
    for place, word in enumerate(words):
        held = [np.array([word ^ mask.get(place, 0)], np.uint64) for mask in masks]
        voted = majority(held) if vote == "majority" else median(held, plain(getattr(torch, form)))
        assert word ^ int(voted[0]) == left.get(place, 0)
    assert report.detected and report.repaired == (not left)


def test_cost():
    assert Replication().cost(table(10)).stored_bits == 2 * 160 * 32


def test_copies_that_agree_on_a_wrong_value_are_not_noticed():
    same = {3: 5}
    copies = {"t (copy 1)": same, "t (copy 2)": same}
    left, report = decoded(Replication(target="everything"), model_of("int8"), same, copies)
    assert left == same and not report.detected
