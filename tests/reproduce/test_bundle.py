"""Bundles of a run: written, read into another cache, refused when damaged."""

import json
import zipfile

import pytest

from drsrobust.data import load_dataset
from drsrobust.models import state_digest
from drsrobust.training import Settings, load_model
from reproduce.__main__ import main
from reproduce.bundle import read_checkpoints, write_bundle

QUICK = Settings(epochs=1, batch_size=1024)


@pytest.fixture
def bundle(tmp_path, empty_cache):
    data = load_dataset("synthetic-movielens/ids", rows=3000)
    load_model("fm", data, settings=QUICK, progress=False)
    folder = tmp_path / "build" / "smoke"
    (folder / "figures" / "data").mkdir(parents=True)
    (folder / "figures" / "data" / "a.csv").write_text("x\n1\n")
    (folder / "run.json").write_text(json.dumps({"datasets": [data.name]}))
    return write_bundle(folder)


def test_another_cache_starts_from_it(bundle, tmp_path, monkeypatch):
    data = load_dataset("synthetic-movielens/ids", rows=3000)
    expected = state_digest(load_model("fm", data, settings=QUICK, progress=False))
    content = bundle.read_bytes()
    assert write_bundle(bundle.parent).read_bytes() == content
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "other"))
    (name,) = read_checkpoints(bundle)
    made = tmp_path / "other" / "checkpoints" / name / "model.safetensors"
    before = made.stat().st_mtime_ns
    model = load_model("fm", load_dataset("synthetic-movielens/ids", rows=3000), settings=QUICK, progress=False)
    assert state_digest(model) == expected and made.stat().st_mtime_ns == before
    assert read_checkpoints(bundle) == [name] and made.stat().st_mtime_ns == before


def test_damaged_and_wrong_files_are_refused(bundle, tmp_path, capsys):
    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"x\n2\n" if name.endswith("a.csv") else old.read(name))
    with pytest.raises(ValueError, match=r"is damaged: figures/data/a\.csv does not match SHA256SUMS"):
        read_checkpoints(changed)
    changed.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="is not a bundle of `make bundle`, or is damaged"):
        read_checkpoints(changed)
    assert main(["--profile", "smoke", "--out", str(tmp_path), "--checkpoints", str(changed)]) == 2
    assert main(["--profile", "smoke", "--out", str(tmp_path / "empty"), "--bundle"]) == 2
    said = capsys.readouterr().err
    assert "is not a bundle" in said and "there is no finished run in" in said
    (bundle.parent / "run.json").write_text(json.dumps({"datasets": ["movielens-1m/ids"]}))
    with pytest.raises(FileNotFoundError, match="holds no model trained on movielens-1m/ids"):
        write_bundle(bundle.parent)
