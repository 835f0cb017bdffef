"""Errors in check bits and copies: whose, how many, nested over rates; and which error models have none there."""

import numpy as np
import pytest
from scipy.stats import hypergeom

import drsrobust as dr
from drsrobust.mitigation.memory.check_memory import check_errors, copy_name
from drsrobust.mitigation.memory.ecc import ECC
from drsrobust.mitigation.memory.parity import ParityZero
from drsrobust.mitigation.memory.protected_words import Area
from drsrobust.mitigation.memory.replication import Replication
from tests.mitigation.plain import masks_of, table


def beside(mitigation, error_map, model, seed=1):
    """The data's errors and those in what a mitigation stores, as it draws them."""
    areas = {area.name: area for area in mitigation.areas(model)}

    def memory(rows):
        return [one for name, area in areas.items() if name in rows for one in mitigation.beside(area, rows[name])]

    return check_errors(
        error_map,
        memory,
        lambda name, word: mitigation.checks(areas[name]).packed(
            areas[name], word, lambda unit: mitigation.content(areas[name], unit)
        ),
        seed=seed,
        label=mitigation.label,
    )


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


@pytest.mark.parametrize("mitigation", [ECC(), ECC(32), ParityZero(), Replication()], ids=lambda one: one.name)
@pytest.mark.parametrize("error_model", RATED, ids=str)
def test_every_error_model_hits_check_bits_too(error_model, mitigation):
    model = table(8000)
    drawn = sampled(error_model, model)
    data, found = beside(mitigation, drawn, model)
    assert data is drawn
    (area,) = mitigation.areas(model)
    share = sum(errors.bits for errors in found.values()) / mitigation.extra_bits(area)
    assert 0.4 < share / drawn.realised_rate < 2
    again = beside(mitigation, drawn, model)[1]
    assert {name: masks_of(one) for name, one in found.items()} == {name: masks_of(one) for name, one in again.items()}
    other = beside(mitigation, drawn, model, seed=2)[1]
    assert {name: masks_of(one) for name, one in found.items()} != {name: masks_of(one) for name, one in other.items()}


def test_i_i_d_errors_have_their_rate():
    model = table(20_000)
    drawn = sampled(dr.BitFlip(1e-3), model)
    found = beside(ECC(), drawn, model)[1]["weight"]
    n = 20_000 * 16 * 4
    assert abs(found.bits - n * 1e-3) < 5 * (n * 1e-3) ** 0.5
    copies = beside(Replication(), drawn, model)[1]
    n = 20_000 * 16 * 32
    assert [abs(copies[f"weight (copy {k})"].bits - n * 1e-3) < 5 * (n * 1e-3) ** 0.5 for k in (1, 2)] == [True, True]
    same = np.intersect1d(copies["weight (copy 1)"].index, copies["weight (copy 2)"].index)
    assert len(same) == pytest.approx(n / 32 * 0.0315**2, rel=0.3)  # independent of each other
    assert len(np.intersect1d(copies["weight (copy 1)"].index, drawn.word)) == pytest.approx(
        n / 32 * 0.0315**2, rel=0.3
    )


@pytest.mark.parametrize("make", [dr.BitFlip, lambda r: dr.MultiBit(r, 2), lambda r: dr.StuckAt(0, r), dr.RandomWord])
def test_nested_over_rates(make):
    model = table(2000)
    few, many = (beside(ECC(), sampled(make(rate), model), model)[1]["weight"] for rate in (1e-3, 1e-2))
    few, many = masks_of(few), masks_of(many)
    assert 0 < len(few) < len(many) and all(mask & many.get(word, 0) == mask for word, mask in few.items())


def test_a_sum_draws_each_of_its_models():
    model = table(2000)
    one, other = dr.BitFlip(1e-3), dr.MultiBit(1e-3, 2)
    both = masks_of(beside(ECC(), sampled(one + other, model), model)[1]["weight"])
    for part in (one, other):
        alone = masks_of(beside(ECC(), sampled(part, model), model)[1]["weight"])
        assert all(mask & both.get(word, 0) == mask for word, mask in alone.items())
    twice = beside(ECC(), sampled(one + one, model), model)[1]["weight"]
    assert twice.bits > 1.7 * beside(ECC(), sampled(one, model), model)[1]["weight"].bits  # streams of their own


def test_stuck_check_bits_are_wrong_where_the_code_has_the_other_value():
    model = table(200)
    (area,) = ECC().areas(model)
    held = ECC().checks(area).packed(area, np.arange(200 * 2), lambda unit: ECC().content(area, unit))
    assert held.tolist() == ECC().content(area, np.arange(200 * 8)).astype(np.uint8).view("<u4").tolist()
    for value in (0, 1):
        found = beside(ECC(), sampled(dr.StuckAt(value, 1.0), model), model)[1]["weight"]
        expected = held if value == 0 else held ^ np.uint64(2**32 - 1)
        assert masks_of(found) == {word: mask for word, mask in enumerate(expected.tolist()) if mask}
    copy = beside(Replication(), sampled(dr.StuckAt(1, 1.0), model), model)[1]["weight (copy 1)"]
    assert (area.read(copy.index) ^ copy.mask == 2**32 - 1).all()


@pytest.mark.parametrize(
    "error_model",
    [dr.BitFlip(0.5, bits="exponent"), dr.BitFlip(0.5, bits=range(32)), dr.SingleBit(3), dr.FixedCount(5, "sign")],
)
def test_models_that_name_bits_leave_check_bits_clean(error_model):
    model = table(100)
    drawn = sampled(error_model, model)
    data, found = beside(ECC(), drawn, model)
    assert data is drawn and not found


def test_a_loaded_map_leaves_them_clean(tmp_path):
    model = table(100)
    drawn = sampled(dr.BitFlip(0.1), model)
    drawn.save(tmp_path / "map.npz")
    loaded = dr.ErrorMap.load(tmp_path / "map.npz")
    assert beside(ECC(), loaded, model) == (loaded, {})
    assert beside(ECC(), drawn, model)[1]


def test_a_fixed_count_is_drawn_over_data_and_check_bits_together():
    model, k = table(100), 300
    n, checks = 100 * 16 * 32, 100 * 16 * 4
    space, taken, last = dr.resolve(model), [], None
    for seed in range(200):
        drawn = dr.FixedCount(k).sample(space, seed=seed)
        data, found = beside(ECC(), drawn, model, seed)
        assert data.bits + found["weight"].bits == k and data.drawn is drawn
        fewer = dr.FixedCount(data.bits).sample(space, seed=seed)  # the first ones
        assert np.array_equal(data.word, fewer.word) and np.array_equal(data.mask, fewer.mask)
        taken.append(found["weight"].bits)
        less = beside(ECC(), dr.FixedCount(k // 2).sample(space, seed=seed), model, seed)[1]["weight"]
        more = masks_of(found["weight"])
        assert all(mask & more[word] == mask for word, mask in masks_of(less).items())
        last = found
    expected = hypergeom(n + checks, checks, k)
    assert np.mean(taken) == pytest.approx(expected.mean(), abs=5 * expected.std() / 200**0.5)
    assert np.std(taken) == pytest.approx(expected.std(), rel=0.25)
    assert last


def test_a_fixed_count_in_a_map_that_was_made_smaller():
    model = table(100)
    drawn = dr.FixedCount(200).sample(dr.resolve(model), seed=1).restrict(range(16))
    data, found = beside(ParityZero(), drawn, model)
    kept = dict(zip(drawn.word.tolist(), drawn.mask.tolist(), strict=True))
    assert all(mask & kept[word] == mask for word, mask in zip(data.word.tolist(), data.mask.tolist(), strict=True))
    assert data.bits < drawn.bits
    assert found


def test_only_what_belongs_to_targeted_rows():
    model = table(1000)
    rows = dr.Rows("weight", [3, 500, 501])
    drawn = sampled(dr.BitFlip(0.2), model, rows)
    found = beside(ECC(), drawn, model)[1]["weight"]
    assert set((found.index // 2).tolist()) == {3, 500, 501}  # a row has 8 code words, so two words of check bits
    copies = beside(Replication(target=dr.Rows("weight", range(400, 600))), drawn, model)[1]
    assert {row // 16 for row in copies[copy_name(Area(dr.resolve(model).tensors[0]), 1)].index.tolist()} == {500, 501}


def test_other_tensors_than_the_targeted_ones_stay_clean():
    from torch import nn

    model = nn.ModuleDict({"a": table(50), "b": table(50)})
    found = beside(ECC(), sampled(dr.BitFlip(0.1), model, "a.*"), model)[1]
    assert list(found) == ["a.weight"]


def test_sources_of_several_pairs():
    from torch import nn

    model = nn.ModuleDict({"a": table(50), "b": table(50)})
    pairs = [(dr.BitFlip(0.1), "a.*"), (dr.MultiBit(0.1, 2), "b.*")]
    with dr.inject(model, pairs, seed=1, mitigation=ECC()) as left:
        assert [source.error_model.label for source in left.sources] == ["BitFlip", "MultiBit(bits_per_word=2)"]
        assert left.detected and left.bits < left.drawn.bits * 2
    found = beside(ECC(), left.drawn, model)[1]
    assert set(found) == {"a.weight", "b.weight"}
