"""Batches as they are: labels that are found, contents that are hashed, and what is refused."""

import copy
import datetime
import itertools
import threading
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from drsrobust.data import Ids, from_batches
from drsrobust.data.batch import Batch
from drsrobust.evaluation import Evaluator
from drsrobust_extras.data import own_batches


def pairs(n=3):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 2, generator=generator), torch.tensor([0, 1, 1, 0])) for _ in range(n)]


def sent(rows, folder):
    """As another process gets them, without what was computed here."""
    torch.save(replace(rows), folder / "rows.pt")
    return torch.load(folder / "rows.pt", weights_only=False, mmap=True)


def users(*given):
    return {"user": lambda batch: np.array(given)}


def test_labels_are_found():
    expected = [0, 1, 1, 0] * 3
    for batches in (
        pairs(),
        iter(pairs()),
        [{"x": x, "label": y} for x, y in pairs()],
        [{"x": x, "labels": y[:, None]} for x, y in pairs()],
    ):
        found = from_batches(batches)
        assert found.labels.tolist() == expected and found.sizes.tolist() == [4, 4, 4] and found.prior == 0.5
    picked = from_batches(
        [{"x": x, "y": y} for x, y in pairs()], label=lambda batch: batch["y"], user=lambda batch: [1] * 4
    )
    assert picked.labels.tolist() == expected and picked.users.tolist() == [1] * 12


def test_tasks_and_items():
    tasks = from_batches([(torch.zeros(2, 3), torch.tensor([[0.0, 1.0], [1.0, 1.0]]))])
    assert tasks.labels.shape == (2, 2) and tasks.tasks == ("task_0", "task_1")
    items = from_batches([(torch.zeros(2, 3), torch.tensor([7, -1]))]).labels
    assert isinstance(items, Ids) and items.values.tolist() == [7] and items.lengths.tolist() == [1, 0]
    two = from_batches([(torch.zeros(2, 2), torch.tensor([0, 1]))], task="ranking").labels
    assert isinstance(two, Ids) and two.values.tolist() == [0, 1]
    lists = from_batches([{"label": [[1, 2], []]}, {"label": [[3]]}])
    assert lists.labels.values.tolist() == [1, 2, 3] and lists.labels.lengths.tolist() == [2, 0, 1]
    assert lists.sizes.tolist() == [2, 1]


def test_users():
    """Whole-valued floats are ids, as a column with gaps has them; text is numbered."""
    booleans = from_batches(pairs(1), user=lambda batch: [True, False, True, True]).users
    assert booleans.tolist() == [1, 0, 1, 1] and booleans.flags.writeable
    for given in ([5, 1, 5, 2**53 - 1], np.array([5, 1, 5, 2.0**53 - 1]), np.array([5, 1, 5, 2**53 - 1], np.uint64)):
        found = from_batches(pairs(1), user=lambda batch, given=given: given).users
        assert found.dtype == np.int64 and found.tolist() == [5, 1, 5, 2**53 - 1]
    names = iter([["b", "a", "d", "b"], np.array(["c", "c", "a", "d"], object)])
    assert from_batches(pairs(2), user=lambda batch: next(names)).users.tolist() == [1, 0, 3, 1, 2, 2, 0, 3]


def test_labels_of_any_type():
    expected = [0.0, 1.0, 1.0, 0.0]
    given = torch.tensor(expected)
    for labels in (given.bfloat16(), given.half(), given.bool(), given.double(), given[:, None].to_sparse(), expected):
        assert from_batches([{"x": 1, "label": labels}]).labels.tolist() == expected


class Reused:
    """A loader that fills the same memory for each batch."""

    def __init__(self, fill, make, n=6, size=50):
        self.fill, self.make, self.n, self.size = fill, make, n, size

    def rows(self):
        random = np.random.default_rng(0)
        for _ in range(self.n):
            x = random.normal(size=(self.size, 2)).astype(np.float32)
            yield x, (random.random(self.size) < 1 / (1 + np.exp(-3 * x[:, 0]))).astype(np.float32)

    def __iter__(self):
        for x, y in self.rows():
            yield self.fill(self.make, x, y)


def fill_tensors(kept, x, y):
    kept["x"].copy_(torch.from_numpy(x))
    return kept["x"], torch.from_numpy(y)


def fill_arrays(kept, x, y):
    kept["x"].numpy()[:], kept["y"][:] = x, y
    return kept


def fill_object(kept, x, y):
    kept["batch"].dense_features.copy_(torch.from_numpy(x))
    kept["batch"].labels = torch.from_numpy(y)
    return kept["batch"]


@pytest.mark.parametrize("fill", [fill_tensors, fill_arrays, fill_object])
def test_loaders_that_reuse_memory(fill):
    """AUC is that of fresh batches; a list of them is refused."""
    memory = {"x": torch.zeros(50, 2), "y": np.zeros(50, np.float32), "batch": Batch(torch.zeros(50, 2), None, None)}
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, 0.5)

    def forward(model, batch):
        if isinstance(batch, dict):
            return model(batch["x"])
        return model(batch[0] if isinstance(batch, tuple) else batch.dense_features)

    label = (lambda batch: batch["y"]) if fill is fill_arrays else None
    loader = Reused(fill, memory)
    fresh = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in loader.rows()]
    expected = Evaluator(model, from_batches(fresh), forward=forward).golden.auc
    for given in (loader, iter(loader)):
        assert Evaluator(model, from_batches(given, label=label), forward=forward).golden.auc == expected
    with pytest.raises(
        ValueError, match=r"batches 0 and 1 have batch.* in the same memory, which holds the rows of only"
    ):
        from_batches(list(loader), label=label)


def test_what_all_batches_share():
    """A matrix, and batches that are slices of one tensor, are kept as they are in a list, and copied once each else."""
    graph, x, y = torch.eye(30), torch.randn(40, 2), (torch.arange(40) % 2).float()
    batches = [{"x": x[i : i + 8], "graph": graph, "label": y[i : i + 8]} for i in range(0, 40, 8)]
    assert all(one is other for one, other in zip(from_batches(batches).batches, batches, strict=True))
    copied = from_batches(iter(batches)).batches
    assert len({one["graph"].data_ptr() for one in copied}) == 1 and copied[0]["graph"] is not graph
    assert from_batches(iter(batches)).fingerprint == from_batches(batches).fingerprint


def test_a_loader_without_an_end(monkeypatch):
    """`rows` takes whole batches; without it the loader is left after so many batches, or bytes."""
    random = pytest.importorskip("torchrec.datasets.random")
    loader = random.RandomRecDataset(["a", "b"], 16, hash_size=100, num_dense=3, manual_seed=1)
    assert len(from_batches(loader, rows=100)) == 112 and len(from_batches(loader, rows=96)) == 96
    assert len(from_batches(pairs(3), rows=5)) == 8 and len(from_batches(pairs(3), rows=500)) == 12
    monkeypatch.setattr(own_batches, "MAX_BATCHES", 50)
    with pytest.raises(
        ValueError, match=r"batches has given 50 batches \(0.0 GiB\) and has not ended; rows= takes so many"
    ):
        from_batches(loader)
    monkeypatch.setattr(own_batches, "machine", lambda: {"memory_gib": 1 / 16})
    with pytest.raises(ValueError, match=r"batches has given 8 batches \(0.0 GiB\) and has not ended"):
        from_batches((torch.full((1 << 20,), float(i)), torch.tensor([1.0])) for i in itertools.count())


def test_a_batch_that_cannot_be_copied():
    batches = [{"x": threading.Lock(), "label": torch.tensor([0.0, 1.0])}]
    with pytest.raises(TypeError, match=r"batch 0 cannot be copied \(TypeError: cannot pickle '_thread.lock' object\)"):
        from_batches(iter(batches))
    assert len(from_batches(batches)) == 2


def test_batches_of_any_parts_are_evaluated(tmp_path):
    """What is no tensor passes to forward, and workers get it."""
    parts = {"when": datetime.date(2020, 1, 1), "device": torch.device("cpu"), "kind": torch.float32, "seen": {1, 2}}
    parts |= {"scale": np.float32(2), "frame": pd.DataFrame({"a": [1, 2]}), "graph": torch.eye(4).to_sparse()}
    rows = from_batches([parts | {"x": x, "label": y} for x, y in pairs()])

    def forward(model, batch):
        assert batch["seen"] == {1, 2} and batch["kind"] is torch.float32 and len(batch["frame"]) == 2
        return model(torch.sparse.mm(batch["graph"], batch["x"]).to(batch["device"]) * float(batch["scale"]))

    Evaluator(torch.nn.Linear(2, 1), rows, forward=forward)
    assert sent(rows, tmp_path).fingerprint == rows.fingerprint
    changed = from_batches([parts | {"x": x, "label": y, "seen": {1, 3}} for x, y in pairs()])
    assert changed.fingerprint != rows.fingerprint


def test_the_fingerprint_holds_weights_and_prior():
    torchrec = pytest.importorskip("torchrec")

    def made(weight, **options):
        ids = torchrec.KeyedJaggedTensor(
            ["a"], torch.arange(4), torch.tensor([1.0, 1, 1, weight]), torch.ones(4, dtype=torch.int32)
        )
        return from_batches([(torch.zeros(4, 1), ids, torch.tensor([0, 1, 1, 0]))], **options).fingerprint

    assert made(1.0) == made(1.0) != made(2.0)
    assert made(1.0, prior=0.5) == made(1.0) != made(1.0, prior=0.25)


def test_the_fingerprint_is_of_the_contents():
    known = from_batches(pairs()).fingerprint
    assert from_batches(copy.deepcopy(pairs())).fingerprint == known
    changed = pairs()
    changed[1][0][2, 1] += 1e-3
    assert from_batches(changed).fingerprint != known
    assert from_batches([pairs()[0], pairs()[2], pairs()[1]]).fingerprint != known
    assert from_batches(pairs(), user=lambda batch: [1] * 4).fingerprint != known


def test_other_processes_read_the_same(tmp_path):
    rows = from_batches(pairs(), user=lambda batch: np.arange(4))
    again = sent(rows, tmp_path)
    assert again.fingerprint == rows.fingerprint and again.users.tolist() == rows.users.tolist()


@pytest.mark.parametrize(
    ("batches", "options", "said"),
    [
        (5, {}, "batches must be a DataLoader, .* got 5"),
        ([], {}, "there are no batches; a generator can be read only once"),
        ([{"x": 1}], {}, "this dict with the keys 'x' has no labels that can be found; pass label="),
        ([torch.zeros(3)], {}, "this Tensor has no labels"),
        ([(0, torch.tensor([0.5, 1.0]))], {}, "labels hold 0.5; they must be 0 or 1"),
        (
            [(0, torch.zeros(2, 2)), (0, torch.zeros(2, 3))],
            {},
            r"labels of batches have the shapes \[\[2, 2\], \[2, 3\]\]",
        ),
        (pairs(1), {"user": lambda batch: [1]}, "user gives 1 users for 4 rows of batch 0"),
        (pairs(1), users(0.5, 1, 2, 3), "user of batch 0 holds 0.5 in row 0; users are whole numbers or text"),
        (pairs(1), users(1, 2, np.nan, 3), "user of batch 0: 1 values are missing, the first in row 2; fill them"),
        (
            pairs(1),
            {"user": lambda batch: np.array([1, 2, 3, 2**64 - 1], np.uint64)},
            "user of batch 0 holds 18446744073709551615 in row 3; users are less than 9223372036854775808",
        ),
        (
            pairs(1),
            users(1, 2, 3, 2.0**53),
            "user of batch 0 holds 9007199254740992 in row 3; double does not hold all",
        ),
        (
            pairs(1),
            {"user": lambda batch: torch.tensor([1, 2, 3, 256]).bfloat16()},
            "user of batch 0 holds 256 in row 3; bfloat16 does not hold all whole numbers from 256",
        ),
        (
            pairs(1),
            users(*[datetime.date(2026, 1, 1)] * 4),
            "user of batch 0 is date32.*; users are whole numbers or text",
        ),
        ([(0, torch.tensor([0, 2]))], {"task": "click"}, "labels hold 2; they must be 0 or 1"),
        (pairs(1), {"task": "ranks"}, "unknown task 'ranks'; did you mean 'ranking'"),
        (pairs(1) * 2, {}, r"batches 0 and 1 have batch\[0\] in the same memory"),
        (
            [(0, ["yes", "maybe"])],
            {},
            "label holds 'maybe' in row 1; labels are 0 or 1, booleans, or text such as 'yes'",
        ),
        ([(0, np.array([1, None]))], {}, "labels hold nan; they must be 0 or 1"),
        ([(0, np.array([b"1"]))], {}, "labels of a batch are .S1, as b'1'; they must be numbers"),
        ([(0, torch.tensor([0, 1]))], {"unobserved": -1}, "unobserved is -1; it is for labels .B, T. of several tasks"),
        (
            [(0, torch.tensor([[0, 1], [-1, 0]]))],
            {},
            "labels hold -1; .*; unobserved=-1 leaves such labels of a task out",
        ),
        (
            [(0, torch.tensor([[0, 5]]))],
            {"task": "ranking"},
            r"shape \[B, 2\]; for ranking they are items \[B\], .* or flags",
        ),
        (
            [(0, torch.tensor([0.5, 1.0]))],
            {"task": "ranking"},
            "labels hold 0.5; they must be 0 or 1, or for ranking whole",
        ),
        ([{"label": [[1.5], []]}], {}, r"labels hold the list \[1.5\]; relevant items are whole numbers below 2\*\*63"),
        ([(0, torch.tensor(1))], {}, r"labels of a batch have the shape \[\]; they must be \[B\] or \[B, T\]"),
        ([(0, np.array([2**64 - 1], np.uint64))], {}, "labels hold 1.84467e"),
        (pairs(1), {"rows": 0}, "rows must be at least 1, got 0"),
        (pairs(1), {"label": "y"}, "label is 'y'; it must be a function of a batch"),
        (pairs(1), {"tasks": ("a", "b")}, "tasks has 2 names, and there are labels of 1"),
    ],
)
def test_what_is_refused(batches, options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        from_batches(batches, **options)
