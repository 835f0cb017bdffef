"""Which features a model's tables are read with: found in time that grows with the tables, not with their square."""

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.evaluation import lookups

ROWS = 96


class Tables(nn.Module):
    """One table for each feature, of ids or of bags, in any order."""

    def __init__(self, names, kind=nn.Embedding):
        super().__init__()
        self.names = names
        self.tables = nn.ModuleList(kind(50, 2) for _ in names)
        self.top = nn.Linear(2 * len(names), 1)

    def forward(self, dense_features, sparse_features):
        by_name, outputs = sparse_features.to_dict(), []
        for name, table in zip(self.names, self.tables, strict=True):
            ids, ends = by_name[name].values().long(), by_name[name].offsets()
            outputs.append(table(ids) if isinstance(table, nn.Embedding) else table(ids, ends[:-1].long()))
        return self.top(torch.cat(outputs, dim=1))


def features_of(model, data):
    """Table -> the features that it is read with, by a golden run in small batches."""
    seen = lookups.SplitLookups(model, data.test)
    with seen.watched(data.test.batches(32)) as batches, torch.no_grad():
        for batch in batches:
            model(batch.dense_features, batch.sparse_features)
    return [seen.features(f"tables.{number}.weight") for number in range(len(model.tables))]


def data_of(sparse):
    label = np.arange(ROWS) % 2
    return dr.data.from_tensors(label=label, sparse=sparse, cardinalities=dict.fromkeys(sparse, 50))


def test_features_are_compared_with_few_others(monkeypatch):
    """Before, each of T tables was compared with each of T features: 13 s for 512."""
    counts, same = [], lookups._same
    monkeypatch.setattr(lookups, "_same", lambda one, other: counts.append(1) or same(one, other))
    random, n = np.random.default_rng(0), 64
    names = [f"f{number}" for number in range(n)]
    ids = {name: random.integers(0, 50, ROWS) for name in names}
    model = Tables(names[::-1])
    assert features_of(model, data_of(ids)) == [[name] for name in names[::-1]]
    assert len(counts) <= 2 * n * 3  # batches


@pytest.mark.parametrize("digest", [None, lambda ids: 0])
def test_features_that_are_alike_for_a_while_or_whose_digests_collide(monkeypatch, digest):
    """`late` differs from `first` in the last batch alone, `twin` nowhere, and bags of `cut` hold the ids of `bags`."""
    if digest is not None:
        monkeypatch.setattr(lookups, "_digest", digest)
    first = np.random.default_rng(1).integers(0, 50, ROWS)
    late = np.append(first[:-1], (first[-1] + 1) % 50)
    names = ["first", "late", "twin"]
    for order in (names, names[::-1]):
        data = data_of({"first": first, "late": late, "twin": first.copy()})
        known = {"first": "first", "late": "late", "twin": "first"}  # of equal features the first by name
        assert features_of(Tables(order), data) == [[known[name]] for name in order]
    ids, lengths = np.arange(2 * ROWS) % 50, np.full(ROWS, 2)
    other = lengths + np.where(np.arange(ROWS) % 2, 1, -1)
    data = data_of({"bags": (ids, lengths), "cut": (ids, other)})
    assert features_of(Tables(["cut", "bags"], nn.EmbeddingBag), data) == [["cut"], ["bags"]]


def test_ids_that_are_not_the_split_s_are_of_no_feature():
    ids = np.random.default_rng(2).integers(0, 49, ROWS)

    class Shifted(Tables):
        def forward(self, dense_features, sparse_features):
            return self.top(self.tables[0](sparse_features["f"].values().long() + 1))

    assert features_of(Shifted(["f"]), data_of({"f": ids})) == [None]
