"""What a device computes, which is the CPU here: the same pairs, batches, rows of tables and error maps as by NumPy."""

import copy
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import drsrobust as dr
from drsrobust.campaign.trial import audit
from drsrobust.data.dataset import Ids
from drsrobust.injection import AddressSpace, error_models
from drsrobust.injection.address_space import TargetTensor
from drsrobust.injection.error_models import from_bits, from_sorted_words
from drsrobust.injection.number_formats import quantized_rows
from drsrobust.metrics import BaselineMetrics, incremental
from drsrobust.metrics.auc import twice_won as expected
from drsrobust.models import build_model, score, state_digest
from drsrobust.models.scoring import padded_batches
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.scale import gpu
from drsrobust_extras.scale.device_pairs import twice_won
from drsrobust_extras.scale.device_rows import DeviceLookups, DeviceRows
from drsrobust_extras.scale.device_words import DeviceWords, drawing_gpu

CPU = torch.device("cpu")
SCORES = st.one_of(st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan]), st.floats(width=32))


@given(st.lists(st.tuples(st.booleans(), SCORES), max_size=40), st.sampled_from([np.float32, np.float64]))
def test_any_scores(rows, dtype):
    clicked, scores = np.array([row[0] for row in rows], bool), np.array([row[1] for row in rows], dtype)
    assert twice_won(clicked, scores, device=CPU) == expected(clicked, scores)


@pytest.mark.parametrize("compare", ["logit", "probability"])
def test_metrics_count_by_it_where_many_rows_changed(monkeypatch, compare):
    random, n = np.random.default_rng(0), 4000
    labels, golden = (random.random(n) < 0.3).astype(np.float32), random.normal(size=n).astype(np.float32)
    monkeypatch.setattr(incremental, "FEW_CHANGED", 20)
    counted = []

    def count(clicked, scores):
        counted.append(len(scores))
        return twice_won(clicked, scores, device=CPU)

    here = BaselineMetrics(labels, golden, 0.3, compare=compare)
    there = BaselineMetrics(labels, golden, 0.3, compare=compare, count_pairs=count)
    for m in (0, 1, 20, 21, 100, n):
        scores, rows = golden.copy(), random.permutation(n)[:m]
        scores[rows] *= random.choice([-1, 1, 1e30, np.nan], size=m).astype(np.float32)
        assert there.of_clicks(scores, rows) == pytest.approx(here.of_clicks(scores, rows), abs=0, nan_ok=True)
    assert counted == [n] * 3
    assert there.auc(scores) == here.auc(scores)
    there.check(golden)


@pytest.fixture(scope="module", params=["full", "ids"])
def either(request):
    return load_dataset(f"synthetic-movielens/{request.param}", rows=6000)


def assert_equal(one, other):
    ids = [batch.sparse_features for batch in (one, other)]
    assert ids[0].keys() == ids[1].keys()
    parts = [(one.dense_features, other.dense_features), (one.labels, other.labels)]
    parts += [(getattr(ids[0], name)(), getattr(ids[1], name)()) for name in ("values", "lengths", "offsets")]
    for a, b in parts:
        assert a.dtype == b.dtype and torch.equal(a, b)


def test_batches(either):
    split, random = either.test, np.random.default_rng(0)
    copy = DeviceRows(split, CPU)
    for rows in (slice(None), slice(7, 90), np.array([3, 3, 599, 0]), random.permutation(len(split)), np.array([5])):
        assert_equal(copy.batch(rows), split.batch(rows))


def test_lists_of_items_and_rows_without_ids(either):
    split, random = either.test, np.random.default_rng(0)
    lengths = random.integers(0, 3, len(split)).astype(np.int32)
    some = Ids(random.integers(0, 50, lengths.sum()).astype(np.int32), lengths)
    none = Ids(np.empty(0, np.int32), np.zeros(len(split), np.int32))
    made = replace(split, labels=some, sparse={"some": some, "none": none, **split.sparse})
    copy = DeviceRows(made, CPU)
    for rows in (slice(3, 60), random.permutation(len(split))[:40]):
        assert_equal(copy.batch(rows), made.batch(rows))
    assert_equal(DeviceRows(replace(split, sparse={}), CPU).batch(), replace(split, sparse={}).batch())


def test_rows_that_look_up_a_row_of_a_table(either):
    pytest.importorskip("torchrec", reason="its DLRM is TorchRec's")
    random, model = np.random.default_rng(0), build_model("dlrm", either.schema)
    by_index = dr.Evaluator(model, either.test)._reach._lookups
    by_scans = DeviceLookups(model, either.test, DeviceRows(either.test, CPU))
    with by_scans.watched(padded_batches(either.test)) as batches:
        score(model, batches, len(either.test))
    sizes = {name: len(parameter) for name, parameter in model.named_parameters() if name in by_index.tables}
    assert sizes and by_scans.rows([]).dtype == np.int64 and not len(by_scans.rows([]))
    reached = []
    for count in (1, 3, 30, 1000):
        hits = [(table, np.sort(random.integers(0, size, count))) for table, size in sizes.items()]
        for chosen in [*([hit] for hit in hits), hits]:
            expected = by_index.rows(chosen)
            assert np.array_equal(by_scans.rows(chosen), expected) and expected.dtype == np.int64
            reached.append(len(expected))
    assert len(set(reached)) > 5 and max(reached) > len(either.test) / 2


RATES = (1e-3, 0.05, 0.7)


class Mixed(nn.Module):
    """Tensors of four formats, one of them a scalar."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Parameter(torch.randn(7, 33))
        self.b = nn.Parameter(torch.randn(()))
        self.c = nn.Parameter(torch.randn(50).half())
        self.d = nn.Parameter(torch.randn(9, 8).bfloat16())
        self.e = nn.Parameter(torch.randn(31).double())


def maps(space, rate, seed=3):
    """The map by NumPy, and the one whose words lie on the device."""
    model = dr.BitFlip(rate)
    clock, about = model.clock(space.bits, seed), {"requested_rate": rate, "n_sites": space.bits}
    here = from_bits(model, space, clock.until_in_parts(rate), seed, **about)
    words = DeviceWords(space, torch.from_numpy(clock.until(rate)))
    none = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint64)
    return here, from_sorted_words(model, space, *none, seed, n_events=words.bits, **about).lying_on(words)


@pytest.mark.parametrize("bits", [None, "exponent", ("sign", 3)])
@pytest.mark.parametrize("rate", RATES)
def test_the_same_map_and_memory(rate, bits):
    model = Mixed()
    space = dr.resolve(model, "all").only(bits)
    here, there = maps(space, rate)
    before = state_digest(model)
    assert _here(there) == set()
    assert (len(there), there.bits, there.n_events) == (len(here), here.bits, here.n_events)
    assert list(there.by_tensor()) == list(here.by_tensor())
    assert audit(there).equals(audit(here))
    with here.applied(model):
        wrong = state_digest(model)
    with there.applied(model):
        assert state_digest(model) == wrong
    assert state_digest(model) == before and repr(there) == repr(here)
    assert _here(there) == set()  # nothing was fetched
    for name in ("tensor", "word", "mask"):
        array, other = getattr(here, name), getattr(there, name)
        assert array.dtype == other.dtype and np.array_equal(array, other)
    assert there.frame().equals(here.frame())


def _here(error_map):
    """The arrays that were fetched."""
    return {name for name in ("tensor", "word", "mask") if vars(error_map)[name] is not None}


def test_other_maps_of_it_have_arrays():
    here, there = maps(dr.resolve(Mixed(), "all"), 0.05)
    others = (replace(there), copy.copy(there), copy.deepcopy(there), pickle.loads(pickle.dumps(there)), there | there)
    for other in others:
        assert other.on_device is None and other.frame().equals(here.frame())
    for other in (there.restrict("sign"), there.drop(np.arange(len(there)) < 9)):
        assert other.on_device is None and 0 < len(other) < len(here)
    assert there.restrict("sign").frame().equals(here.restrict("sign").frame())
    with pytest.raises(AttributeError, match="'ErrorMap' object has no attribute 'nothing'"):
        there.nothing  # noqa: B018


@pytest.mark.parametrize("bits", [None, ("scale", "value")])
def test_quantized_rows(bits):
    tables = [
        TargetTensor(name, "embedding", (40, form.period), form)
        for name, form in (("a", quantized_rows("int4", 5, 4, 16)), ("b", quantized_rows("int8", 12, 4, 16)))
    ]
    here, there = maps(AddressSpace(tables).only(bits), 0.02)
    assert there.frame().equals(here.frame()) and len(here) > 100


def test_a_core_draws_what_a_gpu_does_not_hold():
    model = Mixed()
    space = dr.resolve(model, "all")
    assert drawing_gpu(space, 0.5) is None and drawing_gpu(space, 1e-9) is None


def test_a_campaign_has_the_same_table(trained, data, tmp_path, monkeypatch):
    """Under protections too, which change the errors in memory, or take part in the computation."""
    protections = [None, dr.ECC(), dr.WeightRange.fit(trained), dr.ActivationClipping(2.0)]
    grid = {"errors": [dr.BitFlip(1e-3)], "targets": ["all", "embedding"], "mitigations": protections, "trials": 3}
    evaluator = dr.Evaluator(trained, data.test)
    here = dr.Campaign(evaluator, store=tmp_path / "here", **grid).run(workers=1, progress=False)
    monkeypatch.setattr(error_models, "accelerator_of", lambda device: gpu.GPU())
    monkeypatch.setattr(gpu, "drawing_gpu", lambda *_: CPU)
    drawn = []

    def places(clock, rate, device):
        drawn.append(rate)
        return torch.from_numpy(clock.until(rate))

    monkeypatch.setattr(gpu, "drawn_places", places)
    there = dr.Campaign(evaluator, store=tmp_path / "there", **grid).run(workers=1, progress=False)
    assert len(drawn) >= len(there) == 24 and there.equals(here)
