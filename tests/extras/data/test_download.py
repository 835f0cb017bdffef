"""Against a server in a thread that misbehaves in the ways of servers; nothing here uses the internet."""

import hashlib
import io
import resource
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from drsrobust._locks import exclusive
from drsrobust_extras.data import download as module
from drsrobust_extras.data.download import ARCHIVES, DownloadError, download, main
from drsrobust_extras.data.registry import BY_HAND, SOURCES, find_files
from tests.refusals import refuses


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No pauses between attempts, and no proxy."""
    monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)
    monkeypatch.setattr(module, "_DOWNLOAD_RETRIES", 2)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def answer(request, body, length=None):
    request.send_response(200)
    request.send_header("Content-Length", str(len(body) if length is None else length))
    request.end_headers()
    request.wfile.write(body)


@pytest.fixture
def server():
    """`.script`: how to answer one request after the other, the last way for all further ones. `.seen`: their paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.seen.append(self.path)
            way = server.script.pop(0) if len(server.script) > 1 else server.script[0]
            way(self)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # a client that went away
    server.over = threading.Event()
    server.script, server.seen, server.url = [], [], f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def status(code):
    return lambda request: request.send_error(code)


def silent(request):
    answer(request, b"", 10)
    request.server.over.wait(30)


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@contextmanager
def full_disk(size):
    """No file of this process may grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


FILES = {"ml-1m": {"ratings.dat": b"1::2::3::4\n" * 5000, "users.dat": b"u", "movies.dat": b"m", "README": b"terms"}}
CSV = {"ratings.csv": b"r" * 1000, "movies.csv": b"m"}
FILES |= dict.fromkeys(("ml-20m", "ml-25m", "ml-32m", "ml-latest-small"), CSV)
FILES["ml-100k"] = {"u.data": b"d", "u.user": b"u", "u.item": b"i"}
FILES["ml-10m"] = {"ratings.dat": b"r", "movies.dat": b"m"}


def zipped(name, files=None, extra=()):
    out, top = io.BytesIO(), "ml-10M100K" if name == "ml-10m" else name
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{top}/", b"")
        for file, content in (FILES[name] if files is None else files).items():
            archive.writestr(f"{top}/{file}", content)
        for entry, content in extra:
            archive.writestr(entry, content)
    return out.getvalue()


@pytest.fixture
def grouplens(server, monkeypatch):
    """The server with all archives (`.archives`: name -> bytes), and the checksums that go with them."""
    server.archives = {name: zipped(name) for name in FILES}

    def publish():
        for name, archive in ARCHIVES.items():
            md5 = archive.md5 and hashlib.md5(server.archives[name]).hexdigest()
            monkeypatch.setitem(ARCHIVES, name, replace(archive, md5=md5))

    def serve(request):
        name, _, kind = request.path.removeprefix("/").partition(".zip")
        body = server.archives[name]
        if kind == ".md5":
            body = f"MD5 ({name}.zip) = {hashlib.md5(body).hexdigest()}\n".encode()
        answer(request, body)

    server.script, server.publish = [serve], publish
    publish()
    return server


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (status(404), "404"),
        (status(503), "503"),
        (lambda request: answer(request, b"short", 1000), ""),
        (silent, ".*timed out"),
    ],
)
def test_a_server_that_fails(grouplens, tmp_path, monkeypatch, way, said):
    monkeypatch.setattr(module, "TIMEOUT", 0.5)
    good, grouplens.script = grouplens.script, [way]
    with pytest.raises(DownloadError, match=f"{grouplens.url}/ml-1m.zip: {said}"):
        download("ml-1m", tmp_path, grouplens.url)
    assert len(grouplens.seen) == 3 and names(tmp_path) == []
    grouplens.script = [way, *good]
    assert download("ml-1m", tmp_path, grouplens.url)
    assert names(tmp_path) == ["ml-1m"]


def test_a_killed_process_leaves_no_data_set(grouplens, tmp_path, start):
    """SIGKILL while the archive arrives; the next call downloads it from the start and removes what was left."""

    def half(request):
        answer(request, grouplens.archives["ml-1m"][:200], 10_000)
        grouplens.over.wait(60)

    good, grouplens.script = grouplens.script, [half]
    code = "import sys; from pathlib import Path; from drsrobust_extras.data.download import download; "
    code += "download('ml-1m', Path(), sys.argv[1])"
    child = start([sys.executable, "-c", code, grouplens.url], cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not grouplens.seen and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.01)
    child.kill()
    child.wait()
    assert names(tmp_path) == [".ml-1m.download"]
    grouplens.script = good
    assert download("ml-1m", tmp_path, grouplens.url)
    assert names(tmp_path) == ["ml-1m"]


def run(grouplens, root, *sets):
    return main(["--root", str(root), "--mirror", grouplens.url, *sets])


def test_what_is_asked_for_is_there(grouplens, tmp_path, capsys):
    assert run(grouplens, tmp_path) == 0
    assert names(tmp_path) == ["ml-1m", "ml-latest-small"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "ml-1m").iterdir()} == FILES["ml-1m"]
    assert grouplens.seen == ["/ml-1m.zip", "/ml-latest-small.zip.md5", "/ml-latest-small.zip"]
    out = capsys.readouterr().out
    assert f"ml-1m: {tmp_path}/ml-1m is new" in out
    assert str(tmp_path / "criteo" / "train.txt") in out and "45840617" in out and "40428968" in out
    grouplens.seen.clear()
    assert run(grouplens, tmp_path) == 0 and grouplens.seen == []
    assert f"ml-1m: {tmp_path}/ml-1m exists" in capsys.readouterr().out
    assert run(grouplens, tmp_path, "ml-20m") == 0
    assert names(tmp_path) == ["ml-1m", "ml-20m", "ml-latest-small"]
    captured = capsys.readouterr()
    assert "criteo" not in captured.out and captured.err == ""


def test_every_archive_lands_where_its_data_set_is_read(grouplens, tmp_path, capsys):
    assert run(grouplens, tmp_path, *ARCHIVES) == 0
    out = capsys.readouterr().out
    for name in SOURCES:
        if name.startswith("movielens"):
            assert all(path.parent.parent == tmp_path for path in find_files(f"{name}/full", tmp_path)), name
            assert f"{tmp_path}/{SOURCES[name].folder} is new" in out
    assert run(grouplens, tmp_path, "ml-10m") == 0 and "ml-10M100K exists" in capsys.readouterr().out


def test_sets_for_a_person(grouplens, tmp_path, capsys):
    assert run(grouplens, tmp_path, "criteo", "avazu") == 1
    captured = capsys.readouterr()
    assert captured.err == "data: missing: criteo, avazu\n"
    for by_hand in BY_HAND.values():
        assert by_hand.address in captured.out and str(by_hand.file(tmp_path)) in captured.out
        by_hand.file(tmp_path).parent.mkdir()
    (tmp_path / "criteo" / "train.txt").touch()
    (tmp_path / "avazu" / "train.csv.gz").touch()
    assert run(grouplens, tmp_path, "criteo", "avazu") == 0
    assert grouplens.seen == []


def test_where_to(grouplens, tmp_path, monkeypatch):
    monkeypatch.setenv("DRSROBUST_DATA", str(tmp_path / "named"))
    assert main(["--mirror", grouplens.url + "/", "ml-1m"]) == 0
    monkeypatch.delenv("DRSROBUST_DATA")
    monkeypatch.chdir(tmp_path)
    assert main(["--mirror", grouplens.url, "ml-1m"]) == 0
    assert names(tmp_path / "named") == names(tmp_path / "build" / "data") == ["ml-1m"]


def test_one_failure_leaves_the_others(grouplens, tmp_path, capsys):
    grouplens.archives["ml-1m"] = zipped("ml-1m", {"ratings.dat": b"another"})
    assert run(grouplens, tmp_path) == 1
    found = hashlib.md5(grouplens.archives["ml-1m"]).hexdigest()
    error, last = capsys.readouterr().err.splitlines()
    assert error.startswith(f"data: {grouplens.url}/ml-1m.zip: MD5 hash of ")
    assert f"{ARCHIVES['ml-1m'].md5} but got {found}" in error
    assert last == "data: missing: ml-1m"
    assert names(tmp_path) == ["ml-latest-small"]


def test_an_interrupt(grouplens, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "download", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(grouplens, tmp_path) == 130
    assert capsys.readouterr().err == "\ndata: interrupted\n"


@pytest.mark.parametrize("arguments", [["ml-2m"], ["--mirror", "ftp://there", "ml-1m"]])
def test_wrong_calls(arguments, tmp_path, capsys):
    assert main(["--root", str(tmp_path), *arguments]) == 2
    assert repr(arguments[0] if arguments == ["ml-2m"] else arguments[1]) in capsys.readouterr().err
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "entry", ["../evil", "ml-1m/../../evil", "/evil", "__MACOSX/ml-1m/._users.dat", "note.txt", "link"]
)
def test_an_archive_does_not_write_outside_its_folder(grouplens, tmp_path, entry):
    extra = zipfile.ZipInfo("ml-1m/link"), b"/tmp"
    extra[0].external_attr = 0o120777 << 16
    grouplens.archives["ml-1m"] = zipped("ml-1m", extra=[extra if entry == "link" else (entry, b"x")])
    grouplens.publish()
    root = tmp_path / "root"
    assert download("ml-1m", root, grouplens.url)
    assert names(tmp_path) == ["root"] and names(root) == ["ml-1m"]
    assert {*FILES["ml-1m"]} <= {*names(root / "ml-1m")} <= {*FILES["ml-1m"], "evil", "link"}
    assert not any(path.is_symlink() for path in (root / "ml-1m").iterdir())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"no archive", "cannot be unpacked"),
        (zipped("ml-20m"), " ml-1m/ratings.dat, ml-1m/users.dat, ml-1m/movies.dat"),
        (zipped("ml-1m", {"ratings.dat": b"r"}), " ml-1m/users.dat, ml-1m/movies.dat"),
    ],
)
def test_another_archive(grouplens, tmp_path, body, says):
    grouplens.archives["ml-1m"] = body
    grouplens.publish()
    refuses(lambda: download("ml-1m", tmp_path, grouplens.url), DownloadError, "ml-1m.zip ", says)
    assert names(tmp_path) == [".ml-1m.download"]


def test_no_room_to_unpack(grouplens, tmp_path):
    """The next call unpacks the archive without a download."""
    file = tmp_path / "file"
    file.touch()
    refuses(lambda: download("ml-1m", file, grouplens.url), DownloadError, f"ml-1m: {file} cannot be written to")
    file.unlink()
    with full_disk(20_000), pytest.raises(DownloadError, match=f"ml-1m: {tmp_path} cannot be written to"):
        download("ml-1m", tmp_path, grouplens.url)
    assert names(tmp_path) == [".ml-1m.download"]
    grouplens.seen.clear()
    assert download("ml-1m", tmp_path, grouplens.url)
    assert names(tmp_path) == ["ml-1m"] and grouplens.seen == []


def test_a_folder_that_is_not_complete_is_left_alone(grouplens, tmp_path):
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / "ratings.dat.gz").write_bytes(b"mine")
    said = "ml-1m exists without users.dat, movies.dat"
    refuses(lambda: download("ml-1m", tmp_path, grouplens.url), DownloadError, said)
    assert names(tmp_path / "ml-1m") == ["ratings.dat.gz"] and grouplens.seen == []
    for name in ("users.dat", "movies.dat"):
        (tmp_path / "ml-1m" / name).touch()
    assert not download("ml-1m", tmp_path, grouplens.url)


def test_two_at_once_and_a_checksum_that_is_none(grouplens, tmp_path):
    with exclusive(tmp_path / ".ml-1m"):
        refuses(lambda: download("ml-1m", tmp_path, grouplens.url), DownloadError, "ml-1m: another process")
    assert grouplens.seen == []
    grouplens.script, name = [lambda request: answer(request, b"<html>moved</html>")], "ml-latest-small"
    refuses(lambda: download(name, tmp_path, grouplens.url), DownloadError, f"{name}.zip.md5: ", "'<html>moved")
    assert names(tmp_path) == []


def test_an_archive_from_elsewhere(grouplens, tmp_path):
    (tmp_path / "ml-1m.zip").write_bytes(grouplens.archives["ml-1m"])
    assert download("ml-1m", tmp_path, grouplens.url)
    assert names(tmp_path) == ["ml-1m"] and grouplens.seen == []
    (tmp_path / "ml-20m.zip").write_bytes(b"damaged")
    assert download("ml-20m", tmp_path, grouplens.url)
    assert names(tmp_path) == ["ml-1m", "ml-20m"] and grouplens.seen == ["/ml-20m.zip"]
