"""Errors in check bits and copies: number, nesting over rates, targets, and error models without any."""

from copy import copy

import numpy as np
import pytest
from torch import nn

import drsrobust as dr
from drsrobust.mitigation.memory.ecc import ECC
from drsrobust.mitigation.memory.protected_words import ProtectedWords
from drsrobust_extras.protection.copies import copy_name
from drsrobust_extras.protection.parity import ParityZero
from drsrobust_extras.protection.replication import Replication
from tests.mitigation.plain import bits_of, masks_of, screened, table


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
    drawn_masks, same, other = (
        {name: masks_of(errors) for name, errors in every.items()} for every in (found, same, other)
    )
    assert drawn_masks == same and drawn_masks != other


def test_i_i_d_errors_have_their_rate():
    model = table(20_000)
    drawn = sampled(dr.BitFlip(1e-3), model)
    found = drawn_errors(ECC(), drawn, model)["weight"]
    n = 20_000 * 16 * 4
    assert abs(bits_of(found) - n * 1e-3) < 5 * (n * 1e-3) ** 0.5
    copies = drawn_errors(Replication(), drawn, model)
    n = 20_000 * 16 * 32
    assert [abs(bits_of(copies[f"weight (copy {k})"]) - n * 1e-3) < 5 * (n * 1e-3) ** 0.5 for k in (1, 2)] == [
        True,
        True,
    ]
    same = np.intersect1d(copies["weight (copy 1)"].index, copies["weight (copy 2)"].index)
    assert len(same) == pytest.approx(n / 32 * 0.0315**2, rel=0.3)  # independent of each other
    assert len(np.intersect1d(copies["weight (copy 1)"].index, drawn.word)) == pytest.approx(
        n / 32 * 0.0315**2, rel=0.3
    )


@pytest.mark.parametrize("make", [dr.BitFlip, lambda r: dr.MultiBit(r, 2), dr.RandomWord])
def test_nested_over_rates(make):
    model = table(2000)
    few, many = (drawn_errors(ECC(), sampled(make(rate), model), model)["weight"] for rate in (1e-3, 1e-2))
    few, many = masks_of(few), masks_of(many)
    assert 0 < len(few) < len(many) and all(mask & many.get(word, 0) == mask for word, mask in few.items())


def test_a_sum_draws_each_of_its_models():
    model = table(2000)
    one, other = dr.BitFlip(1e-3), dr.MultiBit(1e-3, 2)
    both = masks_of(drawn_errors(ECC(), sampled(one + other, model), model)["weight"])
    for part in (one, other):
        alone = masks_of(drawn_errors(ECC(), sampled(part, model), model)["weight"])
        assert all(mask & both.get(word, 0) == mask for word, mask in alone.items())
    twice = drawn_errors(ECC(), sampled(one + one, model), model)["weight"]
    assert bits_of(twice) > 1.7 * bits_of(
        drawn_errors(ECC(), sampled(one, model), model)["weight"]
    )  # streams of their own


def test_stuck_bits_of_copies_are_wrong_where_the_copy_has_the_other_value():
    model = table(200)
    (area,) = ECC().protected(model)
    stuck = drawn_errors(Replication(), sampled(dr.StuckAt(1, 1.0), model), model)["weight (copy 1)"]
    assert (area.read(stuck.index) ^ stuck.mask == 2**32 - 1).all()


@pytest.mark.parametrize(
    "error_model",
    [
        dr.BitFlip(0.5, bits="exponent"),
        dr.BitFlip(0.5, bits=range(32)),
        dr.SingleBit(3),
        dr.FixedCount(500),
        dr.StuckAt(1, 0.5),
    ],
)
def test_models_that_name_or_count_bits_and_stuck_bits_leave_check_bits_clean(error_model):
    model = table(100)
    drawn = sampled(error_model, model)
    assert not drawn_errors(ECC(), drawn, model)


def test_a_loaded_map_leaves_them_clean(tmp_path):
    model = table(100)
    drawn = sampled(dr.BitFlip(0.1), model)
    drawn.save(tmp_path / "map.npz")
    loaded = dr.ErrorMap.load(tmp_path / "map.npz")
    assert not drawn_errors(ECC(), loaded, model)
    assert drawn_errors(ECC(), drawn, model)


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


def test_other_tensors_than_the_targeted_ones_stay_clean():
    model = nn.ModuleDict({"a": table(50), "b": table(50)})
    found = drawn_errors(ECC(), sampled(dr.BitFlip(0.1), model, "a.*"), model)
    assert list(found) == ["a.weight"]


def test_sources_of_several_pairs():
    model = nn.ModuleDict({"a": table(50), "b": table(50)})
    pairs = [(dr.BitFlip(0.1), "a.*"), (dr.MultiBit(0.1, 2), "b.*")]
    with dr.inject(model, pairs, seed=1, mitigation=ECC()) as left:
        assert [source.error_model.label for source in left.sources] == ["BitFlip", "MultiBit(bits_per_word=2)"]
    found = drawn_errors(ECC(), left, model)
    assert set(found) == {"a.weight", "b.weight"}
