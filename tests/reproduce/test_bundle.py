"""Bundles of a run: written, read into another cache, refused when damaged."""

import hashlib
import json
import stat
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from safetensors.torch import load, save

from drsrobust._hashing import digest
from drsrobust._locks import exclusive
from drsrobust.models import state_digest
from drsrobust.training import Settings, load_model
from drsrobust_extras.data.load import load_dataset
from reproduce.__main__ import main
from reproduce.bundle import bundles_used, read_checkpoints, write_bundle

QUICK = Settings(epochs=1, batch_size=1024)
OF = {"profile": "smoke", "started": "today", "commit": "0123456789ab"}


@pytest.fixture
def bundle(tmp_path, empty_cache):
    data = load_dataset("synthetic-movielens/full", rows=3000)
    load_model("fm", data, settings=QUICK, progress=False)
    folder = tmp_path / "build" / "smoke"
    (folder / "figures" / "data").mkdir(parents=True)
    (folder / "figures" / "data" / "a.csv").write_text("x\n1\n")
    (folder / "run.json").write_text(json.dumps(OF | {"datasets": [data.name], "machine": {"processor": "AMD"}}))
    return write_bundle(folder)


def test_another_cache_starts_from_it(bundle, tmp_path, monkeypatch):
    data = load_dataset("synthetic-movielens/full", rows=3000)
    expected = state_digest(load_model("fm", data, settings=QUICK, progress=False))
    content = bundle.read_bytes()
    assert write_bundle(bundle.parent).read_bytes() == content
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "other"))
    (name,) = read_checkpoints(bundle)
    made = tmp_path / "other" / "checkpoints" / name / "model.safetensors"
    before = made.stat().st_mtime_ns
    model = load_model("fm", load_dataset("synthetic-movielens/full", rows=3000), settings=QUICK, progress=False)
    assert state_digest(model) == expected and made.stat().st_mtime_ns == before
    assert read_checkpoints(bundle) == [name] and made.stat().st_mtime_ns == before


def altered(bundle, path, change):
    """A copy of a bundle whose members, name -> content, are as `change` leaves them, with fitting sizes and sums."""
    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name not in ("SHA256SUMS", "SIZES")}
    tables = change(files) or {}
    sizes = "".join(f"{len(content)}  {name}\n" for name, content in files.items()).encode()
    files = files | {"SIZES": tables.get("SIZES", sizes)}
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (files | {"SHA256SUMS": sums}).items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def refused(bundle, tmp_path, monkeypatch):
    """Gives a function that reads an altered bundle into an empty cache, which stays empty; returns what is said."""

    def read(change, marked=None):
        path = altered(bundle, tmp_path / "altered.zip", change)
        if marked:
            marked(path)
        monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "victim"))
        with pytest.raises(ValueError, match="is not a bundle of `make bundle`, or is damaged") as caught:
            read_checkpoints(path)
        assert "\n" not in str(caught.value)
        files = [file for file in (tmp_path / "victim").rglob("*") if file.suffix != ".lock"]
        assert not [file for file in files if file.is_file()] and not (tmp_path / "victim" / "bundle").exists()
        return str(caught.value)

    return read


def one_of(files, ending):
    return next(name for name in files if name.endswith(ending))


def test_an_unaltered_copy_is_read(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "other"))
    assert len(read_checkpoints(altered(bundle, tmp_path / "copy.zip", lambda files: None))) == 1


def sized(files, size):
    """SIZES in which run.json has that size."""
    sizes = {name: len(content) for name, content in files.items()} | {"run.json": size}
    return {"SIZES": "".join(f"{size}  {name}\n" for name, size in sizes.items()).encode()}


def with_manifest(change):
    """Changes the file of the manifest."""

    def changed(files):
        name = one_of(files, "manifest.json")
        files[name] = change(files[name])

    return changed


NO_NAMES = ["../escaped", "/escaped", "checkpoints/../../escaped/model.safetensors", "figures/..\\escaped", "setup.py"]
NO_NAMES += [f"checkpoints/{name}" for name in ("../manifest.json", ".hidden/manifest.json", "a/b/manifest.json")]
NO_NAMES += ["checkpoints/a/bundle.json"]
ALTERED = {
    "over 100 times as many": lambda files: files.update({"figures/zeros.bin": bytes(60 * 2**20)}),
    "run.json is larger than the 5 bytes": lambda files: sized(files, 5),
    "run.json has ": lambda files: sized(files, len(files["run.json"]) + 1),
    "SIZES says '-5' of ": lambda files: sized(files, -5),
    "does not have the SHA-256": with_manifest(lambda text: text.replace(b'"test_auc": 0', b'"test_auc": 1')),
    "recursion": with_manifest(lambda text: b"[" * 100_000),
    "manifest.json": lambda files: files.pop(one_of(files, "manifest.json")) and None,
    **{repr(name): lambda files, name=name: files.update({name: b"x"}) for name in NO_NAMES},
}


@pytest.mark.parametrize("says", ALTERED)
def test_an_altered_archive_is_refused(says, refused):
    assert says in refused(ALTERED[says])


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("figures/link", stat.S_IFLNK, "figures/link is a link"),
        ("run.json", stat.S_IFREG, "a name occurs twice"),
        ("figures/more.csv", stat.S_IFREG, "figures/more.csv does not match"),
    ],
)
def test_what_was_added_to_it(name, kind, says, refused):
    def add(path):
        entry = zipfile.ZipInfo(name)
        entry.external_attr = (kind | 0o777) << 16
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(entry, "/etc/passwd")

    assert says in refused(lambda files: None, add)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "its weights have the hash"),
        ({"state": "0" * 64}, "its manifest says 000000000000"),
        ({"sha256": "0" * 64}, "model.safetensors does not have the SHA-256"),
    ],
)
def test_a_manifest_of_other_weights(changes, says, refused):
    """Though all sums of files fit: the hash of the weights is the manifest's, which has a hash itself."""

    def change(files):
        name, weights = one_of(files, "manifest.json"), one_of(files, "model.safetensors")
        if not changes:
            files[weights] = save({key: tensor + 1 for key, tensor in load(files[weights]).items()})
        manifest = json.loads(files[name]) | {"sha256": hashlib.sha256(files[weights]).hexdigest()} | changes
        del manifest["manifest_sha256"]
        files[name] = json.dumps(manifest | {"manifest_sha256": digest(manifest)}).encode()

    assert says in refused(change)


def test_an_encrypted_archive(refused):
    def encrypted(path):
        """The flag in the headers: nothing is decrypted."""
        content = bytearray(path.read_bytes())
        for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            start = content.find(mark)
            content[start + at] |= 1
        path.write_bytes(content)

    assert "is encrypted, and a bundle has no password" in refused(lambda files: None, encrypted)


def test_one_process_unpacks_at_a_time(bundle, tmp_path, monkeypatch):
    """A second one waits for the first, and finds the models there."""
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "other"))
    with ThreadPoolExecutor(1) as executor:
        with exclusive(tmp_path / "other" / "bundle"):
            second = executor.submit(read_checkpoints, bundle)
            time.sleep(0.3)
            assert not second.done() and not list((tmp_path / "other").glob("checkpoints/*"))
        (name,) = second.result(timeout=30)
    assert (tmp_path / "other" / "checkpoints" / name / "manifest.json").is_file()


def test_a_run_says_whose_models_it_used(bundle, tmp_path, monkeypatch):
    """Also a later run that finds them in the cache; models that were trained here are not named."""
    data = load_dataset("synthetic-movielens/full", rows=3000)
    assert bundles_used([data.name]) == []
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "other"))
    (name,) = read_checkpoints(bundle)
    (used,) = bundles_used([data.name])
    assert used["file"] == bundle.name and used["sha256"] == hashlib.sha256(bundle.read_bytes()).hexdigest()
    assert used["models"] == [name] and used["run"] == {**OF, "processor": "AMD"}
    assert bundles_used(["movielens-1m/ids"]) == []
    load_model("dlrm", load_dataset("synthetic-movielens/full", rows=3000), settings=QUICK, progress=False)
    assert bundles_used([data.name]) == [used]
    write_bundle(bundle.parent)  # of both models, without the mark in the cache
    with zipfile.ZipFile(bundle) as archive:
        assert not [member for member in archive.namelist() if "bundle.json" in member]


def test_the_record_and_the_report_of_a_run_name_the_bundle(bundle, tmp_path, monkeypatch):
    from reproduce import runner

    def run_notebook(notebook, parameters, folder):
        return runner.Outcome(notebook.name, notebook.title, True, 1.0, parameters, "notebooks/x.ipynb")

    monkeypatch.setattr(runner, "run_notebook", run_notebook)
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "other"))
    call = ["00_models", "--profile", "smoke", "--jobs", "1", "--out", str(tmp_path / "out")]
    assert main([*call, "--checkpoints", str(bundle)]) == 0
    total = hashlib.sha256(bundle.read_bytes()).hexdigest()
    run = json.loads((tmp_path / "out" / "smoke-part" / "run.json").read_text())
    assert [(used["sha256"], len(used["models"])) for used in run["bundles"]] == [(total, 1)]
    table = tmp_path / "out" / "smoke-part" / "figures" / "statements.csv"
    assert run["figure_sha256"] == {"statements.csv": hashlib.sha256(table.read_bytes()).hexdigest()}
    page = (tmp_path / "out" / "smoke-part" / "report" / "index.html").read_text()
    assert f"1 of drsrobust-smoke.zip (SHA-256 <code>{total}</code>), not trained in this run: fm-" in page


def test_wrong_files_are_refused(bundle, tmp_path, capsys):
    (tmp_path / "changed.zip").write_bytes(b"no archive")
    call = ["--profile", "smoke", "--out", str(tmp_path)]
    for given in (tmp_path, tmp_path / "none", tmp_path / "changed.zip"):
        assert main([*call, "--checkpoints", str(given)]) == 2
        said = capsys.readouterr().err
        assert str(given) in said and said.count("\n") == 1
    assert main([*call[:-1], str(tmp_path / "empty"), "--bundle"]) == 2
    (bundle.parent / "run.json").write_text(json.dumps({"datasets": ["movielens-1m/ids"]}))
    with pytest.raises(FileNotFoundError, match="movielens-1m/ids"):
        write_bundle(bundle.parent)
