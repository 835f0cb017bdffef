"""Checksums and scrubbing: what is still there when it is used, whole rows at once, and which patterns a sum does not see."""

import zlib

import numpy as np
import pytest
from torch import nn

import drsrobust as dr
from tests.extras.protection.decoding import decoded
from tests.injection.spaces import filled, holder
from tests.mitigation.plain import WIDTHS, memory_bits, model_of, random_masks, screened, table, words_of


@pytest.mark.parametrize(
    ("period", "window", "share"), [(0, 1, 0), (1, 10, 0.05), (1, 1, 0.5), (4, 1, 0.875), (1, 2, 0.25)]
)
def test_share_that_is_still_there(period, window, share):
    """The mean over trials: where in its round the scrubber is differs from one to the next."""
    layer, mitigation = table(5000), dr.Scrubbing(period, window)
    assert mitigation.exposure == share
    shares = []
    for seed in range(10):
        drawn = dr.BitFlip(1e-3).sample(dr.resolve(layer), seed=seed)
        after = screened(mitigation, drawn, layer, seed)
        shares.append(after.remaining.bits / drawn.bits)
        assert (after.detected, after.repaired) == (True, True)
    # Rows are spread evenly over the round, so every trial is near the mean.
    assert np.mean(shares) == pytest.approx(share, abs=0.005) and np.ptp(shares) < 0.06
    clean = screened(mitigation, dr.BitFlip(0.0).sample(dr.resolve(layer), seed=1), layer, 1)
    assert (clean.detected, clean.repaired) == (False, None)


def test_one_unit_is_as_exposed_as_its_last_visit_was_long_ago():
    """Of a tensor in one unit all errors older than one age are gone."""
    layer, ages = table(200), []
    for seed in range(60):
        drawn = dr.BitFlip(1e-2).sample(dr.resolve(layer), seed=seed)
        ages.append(screened(dr.Scrubbing(1, 1, per="tensor"), drawn, layer, seed).remaining.bits / drawn.bits)
    assert np.mean(ages) == pytest.approx(0.5, abs=0.1) and np.std(ages) == pytest.approx(12**-0.5, rel=0.2)  # uniform


def test_nested_over_rates():
    layer, mitigation = table(2000), dr.Scrubbing(1, 3)
    drawn = [dr.BitFlip(rate).sample(dr.resolve(layer), seed=1) for rate in (1e-3, 1e-2, 1e-2)]
    left = [screened(mitigation, one, layer, 1).remaining for one in drawn]
    few, many, again = (dict(zip(one.word.tolist(), one.mask.tolist(), strict=True)) for one in left)
    assert 0 < len(few) < len(many) and again == many
    assert all(mask & many.get(word, 0) == mask for word, mask in few.items())


def test_what_arrives_together():
    layer = table(2000)
    space = dr.resolve(layer)
    words = screened(dr.Scrubbing(1, 1), dr.MultiBit(0.05, 8).sample(space, seed=1), layer, 1).remaining
    assert set(np.bitwise_count(words.mask).tolist()) == {8}
    rows = dr.RowError(0.2, row_bytes=64, density=1.0).sample(space, seed=1)
    left = screened(dr.Scrubbing(1, 1), rows, layer, 1).remaining.frame().groupby("row")["bits"].sum()
    assert set(left) == {512} and 0.3 < len(left) * 512 / rows.bits < 0.7


@pytest.mark.parametrize("checksum", ["crc32", "sum"])
@pytest.mark.parametrize("form", WIDTHS)
def test_checked_at_every_use(form, checksum):
    """With period 0 a unit's errors are all gone, unless its sum is right all the same."""
    model = holder(t=filled(form, (9, 4), 1))
    mitigation = dr.Scrubbing(0, per="row", checksum=checksum, target="everything")
    words, width = memory_bits(model)
    seen, escaped = False, 0
    for seed in range(20):
        masks, own = random_masks(36, width, 24, seed), random_masks(9, 32, seed % 4, seed)
        if form == "int8":  # the same bit of neighbours
            masks = {word: 1 << seed % 8 for word in range(36) if word % 4 < 2}
        left, report = decoded(mitigation, model, masks, {"t": own})
        expected = {}
        for row in range(9):
            here = {word: masks[word] for word in range(4 * row, 4 * row + 4) if word in masks}
            wrong = [word ^ here.get(4 * row + place, 0) for place, word in enumerate(words[4 * row : 4 * row + 4])]
            right = _sum(words[4 * row : 4 * row + 4], width)
            if checksum == "sum" and _sum(wrong, width) == right ^ own.get(row, 0):
                expected |= here
                escaped += bool(here)
        assert left == expected
        seen |= report.detected
    assert seen and (escaped > 0 if (form, checksum) == ("int8", "sum") else escaped == 0 or checksum == "sum")


def _sum(words, width):
    """As the docstring says: words modulo 2^32, 64-bit words in halves."""
    return sum((word & 0xFFFFFFFF) + (word >> 32) for word in words) % 2**32


@pytest.mark.parametrize("form", WIDTHS)
def test_what_checksums_hold(form):
    model = holder(t=filled(form, (9, 4), 1))
    words, width = memory_bits(model)
    raw = b"".join(word.to_bytes(width // 8, "little") for word in words)
    for per, size in (("row", 4 * width // 8), (16, 16)):
        crc = dr.Scrubbing(per=per, target="everything")
        area = words_of(crc, model)
        every = crc.check_bits(area).units
        assert every == -(-len(raw) // size)
        held = crc.content(area, np.arange(every)).tolist()
        assert held == [zlib.crc32(raw[size * unit : size * unit + size]) for unit in range(every)]
        plain = dr.Scrubbing(per=per, checksum="sum", target="everything").content(area, np.arange(every)).tolist()
        step = size * 8 // width
        assert plain == [_sum(words[step * unit : step * unit + step], width) for unit in range(every)]


def test_a_wrong_checksum_costs_a_reload_and_does_no_harm():
    mitigation = dr.Scrubbing(0, per=32, target="everything")
    left, report = decoded(mitigation, model_of("float32"), {}, {"t": {2: 1 << 31}})
    assert report.counts == {"reloaded": 1, "sound": 1, "escaped": 0}
    assert report.detected and not left


def test_an_error_of_a_sum_that_fits_the_data_escapes():
    model = holder(t=filled("float32", (2, 4), 1))
    plain, crc = (dr.Scrubbing(0, checksum=checksum, target="everything") for checksum in ("sum", "crc32"))
    top = 1 << 31  # adds 2^31 whichever way it flips
    left, report = decoded(plain, model, {1: top, 5: top}, {"t": {0: top}})
    assert left == {1: top} and report.counts["escaped"] == 1
    left, report = decoded(plain, model, {1: top, 2: top})
    assert left == {1: top, 2: top} and not report.detected
    assert decoded(crc, model, {1: top, 2: top})[0] == {}


def test_what_it_costs():
    model = nn.Linear(64, 10)
    assert dr.Scrubbing().cost(model).stored_bits == 32 * 11  # 10 rows and the bias
    assert dr.Scrubbing(per="tensor").cost(model).stored_bits == 64
    assert dr.Scrubbing(per=1024).cost(model).stored_bits == 32 * 4
