"""Rows from frames and tensors: the same rows from every kind of frame, and what is refused."""

import re
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from drsrobust.data import from_frame, from_tensors

COLUMNS = {"label": "clicked", "dense": ["price", "age"], "sparse": ["item", "tags"], "user": "user"}


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "clicked": [1, 0, 1, 0],
            "price": [0.5, 1.5, 2.5, 3.5],
            "age": [1, 2, 3, 4],
            "item": [3, 0, 2, 2],
            "tags": [[1, 2], [], [5], [0, 0]],
            "user": [10, 10, 20, 30],
        }
    )


def test_what_a_frame_becomes(frame):
    data = from_frame(frame, **COLUMNS)
    rows = data.test
    assert len(data.train) == len(data.valid) == 0 and len(rows) == 4
    assert rows.dense.dtype == np.float32 and rows.dense.tolist() == frame[["price", "age"]].to_numpy().tolist()
    assert rows.labels.tolist() == [1, 0, 1, 0] and rows.users.tolist() == [10, 10, 20, 30]
    assert rows.sparse["item"].values.tolist() == [3, 0, 2, 2] and rows.sparse["item"].lengths is None
    assert rows.sparse["tags"].values.tolist() == [1, 2, 5, 0, 0] and rows.sparse["tags"].lengths.tolist() == [
        2,
        0,
        1,
        2,
    ]
    assert [(one.name, one.cardinality, one.multi_hot) for one in data.schema.features] == [
        ("item", 4, False),
        ("tags", 6, True),
    ]
    batch = rows.batch(np.array([3, 0]))
    assert batch.sparse_features["tags"].values().tolist() == [0, 0, 1, 2] and batch.labels.tolist() == [0, 1]


class Polars:
    """A frame with columns that give Arrow arrays, as those of polars."""

    def __init__(self, table):
        self._table, self.columns = table, table.column_names

    def __getitem__(self, name):
        column = self._table.column(name)

        class Series:
            def to_arrow(self):
                return column.combine_chunks()

        return Series()


class Stream:
    """Only the Arrow C stream."""

    def __init__(self, table):
        self.__arrow_c_stream__ = table.__arrow_c_stream__


@pytest.mark.parametrize("kind", ["arrow", "polars", "stream"])
def test_every_kind_of_frame_gives_the_same_rows(frame, kind):
    table = pa.Table.from_pandas(frame)
    other = {"arrow": table, "polars": Polars(table), "stream": Stream(table)}[kind]
    assert from_frame(other, **COLUMNS).fingerprint == from_frame(frame, **COLUMNS).fingerprint


def test_polars_itself(frame):
    polars = pytest.importorskip("polars")
    assert from_frame(polars.from_pandas(frame), **COLUMNS).fingerprint == from_frame(frame, **COLUMNS).fingerprint


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
        for one, other in zip(data.test.sparse[name], expected.sparse[name], strict=True):
            assert (one is None and other is None) or np.array_equal(one, other)


def test_the_fingerprint_holds_prior_and_tasks():
    """The same test rows after other training rows have another prior, which a NaN score counts as."""
    frame = pd.DataFrame({"a": np.arange(20.0), "y": [0, 1] * 10, "z": [1, 1, 0, 0] * 5})
    one, same, other = (
        from_frame(frame, label="y", dense=["a"], split=(0.5, 0.0, 0.5), seed=seed) for seed in (1, 1, 2)
    )
    assert one.test.fingerprint == same.test.fingerprint and one.train.prior != other.train.prior
    rows = np.intersect1d(one.test.rows, other.test.rows)
    taken = [data.test.take(np.flatnonzero(np.isin(data.test.rows, rows))) for data in (one, other)]
    taken = [part.take(np.argsort(part.rows)) for part in taken]
    assert np.array_equal(*(part.dense for part in taken)) and taken[0].fingerprint != taken[1].fingerprint
    tasks = [from_tensors(label=frame[["y", "z"]].to_numpy(), tasks=names).test for names in (("y", "z"), ("z", "y"))]
    assert tasks[0].fingerprint != tasks[1].fingerprint


def test_the_fingerprint_is_of_the_contents(frame):
    known = from_frame(frame, **COLUMNS).fingerprint
    assert from_frame(frame.copy(), **COLUMNS).fingerprint == known
    for column, value in (("clicked", 0), ("price", 9.0), ("item", 1), ("user", 11)):
        changed = frame.copy()
        changed.loc[0, column] = value
        assert from_frame(changed, **COLUMNS).fingerprint != known, column


def test_a_split_is_drawn_and_every_row_is_in_one_part(frame):
    many = pd.concat([frame] * 50, ignore_index=True)
    data = from_frame(many, **COLUMNS, split=(0.8, 0.1, 0.1), seed=1)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [160, 20, 20]
    found = np.concatenate([part.rows for part in (data.train, data.valid, data.test)])
    assert sorted(found.tolist()) == list(range(200))
    other = from_frame(many, **COLUMNS, split=(0.8, 0.1, 0.1), seed=2)
    assert not np.array_equal(other.test.rows, data.test.rows)


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
    with pytest.raises(ValueError, match="sparse has '7' twice, as text and as a number"):
        from_tensors(label=np.array([0, 1]), sparse={7: ids, "7": ids})


def test_a_column_that_the_frame_has_twice(frame):
    for names in (["clicked", "a", "b", "item", "item", "user"], ["clicked", "a", "b", "7", 7, "user"]):
        twice = frame.set_axis(names, axis=1)
        with pytest.raises(ValueError, match=f"the frame has 2 columns of the name '{names[3]}'; rename all but one"):
            from_frame(twice, label="clicked", sparse=[names[4]])
        assert len(from_frame(twice, label="clicked", dense=["a"]).test) == 4  # it is not asked for
    table = pa.table([[0, 1], [1, 2], [3, 4]], names=["y", "c", "c"])
    with pytest.raises(ValueError, match="the frame has 2 columns of the name 'c'"):
        from_frame(table, label="y", sparse=["c"])
    with pytest.raises(ValueError, match="unknown column '9'.*known: 0, 1"):
        from_frame(frame.set_axis(range(6), axis=1), label=0, sparse=[9])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": "click"}, "unknown column 'click'; did you mean 'clicked'"),
        ({"dense": ["price", "clicked"]}, "column 'clicked' is named twice"),
        ({"label": "age", "dense": []}, "label 'age' holds 2 in row 1; labels must be 0 or 1"),
        ({"dense": ["text"]}, "column 'text' is .*string; dense columns are numbers"),
        ({"dense": ["holes"]}, "column 'holes': 1 values are missing, the first in row 2; fill them"),
        ({"dense": ["endless"]}, "column 'endless' holds inf in row 1"),
        ({"dense": [], "sparse": ["price"]}, "column 'price' holds 0.5 in row 0; ids are whole numbers, text"),
        (
            {"sparse": ["negative"]},
            "column 'negative' holds id -1 in row 3; ids are 0 to 2147483647; vocabulary= numbers any values",
        ),
        (
            {"sparse": ["long"]},
            "column 'long' holds id 3000000000 in row 0; ids are 0 to 2147483647; vocabulary= numbers any",
        ),
        ({"cardinalities": {"item": 3}}, "column 'item' holds id 3 in row 0; its cardinality is 3"),
        ({"cardinalities": {"itm": 3}}, "unknown feature in cardinalities 'itm'; did you mean 'item'"),
        ({"cardinalities": {"item": 0}}, "cardinality of 'item' must be at least 1, got 0"),
        ({"split": (0.5, 0.5)}, "split must be three shares that sum to 1"),
        ({"user": "price"}, "column 'price' holds 0.5 in row 0; users are whole numbers or text"),
        ({"sparse": "item"}, "sparse must be a list of columns, .* got 'item'"),
        ({"dense": 3}, "dense must be a list of columns, got 3"),
        ({"task": "clicks"}, "unknown task 'clicks'; did you mean 'click'"),
    ],
)
def test_what_is_refused(frame, change, said):
    frame = frame.assign(
        text=["a", "b", "c", "d"],
        holes=[1.0, 2.0, None, 4.0],
        endless=[0, np.inf, 0, 0],
        negative=[0, 1, 2, -1],
        long=[3_000_000_000, 0, 0, 0],
    )
    with pytest.raises((ValueError, TypeError), match=said):
        from_frame(frame, **(COLUMNS | change))


def test_a_stream_of_arrow_is_read_once(frame):
    """Before: "there are no rows"."""
    table = pa.Table.from_pandas(frame)
    for reader in (table.to_reader(), pa.RecordBatchReader.from_stream(table)):
        assert from_frame(reader, **COLUMNS).fingerprint == from_frame(frame, **COLUMNS).fingerprint


@pytest.mark.parametrize("method", ["collect", "df", "compute", "toPandas", "execute", "to_table"])
def test_a_frame_that_is_only_a_plan(frame, method):
    lazy = type(
        "Plan", (), {"columns": list(frame), method: lambda self: frame, "__getitem__": lambda self, name: None}
    )
    with pytest.raises(TypeError, match=rf"frame is a Plan, which holds no rows yet; pass frame.{method}\(\)"):
        from_frame(lazy(), **COLUMNS)
    column = frame.rename(columns={"price": method})  # a frame may have a column of that name
    assert len(from_frame(column, **(COLUMNS | {"dense": [method]})).test) == len(frame)


def test_lazy_frames_themselves(frame):
    polars = pytest.importorskip("polars")
    with pytest.raises(TypeError, match=r"frame is a LazyFrame, .*; pass frame.collect\(\)"):
        from_frame(polars.from_pandas(frame).lazy(), **COLUMNS)


def test_a_relation_of_duckdb(frame):
    duckdb = pytest.importorskip("duckdb")
    with pytest.raises(TypeError, match=r"frame is a DuckDBPyRelation, .*; pass frame.df\(\)"):
        from_frame(duckdb.from_arrow(pa.Table.from_pandas(frame)), **COLUMNS)


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


def test_other_objects_and_no_rows(frame):
    with pytest.raises(TypeError, match="frame is a list; it must be a frame of pandas, polars or Arrow"):
        from_frame([1, 2], **COLUMNS)
    with pytest.raises(ValueError, match="there are no rows"):
        from_frame(frame.head(0), **COLUMNS)
    with pytest.raises(ValueError, match="item has 3 rows, and the label 4"):
        from_tensors(label=np.array([0, 1, 0, 1]), sparse={"item": np.array([1, 2, 3])})


@pytest.mark.parametrize("lengths", [[1, 1, 1], [4, -1, 3], [9, 9, 9]])
def test_lengths_that_do_not_fit(lengths):
    with pytest.raises(ValueError, match="tags has 6 values, and lengths that sum to"):
        from_tensors(label=np.array([0, 1, 1]), sparse={"tags": (torch.arange(6), torch.tensor(lengths))})


def test_half_precision_and_negative_items():
    data = from_tensors(label=np.array([0, 1]), dense=torch.tensor([1.5, 2.5], dtype=torch.bfloat16))
    assert data.test.dense.tolist() == [[1.5], [2.5]]
    with pytest.raises(ValueError, match="label holds id -1 in row 1"):
        from_tensors(label=np.array([3, -1]), task="ranking", dense=np.zeros(2))


BIG = """
import threading, time
import numpy as np, pandas as pd
from drsrobust.data import from_frame

def gib():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**30

n, random = 4_000_000, np.random.default_rng(0)
columns = {"label": (random.random(n) < 0.3).astype(np.int8)}
columns |= {f"d{i}": random.random(n, dtype=np.float32) for i in range(13)}
columns |= {f"s{i}": random.integers(0, 1000, n, dtype=np.int32) for i in range(26)}
frame = pd.DataFrame(columns, copy=False)
del columns
start, peak, done = gib(), 0.0, False
def watch():
    global peak
    while not done:
        peak = max(peak, gib())
        time.sleep(0.01)
thread = threading.Thread(target=watch)
thread.start()
data = from_frame(frame, label="label", dense=[f"d{i}" for i in range(13)], sparse=[f"s{i}" for i in range(26)],
                  split=(0.8, 0.1, 0.1))
done = True
thread.join()
assert len(data.train) == 3_200_000
print(peak - start)
"""


@pytest.mark.long
def test_four_million_rows_in_under_1_6_gib():
    """Rows of Criteo's shape, 0.6 GiB as a frame; what comes on top of it."""
    done = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0.4 < float(done.stdout) < 1.6
