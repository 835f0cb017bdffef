"""Every error model in every format, against the oracle; nesting and sums."""

import sys
from functools import partial
from inspect import isabstract

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import drsrobust as dr
from drsrobust.injection import resolve
from drsrobust.injection.critical_bits import CriticalBits
from tests.injection import oracle
from tests.injection.oracle import FLOATS, FORMATS, Memory, entries, flipped, width
from tests.injection.spaces import all_formats, memories, one_format, words

MOST = sys.float_info.max
WHOLE = {"int64": (-(2**63), 2**63 - 1), "float64": (-MOST, MOST)}  # all integers of 64 bits, all float64


def models_for(form):
    """Every error model, with settings that a format allows."""
    top = width(form) - 1
    field, low, high = ("mantissa", -1.5, 3.25) if form in FLOATS else ("value", 3, 77)
    last = "value" if form == "uint8" else "sign"
    return [
        dr.BitFlip(0.05),
        dr.BitFlip(0.3, bits=(0, top)),
        dr.BitFlip(1),
        dr.BitFlip(0.5, bits=(field, top)),
        dr.FixedCount(13),
        dr.FixedCount(9, bits=last),
        dr.SingleBit(top),
        dr.StuckAt(0, 0.2),
        dr.StuckAt(1, 0.3, bits=field),
        dr.MultiBit(0.3, 1),
        dr.MultiBit(0.5, 3),
        dr.MultiBit(1, width(form)),
        dr.RandomWord(0.4),
        dr.RandomWord(1),
        dr.RandomValue(0.5, low, high),
        dr.RandomValue(1, *WHOLE.get(form, (low, high))),
        dr.Burst(0.02, 11),
        dr.Burst(0.4, 200),
        dr.RowError(0.5, row_bytes=8, density=0.4),
        dr.RowError(0.4, row_bytes=16, density=1),
        dr.BitFlip(0.1) + dr.BitFlip(0.1) + dr.MultiBit(0.3, 2) + dr.StuckAt(1, 0.1),
        dr.BitFlip(0.1, critical=2, critical_bits=CriticalBits("exponent_top" if form in FLOATS else (0, top))),
        dr.BitFlip(0.1, critical=0, critical_bits=CriticalBits((0, top))) + dr.MultiBit(0.1, 1),
        dr.BitFlip(0.1, critical=1, critical_bits=CriticalBits((top,)), others=2),
        dr.BitFlip(
            0.1, critical=0, critical_bits=CriticalBits((top,)), mild=int(form in set(FLOATS) - {"float8_e4m3fn"})
        ),
    ]


def agree(model, error_model, target, held, seed):
    """The map is the oracle's, and the words in memory are the ones it flips; afterwards they are what they were."""
    before, expected = words(model), oracle.sample(error_model, held, seed)
    with dr.inject(model, error_model, target, seed=seed) as error_map:
        assert entries(error_map) == expected
        assert (error_map.n_sites, error_map.n_events) == (expected.n_sites, expected.n_events)
        for name, found in words(model).items():
            masks = {word: mask for (tensor, word), mask in expected.items() if tensor == name}
            assert found == flipped(before[name], masks)
    assert words(model) == before


@pytest.mark.parametrize("number", range(25), ids=lambda number: str(models_for("float32")[number])[:40])
@pytest.mark.parametrize("form", FORMATS)
def test_against_the_oracle(form, number):
    model, error_model = one_format(form), models_for(form)[number]
    agree(model, error_model, "everything", memories(model), seed=number)
    agree(model, error_model, dr.Rows("b", [4, 0, 1]), memories(model, b=[0, 1, 4]), seed=2**64 - 1 - number)


rates = st.one_of(st.integers(0, 100).map(lambda percent: percent / 100), st.sampled_from([0, 1, 0.007, 9e-4]))
bit_sets = st.one_of(
    st.none(),
    st.sampled_from(["sign", "exponent", "mantissa", "value"]),
    st.sets(st.one_of(st.integers(0, 7), st.sampled_from(["sign", "mantissa"])), min_size=1).map(tuple),
)
kinds = {  # of each model, all but its rate
    "BitFlip": st.builds(lambda bits: partial(dr.BitFlip, bits=bits), bit_sets),
    "FixedCount": st.builds(lambda bits: lambda rate: dr.FixedCount(round(6 * rate), bits=bits), bit_sets),
    "StuckAt": st.builds(lambda value, bits: lambda rate: dr.StuckAt(value, rate, bits), st.integers(0, 1), bit_sets),
    "MultiBit": st.builds(lambda k: lambda rate: dr.MultiBit(rate, k), st.integers(1, 8)),
    "RandomWord": st.just(dr.RandomWord),
    "RandomValue": st.builds(
        lambda low, more: lambda rate: dr.RandomValue(rate, low, low + more), st.integers(0, 60), st.integers(1, 60)
    ),
    "Burst": st.builds(lambda length: lambda rate: dr.Burst(rate, length), st.integers(1, 150)),
    "RowError": st.builds(
        lambda size, density: lambda rate: dr.RowError(rate, 8 * size, density), st.integers(1, 4), st.floats(0, 1)
    ),
}
any_kind = st.one_of(*kinds.values())
half = st.builds(lambda size: lambda rate: dr.RowError(rate, 8 * size), st.integers(1, 4))
summands = st.one_of(*(kinds | {"RowError": half}).values())  # a sum's row errors of one size have one density
seeds = st.integers(0, 2**64 - 1)
names = [f"of_{form}" for form in FORMATS]


@settings(max_examples=50, deadline=None)
@given(any_kind, rates, seeds, st.sets(st.integers(0, 2), min_size=1), st.sets(st.sampled_from(names), min_size=3))
def test_words_of_different_widths_against_the_oracle(kind, rate, seed, rows, chosen):
    """Of one tensor some rows, of others all."""
    error_model, model, (first, *others) = kind(rate), all_formats(), sorted(chosen)
    target, held = dr.Rows(first, sorted(rows)), [Memory.of(first, model.get_buffer(first), rows)]
    for name in others:
        target |= name
        held.append(Memory.of(name, model.get_buffer(name)))
    try:
        oracle.sample(error_model, held, seed)
    except ValueError:
        says = "exist in none of the targeted formats|the number of eligible bits"
        with pytest.raises(ValueError, match=says):
            error_model.sample(resolve(model, target), seed=seed)
    else:
        agree(model, error_model, target, held, seed)


def inside(low, high):
    """Whether one map's flips are among another's."""
    low, high = entries(low), entries(high)
    return all(high.get(place, 0) & mask == mask for place, mask in low.items())


ALL = resolve(all_formats(), "everything")


@settings(max_examples=40, deadline=None)
@given(st.lists(summands, min_size=3, max_size=3), st.lists(rates, min_size=3, max_size=3), seeds)
def test_sums(three, given_rates, seed):
    a, b, c = (kind(rate) for kind, rate in zip(three, given_rates, strict=True))
    both = (a + b).sample(ALL, seed=seed)
    assert a + b == b + a and (a + b) + c == a + (b + c)
    assert entries((b + a).sample(ALL, seed=seed)) == entries(both)
    alone = [one.sample(ALL, seed=seed) for one in (a, b)]
    assert all(inside(one, both) for one in alone)
    if a.canonical() != b.canonical():
        assert entries(both) == entries(alone[0] | alone[1])
    assert both.bits == sum(mask.bit_count() for mask in entries(both).values())


def test_sums_of_row_errors_of_one_rate_and_two_densities_commute():
    a, b = dr.RowError(0.5, 8, 0.2), dr.RowError(0.5, 8, 0.8)
    assert entries((a + b).sample(ALL, seed=1)) == entries((b + a).sample(ALL, seed=1))


def test_the_oracle_knows_every_error_model():
    named = {value for name in dir(dr.injection) if isinstance(value := getattr(dr.injection, name), type)}
    named = {value for value in named if issubclass(value, dr.injection.ErrorModel) and not isabstract(value)}
    tested = {type(error_model) for form in FORMATS for error_model in models_for(form)}
    assert named - tested == {dr.MemoryFault}  # its own layout is in test_memory_faults


def test_a_sum_may_flip_what_its_parts_may():
    space, both = resolve(one_format("float32"), "everything"), dr.BitFlip(0.1, bits="sign") + dr.SingleBit(30)
    assert both.eligible(space).bits == both.sample(space, seed=1).eligible_bits == 2 * space.words


def test_equal_models_draw_the_same():
    """Whatever the type of their numbers."""
    for one, other in (
        (dr.StuckAt(1, 0.3), dr.StuckAt(1.0, 0.3)),
        (dr.RandomValue(0.3, 0, 1), dr.RandomValue(0.3, np.float32(0), np.float32(1))),
    ):
        assert one == other and entries(one.sample(ALL, seed=1)) == entries(other.sample(ALL, seed=1))


def test_equal_models_of_one_trial_are_two_draws():
    model, a, b = one_format("float32"), dr.BitFlip(0.05), dr.MultiBit(0.1, 2)

    def errors(*models):
        return dr.injection.Injection(model, [(each, "everything") for each in models], seed=3).error_map

    assert entries(errors(a, a)) == entries(errors(a + a)) and entries(errors(a, b)) == entries(errors(a + b))
    assert errors(a + b, a).bits > 1.5 * errors(a + b).bits
