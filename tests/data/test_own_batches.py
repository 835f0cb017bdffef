"""Batches as they are: labels that are found, contents that are hashed, and what is refused."""

import copy

import numpy as np
import pytest
import torch

from drsrobust.data import Ids, from_batches
from drsrobust.data.own_batches import read_batches, write_batches


def pairs(n=3):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 2, generator=generator), torch.tensor([0, 1, 1, 0])) for _ in range(n)]


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
    two = from_batches([(torch.zeros(2, 2), torch.tensor([0, 1]))], task="rank").labels
    assert isinstance(two, Ids) and two.values.tolist() == [0, 1]
    lists = from_batches([{"label": [[1, 2], []]}, {"label": [[3]]}])
    assert lists.labels.values.tolist() == [1, 2, 3] and lists.labels.lengths.tolist() == [2, 0, 1]
    assert lists.sizes.tolist() == [2, 1]


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
    write_batches(rows, tmp_path / "rows")
    again = read_batches(tmp_path / "rows")
    assert again.fingerprint == rows.fingerprint and again.users.tolist() == rows.users.tolist()


@pytest.mark.parametrize(
    ("batches", "options", "said"),
    [
        (5, {}, "batches is a int; it must be a DataLoader"),
        ([], {}, "there are no batches; a generator can be read only once"),
        ([{"x": 1}], {}, "this dict with the keys 'x' has no labels that can be found; pass label="),
        ([torch.zeros(3)], {}, "this Tensor has no labels"),
        ([(0, torch.tensor([0.5, 1.0]))], {}, "labels hold 0.5; they must be 0 or 1"),
        (
            [(0, torch.zeros(2, 2)), (0, torch.zeros(2, 3))],
            {},
            r"labels of batches have the shapes \[\[2, 2\], \[2, 3\]\]",
        ),
        (pairs(1), {"user": lambda batch: [1]}, "user gives 1 users for 4 rows"),
        ([(0, torch.tensor([0, 2]))], {"task": "click"}, "labels hold 2; they must be 0 or 1"),
        (pairs(1), {"task": "ranks"}, "unknown task 'ranks'; did you mean 'rank'"),
        (pairs(1) * 2, {}, "several batches have their labels in the same memory"),
        (pairs(1), {"label": "y"}, "label is 'y'; it must be a function of a batch"),
        (pairs(1), {"tasks": ("a", "b")}, "tasks has 2 names, and there are labels of 1"),
    ],
)
def test_what_is_refused(batches, options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        from_batches(batches, **options)
