"""Memory faults: modes by their rates, extents as a table of all places has them, bits of one chip."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
import torch
from scipy.stats import binom, chisquare
from torch import nn

import drsrobust as dr
from drsrobust.injection.address_space import AddressSpace, TargetTensor
from drsrobust.injection.critical_bits import CriticalBits
from drsrobust_extras.protection.memory_faults import CHIPS, MODES, Geometry, MemoryFault, _bernoulli
from drsrobust_extras.protection.rates import FAULTS, FIT

TOY = {mapping: Geometry(ranks=2, banks=2, rows=8, columns=8, mapping=mapping) for mapping in ("in order", "spread")}


def space_of(words, dtype=torch.float32):
    return AddressSpace([TargetTensor.of("w", "c", dtype, (words * 8 // dtype.itemsize,))])


def places(geometry, words):
    """Rank, bank, row and column of each of the first words, counted one after the other."""
    rank, rest = np.divmod(np.arange(words), geometry.banks * geometry.rows * geometry.columns)
    bank, offset = np.divmod(rest, geometry.rows * geometry.columns)
    if geometry.mapping == "spread":
        line, within = np.divmod(rest, 8)
        bank, offset = line % geometry.banks, line // geometry.banks * 8 + within
    return np.stack((rank, bank, *np.divmod(offset, geometry.columns)), axis=1)


SAME = {"bit": 4, "word": 4, "row": 3, "bank": 2, "banks": 1, "ranks": 0}  # leading parts of the place that are fixed


@pytest.mark.parametrize("mapping", TOY)
@pytest.mark.parametrize("words", [256, 150, 37])
@pytest.mark.parametrize("mode", MODES)
def test_extents_are_those_of_the_table_of_all_places(mapping, words, mode):
    geometry, space = TOY[mapping], space_of(words)
    filled = -(-words // 8) * 8  # tensors fill whole lines
    table = places(geometry, filled)
    key = table[:, [0, 1, 3]] if mode == "column" else table[:, : SAME[mode]]
    extents = {tuple(np.flatnonzero((key == one).all(axis=1))) for one in key}
    model = MemoryFault(mode, geometry=geometry)
    seen = Counter(tuple(model.extent(space, seed=seed).address) for seed in range(400))
    assert set(seen) <= extents
    assert model.places(space)[mode] == len(extents) * (4 if mode == "bit" else 1)
    if len(extents) <= 40:
        assert set(seen) == extents
        low, high = binom.ppf([1e-6, 1 - 1e-6], 400, 1 / len(extents))
        assert low <= min(seen.values()) and max(seen.values()) <= high


def test_modes_come_by_their_rates():
    space = space_of(256)
    model = MemoryFault(geometry=TOY["in order"])
    drawn = [model.extent(space, seed=seed).mode for seed in range(4000)]
    total = sum(one.total for one in FIT.values())
    assert total == pytest.approx(66.1)
    for mode in MODES:
        low, high = binom.ppf([0.0001, 0.9999], 4000, FIT[mode].total / total)
        assert low <= drawn.count(mode) <= high, mode


def test_other_rates_are_another_error_model():
    model = MemoryFault(fit={"row": (1, 2), "bank": (0, 1)})
    whole = replace(model, geometry=TOY["in order"])
    assert {whole.extent(space_of(256), seed=seed).mode for seed in range(40)} == {"row", "bank"}
    assert model.label == "MemoryFault(fit={'row': (1.0, 2.0), 'bank': (0.0, 1.0)})" != MemoryFault().label
    assert replace(model, density=0.25).fit == model.fit and replace(model, mode="row").label == "MemoryFault('row')"


def test_rates_follow_the_share_of_the_memory_that_is_filled():
    geometry = TOY["in order"]
    whole, half = (MemoryFault(geometry=geometry).hits_per_hour(space_of(words)) for words in (256, 128))
    devices = 2 * CHIPS
    assert sum(one.total for one in whole.values()) == pytest.approx(66.1 * devices * 1e-9)
    for mode in MODES:
        assert half[mode].total / whole[mode].total == pytest.approx(1 if mode == "ranks" else 0.5)
    few = MemoryFault(geometry=Geometry(columns=2048)).hits_per_hour(space_of(4096))  # 32 KiB of 8 GiB
    assert few["bit"].total == pytest.approx(FIT["bit"].total * 72e-9 * 4096 / Geometry().words)
    assert few["row"].total == pytest.approx(FIT["row"].total * 72e-9 * 2 / (4 * 8 * 16384))
    assert few["bank"].total == pytest.approx(FIT["bank"].total * 72e-9 / 32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8])
def test_bits_are_those_of_one_chip(dtype):
    space, width = space_of(64, dtype), 8 * dtype.itemsize
    for seed in range(60):
        model = MemoryFault("row", density=1.0, geometry=TOY["in order"])
        extent, drawn = model.extent(space, seed=seed), model.sample(space, seed=seed)
        pairs = product(zip(drawn.word.tolist(), drawn.mask.tolist(), strict=True), range(width))
        found = {word * width + bit for (word, mask), bit in pairs if mask >> bit & 1}
        hit = extent.address.tolist() if extent.chip < 16 else []  # others hold check bits
        assert found == {64 * word + 4 * extent.chip + bit for word in hit for bit in range(4)}


def test_density():
    random = np.random.default_rng(0)
    for density in (0.5, 0.25, 0.3, 2**-10):
        share = np.unpackbits(_bernoulli(random, 200_000, density)).mean()
        assert abs(share - density) < 5 * (density * (1 - density) / 1.6e6) ** 0.5
    assert _bernoulli(random, 3, 0.0).tolist() == [0, 0, 0] and _bernoulli(random, 3, 1.0).tolist() == [255] * 3
    space = space_of(256)
    few, many = (MemoryFault("ranks", density=d, geometry=TOY["spread"]).sample(space, seed=3) for d in (0.1, 0.5))
    assert 0 < few.bits < many.bits and not len(MemoryFault("bank", density=0.0).sample(space, seed=1))


def test_only_targeted_rows_are_hit_and_the_model_is_restored():
    model = nn.Sequential(nn.Embedding(400, 16), nn.Linear(16, 16))
    before = [one.clone() for one in model.parameters()]
    target = dr.Rows("0.weight", range(0, 400, 7))
    fault = MemoryFault("bank", density=1.0)
    for seed in range(20):
        with dr.inject(model, fault, target=target, seed=seed) as error_map:
            rows = error_map.frame()["row"] if len(error_map) else []
            assert all(row % 7 == 0 for row in rows)
    with dr.inject(model, fault, seed=2) as error_map:
        assert set(error_map.counts("tensor")[lambda found: found > 0].index) == {"0.weight", "1.weight", "1.bias"}
    assert all(map(torch.equal, before, model.parameters()))


def test_some_of_the_bits_of_some_chips():
    space, masks = space_of(64), set()
    for seed in range(60):
        fault = MemoryFault("column", density=1.0, chips=(7, 3), lines=1, geometry=TOY["in order"])
        (mask,) = set(fault.sample(space, seed=seed).mask.tolist())
        masks.add(mask)
    assert masks == {1 << bit for chip in (7, 3) for bit in range(4 * chip, 4 * chip + 4)}
    assert MemoryFault(chips=7).chips == (7,) == MemoryFault(chips=[7, 7]).chips
    seventh = MemoryFault(chips=7, geometry=TOY["in order"]).hits_per_hour(space)
    whole = MemoryFault(geometry=TOY["in order"]).hits_per_hour(space)
    assert seventh["row"].total == pytest.approx(whole["row"].total / CHIPS)
    assert MemoryFault(fit=FAULTS) == MemoryFault()
    assert str(MemoryFault("row", chips=(7,), lines=1)) == "MemoryFault('row', chips=[7], lines=1)"


def all_faults(fault, space):
    """Every fault of one bit or word, by chip, word of memory and wrong bits, with its probability: by counting."""
    starts, words = {}, 0
    for tensor in space.tensors:
        starts[tensor.name] = words
        words += -(-tensor.size * tensor.format.dtype.itemsize // 64) * 8
    masks = Counter(dict.fromkeys((1, 2, 4, 8), 1 / 4) if fault.mode == "bit" else {})
    choices = list(combinations(range(4), fault.lines)) if fault.mode == "word" else []
    for lines, wrong in product(choices, product((0, 1), repeat=fault.lines)):
        chance = np.prod([fault.density if bit else 1 - fault.density for bit in wrong])
        masks[sum(bit << line for bit, line in zip(wrong, lines, strict=True))] += chance / len(choices)
    places = product(range(CHIPS), range(words), masks.items())
    return {(chip, word, mask): chance / (CHIPS * words) for chip, word, (mask, chance) in places}, starts


def critical_of(space, starts, bits):
    """The critical bits of each word of memory, as a number of 64 bits: these of each float outside of the table."""
    found = {}
    for tensor in space.tensors:
        rows = range(tensor.shape[0]) if tensor.rows is None else tensor.rows.tolist()
        for row in rows if tensor.name != "0.weight" else ():
            for word in range(row * tensor.row_words, (row + 1) * tensor.row_words):
                address, within = divmod(word * tensor.format.width, 64)
                place = starts[tensor.name] + address
                found[place] = found.get(place, 0) | sum(1 << within + bit for bit in bits[tensor.format.width])
    return found


SMALL_FAULTS = {
    "bit": (MemoryFault("bit"), CriticalBits(), {32: [30], 64: [62]}),
    "word": (MemoryFault("word"), CriticalBits(), {32: [30], 64: [62]}),
    "two lines": (MemoryFault("word", density=0.75, lines=2), CriticalBits((30, 29)), {32: [29, 30], 64: [29, 30]}),
}


@pytest.mark.parametrize("kind", SMALL_FAULTS)
@pytest.mark.parametrize(
    "part", ["all", *(pytest.param(part, marks=pytest.mark.long) for part in ("rows", "two formats"))]
)
def test_strata_with_critical_bits_are_a_partition_of_all_faults(kind, part):
    """Weights are probabilities by enumeration, so that they sum to 1 and the weighted mean of any quantity is its plain mean;
    and maps of a stratum come by the conditional distribution."""
    fault, critical, bits = SMALL_FAULTS[kind]
    model = nn.Sequential(nn.Embedding(120, 3), nn.Linear(3, 2), nn.Linear(2, 1))
    model[2] = model[2].double() if part == "two formats" else model[2]
    space = dr.resolve(model, dr.Rows("1.weight", [1]) | "2.weight" | "0.weight" if part == "rows" else "all")
    faults, starts = all_faults(fault, space)
    held = critical_of(space, starts, bits)
    others = critical_of(space, starts, {width: [*range(mantissa, width)] for width, mantissa in ((32, 23), (64, 52))})
    top = {5, 6, 7, 13, 14, 15} | ({12} if part == "two formats" else set())

    def stratum_of(chip, word, mask):
        if chip >= 16:
            return "check chips"
        if mask << 4 * chip & held.get(word, 0):
            return "critical bits"
        if mask << 4 * chip & others.get(word, 0):
            return "other bits of sign and exponent"
        return f"{'exponent' if chip in top else 'mantissa'} chips, not critical"

    chances = {}
    for place, chance in faults.items():
        chances.setdefault(stratum_of(*place), {})[place] = chance
    strata = {one.name: one for one in fault.strata(space, critical) if not one.is_pilot}
    probabilities = {name: sum(found.values()) for name, found in chances.items()}
    assert {name: one.probability for name, one in strata.items()} == pytest.approx(probabilities, rel=1e-9)
    harm = {place: (place[0] + 1) * place[2] ** 2 + place[1] for place in faults}  # any quantity
    means = {name: np.average([harm[p] for p in found], weights=[*found.values()]) for name, found in chances.items()}
    plain = sum(chance * harm[place] for place, chance in faults.items())
    assert sum(strata[name].probability * mean for name, mean in means.items()) == pytest.approx(plain, rel=1e-9)
    for name, one in strata.items():
        seen, draws = Counter(), 2000 if "bits" in name else 300
        for seed in range(draws):
            extent = one.error_model.extent(space, seed=seed)
            (mask,) = one.error_model.wrong_bits(extent, seed=seed).tolist()
            seen[extent.chip, int(extent.address[0]), mask] += 1
        assert set(seen) <= set(chances[name])
        if "bits" in name:
            expected = draws * np.array([*chances[name].values()]) / one.probability
            assert chisquare([seen[place] for place in chances[name]], expected).pvalue > 1e-4


def test_strata_of_other_formats():
    for dtype, mode, names in (  # each chip holds exponents or signs, and all 64 bits of a full line count
        (torch.float8_e4m3fn, "bit", ["check chips", "other bits of sign and exponent", "critical bits"]),
        (torch.float8_e4m3fn, "row", ["exponent chips", "check chips"]),
        (torch.int8, "bit", ["all"]),
        (torch.int8, "row", ["all"]),
    ):
        strata = MemoryFault(mode).strata(space_of(8, dtype), CriticalBits())
        assert [one.name for one in strata if not one.is_pilot] == names
    both = AddressSpace(
        [TargetTensor.of("a", "c", torch.int8, (5, 7)), TargetTensor.of("b", "c", torch.float32, (5, 3))]
    )
    found = {one.name: one.probability for one in MemoryFault("bit").strata(both, CriticalBits())}
    # 16 words of 64 bits; 15 floats have a critical bit and 8 others of sign and exponent each, all bits of 35 integers count.
    other = 15 * 8 + 35 * 8
    assert found == pytest.approx(
        {
            "data chips, not critical": 16 / 18 - (15 + other) / (16 * 72),
            "check chips": 2 / 18,
            "other bits of sign and exponent": other / (16 * 72),
            "critical bits": 15 / (16 * 72),
            "pilot, others 7": 0.0,
            "pilot, mild 6": 0.0,
        }
    )
