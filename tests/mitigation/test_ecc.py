"""SECDED codes by enumeration of errors; memory under them against a decoder of one code word at a time; wrong check bits."""

from collections import Counter
from copy import copy
from functools import reduce
from itertools import combinations
from operator import xor

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.mitigation.base import Screened
from drsrobust.mitigation.memory.ecc import CLEAN, CORRECTED, ECC, SECDED, UNCORRECTABLE
from drsrobust.mitigation.memory.protected_words import ProtectedWords
from drsrobust_extras.protection.copies import copy_name
from drsrobust_extras.protection.parity import ParityZero
from drsrobust_extras.protection.replication import Replication
from tests.mitigation.plain import (
    TRIAL,
    WIDTHS,
    bits_of,
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
        assert decoded.stopped == (action == "keep" and counts["uncorrectable"] > 0)
        clean = screened(mitigation, map_of(model, masks), model, 1).remaining  # of a map that was not drawn here
        assert (
            dict(zip(clean.word.tolist(), clean.mask.tolist(), strict=True))
            == by_hand(model, masks, {}, data_bits, action)[0]
        )


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
    outside, same = (
        one.frame().query("tensor == 'b.weight' or row < 10 or row >= 20").to_numpy().tolist() for one in (drawn, left)
    )
    assert outside == same
    assert ECC(target=rows).cost(model).stored_bits == 10 * 16 * 32 // 8


def test_what_several_protections_noticed():
    layer = table(100)
    none = screened(ECC(), dr.BitFlip(0.0).sample(dr.resolve(layer), seed=4), layer)
    assert (none.detected, none.repaired) == (False, None)
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
    ("data", "check"), [(1, 3), (8, 5), (10, 5), (26, 6), (27, 7), (32, 7), (35, 7), (57, 7), (58, 8), (63, 8), (64, 8)]
)
def test_sizes(data, check):
    code = SECDED(data)
    columns = code.columns.tolist()
    assert (code.data_bits, code.check_bits, code.bits) == (data, check, data + check) == (data, check, len(columns))
    assert len(set(columns)) == len(columns) and all(column.bit_count() % 2 for column in columns)
    assert columns[data:] == [1 << row for row in range(check)]
    assert max(columns) < 1 << check
    every = sorted(
        (c for c in range(1 << check) if c.bit_count() % 2 and c.bit_count() > 1), key=lambda c: (c.bit_count(), c)
    )
    if data == len(every) or every[data].bit_count() > every[data - 1].bit_count():
        assert columns[:data] == every[:data]  # where all of a weight are needed, they ascend


def test_the_largest_words_and_names():
    words = np.array([0, 1 << 31], np.uint64)
    assert SECDED(32).decode(words, [127, 0]).status.tolist() == [UNCORRECTABLE, CORRECTED]
    assert (ECC().name, ECC(32, "zero").name) == ("SECDED (72,64)", "SECDED (39,32), zero")


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


def drawn_errors(mitigation, error_map, model, seed=1):
    """The errors in check bits (by code word) or copies (by word) of a mitigation, by tensor, as its `decode` gets them."""
    found, recorder = {}, copy(mitigation)

    def decode(protected, errors, stored, trial):
        found.update(stored)
        return mitigation.decode(protected, errors, stored, trial)

    recorder.decode = decode
    screened(recorder, error_map, model, seed)
    return found


def sampled(error_model, model, target="all", seed=1):
    return error_model.sample(dr.resolve(model, target), seed=seed)


RATED = [
    dr.BitFlip(1e-3),
    dr.MultiBit(1e-2, 2),
    dr.RandomWord(1e-2),
    dr.RandomValue(1e-2, 1, 2),
    dr.Burst(1e-4, 5),
    dr.RowError(1e-1, 64),
    dr.BitFlip(1e-3) + dr.MultiBit(1e-4, 3),
]


@pytest.mark.parametrize("mitigation", [ECC(), ParityZero(), Replication()], ids=lambda one: one.name)
@pytest.mark.parametrize("error_model", RATED, ids=str)
def test_every_error_model_hits_check_bits_too(error_model, mitigation):
    model = table(4000)
    drawn = sampled(error_model, model)
    found = drawn_errors(mitigation, drawn, model)
    (area,) = mitigation.protected(model)
    share = sum(map(bits_of, found.values())) / mitigation.extra_bits(area)
    assert 0.4 < share / drawn.realised_rate < 2
    same, other = (drawn_errors(mitigation, drawn, model, seed) for seed in (1, 2))
    found, same, other = ({name: masks_of(errors) for name, errors in each.items()} for each in (found, same, other))
    assert found == same != other


def test_i_i_d_errors_have_their_rate():
    model = table(20_000)
    drawn = sampled(dr.BitFlip(1e-3), model)
    found = drawn_errors(ECC(), drawn, model)["weight"]
    n = 20_000 * 16 * 4
    assert abs(bits_of(found) - n * 1e-3) < 5 * (n * 1e-3) ** 0.5
    copies = drawn_errors(Replication(), drawn, model)
    n, first, second = 20_000 * 16 * 32, copies["weight (copy 1)"], copies["weight (copy 2)"]
    assert all(abs(bits_of(copy) - n * 1e-3) < 5 * (n * 1e-3) ** 0.5 for copy in (first, second))
    for other in (second.index, drawn.word):  # independent of each other
        assert len(np.intersect1d(first.index, other)) == pytest.approx(n / 32 * 0.0315**2, rel=0.3)


FLIPS, PAIRS = dr.BitFlip(1e-3), dr.MultiBit(1e-3, 2)


@pytest.mark.parametrize(
    ("few", "many"),
    [
        *((make(1e-3), make(1e-2)) for make in (dr.BitFlip, lambda rate: dr.MultiBit(rate, 2), dr.RandomWord)),
        *((part, FLIPS + PAIRS) for part in (FLIPS, PAIRS)),  # a sum draws each of its models
    ],
    ids=str,
)
def test_nested_over_rates_and_sums(few, many):
    model = table(2000)
    few, many = (masks_of(drawn_errors(ECC(), sampled(errors, model), model)["weight"]) for errors in (few, many))
    assert 0 < len(few) < len(many) and all(mask & many.get(word, 0) == mask for word, mask in few.items())


def test_equal_models_of_a_sum_draw_from_streams_of_their_own():
    model = table(2000)
    once, twice = (drawn_errors(ECC(), sampled(errors, model), model)["weight"] for errors in (FLIPS, FLIPS + FLIPS))
    assert bits_of(twice) > 1.7 * bits_of(once)


def test_stuck_bits_of_copies_are_wrong_where_the_copy_has_the_other_value():
    model = table(200)
    (area,) = ECC().protected(model)
    stuck = drawn_errors(Replication(), sampled(dr.StuckAt(1, 1.0), model), model)["weight (copy 1)"]
    assert (area.read(stuck.index) ^ stuck.mask == 2**32 - 1).all()


def test_what_leaves_check_bits_clean(tmp_path):
    """Models that name or count bits, stuck bits, and a loaded map."""
    model, named = table(100), [dr.BitFlip(0.5, bits="exponent"), dr.BitFlip(0.5, bits=range(32)), dr.SingleBit(3)]
    sampled(dr.BitFlip(0.1), model).save(tmp_path / "map.npz")
    maps = [sampled(error_model, model) for error_model in (*named, dr.FixedCount(500), dr.StuckAt(1, 0.5))]
    for error_map in (*maps, dr.ErrorMap.load(tmp_path / "map.npz")):
        assert not drawn_errors(ECC(), error_map, model)


def test_only_what_belongs_to_targeted_rows():
    model = table(1000)
    rows = dr.Rows("weight", [3, 500, 501])
    drawn = sampled(dr.BitFlip(0.2), model, rows)
    found = drawn_errors(ECC(), drawn, model)["weight"]
    assert set((found.index // 8).tolist()) == {3, 500, 501}  # a row has 8 code words
    copies = drawn_errors(Replication(target=dr.Rows("weight", range(400, 600))), drawn, model)
    assert {row // 16 for row in copies[copy_name(ProtectedWords(dr.resolve(model).tensors[0]), 1)].index.tolist()} == {
        500,
        501,
    }


def test_sources_of_several_pairs():
    model = nn.ModuleDict({"a": table(50), "b": table(50)})
    pairs = [(dr.BitFlip(0.1), "a.*"), (dr.MultiBit(0.1, 2), "b.*")]
    with dr.inject(model, pairs, seed=1, mitigation=ECC()) as left:
        assert [source.error_model.label for source in left.sources] == ["BitFlip", "MultiBit(bits_per_word=2)"]
    unit = drawn_errors(ECC(), left, model)["a.weight"].index  # of both: those of b follow
    assert unit.min() < 400 < unit.max()  # 50 rows of 8 code words
