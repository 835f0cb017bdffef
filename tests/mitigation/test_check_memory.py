"""Errors in check bits and copies: number, nesting over rates, targets, and error models without any."""

import numpy as np
import pytest
from scipy.stats import hypergeom

import drsrobust as dr
from drsrobust.mitigation.memory.check_memory import check_errors, copy_name
from drsrobust.mitigation.memory.ecc import ECC
from drsrobust.mitigation.memory.parity import ParityZero
from drsrobust.mitigation.memory.protected_words import ProtectedWords
from drsrobust.mitigation.memory.replication import Replication
from tests.mitigation.plain import bits_of, masks_of, table


def drawn_errors(mitigation, error_map, model, seed=1):
    """The errors in the data and in the check bits or copies of a mitigation."""
    protected = {words.name: words for words in mitigation.protected(model)}

    def memory(rows):
        return [
            t for name, words in protected.items() if name in rows for t in mitigation.stored_tensors(words, rows[name])
        ]

    def content(name, word):
        words = protected[name]
        return mitigation.check_bits(words).packed(words, word, lambda unit: mitigation.content(words, unit))

    return check_errors(error_map, memory, content, seed=seed, label=mitigation.label)


def sampled(error_model, model, target="all", seed=1):
    return error_model.sample(dr.resolve(model, target), seed=seed)


RATED = [
    dr.BitFlip(1e-3),
    dr.StuckAt(1, 1e-3),
    dr.MultiBit(1e-2, 2),
    dr.RandomWord(1e-2),
    dr.RandomValue(1e-2, 1, 2),
    dr.FieldMixture.gpu(1e-2),
    dr.Burst(1e-4, 5),
    dr.RowError(1e-1, 64),
    dr.Strided(1e-2, 7, 3),
    dr.BitFlip(1e-3) + dr.MultiBit(1e-4, 3),
]


@pytest.mark.parametrize("mitigation", [ECC(), ParityZero(), Replication()], ids=lambda one: one.name)
@pytest.mark.parametrize("error_model", RATED, ids=str)
def test_every_error_model_hits_check_bits_too(error_model, mitigation):
    model = table(4000)
    drawn = sampled(error_model, model)
    data, found = drawn_errors(mitigation, drawn, model)
    assert data is drawn
    (area,) = mitigation.protected(model)
    share = sum(map(bits_of, found.values())) / mitigation.extra_bits(area)
    assert 0.4 < share / drawn.realised_rate < 2
    same, other = (drawn_errors(mitigation, drawn, model, seed)[1] for seed in (1, 2))
    drawn_masks, same, other = (
        {name: masks_of(errors) for name, errors in every.items()} for every in (found, same, other)
    )
    assert drawn_masks == same and drawn_masks != other


def test_i_i_d_errors_have_their_rate():
    model = table(20_000)
    drawn = sampled(dr.BitFlip(1e-3), model)
    found = drawn_errors(ECC(), drawn, model)[1]["weight"]
    n = 20_000 * 16 * 4
    assert abs(bits_of(found) - n * 1e-3) < 5 * (n * 1e-3) ** 0.5
    copies = drawn_errors(Replication(), drawn, model)[1]
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


@pytest.mark.parametrize("make", [dr.BitFlip, lambda r: dr.MultiBit(r, 2), lambda r: dr.StuckAt(0, r), dr.RandomWord])
def test_nested_over_rates(make):
    model = table(2000)
    few, many = (drawn_errors(ECC(), sampled(make(rate), model), model)[1]["weight"] for rate in (1e-3, 1e-2))
    few, many = masks_of(few), masks_of(many)
    assert 0 < len(few) < len(many) and all(mask & many.get(word, 0) == mask for word, mask in few.items())


def test_a_sum_draws_each_of_its_models():
    model = table(2000)
    one, other = dr.BitFlip(1e-3), dr.MultiBit(1e-3, 2)
    both = masks_of(drawn_errors(ECC(), sampled(one + other, model), model)[1]["weight"])
    for part in (one, other):
        alone = masks_of(drawn_errors(ECC(), sampled(part, model), model)[1]["weight"])
        assert all(mask & both.get(word, 0) == mask for word, mask in alone.items())
    twice = drawn_errors(ECC(), sampled(one + one, model), model)[1]["weight"]
    assert bits_of(twice) > 1.7 * bits_of(
        drawn_errors(ECC(), sampled(one, model), model)[1]["weight"]
    )  # streams of their own


def test_stuck_check_bits_are_wrong_where_the_code_has_the_other_value():
    model = table(200)
    (area,) = ECC().protected(model)
    held = ECC().check_bits(area).packed(area, np.arange(200 * 2), lambda unit: ECC().content(area, unit))
    assert held.tolist() == ECC().content(area, np.arange(200 * 8)).astype(np.uint8).view("<u4").tolist()
    for value in (0, 1):
        found = drawn_errors(ECC(), sampled(dr.StuckAt(value, 1.0), model), model)[1]["weight"]
        expected = held if value == 0 else held ^ np.uint64(2**32 - 1)
        assert masks_of(found) == {word: mask for word, mask in enumerate(expected.tolist()) if mask}
    copy = drawn_errors(Replication(), sampled(dr.StuckAt(1, 1.0), model), model)[1]["weight (copy 1)"]
    assert (area.read(copy.index) ^ copy.mask == 2**32 - 1).all()


@pytest.mark.parametrize(
    "error_model",
    [dr.BitFlip(0.5, bits="exponent"), dr.BitFlip(0.5, bits=range(32)), dr.SingleBit(3), dr.FixedCount(5, "sign")],
)
def test_models_that_name_bits_leave_check_bits_clean(error_model):
    model = table(100)
    drawn = sampled(error_model, model)
    data, found = drawn_errors(ECC(), drawn, model)
    assert data is drawn and not found


def test_a_loaded_map_leaves_them_clean(tmp_path):
    model = table(100)
    drawn = sampled(dr.BitFlip(0.1), model)
    drawn.save(tmp_path / "map.npz")
    loaded = dr.ErrorMap.load(tmp_path / "map.npz")
    assert drawn_errors(ECC(), loaded, model) == (loaded, {})
    assert drawn_errors(ECC(), drawn, model)[1]


def test_a_fixed_count_is_drawn_over_data_and_check_bits_together():
    model, k = table(100), 300
    n, checks = 100 * 16 * 32, 100 * 16 * 4
    space, taken = dr.resolve(model), []
    for seed in range(100):
        drawn = dr.FixedCount(k).sample(space, seed=seed)
        data, found = drawn_errors(ECC(), drawn, model, seed)
        assert data.bits + bits_of(found["weight"]) == k and data.drawn is drawn
        fewer = dr.FixedCount(data.bits).sample(space, seed=seed)  # the first ones
        assert np.array_equal(data.word, fewer.word) and np.array_equal(data.mask, fewer.mask)
        taken.append(bits_of(found["weight"]))
        less = drawn_errors(ECC(), dr.FixedCount(k // 2).sample(space, seed=seed), model, seed)[1]["weight"]
        more = masks_of(found["weight"])
        assert all(mask & more[word] == mask for word, mask in masks_of(less).items())
    expected = hypergeom(n + checks, checks, k)
    assert np.mean(taken) == pytest.approx(expected.mean(), abs=5 * expected.std() / 100**0.5)
    assert np.std(taken) == pytest.approx(expected.std(), rel=0.25)


def test_a_fixed_count_in_a_map_that_was_made_smaller():
    model = table(100)
    drawn = dr.FixedCount(200).sample(dr.resolve(model), seed=1).restrict(range(16))
    data, found = drawn_errors(ParityZero(), drawn, model)
    kept = dict(zip(drawn.word.tolist(), drawn.mask.tolist(), strict=True))
    assert all(mask & kept[word] == mask for word, mask in zip(data.word.tolist(), data.mask.tolist(), strict=True))
    assert data.bits < drawn.bits
    assert found


def test_only_what_belongs_to_targeted_rows():
    model = table(1000)
    rows = dr.Rows("weight", [3, 500, 501])
    drawn = sampled(dr.BitFlip(0.2), model, rows)
    found = drawn_errors(ECC(), drawn, model)[1]["weight"]
    assert set((found.index // 2).tolist()) == {3, 500, 501}  # a row has 8 code words, so two words of check bits
    copies = drawn_errors(Replication(target=dr.Rows("weight", range(400, 600))), drawn, model)[1]
    assert {row // 16 for row in copies[copy_name(ProtectedWords(dr.resolve(model).tensors[0]), 1)].index.tolist()} == {
        500,
        501,
    }


def test_other_tensors_than_the_targeted_ones_stay_clean():
    from torch import nn

    model = nn.ModuleDict({"a": table(50), "b": table(50)})
    found = drawn_errors(ECC(), sampled(dr.BitFlip(0.1), model, "a.*"), model)[1]
    assert list(found) == ["a.weight"]


def test_sources_of_several_pairs():
    from torch import nn

    model = nn.ModuleDict({"a": table(50), "b": table(50)})
    pairs = [(dr.BitFlip(0.1), "a.*"), (dr.MultiBit(0.1, 2), "b.*")]
    with dr.inject(model, pairs, seed=1, mitigation=ECC()) as left:
        assert [source.error_model.label for source in left.sources] == ["BitFlip", "MultiBit(bits_per_word=2)"]
        assert left.detected and left.bits < left.drawn.bits * 2
    found = drawn_errors(ECC(), left.drawn, model)[1]
    assert set(found) == {"a.weight", "b.weight"}
