"""What a batch may hold: content that the fingerprint sees, copies, and memory that batches share."""

import copy
import datetime
import os
import subprocess
import sys
import threading
import types
import warnings
from collections import OrderedDict, namedtuple
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from drsrobust.data.batch import KeyedIds
from drsrobust_extras.data.batch_parts import PartCopies, batch_digest, shared_rows
from tests.refusals import refuses

torchrec = pytest.importorskip("torchrec")
Pair = namedtuple("Pair", "a b")


class Plain:
    def __init__(self, x, **more):
        self.x = x
        vars(self).update(more)

    @cached_property
    def total(self):
        return self.x.sum()


class Slots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


def jagged(weights=None, values=(1, 2, 3, 4), lengths=(1, 1, 2, 0)):
    weights = None if weights is None else torch.tensor(weights)
    return torchrec.KeyedJaggedTensor(["a", "b"], torch.tensor(values), weights, torch.tensor(lengths))


def varied(inverse):
    indices = {"stride_per_key_per_rank": [[2], [1]], "inverse_indices": (["a", "b"], torch.tensor(inverse))}
    ones = torch.tensor([1, 1, 1])
    return torchrec.KeyedJaggedTensor(["a", "b"], torch.tensor([1, 2, 3]), lengths=ones, **indices)


def ragged(lengths=(1, 2)):
    return torchrec.JaggedTensor(torch.tensor([1, 2, 3]), lengths=torch.tensor(lengths))


def keyed(values, widths=(1, 2)):
    return torchrec.KeyedTensor(["a", "b"], list(widths), torch.tensor(values))


def weighted_ids(weights):
    found = KeyedIds(["a"], torch.tensor([1, 2]), torch.tensor([1, 1]))
    found.weights_or_none = lambda: torch.tensor(weights)
    return found


X = torch.arange(6.0).reshape(3, 2)
SPARSE = torch.eye(3)
FRAME = pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": pd.Categorical(["u", "v"])})


def kinds():
    """Each kind: a value, and another one that differs in one part."""
    return {
        "tensor": (X, X + 1e-6),
        "dtype": (X, X.double()),
        "shape": (X, X.reshape(2, 3)),
        "minus zero": (torch.zeros(2), -torch.zeros(2)),
        "bfloat16": (X.bfloat16(), X.bfloat16() + 1),
        "complex": (X + 1j, (X + 1j).conj()),
        "COO": (SPARSE.to_sparse(), (2 * SPARSE).to_sparse()),
        "CSR": (SPARSE.to_sparse_csr(), SPARSE.roll(1, 0).to_sparse_csr()),
        "BSR": (torch.eye(4).to_sparse_bsr((2, 2)), torch.eye(4).roll(1, 0).to_sparse_bsr((2, 2))),
        "layout": (SPARSE.to_sparse_csr(), SPARSE),
        "nested": tuple(torch.nested.nested_tensor([X[0], X[i]], layout=torch.jagged) for i in (1, 2)),
        "quantized": tuple(torch.quantize_per_tensor(X, scale, 0, torch.qint8) for scale in (0.1, 0.2)),
        "array": (X.numpy(), X.numpy() + 1),
        "array of objects": (np.array([1, "a"], object), np.array([1, "b"], object)),
        "masked array": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
        "NumPy scalar": (np.float32(1), np.float32(2)),
        "kind of scalar": (np.float64(1), 1.0),
        "bool and int": (True, 1),
        "date": (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
        "device": (torch.device("cpu"), torch.device("cuda:0")),
        "set": ({"a", "b", "c"}, {"a", "b", "d"}),
        "set of sets": ({frozenset({1, 2}), frozenset({3})}, {frozenset({1, 3}), frozenset({2})}),
        "keys": ({"x": 1}, {"y": 1}),
        "keys that are no text": ({(1, 2): 1}, {(1, 3): 1}),
        "ordered dictionary": (OrderedDict(a=1), OrderedDict(a=2)),
        "namedtuple": (Pair(1, X), Pair(1, X + 1)),
        "deep": ({"x": [({"y": X},)]}, {"x": [({"y": X + 1},)]}),
        "object": (Plain(X), Plain(X + 1)),
        "attribute": (Plain(X, guard=True), Plain(X, guard=False)),
        "slots": (Slots(X), Slots(X + 1)),
        "function": (lambda x: x + 1, lambda x: x + 2),
        "frame": (FRAME, FRAME.assign(a=[1, 3])),
        "frame's category": (FRAME, FRAME.assign(c=pd.Categorical(["u", "v"], ["v", "u"]))),
        "frame's index": (FRAME, FRAME.set_axis([5, 6])),
        "frame's names": (FRAME, FRAME.rename(columns={"a": "d"})),
        "frame's types": (FRAME, FRAME.assign(a=FRAME["a"].astype("int8"))),
        "column": (FRAME["a"], FRAME["a"] + 1),
        "Arrow": (pa.table({"a": [1, 2]}), pa.table({"a": [1, None]})),
        "KeyedJaggedTensor": (jagged(), jagged(values=(1, 2, 3, 5))),
        "its lengths": (jagged(), jagged(lengths=(1, 1, 1, 1))),
        "its weights": (jagged(weights=[1.0, 2, 3, 4]), jagged(weights=[1.0, 2, 3, 5])),
        "its weights or none": (jagged(), jagged(weights=[1.0, 1, 1, 1])),
        "its inverse indices": (varied([[0, 1], [0, 0]]), varied([[1, 0], [0, 0]])),
        "JaggedTensor": (ragged(), ragged(lengths=(2, 1))),
        "KeyedTensor": (keyed([[1.0, 2, 3]]), keyed([[1.0, 2, 4]])),
        "KeyedTensor's widths": (keyed([[1.0, 2, 3]]), keyed([[1.0, 2, 3]], (2, 1))),
        "KeyedIds": (weighted_ids([1.0, 2]), weighted_ids([1.0, 3])),
    }


with warnings.catch_warnings():  # sparse and quantized tensors warn of themselves
    warnings.simplefilter("ignore")
    KINDS = kinds()


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_the_hash_sees_each_kind(kind):
    one, other = KINDS[kind]
    known = batch_digest({"part": one})
    assert batch_digest({"part": other}) != known
    equal = one.clone() if isinstance(one, torch.Tensor) else copy.deepcopy(one)
    again = batch_digest({"part": equal}), batch_digest({"part": PartCopies().of(one)}), batch_digest({"part": one})
    assert again == (known, known, known)


def test_what_is_derived_at_first_use_does_not_count():
    batch = {"ids": jagged(), "own": Plain(X), "one": ragged()}
    known = batch_digest(batch)
    batch["ids"].to_dict(), batch["ids"].offset_per_key(), batch["own"].total, batch["one"].offsets()
    assert batch_digest(batch) == known


def test_many_references_to_few_objects_and_what_cannot_be_read():
    """Objects that refer to each other are read once each, and equal ones hash alike however they are shared."""
    nodes = [types.SimpleNamespace(name=number, others=[]) for number in range(40)]
    for node in nodes:
        node.others = list(nodes)
    assert batch_digest(nodes) == batch_digest(PartCopies().of(nodes)) and shared_rows([nodes], [3]) is None
    one, other = Plain(X), Plain(X)
    one.me, other.me = one, [other]
    assert batch_digest(one) != batch_digest(other) and batch_digest(PartCopies().of(one)) == batch_digest(one)
    one = [1, [X]]
    assert batch_digest([one, one]) == batch_digest([one, copy.deepcopy(one)])
    refuses(lambda: batch_digest({"x": [1, threading.Lock()]}), TypeError, "the batch['x'][1] is a lock")


@pytest.mark.long
def test_two_processes_hash_alike():
    """Sets have another order under another seed of Python's hashes."""
    code = (
        "import datetime, numpy, torch; from drsrobust_extras.data.batch_parts import batch_digest as digest;"
        "names = [str(i) for i in range(99)];"
        "print(digest([set(names), {'x': frozenset(names), 'y': torch.ones(3)}, numpy.float32(1), datetime.date(2020, 1, 1)]))"
    )
    seeds = [os.environ | {"PYTHONHASHSEED": seed} for seed in "12"]
    one, other = (subprocess.check_output([sys.executable, "-c", code], env=seed) for seed in seeds)
    assert one == other


def test_copies():
    matrix, buffer, sparse = torch.eye(100), torch.zeros(4, 2), torch.eye(3).to_sparse()
    whole, numbers = torch.zeros(1000, 100), np.arange(10_000)
    copies, taken = PartCopies(), []
    for number in range(5):
        buffer.fill_(number)
        batch = {"x": buffer, "A": matrix, "S": sparse, "view": whole[number : number + 1], "numbers": numbers}
        taken.append(copies.of(batch | {"own": Plain(buffer), "grad": buffer * torch.ones(1, requires_grad=True)}))
    assert [float(one["x"][0, 0]) for one in taken] == [0, 1, 2, 3, 4] == [float(one["own"].x[0, 0]) for one in taken]
    assert len({one["A"].data_ptr() for one in taken}) == 1 and len({id(one["numbers"]) for one in taken}) == 1
    assert taken[0]["view"].untyped_storage().nbytes() == 400 and torch.equal(taken[4]["S"].to_dense(), torch.eye(3))
    assert copies.nbytes == 40_000 + 80_000 + 5 * (400 + 3 * 32) - 5 * 32  # of x and own.x is one copy
    assert taken[0]["grad"].requires_grad


def rows(n, start=0):
    return torch.arange(start, start + n, dtype=torch.float32)


def one_key(taken, lengths):
    return torchrec.KeyedJaggedTensor(["a"], VALUES[taken], lengths=torch.tensor(lengths))


BIG, LABELS, SERIES = torch.arange(80.0).reshape(40, 2), torch.zeros(40), torch.arange(50.0)
SHARED, IDS, LIST, VALUES = torch.zeros(4, 2), jagged(), [1, 2, 3, 4], torch.arange(8)


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        ([(SHARED, rows(4)), (SHARED, rows(4, 4))], (0, 1, "[0]")),
        ([(rows(4), rows(4)), (SHARED.numpy(), rows(4)), (SHARED, rows(4))], (1, 2, "[0]")),
        ([{"x": [{"y": SHARED}]}, {"x": [{"y": SHARED}]}], (0, 1, "['x'][0]['y']")),
        ([{"x": BIG[:4]}, {"x": BIG[2:6]}], (0, 1, "['x']")),
        ([{"x": BIG[:4]}, {"x": BIG[4:8]}, {"x": BIG[3:7]}], (0, 2, "['x']")),
        ([Plain(SHARED), Plain(SHARED)], (0, 1, ".x")),
        ([{"x": LIST}, {"x": LIST}], (0, 1, "['x']")),
        ([{"x": [SHARED[0], 1, 2, 3]}, {"x": [SHARED[0], 1, 2, 3]}], (0, 1, "['x'][0]")),
        ([{"x": 1}] * 2, (0, 1, "")),
        ([{"x": FRAME}, {"x": FRAME}], None),  # two rows in a batch of four
        ([{"x": np.flip(BIG.numpy()[:4], 0)}, {"x": np.flip(BIG.numpy()[2:6], 0)}], (0, 1, "['x']")),
        ([{"x": BIG[start : start + 4]} for start in range(0, 40, 4)], None),
        ([{"x": BIG.T[:, start : start + 4].T} for start in range(0, 40, 4)], None),
        ([{"x": SERIES.unfold(0, 10, 1)[start : start + 4]} for start in range(0, 40, 4)], None),  # windows
        ([(SERIES[start : start + 4], SERIES[start + 1 : start + 5]) for start in range(0, 40, 4)], None),  # lags
        ([{"A": torch.eye(100), "S": SPARSE.to_sparse(), "w": torch.zeros(1).expand(4)}] * 1, None),
        ([{"x": name, "A": BIG, "S": torch.eye(4).to_sparse()} for name in "abc"], None),
        ([{"x": torch.zeros(1).expand(4, 2)} for _ in range(2)], None),
        ([{"names": ("a", "b", "c", "d"), "x": rows(4)} for _ in range(2)], None),
        ([one_key(slice(i, i + 4), [1, 1, 1, 1]) for i in (0, 4)], None),  # slices of one tensor, and one list of keys
        ([one_key(slice(n), [1, 1, 0, n - 2]) for n in (4, 6)], (0, 1, "._values")),
        ([(IDS, rows(3)), (IDS, rows(3))], None),  # of two rows
    ],
)
def test_memory_that_batches_share(batches, found):
    sizes = [len(batch[1]) if isinstance(batch, tuple) else 4 for batch in batches]
    assert shared_rows(batches, sizes) == found
