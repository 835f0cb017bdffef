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
from drsrobust.evaluation import Evaluator
from drsrobust_extras.data import own_batches
from tests.refusals import refuses


def pairs(n=3):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 2, generator=generator), torch.tensor([0, 1, 1, 0])) for _ in range(n)]


def test_labels_are_found():
    expected = [0, 1, 1, 0] * 3
    keyed = [{"x": x, "label": y} for x, y in pairs()], [{"x": x, "labels": y[:, None]} for x, y in pairs()]
    assert all(one is other for one, other in zip(from_batches(keyed[0]).batches, keyed[0], strict=True))
    for batches in (pairs(), iter(pairs()), *keyed):
        found = from_batches(batches)
        assert found.labels.tolist() == expected and found.sizes.tolist() == [4, 4, 4] and found.prior == 0.5
    batches = [{"x": x, "y": y} for x, y in pairs()]
    picked = from_batches(batches, label=lambda batch: batch["y"], user=lambda batch: [1] * 4)
    assert picked.labels.tolist() == expected and picked.users.tolist() == [1] * 12
    given = torch.tensor(expected[:4])
    for labels in (given.bfloat16(), given.half(), given.bool(), given.double(), given[:, None].to_sparse()):
        assert from_batches([{"x": 1, "label": labels}]).labels.tolist() == expected[:4]


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


class Reused:
    """A loader that fills the same memory for each batch."""

    def __init__(self):
        self.x, self.y = torch.zeros(50, 2), np.zeros(50, np.float32)

    def __iter__(self):
        random = np.random.default_rng(0)
        for _ in range(6):
            self.x.copy_(torch.from_numpy(random.normal(size=(50, 2))))
            self.y[:] = random.random(50) < 1 / (1 + np.exp(-3 * self.x[:, 0].numpy()))
            yield {"x": self.x, "label": self.y}


def test_loaders_that_reuse_memory():
    """AUC is that of fresh batches; a list of them is refused."""
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, 0.5)
    aucs = [
        Evaluator(model, from_batches(given), forward=lambda model, batch: model(batch["x"])).golden.auc
        for given in (map(copy.deepcopy, Reused()), Reused(), iter(Reused()))
    ]
    assert aucs[0] == aucs[1] == aucs[2] and abs(aucs[0] - 0.5) > 0.1
    refuses(lambda: from_batches(list(Reused())), ValueError, "batches 0 and 1 have batch", "in the same memory")


def test_a_loader_without_an_end(monkeypatch):
    """`rows` takes whole batches; without it the loader is left after so many batches, or bytes."""
    random = pytest.importorskip("torchrec.datasets.random")
    loader = random.RandomRecDataset(["a", "b"], 16, hash_size=100, num_dense=3, manual_seed=1)
    assert len(from_batches(loader, rows=100)) == 112 and len(from_batches(loader, rows=96)) == 96
    assert len(from_batches(pairs(3), rows=5)) == 8 and len(from_batches(pairs(3), rows=500)) == 12
    monkeypatch.setattr(own_batches, "MAX_BATCHES", 50)
    refuses(lambda: from_batches(loader), ValueError, "batches has given 50 batches", "rows=")
    monkeypatch.setattr(own_batches, "machine", lambda: {"memory_gib": 1 / 16})
    large = ((torch.full((1 << 20,), float(i)), torch.tensor([1.0])) for i in itertools.count())
    refuses(lambda: from_batches(large), ValueError, "batches has given 8 batches")


def test_batches_of_any_parts_are_evaluated(tmp_path):
    """What is no tensor passes to forward, and workers get it."""
    parts = {"when": datetime.date(2020, 1, 1), "device": torch.device("cpu"), "kind": torch.float32, "seen": {1, 2}}
    parts |= {"scale": np.float32(2), "frame": pd.DataFrame({"a": [1, 2]}), "graph": torch.eye(4).to_sparse()}
    rows = from_batches([parts | {"x": x, "label": y} for x, y in pairs()])

    def forward(model, batch):
        assert batch["seen"] == {1, 2} and batch["kind"] is torch.float32 and len(batch["frame"]) == 2
        return model(torch.sparse.mm(batch["graph"], batch["x"]).to(batch["device"]) * float(batch["scale"]))

    Evaluator(torch.nn.Linear(2, 1), rows, forward=forward)
    torch.save(replace(rows), tmp_path / "rows.pt")  # as another process gets them, without what was computed here
    sent = torch.load(tmp_path / "rows.pt", weights_only=False, mmap=True)
    assert sent.fingerprint == rows.fingerprint
    changed = from_batches([parts | {"x": x, "label": y, "seen": {1, 3}} for x, y in pairs()])
    assert changed.fingerprint != rows.fingerprint


def test_the_fingerprint_is_of_all_contents():
    known = from_batches(pairs()).fingerprint
    assert from_batches(copy.deepcopy(pairs()), prior=0.5).fingerprint == known
    assert from_batches(pairs(), prior=0.25).fingerprint != known
    changed = pairs()
    changed[1][0][2, 1] += 1e-3
    assert from_batches(changed).fingerprint != known
    assert from_batches([pairs()[0], pairs()[2], pairs()[1]]).fingerprint != known
    assert from_batches(pairs(), user=lambda batch: [1] * 4).fingerprint != known


@pytest.mark.parametrize(
    ("batches", "options", "said"),
    [
        ([], {}, "no batches"),
        ([{"x": 1}], {}, "dict with the keys 'x' has no labels"),
        (iter([(threading.Lock(), torch.tensor([0.0, 1.0]))]), {}, "batch 0 cannot be copied .*_thread.lock"),
        ([(0, torch.zeros(2, 2)), (0, torch.zeros(2, 3))], {}, r"labels .*\[\[2, 2\], \[2, 3\]\]"),
        ([(0, torch.tensor(1))], {}, r"labels of a batch have the shape \[\]"),
        ([(0, torch.tensor([0.5, 1.0]))], {}, "labels hold 0.5"),
        ([(0, torch.tensor([0.5, 1.0]))], {"task": "ranking"}, "labels hold 0.5"),
        ([(0, torch.tensor([0, 2]))], {"task": "click"}, "labels hold 2"),
        ([(0, torch.tensor([[0, 5]]))], {"task": "ranking"}, r"labels have the shape \[B, 2\]"),
        ([(0, ["yes", "maybe"])], {}, "label holds 'maybe' in row 1"),
        ([(0, np.array([1, None]))], {}, "labels hold nan"),
        ([(0, np.array([b"1"]))], {}, "labels of a batch are .S1, as b'1'"),
        ([(0, np.array([2**64 - 1], np.uint64))], {}, "labels hold 1.84467e"),
        ([(0, torch.tensor([0, 1]))], {"unobserved": -1}, "unobserved is -1"),
        ([(0, torch.tensor([[0, 1], [-1, 0]]))], {}, "labels hold -1; .*unobserved=-1"),
        ([{"label": [[1.5], []]}], {}, r"labels hold the list \[1.5\]"),
        (pairs(1), {"user": lambda batch: [1]}, "user gives 1 users for 4 rows of batch 0"),
        (pairs(1), {"user": lambda _: np.array([0.5, 1, 2, 3])}, "user of batch 0 holds 0.5 in row 0"),
        (pairs(1), {"user": lambda _: torch.tensor([1, 2, 3, 256]).bfloat16()}, "holds 256 in row 3; bfloat16"),
        (pairs(1), {"user": lambda _: [datetime.date(2026, 1, 1)] * 4}, "user of batch 0 is date32"),
        (pairs(1) * 2, {}, r"batches 0 and 1 have batch\[0\] in the same memory"),
        (pairs(1), {"task": "ranks"}, "task 'ranks'; did you mean 'ranking'"),
        (pairs(1), {"label": "y"}, "label is 'y'"),
        (pairs(1), {"tasks": ("a", "b")}, "tasks has 2 names, and there are labels of 1"),
    ],
)
def test_what_is_refused(batches, options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        from_batches(batches, **options)
