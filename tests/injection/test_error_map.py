import json
import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import drsrobust as dr
from drsrobust.injection import ErrorMap, resolve
from tests.injection.oracle import entries, field, width
from tests.injection.spaces import all_formats, filled, holder, words

FIELDS = ("sign", "exponent", "mantissa", "value")


def make():
    """A tensor of each format, one of them in two dimensions more, a scalar and one that is no block of memory."""
    model = all_formats()
    model.register_buffer("turned", filled("float32", (4, 3), 20).t())
    model.part = holder(cube=filled("float32", (2, 3, 4), 21), scalar=torch.tensor(1.5))
    return model


MODEL = make()
FORM = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in MODEL.named_buffers()}
SPACE = resolve(MODEL, "everything")
TARGETS = [
    "everything",
    "of_*",
    dr.Rows("of_float32", [0, 2]) | "part.cube",
    "part.scalar",
    "*float*",
    dr.Rows("turned", [1]),
]
SPACES = [resolve(MODEL, target) for target in TARGETS]
KINDS = [
    dr.BitFlip(0.02),
    dr.BitFlip(0.3, bits="sign"),
    dr.FixedCount(9),
    dr.StuckAt(0, 0.05),
    dr.StuckAt(1, 0.05),
    dr.MultiBit(0.2, 2),
    dr.RandomValue(0.2, 1, 100),
    dr.Burst(0.01, 20),
    dr.BitFlip(0),
    dr.StuckAt(1, 0.02) + dr.MultiBit(0.1, 3),
]
maps = st.builds(
    lambda kind, space, seed: KINDS[kind].sample(SPACES[space], seed=seed),
    st.integers(0, len(KINDS) - 1),
    st.sampled_from([0, 1, 2, 4]),
    st.integers(0, 2**64 - 1),
)
bit_sets = st.sets(st.one_of(st.integers(0, 7), st.sampled_from(FIELDS)), min_size=1).map(tuple)
quick = settings(max_examples=60, deadline=None)


def in_bits(name, mask, bits):
    """A mask's bits among some numbers and fields."""
    chosen = (b for b in range(width(FORM[name])) if b in bits or field(FORM[name], b) in bits)
    return mask & sum(1 << bit for bit in chosen)


def fits(error_map):
    """Sorted entries, one per word, of the types that they are documented to have."""
    kinds = {"tensor": np.int32, "word": np.int64, "mask": np.uint64, "original": np.uint64, "depends": np.bool_}
    for name, kind in kinds.items():
        array = getattr(error_map, name)
        assert array is None or (array.dtype == kind and array.shape == (len(error_map),))
    keys = list(zip(error_map.tensor.tolist(), error_map.word.tolist(), strict=True))
    assert keys == sorted(set(keys)) and (error_map.mask != 0).all()
    assert error_map.targets == tuple(sorted(error_map.targets))
    if error_map.original is not None:
        depends = [True] * len(error_map) if error_map.depends is None else error_map.depends.tolist()
        held = words(MODEL)
        for (name, word), original, made in zip(entries(error_map), error_map.original.tolist(), depends, strict=True):
            assert not made or original == held[name][word]
    return True


ARRAYS = ("tensor", "word", "mask", "original", "depends")
ABOUT = ("fingerprint", "seed", "error_model", "eligible_bits", "requested_rate", "n_sites", "n_events")


def drawn_alike(one, other):
    return all(getattr(one, about) == getattr(other, about) for about in ABOUT)


@quick
@given(maps, maps, maps)
def test_union(a, b, c):
    both = a | b
    flips = Counter({place: 0 for place in [*entries(a), *entries(b)]})
    for one in (a, b):
        for place, mask in entries(one).items():
            flips[place] |= mask
    assert fits(both) and entries(both) == dict(flips)
    assert entries(b | a) == entries(both) and (b | a).error_model == both.error_model
    assert (b | a).eligible_bits == both.eligible_bits
    assert entries((a | b) | c) == entries(a | (b | c))
    assert entries(a | a) == entries(a)
    assert entries(a | a.drop(np.ones(len(a), bool))) == entries(a)
    assert max(a.bits, b.bits) <= both.bits <= a.bits + b.bits
    apart = not set(a.targets) & set(b.targets)  # else it is not known how many bits are eligible in both
    assert both.eligible_bits == (a.eligible_bits + b.eligible_bits if apart else None)
    assert both.realised_rate == (both.bits / both.eligible_bits if apart else None)


@quick
@given(maps, bit_sets, bit_sets)
def test_restrict(a, bits, others):
    some = a.restrict(bits)
    expected = {(name, word): in_bits(name, mask, bits) for (name, word), mask in entries(a).items()}
    assert fits(some) and entries(some) == {place: mask for place, mask in expected.items() if mask}
    assert entries(some.restrict(bits)) == entries(some)
    assert entries(some.restrict(others)) == entries(a.restrict(others).restrict(bits))
    assert entries(some | a.restrict(others)) == entries(a.restrict((*bits, *others)))
    assert entries(a.restrict(FIELDS)) == entries(a)
    assert drawn_alike(some, a) and some.realised_rate == some.bits / some.eligible_bits


@quick
@given(maps, st.randoms(use_true_random=False))
def test_drop(a, random):
    out = np.array([random.random() < 0.5 for _ in range(len(a))], bool)
    left, rest = a.drop(out), a.drop(~out)
    places = list(entries(a))
    assert fits(left) and drawn_alike(left, a)
    assert set(entries(left)) == {p for p, gone in zip(places, out, strict=True) if not gone}
    assert entries(left | rest) == entries(a) and left.bits + rest.bits == a.bits
    assert len(a.drop(np.ones(len(a), bool))) == 0 and entries(a.drop(np.zeros(len(a), bool))) == entries(a)


@quick
@given(maps)
def test_frame_and_counts(a):
    found, frame = entries(a), a.frame()
    assert frame.columns.tolist() == ["tensor", "component", "row", "word", "mask", "bits"]
    assert list(zip(frame["tensor"], frame["word"], strict=True)) == list(found)
    assert frame["mask"].tolist() == list(found.values()) and frame["mask"].dtype == np.uint64
    assert frame["bits"].tolist() == [mask.bit_count() for mask in found.values()] and frame["bits"].sum() == a.bits
    components, tensors, rows, bits, parts = (Counter() for _ in range(5))
    for (name, word), mask in found.items():
        tensors[name] += mask.bit_count()
        components[name.split(".")[0]] += mask.bit_count()
        shape = MODEL.get_buffer(name).shape
        rows[name, word // math.prod(shape[1:])] += mask.bit_count()
        for bit in range(width(FORM[name])):
            if mask >> bit & 1:
                bits[bit] += 1
                parts[field(FORM[name], bit)] += 1
    assert a.counts("tensor").to_dict() == {name: tensors[name] for name in a.targets}
    assert a.counts("component").to_dict() == {name: components[name] for name in {n.split(".")[0] for n in a.targets}}
    assert a.counts("row").to_dict() == rows
    assert a.counts("bit").to_dict() == bits and a.counts("bit").index.is_monotonic_increasing
    assert a.counts("field").to_dict() == parts
    for by in ("component", "tensor", "row", "bit", "field"):
        counts = a.counts(by)
        assert isinstance(counts, pd.Series) and counts.sum() == a.bits and counts.dtype == np.int64


FLIPS, STUCK = dr.BitFlip(0.03).sample(SPACE, seed=3), dr.StuckAt(1, 0.05).sample(SPACE, seed=4)
KEPT = {str(kind): kind.sample(SPACE, seed=2**64 - 1) for kind in KINDS} | {
    "rows": dr.RowError(0.2, 16).sample(SPACE, seed=1),
    "some rows": dr.BitFlip(0.2).sample(SPACES[2], seed=1),
    "union": FLIPS | STUCK,
    "union of targets": dr.BitFlip(0.2).sample(SPACES[2], seed=1) | STUCK,
    "restricted": FLIPS.restrict("mantissa"),
    "restricted union": (FLIPS | STUCK).restrict(("sign", "exponent")),
    "some dropped": STUCK.drop(np.arange(len(STUCK)) % 3 == 0),
    "all dropped": STUCK.drop(np.ones(len(STUCK), bool)),
}


@pytest.mark.parametrize("name", KEPT)
def test_saved_and_loaded(name, tmp_path):
    error_map = KEPT[name]
    error_map.save(tmp_path / "folder" / "map.npz")
    loaded = ErrorMap.load(tmp_path / "folder" / "map.npz")
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["map.npz"]
    for array in ARRAYS:
        one, other = getattr(error_map, array), getattr(loaded, array)
        assert (one is None) == (other is None)
        assert one is None or (np.array_equal(one, other) and one.dtype == other.dtype)
    assert drawn_alike(loaded, error_map) and loaded.bits == error_map.bits
    assert repr(loaded) == repr(error_map) and loaded.frame().equals(error_map.frame())
    before, twin = words(MODEL), make()
    error_map.apply(twin)
    with loaded.applied(MODEL):
        assert words(MODEL) == words(twin)
    assert words(MODEL) == before


def edited(path, arrays, about):
    """The file with some arrays and entries of its description changed (None: left out)."""
    with np.load(path) as file:
        content = dict(file)
    text = json.loads(content.pop("about").tobytes()) | about
    text = {name: value for name, value in text.items() if value is not None or name not in about}
    content |= arrays
    content = {name: array for name, array in content.items() if array is not None}
    text["arrays"] = sorted({*text["arrays"], *arrays})
    with open(path, "wb") as handle:
        np.savez_compressed(handle, about=np.frombuffer(json.dumps(text).encode(), np.uint8), **content)


U64 = np.uint64


@pytest.mark.parametrize(
    ("arrays", "about"),
    [
        ({"word": np.array([1, 0, 5])}, {}),
        ({"word": np.array([0, 0, 5])}, {}),
        ({"mask": np.array([1, 256, 1], U64)}, {}),
        ({"mask": np.array([1, 0, 1], U64)}, {}),
        ({"word": np.array([-1, 0, 5])}, {}),
        ({"word": np.array([0, 1, 12])}, {}),
        ({"tensor": np.array([0, 0, 2], np.int32)}, {}),
        ({"tensor": np.array([-1, 0, 0], np.int32)}, {}),
        ({"word": np.array([0.0, 1, 5])}, {}),
        ({"mask": np.array([1, 2], U64)}, {}),
        ({"original": np.array([1, 2], U64)}, {}),
        ({"depends": np.array([1, 0, 1])}, {}),
        ({"word": np.array([0, 1, "5"], object)}, {}),
        ({"mask": None}, {}),
        ({}, {"format": 1}),
        ({}, {"fingerprint": [["a", [4], "int8", "a"]]}),
        ({}, {"fingerprint": [["a", [4], "float31", "a"], ["b", [12], "float32", "b"]]}),
        ({}, {"more": 1}),
    ],
)
def test_edited_files_are_refused(arrays, about, tmp_path):
    model, path = holder(a=torch.zeros(4, dtype=torch.int8), b=torch.zeros(12)), tmp_path / "map.npz"
    dr.FixedCount(3).sample(resolve(model, "everything"), seed=1).save(path)
    right = {
        "tensor": np.array([0, 0, 1], np.int32),
        "word": np.array([0, 1, 5]),
        "mask": np.array([1, 128, 2**31], U64),
    }
    edited(path, right, {})
    assert entries(ErrorMap.load(path)) == {("a", 0): 1, ("a", 1): 128, ("b", 5): 2**31}
    edited(path, arrays, about)
    with pytest.raises(ValueError, match="map.npz"):
        ErrorMap.load(path)
    for content in (b"", b"PK", b"not a map", b"\x80\x04N."):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="map.npz"):
            ErrorMap.load(path)


def test_a_file_with_one_byte_damaged_is_refused_or_read_rightly(tmp_path):
    """What the words were must not get lost on the way: the map would fit any model."""
    space, path = resolve(MODEL, "part.cube"), tmp_path / "map.npz"
    error_map = dr.StuckAt(1, 0.02).sample(space, seed=1) | dr.BitFlip(0.01).sample(space, seed=1)
    error_map.save(path)
    content = path.read_bytes()
    for place in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        try:
            loaded = ErrorMap.load(path)
        except ValueError:
            continue
        for array in ARRAYS:
            assert np.array_equal(getattr(loaded, array), getattr(error_map, array)), place


def test_a_map_says_the_version_of_its_clock(tmp_path):
    """Maps of drsrobust 0.7 and before, which say none, are of version 1."""
    drawn = dr.BitFlip(0.1).sample(resolve(nn.Linear(4, 4)), seed=1)
    path = tmp_path / "map.npz"
    drawn.save(path)
    assert ErrorMap.load(path).clock == 2
    edited(path, {}, {"clock": None, "rank": None})
    before = ErrorMap.load(path)
    assert before.clock == 1 and before.rank is None and (before | before).clock == 1 and (before | drawn).clock is None
