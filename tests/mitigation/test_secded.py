"""The codes: every single error corrected, every double one detected, triples miscorrected as often as the columns say."""

from collections import Counter
from functools import reduce
from itertools import combinations
from operator import xor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drsrobust.mitigation.memory.ecc import CLEAN, CORRECTED, SECDED, UNCORRECTABLE

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


def test_mistakes():
    for wrong in (0, 65, True, 3.0):
        with pytest.raises(ValueError, match="from 1 to 64"):
            SECDED(wrong)
    with pytest.raises(ValueError, match="more than 32 bits"):
        SECDED(32).encode(np.array([1 << 32], np.uint64))
    with pytest.raises(ValueError, match="more than 7 check bits"):
        SECDED(32).decode(np.array([1], np.uint64), np.array([128]))
    assert SECDED(64).encode(np.empty(0, np.uint64)).shape == (0,)
