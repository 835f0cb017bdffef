"""Rows from frames and tensors: the same rows from every kind of frame, labels as people have them, and what is refused."""

import re
import tracemalloc
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.data import from_batches, from_frame, from_tensors
from drsrobust.metrics import auc, log_loss, normalised_entropy
from tests.refusals import refuses

COLUMNS = {"label": "clicked", "dense": ["price", "age"], "sparse": ["item", "tags"], "user": "user"}


@pytest.fixture
def frame():
    columns = {"clicked": [1, 0, 1, 0], "price": [0.5, 1.5, 2.5, 3.5], "age": [1, 2, 3, 4]}
    columns |= {"item": [3, 0, 2, 2], "tags": [[1, 2], [], [5], [0, 0]], "user": [10, 10, 20, 30]}
    return pd.DataFrame(columns)


def test_what_a_frame_becomes(frame):
    data = from_frame(frame, **COLUMNS)
    rows = data.test
    assert len(data.train) == len(data.valid) == 0 and len(rows) == 4
    assert rows.dense.dtype == np.float32 and rows.dense.tolist() == frame[["price", "age"]].to_numpy().tolist()
    assert rows.labels.tolist() == [1, 0, 1, 0] and rows.users.tolist() == [10, 10, 20, 30]
    assert rows.sparse["item"].values.tolist() == [3, 0, 2, 2] and rows.sparse["item"].lengths is None
    tags = rows.sparse["tags"]
    assert tags.values.tolist() == [1, 2, 5, 0, 0] and tags.lengths.tolist() == [2, 0, 1, 2]
    features = [(one.name, one.cardinality, one.multi_hot) for one in data.schema.features]
    assert features == [("item", 4, False), ("tags", 6, True)]
    batch = rows.batch(np.array([3, 0]))
    assert batch.sparse_features["tags"].values().tolist() == [0, 0, 1, 2] and batch.labels.tolist() == [0, 1]


class Polars(dict):
    """A frame with columns that give Arrow arrays, as those of polars."""

    columns = property(list)

    def __init__(self, table):
        columns = {name: table.column(name).combine_chunks for name in table.column_names}
        super().__init__({name: SimpleNamespace(to_arrow=column) for name, column in columns.items()})


@pytest.mark.parametrize("kind", [lambda table: table, Polars, pa.Table.to_reader, pa.RecordBatchReader.from_stream])
def test_every_kind_of_frame_gives_the_same_rows(frame, kind):
    """A stream of Arrow is read once."""
    other = kind(pa.Table.from_pandas(frame))
    assert from_frame(other, **COLUMNS).fingerprint == from_frame(frame, **COLUMNS).fingerprint


def test_tensors_give_the_rows_of_the_frame(frame):
    tags = (torch.tensor([1, 2, 5, 0, 0]), torch.tensor([2, 0, 1, 2]))
    data = from_tensors(
        label=torch.tensor(frame["clicked"]),
        dense=torch.tensor(frame[["price", "age"]].to_numpy()),
        sparse={"item": frame["item"].to_numpy(), "tags": tags},
        user=frame["user"].to_numpy(),
    )
    expected = from_frame(frame, **COLUMNS).test
    assert np.array_equal(data.test.dense, expected.dense) and np.array_equal(data.test.users, expected.users)
    for name in ("item", "tags"):
        assert all(map(np.array_equal, data.test.sparse[name], expected.sparse[name]))  # of items there are no lengths


def test_the_fingerprint_is_of_contents_prior_and_tasks(frame):
    """The same test rows after other training rows have another prior, which a NaN score counts as."""
    known = from_frame(frame, **COLUMNS).fingerprint
    assert from_frame(frame.copy(), **COLUMNS).fingerprint == known
    for column, value in (("clicked", 0), ("price", 9.0), ("item", 1), ("user", 11)):
        changed = frame.copy()
        changed.loc[0, column] = value
        assert from_frame(changed, **COLUMNS).fingerprint != known, column
    frame = pd.DataFrame({"a": np.arange(20.0), "y": [0, 1] * 10, "z": [1, 1, 0, 0] * 5})
    one, other = (from_frame(frame, label="y", dense=["a"], split=(0.5, 0.0, 0.5), seed=seed) for seed in (1, 2))
    row = np.intersect1d(one.test.rows, other.test.rows)[0]
    first, second = (data.test.take(np.flatnonzero(data.test.rows == row)) for data in (one, other))
    assert one.train.prior != other.train.prior and first.dense == second.dense
    assert first.fingerprint != second.fingerprint
    tasks = [from_tensors(label=frame[["y", "z"]].to_numpy(), tasks=names).test for names in (("y", "z"), ("z", "y"))]
    assert tasks[0].fingerprint != tasks[1].fingerprint


def test_a_split_is_drawn_and_every_row_is_in_one_part(frame):
    many = pd.concat([frame] * 50, ignore_index=True)
    data = from_frame(many, **COLUMNS, split=(0.8, 0.1, 0.1), seed=1)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [160, 20, 20]
    found = np.concatenate([part.rows for part in (data.train, data.valid, data.test)])
    assert sorted(found.tolist()) == list(range(200))
    same, other = (from_frame(many, **COLUMNS, split=(0.8, 0.1, 0.1), seed=seed) for seed in (1, 2))
    assert np.array_equal(same.test.rows, data.test.rows) and not np.array_equal(other.test.rows, data.test.rows)


def test_tasks_and_items(frame):
    frame = frame.assign(bought=[0, 0, 1, 0], next=[[1, 4], [0], [2], []])
    data = from_frame(frame, label=["clicked", "bought"], sparse=["item"])
    assert data.test.labels.tolist() == [[1, 0], [0, 0], [1, 1], [0, 0]] and data.test.tasks == ("clicked", "bought")
    items = from_frame(frame, label="next", task="ranking").test.labels
    assert items.values.tolist() == [1, 4, 0, 2] and items.lengths.tolist() == [2, 1, 1, 0]


def test_columns_of_any_name(frame):
    """Headerless frames, whole numbers as names, names that are attributes of frames, and an empty one."""
    plain = from_frame(frame, **COLUMNS)
    for names in (range(6), np.arange(10, 16), ["keys", "", "values", "item.title", "type", "columns"]):
        renamed = frame.set_axis(list(names), axis=1)
        label, price, age, item, tags, user = names
        data = from_frame(renamed, label=label, dense=[price, age], sparse=[item, tags], user=user)
        assert data.schema.dense == (str(price), str(age)) and list(data.test.sparse) == [str(item), str(tags)]
        assert np.array_equal(data.test.dense, plain.test.dense) and np.array_equal(data.test.users, plain.test.users)
        assert np.array_equal(data.test.sparse[str(tags)].values, plain.test.sparse["tags"].values)
    data = from_frame(frame.set_axis(range(6), axis=1), label="0", sparse=[3], cardinalities={3: 9})
    assert [(one.name, one.cardinality) for one in data.schema.features] == [("3", 9)]
    data = from_frame(frame.set_axis(range(6), axis=1), label=[0], sparse=[3], vocabulary={3: [2, 3, 0]})
    assert data.test.sparse["3"].values.tolist() == [1, 2, 0, 0]
    ids = np.array([1, 2])
    assert from_tensors(label=np.array([0, 1]), sparse={7: ids}).schema.features[0].name == "7"
    refuses(lambda: from_tensors(label=ids, sparse={7: ids, "7": ids}), ValueError, "sparse has '7' twice")
    numbers = frame.set_axis(range(6), axis=1)
    refuses(lambda: from_frame(numbers, label=0, sparse=[9]), ValueError, "column '9'", "known: 0, 1")


def test_a_column_that_the_frame_has_twice(frame):
    twice, number = (frame.set_axis(["y", "a", "b", *two, "user"], axis=1) for two in (["c", "c"], ["7", 7]))
    table = pa.table([[0, 1], [1, 2], [3, 4]], names=["y", "c", "c"])
    for given, name in ((twice, "c"), (table, "c"), (number, "7")):
        said = f"2 columns of the name '{name}'"
        refuses(lambda given=given, name=name: from_frame(given, label="y", sparse=[name]), ValueError, said)
    assert len(from_frame(twice, label="y", dense=["a"]).test) == 4  # it is not asked for


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": "click"}, "column 'click'; did you mean 'clicked'"),
        ({"dense": ["price", "clicked"]}, "column 'clicked'"),
        ({"dense": ["text"]}, "column 'text'"),
        ({"dense": ["holes"]}, "column 'holes': 1 values are missing, the first in row 2"),
        ({"dense": ["endless"]}, "column 'endless' holds inf in row 1"),
        ({"sparse": ["negative"]}, "column 'negative' holds id -1 in row 3; .*2147483647; vocabulary="),
        ({"cardinalities": {"item": 3}}, "column 'item' holds id 3 in row 0; its cardinality is 3"),
        ({"cardinalities": {"itm": 3}}, "cardinalities 'itm'; did you mean 'item'"),
        ({"cardinalities": {"item": 0}}, "cardinality of 'item' .*0"),
        ({"split": (0.5, 0.5)}, "split"),
        ({"task": "clicks"}, "task 'clicks'; did you mean 'click'"),
        ({"frame": [1, 2]}, "frame is a list"),
        ({"frame": pd.DataFrame(columns=["clicked", "price", "age", "item", "tags", "user"])}, "no rows"),
    ],
)
def test_what_is_refused(frame, change, said):
    more = {"text": ["a", "b", "c", "d"], "holes": [1.0, 2.0, None, 4.0]}
    frame = frame.assign(endless=[0, np.inf, 0, 0], negative=[0, 1, 2, -1], **more)
    with pytest.raises((ValueError, TypeError), match=said):
        from_frame(**({"frame": frame} | COLUMNS | change))


@pytest.mark.parametrize("method", ["collect", "df", "compute", "toPandas", "execute", "to_table"])
def test_a_frame_that_is_only_a_plan(frame, method):
    lazy = type("Plan", (), {"columns": list(frame), method: lambda self: frame})
    with pytest.raises(TypeError, match=rf"frame is a Plan.*frame.{method}\(\)"):
        from_frame(lazy(), **COLUMNS)
    column = frame.rename(columns={"price": method})  # a frame may have a column of that name
    assert len(from_frame(column, **(COLUMNS | {"dense": [method]})).test) == len(frame)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1_000_000_001, 5, 2, 3], "'d' .1000000001 in row 0 is 1000000000."),
        ([1.0, 1_700_000_003.5, 2.0, 3.0], "'d' .1700000003.5 in row 1 is 1700000000."),
        ([2**24 + 1, 0, 0, 0], "'d' .16777217 in row 0 is 16777216."),
        ([2**60 + 1, 0, 0, 0], "'d' .1152921504606846977 in row 0"),
        ([2**24, -(2**30), 2**62 + 2**40, 0], None),
        ([float(2**24), -(2.0**30), 2.0**31, 1e9], None),
        ([0.1, 1 / 3, 1e20, -1e30], None),
    ],
)
def test_numbers_that_lose_digits_are_told_once(values, said):
    frame = pd.DataFrame({"y": [0, 1, 0, 1], "d": values, "e": [0.5] * 4})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        from_frame(frame, label="y", dense=["d", "e"])
        from_tensors(label=frame["y"].to_numpy(), dense=np.array(values))
    texts = [str(one.message) for one in told]
    assert len(texts) == (0 if said is None else 2) and all(one.filename == __file__ for one in told)
    if said:
        assert re.search(f"dense columns lose digits as float32, .*{said}", texts[0]), texts
        assert "'dense_0'" in texts[1]


def test_tensors_of_half_precision_and_those_that_are_refused():
    data = from_tensors(label=np.array([0, 1]), dense=torch.tensor([1.5, 2.5], dtype=torch.bfloat16))
    assert data.test.dense.tolist() == [[1.5], [2.5]]
    items, few = {"label": np.array([3, -1]), "task": "ranking", "dense": np.zeros(2)}, {"item": np.array([1, 2, 3])}
    refuses(lambda: from_tensors(**items), ValueError, "label holds id -1 in row 1")
    refuses(lambda: from_tensors(label=np.zeros(4), sparse=few), ValueError, "item has 3 rows, and the label 4")
    for lengths in ([1, 1, 1], [4, -1, 3], [9, 9, 9]):
        tags, said = {"tags": (torch.arange(6), torch.tensor(lengths))}, "tags has 6 values, and lengths that sum to"
        refuses(lambda tags=tags: from_tensors(label=np.zeros(3), sparse=tags), ValueError, said)


def test_rows_of_criteos_shape_take_little_more_memory_than_they_are():
    """What NumPy allocates, against the bytes of the frame."""
    n, random = 100_000, np.random.default_rng(0)
    dense = {f"d{i}": random.random(n, dtype=np.float32) for i in range(13)}
    sparse = {f"s{i}": random.integers(0, 1000, n, dtype=np.int32) for i in range(26)}
    frame = pd.DataFrame({"label": np.arange(n) % 2} | dense | sparse, copy=False)
    tracemalloc.start()
    data = from_frame(frame, label="label", dense=list(dense), sparse=list(sparse), split=(0.8, 0.1, 0.1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data.train) == 80_000 and 0.7 < peak / frame.memory_usage().sum() < 2.9


CLICKED = [1, 0, 0, 1]


def labelled(values, **columns):
    return pd.DataFrame({"y": values, "d": [0.5, 1.0, 2.0, 3.0], **columns})


@pytest.mark.parametrize(
    "values",
    [
        ["yes", "no", "no", "yes"],
        [" Y", "off", "False", "1"],
        ["on", "0", "N", "TRUE"],
        [True, False, False, True],
        np.array([True, False, False, True], object),
        pd.Categorical([1, 0, 0, 1]),
        pd.Categorical(["yes", "no", "no", "yes"], ["yes", "no"]),
        pd.array([1, 0, 0, 1], "Int64"),
        pd.array([True, False, False, True], "boolean"),
    ],
)
def test_labels_of_two_values(values):
    labels = from_frame(labelled(values), label="y", dense=["d"]).test.labels
    assert labels.dtype == np.float32 and labels.tolist() == CLICKED
    array = np.asarray(values)
    assert from_tensors(label=array).test.labels.tolist() == CLICKED
    assert from_batches([(0, array[:2]), (0, array[2:])]).labels.tolist() == CLICKED
    table = pa.table({"y": pa.array(labelled(values)["y"], from_pandas=True), "d": [0.5, 1.0, 2.0, 3.0]})
    assert from_frame(table, label="y", dense=["d"]).test.labels.tolist() == CLICKED


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"y": ["buy", "skip", "skip", "buy"]}, {}, "label 'y' holds 'buy' in row 0.* column == 'buy'"),
        ({"y": ["yes", "no", "perhaps", "yes"]}, {}, "label 'y' holds 'perhaps' in row 2"),
        ({"y": pd.Categorical(["low", "high", "low", "low"])}, {}, "label 'y' holds '(low' in row 0|high' in row 1)"),
        ({"y": [1, 0, 2, 0]}, {}, "label 'y' holds 2 in row 2"),
        ({"y": [1.0, 0.0, np.nan, 0.0]}, {}, "label 'y': 1 values are missing, the first in row 2"),
        ({"y": ["yes", "no", None, "no"]}, {}, "label 'y': 1 values are missing, the first in row 2"),
        ({"y": pd.to_datetime(["2026-01-01"] * 4)}, {}, "label 'y' is timestamp"),
        ({"y": [1, -1, 0, 1]}, {"unobserved": -1}, "unobserved is -1"),
        ({"y": CLICKED, "buy": [1, -1, 0, -1]}, {}, "label 'buy' holds -1 in row 1; .*unobserved=-1"),
        ({"y": CLICKED, "buy": CLICKED}, {"unobserved": "?"}, "unobserved is '.'.* 'y' is int64"),
    ],
)
def test_labels_that_are_refused(columns, options, said):
    label = list(columns) if len(columns) > 1 else "y"
    with pytest.raises((TypeError, ValueError), match=said):
        from_frame(pd.DataFrame(columns | {"d": [0.5, 1.0, 2.0, 3.0]}), label=label, dense=["d"], **options)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ([1.0, np.nan, 0.0, np.nan], {}),
        ([1, -1, 0, -1], {"unobserved": -1}),
        ([1.0, -1.0, 0.0, np.nan], {"unobserved": -1}),
        (["yes", None, "no", None], {}),
        (["yes", "?", "no", "?"], {"unobserved": "?"}),
        (pd.array([1, None, 0, None], "Int64"), {}),
        (pd.Categorical([1, None, 0, None]), {}),
    ],
)
def test_labels_of_a_task_that_were_not_observed(values, options):
    expected = [1.0, np.nan, 0.0, np.nan]
    clicked = ["yes", "no", "no", "yes"] if options.get("unobserved") == "?" else CLICKED
    data = from_frame(labelled(clicked, buy=values), label=["y", "buy"], dense=["d"], **options)
    np.testing.assert_array_equal(data.test.labels, np.stack([CLICKED, expected], axis=1))
    assert data.test.prior == 0.5 and "click rate 0.500" in repr(data.test)


def test_a_task_without_clicks_among_its_observed_rows_is_refused():
    rows = from_frame(labelled(CLICKED, buy=[0, np.nan, 0, np.nan]), label=["y", "buy"], dense=["d"])
    options = {"forward": lambda model, batch: model(batch.dense_features), "task": "multi"}
    refuses(lambda: dr.Evaluator(nn.Linear(1, 2), rows, **options), ValueError, "task 'buy' has 0 clicks in 2 rows")


def test_metrics_of_a_task_are_over_its_observed_rows():
    random, n = np.random.default_rng(3), 256
    dense = random.normal(size=(n, 4)).astype(np.float32)
    labels = (dense[:, :2] + random.normal(size=(n, 2)) > 0).astype(np.float32)
    labels[labels[:, 0] == 0, 1] = np.nan  # a purchase is seen after a click alone
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2, 4))
    batches = zip(torch.tensor(dense).split(64), torch.tensor(labels).nan_to_num(-1).split(64), strict=True)
    rows = from_batches(batches, tasks=("click", "buy"), unobserved=-1)
    forward = {"forward": lambda model, batch: model(batch[0]), "output": "logit", "scores": "logit"}
    evaluator = dr.Evaluator(model, rows, task="multi", **forward)
    observed = ~np.isnan(labels[:, 1])
    names = ["auc/click", "auc/buy", "logloss/buy", "ne/buy", "score_changed/buy"]

    def expected(scores):
        click, buy = labels[observed, 1], scores[observed, 1]
        rate = float(np.nanmean(labels, axis=0)[1])
        losses = [log_loss(click, buy, rate), normalised_entropy(click, buy, rate)]
        return [auc(labels[:, 0], scores[:, 0]), auc(click, buy), *losses]

    assert list(evaluator.golden.metrics(names).values()) == [*expected(evaluator.golden.scores), 0.0]
    for seed in range(6):
        with dr.inject(model, dr.FixedCount(2, bits=[30]), seed=seed) as error_map:
            run, rerun = evaluator.run(), evaluator.rerun(error_map)
            assert run.metrics(names) == rerun.metrics(names)
            assert list(run.metrics(names).values())[:4] == expected(run.scores)
    evaluator.verify()
    assert evaluator.golden.auc == pytest.approx(np.mean(expected(evaluator.golden.scores)[:2]))


def test_changed_rows_of_a_task_are_found_among_its_own():
    """Rows are known by their numbers in the data, and a task's metrics by those of its observed rows."""
    random, n = np.random.default_rng(4), 400
    labels = random.integers(0, 2, (n, 2)).astype(np.float32)
    labels[random.random(n) < 0.5, 1] = np.nan
    golden = random.normal(size=(n, 2))
    metrics = dr.metrics.tasks.MultiMetrics(labels, golden, [0.5, 0.5], ["a", "b"], random.integers(0, 9, n))
    for _ in range(20):
        scores, rows = golden.copy(), random.choice(n, 7, replace=False)
        scores[rows] = random.normal(size=(7, 2))
        names = ["auc/b", "logloss/b", "ndcg/b", "overlap/b", "score_changed/b"]
        assert metrics.measures(names, scores, rows) == metrics.measures(names, scores)
