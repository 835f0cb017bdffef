"""Single errors, counts by bit, false alarms, errors beyond rounding; repair within a campaign; alarms of forward passes."""

import copy

import numpy as np
import pandas as pd
import pytest

from drsrobust.models import padded_batches
from drsrobust_extras.protection.abft.embedding import ABFTEmbeddingBag
from drsrobust_extras.protection.abft.linear import ABFTLinear
from drsrobust_study.abft import COLUMNS, beyond_rounding, by_bit, false_alarms, single_errors

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def both(data, trained):
    return [ABFTLinear.fit(trained), ABFTLinear.fit(trained, data.train, mode="calibrated")]


def test_linear_layers(data, trained, both):
    found = single_errors(trained, data.test, both, 320, seed=1, progress=False)
    assert len(found) == 640 and found["mitigation"].nunique() == 2
    for (_, group), threshold in zip(found.groupby("mitigation", sort=False), (1e-2, 1e-3), strict=True):
        significant = group[group["moved"] > threshold]
        assert len(significant) > 25 and significant["detected"].all()
        assert group["tensor"].nunique() == 10 and set(group["bit"]) == set(range(32))
        assert (group["moved_left"] == group["moved"]).all()  # nothing was done about them
    assert (found["rows_reached"][found["moved"] > 0] == len(data.test)).all()


def test_the_table(data, trained, both):
    errors = single_errors(trained, data.test, both[:1], 320, targets=["over_mlp"], progress=False)
    found = by_bit(errors, errors["moved"] > 1e-2, false_alarms(trained, both[:1], padded_batches(data.test)))
    assert tuple(found.columns) == COLUMNS and set(found["bit"]) == set(range(32))
    assert found["injections"].sum() == 320
    assert set(found["component"]) == {"over_mlp"}
    assert (found["significant_detected"] <= found[["significant", "detected"]].min(axis=1)).all()
    assert (found["significant_detected"] == found["significant"]).all()
    assert (found["false_alarms"] == 0).all() and (found["clean_rows"] >= len(data.test)).all()
    again = single_errors(trained, data.test, both[:1], 32, targets=["over_mlp"], progress=False)
    pd.testing.assert_frame_equal(errors[:32], again)


def test_rows_of_tables(data, trained):
    found = single_errors(
        trained, data.test, [ABFTEmbeddingBag.fit(trained)], 400, targets=["embedding"], progress=False
    )
    read = found[(found["rows_reached"] > 0) & (found["bit"] >= 23) & (found["change"] > 0)]
    assert len(read) > 30 and read["detected"].all()
    assert not found[found["rows_reached"] == 0]["detected"].any()


def test_alarms_are_counted(data, trained, both):
    batches = padded_batches(data.test)
    rows = sum(len(batch.labels) for batch in batches)
    assert false_alarms(trained, both, batches) == {one.name: (0, rows) for one in both}
    wrong = copy.deepcopy(trained)
    wrong.over_arch.model[1].bias.data += 1.0
    assert false_alarms(wrong, both[:1], iter(batches)) == {both[0].name: (len(batches), rows)}


def test_beyond_rounding_by_hand(data, trained):
    """What float64 pooling of the rows says: an error of half the bound is none, one of twice the bound is."""
    check = ABFTEmbeddingBag.fit(trained)
    errors = single_errors(trained, data.test, [check], 64, targets=["embedding"], progress=False)
    tables = {name: p.detach().double() for name, p in trained.named_parameters() if "embedding_bags" in name}
    for name in errors["tensor"].unique():
        table, ids = tables[name], data.test.sparse[name.split(".")[-2].removeprefix("t_")]
        lengths = np.ones(len(ids.values), int) if ids.lengths is None else ids.lengths
        bag = np.repeat(np.arange(len(lengths)), lengths)
        pooled = np.bincount(bag, table.abs().sum(1).numpy()[ids.values], len(lengths))
        terms = table.shape[1] + 3 * (lengths + 2) + 3
        row = int(ids.values[0])
        least = (terms * 2.0**-24 * pooled)[bag][ids.values == row].min()
        pair = errors[errors["tensor"] == name].iloc[[0, 0]]
        pair = pair.assign(word=row * table.shape[1], change=[least / 2, 2 * least])
        assert beyond_rounding(trained, data.test, pair).tolist() == [False, True]
        unread = np.setdiff1d(np.arange(len(table)), ids.values)
        if len(unread):
            pair = pair.assign(word=int(unread[0]) * table.shape[1], change=1e30)
            assert not beyond_rounding(trained, data.test, pair).any()
