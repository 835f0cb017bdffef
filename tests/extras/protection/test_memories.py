"""Memories by name: each number has a source, what has none is refused, and faults and chipkill use them. Rates of errors."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import drsrobust as dr
from drsrobust_extras.protection.memories import MEMORIES
from tests.mitigation.plain import screened
from tests.refusals import refuses

TABLE = nn.Embedding(4000, 16)
SPACE = dr.resolve(TABLE)


@pytest.mark.parametrize("name", MEMORIES)
def test_each_number_has_a_source_and_no_source_means_none(name):
    table = dr.memory(name).table()
    given = table["value"].notna()
    assert (table["source"].str.len().gt(0) == given).all() and table["read"].str.len().gt(0).all()
    assert dr.memory(name).geometry.words * 8 >= 2**28 and dr.memory(dr.memory(name)).name == name


def test_one_device_fails_in_all_of_its_bits():
    for name, share in (("ddr5", 8), ("hbm4", 64), ("lpddr6", 64)):
        drawn = [dr.MemoryFault("row", memory=name, chips=[0]).sample(SPACE, seed=seed) for seed in range(8)]
        for one in drawn:
            words = one.word.max() // 2 - one.word.min() // 2 + 1
            assert words <= dr.memory(name).geometry.columns and one.bits == pytest.approx(share / 2 * words, rel=0.25)
        bit = dr.MemoryFault("bit", memory=name, chips=[0]).sample(SPACE, seed=1)
        assert bit.bits == 1 and drawn[0].sources[0].error_model.columns()["error_mapping"] == f"in order, {name}"
    assumed = dr.MemoryFault(memory="lpddr6", fit=dr.rates.FAULTS)  # no device shares its place with others
    assert "ranks" not in assumed.hits_per_hour(SPACE)
    assert "ranks" not in {assumed.extent(SPACE, seed=seed).mode for seed in range(20)}
    masks = {int(mask) for mask in dr.MemoryFault("bank", memory="ddr5", chips=[5]).sample(SPACE, seed=1).mask}
    assert max(masks) == 15 << 20 and all(mask & ~(15 << 20) == 0 for mask in masks)  # bits 20 to 23 of both floats
    assert not len(dr.MemoryFault("bank", memory="ddr5", chips=[9]).sample(SPACE, seed=1))  # check bits


def test_the_memory_of_2012_by_name_has_the_strata_of_none():
    faults = [dr.MemoryFault("bit", memory=name) for name in (None, "ddr2-2012")]
    of_none, by_name = (fault.strata(SPACE, dr.injection.CriticalBits()) for fault in faults)
    assert len(of_none) > 1
    for one, other in zip(of_none, by_name, strict=True):
        assert (one.name, one.probability) == (other.name, other.probability)


def test_chipkill_corrects_one_of_ten_devices_and_none_where_there_is_one():
    assert dr.Chipkill(memory="ddr2-2012").identity() == dr.Chipkill().identity()
    chipkill = dr.Chipkill(memory="ddr5")
    for chip in range(10):
        fault = dr.MemoryFault("bank", memory="ddr5", chips=[chip]).sample(SPACE, seed=chip)
        assert not screened(chipkill, fault, TABLE, chip).remaining.bits
    assert chipkill.cost(TABLE).stored_bits == 4000 * 16 * 32 // 4
    for name in ("hbm4", "lpddr6"):
        refuses(lambda name=name: dr.Chipkill(memory=name), ValueError, name, "one device")
        fault = dr.MemoryFault("row", memory=name).sample(SPACE, seed=1)
        for one in (dr.Chipkill(), dr.SelectiveChipkill()):
            refuses(lambda fault=fault, one=one: screened(one, fault, TABLE, 1), ValueError, name, "one device")
    fault = dr.MemoryFault("row", memory="ddr5").sample(SPACE, seed=1)
    refuses(lambda: screened(dr.Chipkill(), fault, TABLE, 1), ValueError, "ddr5", "ddr2-2012")
    plain, flips = (one.sample(SPACE, seed=1) for one in (dr.MemoryFault("row"), dr.BitFlip(1e-4)))
    refuses(lambda: screened(chipkill, plain, TABLE, 1), ValueError, "ddr2-2012", "ddr5")
    assert screened(chipkill, flips, TABLE, 1).remaining.bits < flips.bits


def test_refusals():
    refuses(lambda: dr.memory("ddr4"), ValueError, "ddr4", "2408.15302")
    refuses(lambda: dr.memory("hbm5"), ValueError, "'hbm5'", "hbm4")
    refuses(lambda: dr.memory(5), ValueError, "memory", 5)
    refuses(lambda: dr.memory(replace(dr.memory("hbm4"), data_devices=4)), ValueError, "memory", "'hbm4'")
    only_ranks = {"ranks": dr.rates.Fit(1.0, 0.0)}
    refuses(lambda: dr.MemoryFault(memory="hbm4", fit=only_ranks), ValueError, "fit")
    refuses(lambda: dr.memory("ddr5").fit_per_mbit("80GB"), ValueError, "ddr5")
    refuses(lambda: dr.memory("hbm4").fit_per_mbit(0), ValueError, "capacity", 0)
    refuses(lambda: dr.memory("hbm4").fit_per_mbit("much"), ValueError, "capacity", "'much'")
    refuses(lambda: dr.memory("hbm4").fit_per_mbit(), TypeError, "capacity")
    refuses(lambda: dr.MemoryFault(memory="hbm4"), ValueError, "hbm4", "rates by mode")
    refuses(lambda: dr.MemoryFault("ranks", memory="hbm4"), ValueError, "ranks", "hbm4")
    refuses(lambda: dr.MemoryFault("row", memory="ddr5").hits_per_hour(SPACE), ValueError, "ddr5", "rates by mode")
    refuses(lambda: dr.MemoryFault("row", memory="hbm4", chips=[1]), ValueError, "chips", 1)
    refuses(lambda: dr.MemoryFault("row", memory="hbm4", lines=1), ValueError, "lines", 1)
    refuses(lambda: dr.MemoryFault("bit", memory="ddr5", critical=0), ValueError, "critical", 0)


def test_rates_by_hand():
    """25,000 FIT per Mbit are 25,000 / 1e9 / 2**20 errors per bit and hour: 2.38e-11 (Schroeder et al., 2009)."""
    assert dr.rates.ber(25_000, 1) == pytest.approx(2.384e-11, rel=1e-3)
    assert dr.rates.ber(70_000, 1) == pytest.approx(6.676e-11, rel=1e-3)
    assert dr.rates.ber(0, 1e6) == dr.rates.ber(1e6, 0) == 0.0
    assert dr.rates.ber(1e30, 1e9) == 1.0


@given(st.floats(1e-15, 0.999), st.floats(1e-3, 1e5))
def test_there_and_back(ber, hours):
    fit = dr.rates.fit_per_mbit(ber, hours)
    assert dr.rates.ber(fit, hours) == pytest.approx(ber, rel=1e-9)
    assert dr.rates.hours(ber, fit) == pytest.approx(hours, rel=1e-9)


@pytest.mark.parametrize("end", [1e-9, 1e-5, 1.00001e-5, 1e-3, 0.5, 0.999])
def test_the_mean_over_an_interval(end):
    """Against the sum over a million moments."""
    fit = dr.rates.fit_per_mbit(end, 24)
    moments = (np.arange(1_000_000) + 0.5) / 1_000_000
    expected = -np.expm1(math.log1p(-end) * moments).mean()
    assert dr.rates.mean_ber(fit, 24) == pytest.approx(expected, rel=1e-6)


def test_events_and_faults_count_different_things():
    """5,000 to 14,000 logged events per TB and day; 0.013 faults, the sum over the modes of `MemoryFault`."""
    frame = dr.rates.field_rates(24).set_index("kind")
    assert frame.loc["events", "per_tb_day_low"] == pytest.approx(5033, rel=1e-3)
    assert frame.loc["events", "per_tb_day_high"] == pytest.approx(14_093, rel=1e-3)
    assert frame.loc["faults", "per_tb_day_low"] == pytest.approx(0.01300, rel=1e-3)
    assert frame.loc["faults", "fit_low"] * 1024 == pytest.approx(sum(one.total for one in dr.rates.FIT.values()))
    assert frame.loc["events", "ber_low"] == pytest.approx(24 * 2.384e-11, rel=1e-3)
    assert frame.loc["events", "fit_low"] / frame.loc["faults", "fit_low"] == pytest.approx(3.9e5, rel=0.01)
