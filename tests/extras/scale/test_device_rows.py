"""Rows on a device: the same batches and the same rows of tables as on the CPU, which is the device here."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from drsrobust.data.dataset import Ids
from drsrobust.evaluation import Evaluator
from drsrobust.models import build_model, score
from drsrobust.models.scoring import padded_batches
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.scale.device_rows import DeviceLookups, DeviceRows

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["full", "ids"])
def data(request):
    return load_dataset(f"synthetic-movielens/{request.param}", rows=6000)


def assert_equal(one, other):
    ids = [batch.sparse_features for batch in (one, other)]
    assert ids[0].keys() == ids[1].keys()
    for a, b in [
        (one.dense_features, other.dense_features),
        (one.labels, other.labels),
        (ids[0].values(), ids[1].values()),
        (ids[0].lengths(), ids[1].lengths()),
        (ids[0].offsets(), ids[1].offsets()),
    ]:
        assert a.dtype == b.dtype and torch.equal(a, b)


def test_batches(data):
    split, random = data.test, np.random.default_rng(0)
    copy = DeviceRows(split, CPU)
    for rows in (slice(None), slice(7, 90), np.array([3, 3, 599, 0]), random.permutation(len(split)), np.array([5])):
        assert_equal(copy.batch(rows), split.batch(rows))


def test_lists_of_items_and_rows_without_ids(data):
    """Some rows have no ids, and some no relevant item."""
    split, random = data.test, np.random.default_rng(0)
    lengths = random.integers(0, 3, len(split)).astype(np.int32)
    some = Ids(random.integers(0, 50, lengths.sum()).astype(np.int32), lengths)
    none = Ids(np.empty(0, np.int32), np.zeros(len(split), np.int32))
    made = replace(split, labels=some, sparse={"some": some, "none": none, **split.sparse})
    copy = DeviceRows(made, CPU)
    for rows in (slice(3, 60), random.permutation(len(split))[:40]):
        assert_equal(copy.batch(rows), made.batch(rows))
    assert_equal(DeviceRows(replace(split, sparse={}), CPU).batch(), replace(split, sparse={}).batch())


def test_rows_that_look_up_a_row_of_a_table(data):
    pytest.importorskip("torchrec", reason="its DLRM is TorchRec's")
    random, model = np.random.default_rng(0), build_model("dlrm", data.schema)
    by_index = Evaluator(model, data.test)._reach._lookups
    by_scans = DeviceLookups(model, data.test, DeviceRows(data.test, CPU))
    with by_scans.watched(padded_batches(data.test)) as batches:
        score(model, batches, len(data.test))
    sizes = {name: len(parameter) for name, parameter in model.named_parameters() if name in by_index.tables}
    assert sizes and by_scans.rows([]).dtype == np.int64 and not len(by_scans.rows([]))
    reached = []
    for count in (1, 3, 30, 1000):
        hits = [(table, np.sort(random.integers(0, size, count))) for table, size in sizes.items()]
        for chosen in [*([hit] for hit in hits), hits]:
            expected = by_index.rows(chosen)
            assert np.array_equal(by_scans.rows(chosen), expected) and expected.dtype == np.int64
            reached.append(len(expected))
    assert len(set(reached)) > 5 and max(reached) > len(data.test) / 2
