"""The files of workers, as an attacker would use them: swapped, replaced by links, made before; and folders of others."""

import os
import pickle
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

import drsrobust as dr
from drsrobust._locks import exclusive
from drsrobust._processes import process_context
from drsrobust.campaign import workers
from tests.refusals import refuses

GRID = {"errors": [dr.BitFlip(1e-3)], "targets": ["all", "embedding"], "trials": 4}


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def harmful(path):
    return pickle.dumps(Harm(path))


@pytest.fixture
def batches(data):
    """An evaluator of batches, which workers get as a pickle."""
    model = torch.nn.Linear(3, 1)
    rows = [(torch.randn(40, 3), (torch.arange(40) % 2).float()) for _ in range(2)]
    return dr.Evaluator(model, dr.data.from_batches(rows), forward=lambda model, batch: model(batch[0])[:, 0])


def spec_of(evaluator, store):
    campaign = dr.Campaign(evaluator, store=store, errors=[dr.FixedCount(1)], trials=1)
    return workers.worker_files(evaluator, campaign.conditions, campaign.store.folder, campaign._options)


FILES = ("model.pkl", "batches.pt", "state.safetensors", "sparse.pt", "golden.npy")


@pytest.mark.parametrize("name", [*FILES, "more.npy"])
def test_every_file_is_checked_before_any_is_loaded(batches, tmp_path, name):
    with spec_of(batches, tmp_path / "wk") as spec:
        workers.unpacked(spec)
        assert spec.folder.stat().st_mode & 0o777 == 0o700 and set(spec.files) == set(FILES)
        (spec.folder / name).write_bytes(harmful(tmp_path / "harm"))
        with pytest.raises(RuntimeError, match=rf"{name} is not the file .* must be \w+\); nothing was loaded"):
            workers.unpacked(spec)
    assert not (tmp_path / "harm").exists()


def replaced_by_link(folder, other):
    folder.rename(folder.with_name("away"))
    folder.symlink_to(other)


def replaced_by_folder(folder, other):
    folder.rename(folder.with_name("away"))
    other.rename(folder)
    folder.chmod(0o777)


@pytest.mark.parametrize(
    ("swap", "said"),
    [
        (replaced_by_link, "was replaced by a file or a link; nothing in it is read"),
        (replaced_by_folder, "has mode 0777, so others may write to it; it must be 0700"),
    ],
)
def test_another_folder_in_its_place_is_not_read(batches, tmp_path, swap, said):
    with spec_of(batches, tmp_path / "wk") as spec:
        shutil.copytree(spec.folder, tmp_path / "other")  # an attacker's copy
        (tmp_path / "other" / "model.pkl").write_bytes(harmful(tmp_path / "harm"))
        swap(spec.folder, tmp_path / "other")
        refuses(lambda: workers.unpacked(spec), PermissionError, said)
    assert not (tmp_path / "harm").exists()
    assert spec.folder.exists()  # what is not the campaign's is not deleted
    others = spec.folder if swap is replaced_by_folder else tmp_path / "other"
    assert (others / "model.pkl").is_file()


def test_a_folder_of_another_user_is_not_read(batches, tmp_path, monkeypatch):
    with spec_of(batches, tmp_path / "wk") as spec:
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        spec = type(spec)(**vars(spec) | {"owner": user + 1})
        with pytest.raises(PermissionError, match=f"is of user {user}; it must be of user {user + 1}"):
            workers.unpacked(spec)
        monkeypatch.undo()


def test_folders_that_look_alike_stay(evaluator, tmp_path):
    """A user's own folders, one that another user made before, and links; what a killed run left goes with the next run."""
    own = [tmp_path / name for name in ("wk.workers", "wk.workers-abcdefgh", "wk.workers-notes", "k.workers-abcdefgh")]
    for folder in own:
        folder.mkdir()
        (folder / "thesis.txt").write_text("text")
    marked = tmp_path / "elsewhere"
    marked.mkdir()
    (marked / ".drsrobust.lock").touch()
    (tmp_path / "wk.workers-linked__").symlink_to(marked)
    (tmp_path / "wk.workers-a_file__").write_text("text")
    left, held = (tmp_path / f"wk.workers-{name}" for name in ("leftover", "held_now"))
    for folder in (left, held):
        folder.mkdir()
        (folder / ".drsrobust.lock").touch()
    with exclusive(held / ".drsrobust"):
        dr.Campaign(evaluator, store=tmp_path / "wk", **GRID).run(progress=False, workers=1)
    assert not left.exists() and held.exists()
    assert all((folder / "thesis.txt").is_file() for folder in own) and (marked / ".drsrobust.lock").exists()
    assert (tmp_path / "wk.workers-linked__").is_symlink() and (tmp_path / "wk.workers-a_file__").is_file()


def test_a_store_that_others_may_write_to_is_named(evaluator, tmp_path):
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o777)
    with pytest.warns(UserWarning, match=rf"other users may write to {place} \(mode 0777\), .* read from {place}/wk"):
        dr.Campaign(evaluator, store=place / "wk", **GRID).run(progress=False, workers=1)
    dr.Campaign(evaluator, store=place / "wk", **GRID).run(progress=False, workers=1)  # once


def set_temporary(folder):
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def test_workers_with_another_temporary_folder(evaluator, tmp_path):
    """As on another host: they see the store's folder alone."""
    (tmp_path / "tmp").mkdir()
    expected = dr.Campaign(evaluator, store=tmp_path / "one", **GRID).run(progress=False, workers=1)
    options = {"mp_context": process_context(), "initializer": set_temporary, "initargs": (str(tmp_path / "tmp"),)}
    with ProcessPoolExecutor(1, **options) as pool:
        assert pool.submit(tempfile.gettempdir).result() == str(tmp_path / "tmp") != tempfile.gettempdir()
        found = dr.Campaign(evaluator, store=tmp_path / "wk", **GRID).run(progress=False, executor=pool)
    assert found.equals(expected)
    assert not list(tmp_path.glob("wk.workers*"))
