"""The files of workers, as an attacker would use them: swapped, replaced by links, made before; and folders of others."""

import os
import pickle
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import drsrobust as dr
from drsrobust._processes import process_context
from drsrobust.campaign import workers

GRID = {"errors": [dr.BitFlip(1e-3)], "targets": ["all", "embedding"], "trials": 4}


class Harm:
    """What an attacker pickles."""

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


class Swapping(ThreadPoolExecutor):
    """Another user's program: it replaces the model as soon as there is one."""

    def __init__(self, folder):
        super().__init__(1)
        self.folder = folder

    def submit(self, *args):
        for model in self.folder.glob("wk.workers*/model.pkl"):
            (self.folder / "new").write_bytes(harmful(self.folder / "harm"))
            (self.folder / "new").replace(model)
        return super().submit(*args)


def test_a_campaign_does_not_run_a_swapped_model(evaluator, tmp_path):
    with (
        pytest.raises(RuntimeError, match=r"model.pkl is not the file that the campaign wrote"),
        Swapping(tmp_path) as pool,
    ):
        dr.Campaign(evaluator, store=tmp_path / "wk", **GRID).run(progress=False, executor=pool)
    assert not (tmp_path / "harm").exists() and not list(tmp_path.glob("wk.workers*"))


@pytest.mark.parametrize(
    "name", ["model.pkl", "batches.pt", "state.safetensors", "sparse.pt", "golden.npy", "more.npy"]
)
def test_every_file_is_checked_before_any_is_loaded(batches, tmp_path, name):
    with spec_of(batches, tmp_path / "wk") as spec:
        workers.unpacked(spec)
        assert spec.folder.stat().st_mode & 0o777 == 0o700 and set(spec.files) == {
            "model.pkl",
            "batches.pt",
            "state.safetensors",
            "sparse.pt",
            "golden.npy",
        }
        (spec.folder / name).write_bytes(harmful(tmp_path / "harm"))
        with pytest.raises(RuntimeError, match=rf"{name} is not the file .* must be \w+\); nothing was loaded"):
            workers.unpacked(spec)
    assert not (tmp_path / "harm").exists()


def copied(folder, place, harm):
    """An attacker's copy of the folder."""
    place.mkdir(mode=0o755)
    (place / "rows").mkdir()
    for file in folder.rglob("*"):
        if file.is_file():
            (place / file.relative_to(folder)).write_bytes(file.read_bytes())
    (place / "model.pkl").write_bytes(harmful(harm))


def replaced_by_link(folder, other):
    folder.rename(folder.with_name("away"))
    folder.symlink_to(other)


def replaced_by_folder(folder, other):
    folder.rename(folder.with_name("away"))
    other.rename(folder)
    folder.chmod(0o777)


def opened_to_others(folder, other):
    folder.chmod(0o770)


def replaced_by_file(folder, other):
    folder.rename(folder.with_name("away"))
    folder.write_text("")


@pytest.mark.parametrize(
    ("swap", "said"),
    [
        (replaced_by_link, "was replaced by a file or a link; nothing in it is read"),
        (replaced_by_file, "was replaced by a file or a link; nothing in it is read"),
        (replaced_by_folder, "has mode 0777, so others may write to it; it must be 0700"),
        (opened_to_others, "has mode 0770, so others may write to it; it must be 0700"),
    ],
)
def test_another_folder_in_its_place_is_not_read(batches, tmp_path, swap, said):
    with spec_of(batches, tmp_path / "wk") as spec:
        copied(spec.folder, tmp_path / "other", tmp_path / "harm")
        swap(spec.folder, tmp_path / "other")
        with pytest.raises(PermissionError, match=said):
            workers.unpacked(spec)
    assert not (tmp_path / "harm").exists()
    assert spec.folder.exists() == (swap is not opened_to_others)  # what is not the campaign's is not deleted
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


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="folders are held open by /proc")
def test_a_swap_between_check_and_reading_changes_nothing(batches, tmp_path, monkeypatch):
    real = workers.folder_digests
    with spec_of(batches, tmp_path / "wk") as spec:

        def then_swapped(folder):
            found = real(folder)
            copied(spec.folder, tmp_path / "other", tmp_path / "harm")
            replaced_by_folder(spec.folder, tmp_path / "other")
            return found

        monkeypatch.setattr(workers, "folder_digests", then_swapped)
        evaluator, _ = workers.unpacked(spec)
    assert (evaluator.golden.scores == batches.golden.scores).all() and not (tmp_path / "harm").exists()


def test_folders_that_look_alike_stay(evaluator, tmp_path):
    """A user's own folders, one that another user made before, and links."""
    own = [tmp_path / name for name in ("wk.workers", "wk.workers-abcdefgh", "wk.workers-notes", "k.workers-abcdefgh")]
    for folder in own:
        folder.mkdir()
        (folder / "thesis.txt").write_text("text")
    marked = tmp_path / "elsewhere"
    marked.mkdir()
    (marked / ".drsrobust.lock").touch()
    (tmp_path / "wk.workers-linked__").symlink_to(marked)
    (tmp_path / "wk.workers-a_file__").write_text("text")
    with ThreadPoolExecutor(1) as pool:
        dr.Campaign(evaluator, store=tmp_path / "wk", **GRID).run(progress=False, executor=pool)
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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
def test_another_user_cannot_touch_the_files(batches):
    """In a folder that everybody may write to, as /tmp without its sticky bit: rename is all that another user can do."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        with spec_of(batches, Path(place) / "wk") as spec:
            os.seteuid(65534)
            try:
                for attempt in (
                    lambda: list(spec.folder.iterdir()),
                    lambda: (spec.folder / "model.pkl").write_bytes(b""),
                    lambda: spec.folder.chmod(0o777),
                ):
                    with pytest.raises(PermissionError):
                        attempt()
                spec.folder.rename(spec.folder.with_name("away"))
                spec.folder.mkdir(mode=0o755)
                (spec.folder / "model.pkl").write_bytes(harmful(Path(place) / "harm"))
            finally:
                os.seteuid(0)
            with pytest.raises(PermissionError, match="is of user 65534; it must be of user 0"):
                workers.unpacked(spec)
        assert not (Path(place) / "harm").exists() and (spec.folder / "model.pkl").exists()
