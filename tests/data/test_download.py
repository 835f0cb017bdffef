"""Against a server in a thread, which misbehaves in the ways of servers; nothing here touches the internet."""

import errno
import hashlib
import io
import os
import resource
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from drsrobust.data import download
from drsrobust.data import download as cli
from drsrobust.data.download import ARCHIVES, Archive, DownloadError, Patience, fetch, get
from drsrobust.data.registry import BY_HAND

QUICK = Patience(timeout=5, attempts=3, pause=0)
SHORT = Patience(timeout=0.5, attempts=4, pause=0)
BODY = bytes(range(256)) * 1000
MD5 = hashlib.md5(BODY).hexdigest()


def ranged(request, body, etag, stop=None):
    """Serves `body` as a good server does, breaking off after byte `stop`."""
    asked, start = request.headers.get("Range"), 0
    if asked and request.headers.get("If-Range") in (None, etag):
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
    request.send_response(206 if start else 200)
    if start:
        request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
    answer(request, body[start:stop], len(body) - start, etag)


def answer(request, body, length=None, etag='"1"'):
    if etag:
        request.send_header("ETag", etag)
    request.send_header("Content-Length", str(len(body) if length is None else length))
    request.end_headers()
    request.wfile.write(body)


@pytest.fixture
def server(monkeypatch):
    """`.script`: how to answer one request after the other, the last way for all further ones. `.seen`: their paths and
    ranges."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.seen.append((self.path, self.headers.get("Range")))
            way = server.script.pop(0) if len(server.script) > 1 else server.script[0]
            way(self)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):  # a client that went away
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server(("127.0.0.1", 0), Handler)
    server.over = threading.Event()
    server.script, server.seen, server.url = [], [], f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def good(request):
    ranged(request, BODY, '"1"')


def broken(stop, etag='"1"', body=BODY):
    return lambda request: ranged(request, body, etag, stop)


def status(code):
    def way(request):
        request.send_error(code)

    return way


def stalled(request):
    request.send_response(200)
    request.send_header("Content-Length", "10")
    request.end_headers()
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


def test_a_good_server(server, tmp_path):
    server.script = [good]
    fetch(f"{server.url}/a.zip", tmp_path / "new" / "a.zip", MD5, QUICK)
    assert (tmp_path / "new" / "a.zip").read_bytes() == BODY and names(tmp_path / "new") == ["a.zip"]
    assert server.seen == [("/a.zip", None)]


@pytest.mark.parametrize("stop", [0, 1, 70_000, 255_999])
def test_a_body_that_breaks_off_is_gone_on_with(server, tmp_path, stop):
    server.script = [broken(stop), good]
    fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert (tmp_path / "a.zip").read_bytes() == BODY and names(tmp_path) == ["a.zip"]
    assert server.seen[1:] == [("/a.zip", f"bytes={stop}-" if stop else None)]


def test_what_has_come_is_kept(server, tmp_path):
    """A server that never gets beyond a byte; a later call goes on from there."""
    server.script = [broken(1000)]
    says = r"a.zip: the connection ended after 1000 of 256000 bytes \(3 attempts\); .*a.zip.part keeps what has come"
    with pytest.raises(DownloadError, match=says):
        fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert names(tmp_path) == ["a.zip.part", "a.zip.part.json"]
    server.script = [good]
    fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert [asked for _, asked in server.seen] == [None, *["bytes=1000-"] * 3]


def test_a_server_without_ranges(server, tmp_path):
    def whole(request):
        request.send_response(200)
        answer(request, BODY)

    server.script = [broken(1000), whole]
    fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert server.seen[1][1] == "bytes=1000-" and (tmp_path / "a.zip").read_bytes() == BODY


def test_without_a_version_nothing_is_gone_on_with(server, tmp_path):
    server.script = [broken(1000, etag=None), broken(2000, etag='W/"weak"'), good]
    fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert [asked for _, asked in server.seen] == [None, None, None]


def test_a_date_will_do(server, tmp_path):
    date = "Mon, 17 Oct 2016 00:00:00 GMT"

    def dated(request):
        assert request.headers.get("If-Range") in (None, date)
        start = 1000 if request.headers.get("Range") == "bytes=1000-" else 0
        request.send_response(206 if start else 200)
        request.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        request.send_header("Last-Modified", date)
        answer(request, BODY[start : None if start else 1000], len(BODY) - start, etag=None)

    server.script = [dated]
    fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert [asked for _, asked in server.seen] == [None, "bytes=1000-"]


def test_wrong_contents(server, tmp_path):
    server.script = [broken(None, body=BODY[:-1] + b"x")]
    with pytest.raises(DownloadError) as caught:
        fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    found = hashlib.md5(BODY[:-1] + b"x").hexdigest()
    assert str(caught.value) == f"{server.url}/a.zip: what came has the MD5 {found}, not {MD5}; it was removed"
    assert names(tmp_path) == [] and len(server.seen) == 1


def test_a_silent_server(server, tmp_path):
    server.script = [stalled]
    with pytest.raises(DownloadError, match=r"a.zip: the server does not answer \(4 attempts\)$"):
        fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, SHORT)
    assert len(server.seen) == 4 and names(tmp_path) == []
    server.script = [stalled, good]
    fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, SHORT)
    assert names(tmp_path) == ["a.zip"]


def test_nobody_there(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(DownloadError, match="http://127.0.0.1:1/a.zip: .*refused .3 attempts.$"):
        fetch("http://127.0.0.1:1/a.zip", tmp_path / "a.zip", MD5, QUICK)


def test_pauses_double(server, tmp_path, monkeypatch):
    server.script, pauses = [status(503)], []
    monkeypatch.setattr(download.time, "sleep", pauses.append)
    with pytest.raises(DownloadError, match="the server answered 503 Service Unavailable"):
        fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, Patience(5, 5, 1.0))
    assert pauses == [1.0, 2.0, 4.0, 8.0] and len(server.seen) == 5


@pytest.mark.parametrize(("code", "asked"), [(404, 1), (403, 1), (503, 3), (429, 3), (500, 3)])
def test_refusals(server, tmp_path, code, asked):
    server.script = [status(code)]
    with pytest.raises(DownloadError, match=f"{server.url}/a.zip: the server answered {code}"):
        fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert len(server.seen) == asked and names(tmp_path) == []
    server.script = [status(503), good]
    fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert (tmp_path / "a.zip").read_bytes() == BODY


def test_a_killed_process_is_gone_on_from(server, tmp_path, start):
    """SIGKILL while the body comes; the next process asks for the rest."""
    release = threading.Event()

    def half(request):
        ranged(request, BODY, '"1"', 128_000)
        release.wait(60)

    server.script = [half, good]
    url, part = f"{server.url}/a.zip", tmp_path / "a.zip.part"
    code = (
        f"from pathlib import Path; from drsrobust.data.download import fetch; fetch({url!r}, Path('a.zip'), {MD5!r})"
    )
    child = start([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size >= 65536) and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.01)
    child.kill()
    child.wait()
    release.set()
    have = part.stat().st_size
    assert 65536 <= have <= 128_000 and names(tmp_path) == ["a.zip.part", "a.zip.part.json"]
    fetch(url, tmp_path / "a.zip", MD5, QUICK)
    assert server.seen[1] == ("/a.zip", f"bytes={have}-")
    assert (tmp_path / "a.zip").read_bytes() == BODY and names(tmp_path) == ["a.zip"]


def test_a_whole_part_is_not_asked_for_again(server, tmp_path, monkeypatch):
    server.script = [good]
    with monkeypatch.context() as patch:
        patch.setattr(download, "file_md5", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert names(tmp_path) == ["a.zip.part", "a.zip.part.json"]
    fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert len(server.seen) == 1 and names(tmp_path) == ["a.zip"]


def test_parts_of_two_files_are_not_joined(server, tmp_path):
    """The file changes between two parts, on a server that minds If-Range and on one that does not."""
    new = BODY[::-1]
    md5 = hashlib.md5(new).hexdigest()

    def careless(request):
        request.headers.replace_header("If-Range", '"2"')
        ranged(request, new, '"2"')

    for second in (broken(None, '"2"', new), careless):
        server.script, server.seen[:] = [broken(1000), second, broken(None, '"2"', new)], []
        fetch(f"{server.url}/a.zip", tmp_path / "a.zip", md5, QUICK)
        assert server.seen[1][1] == "bytes=1000-"
        assert (tmp_path / "a.zip").read_bytes() == new and names(tmp_path) == ["a.zip"]
    assert [asked for _, asked in server.seen] == [None, "bytes=1000-", None]


def test_a_shorter_file_now(server, tmp_path):
    server.script = [broken(1000), status(416), good]
    fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert [asked for _, asked in server.seen] == [None, "bytes=1000-", None]


@pytest.mark.parametrize("note", ["", "{}", "[]", '{"url": "elsewhere", "version": "1", "size": 256000}', None])
def test_a_part_of_unknown_origin_is_not_gone_on_with(server, tmp_path, note):
    (tmp_path / "a.zip.part").write_bytes(b"who knows")
    if note is not None:
        (tmp_path / "a.zip.part.json").write_text(note)
    server.script = [good]
    fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert server.seen == [("/a.zip", None)] and names(tmp_path) == ["a.zip"]


def test_a_full_disk(server, tmp_path):
    server.script = [good]
    with full_disk(100_000), pytest.raises(DownloadError, match="a.zip cannot be written: .*; nothing of it was kept"):
        fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert names(tmp_path) == [] and len(server.seen) == 1


def test_a_name_that_cannot_be_given(server, tmp_path, monkeypatch):
    def refuse(source, target, real=os.replace):
        if str(target).endswith("a.zip"):
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    server.script = [good]
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(DownloadError, match="a.zip cannot be written: .*Input/output error"):
        fetch(f"{server.url}/a.zip", tmp_path / "a.zip", MD5, QUICK)
    assert names(tmp_path) == []


def test_no_way_from_https_to_http(monkeypatch, tmp_path):
    class Elsewhere(io.BytesIO):
        url, status, headers = "http://elsewhere/a.zip", 200, {}

    monkeypatch.setattr(download, "urlopen", lambda request, timeout: Elsewhere(BODY))
    with pytest.raises(DownloadError, match="sends one to http://elsewhere/a.zip, which is not encrypted"):
        fetch("https://here/a.zip", tmp_path / "a.zip", MD5, QUICK)


# Archives and the command line

FILES = {"ml-1m": {"ratings.dat": b"1::2::3::4\n" * 5000, "users.dat": b"u", "movies.dat": b"m", "README": b"terms"}}
FILES["ml-20m"] = FILES["ml-latest-small"] = {"ratings.csv": b"r" * 1000, "movies.csv": b"m"}


def zipped(name, files=None, extra=()):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/", b"")
        for file, content in (FILES[name] if files is None else files).items():
            archive.writestr(f"{name}/{file}", content)
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
            monkeypatch.setitem(ARCHIVES, name, Archive(archive.files, md5))

    def serve(request):
        name, _, kind = request.path.removeprefix("/").partition(".zip")
        body = server.archives[name]
        if kind == ".md5":
            body = f"MD5 ({name}.zip) = {hashlib.md5(body).hexdigest()}\n".encode()
        ranged(request, body, '"1"')

    server.script, server.publish = [serve], publish
    publish()
    return server


def test_published_checksums():
    assert ARCHIVES["ml-1m"].md5 == "c4d9eecfca2ab87c1945afe126590906"
    assert ARCHIVES["ml-20m"].md5 == "cd245b17a1ae2cc31bb14903e1204af3"
    assert ARCHIVES["ml-latest-small"].md5 is None


def run(grouplens, root, *sets):
    return cli.main(["--root", str(root), "--mirror", grouplens.url, *sets], QUICK)


def test_what_is_asked_for_is_there(grouplens, tmp_path, capsys):
    assert run(grouplens, tmp_path) == 0
    assert names(tmp_path) == ["ml-1m", "ml-latest-small"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "ml-1m").iterdir()} == FILES["ml-1m"]
    assert [path for path, _ in grouplens.seen] == ["/ml-1m.zip", "/ml-latest-small.zip.md5", "/ml-latest-small.zip"]
    out = capsys.readouterr().out
    assert f"ml-1m: {tmp_path}/ml-1m is new" in out
    assert str(tmp_path / "criteo" / "train.txt") in out and "45840617" in out and "40428968" in out
    grouplens.seen.clear()
    assert run(grouplens, tmp_path) == 0 and grouplens.seen == []
    assert f"ml-1m: {tmp_path}/ml-1m is there" in capsys.readouterr().out
    assert run(grouplens, tmp_path, "ml-20m") == 0
    assert names(tmp_path) == ["ml-1m", "ml-20m", "ml-latest-small"]
    captured = capsys.readouterr()
    assert "criteo" not in captured.out and captured.err == ""


def test_sets_for_a_person(grouplens, tmp_path, capsys):
    assert run(grouplens, tmp_path, "criteo", "avazu") == 1
    captured = capsys.readouterr()
    assert captured.err == "data: not there: criteo, avazu\n"
    for by_hand in BY_HAND.values():
        assert by_hand.address in captured.out and str(tmp_path / by_hand.file) in captured.out
        (tmp_path / by_hand.file).parent.mkdir()
    (tmp_path / "criteo" / "train.txt").touch()
    (tmp_path / "avazu" / "train.csv.gz").touch()
    assert run(grouplens, tmp_path, "criteo", "avazu") == 0
    assert grouplens.seen == []


def test_where_to(grouplens, tmp_path, monkeypatch):
    monkeypatch.setenv("DRSROBUST_DATA", str(tmp_path / "named"))
    assert cli.main(["--mirror", grouplens.url + "/", "ml-1m"], QUICK) == 0
    monkeypatch.delenv("DRSROBUST_DATA")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--mirror", grouplens.url, "ml-1m"], QUICK) == 0
    assert names(tmp_path / "named") == names(tmp_path / "build" / "data") == ["ml-1m"]


def test_one_failure_leaves_the_others(grouplens, tmp_path, capsys):
    grouplens.archives["ml-1m"] = zipped("ml-1m", {"ratings.dat": b"another"})
    assert run(grouplens, tmp_path) == 1
    found = hashlib.md5(grouplens.archives["ml-1m"]).hexdigest()
    assert capsys.readouterr().err == (
        f"data: {grouplens.url}/ml-1m.zip: what came has the MD5 {found}, not {ARCHIVES['ml-1m'].md5}; it was removed\n"
        "data: not there: ml-1m\n"
    )
    assert names(tmp_path) == ["ml-latest-small"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["ml-2m"],
            "data: unknown data set 'ml-2m'; did you mean 'ml-20m'? known: ml-1m, ml-20m, ml-latest-small, criteo",
        ),
        (
            ["--mirror", "ftp://there", "ml-1m"],
            "data: --mirror 'ftp://there' is not an address that begins with https://",
        ),
    ],
)
def test_wrong_calls(arguments, says, tmp_path, capsys):
    assert cli.main(["--root", str(tmp_path), *arguments]) == 2
    assert capsys.readouterr().err.startswith(says) and names(tmp_path) == []


def test_an_interrupt(grouplens, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "get", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(grouplens, tmp_path) == 130
    assert capsys.readouterr().err == "\ndata: stopped; the same call goes on from here\n"


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ([("../evil", b"x")], "'../evil' would lead out of the folder"),
        ([("ml-1m/../../evil", b"x")], "'ml-1m/../../evil' would lead out of the folder"),
        ([("/evil", b"x")], "'/evil' would lead out of the folder"),
        ([("ml-1m/..\\evil", b"x")], "would lead out of the folder"),
        ([(zipfile.ZipInfo("ml-1m/link"), b"/tmp")], "'ml-1m/link' would lead out of the folder"),
    ],
)
def test_an_archive_that_leads_elsewhere(grouplens, tmp_path, extra, says):
    if isinstance(extra[0][0], zipfile.ZipInfo):
        extra[0][0].external_attr = 0o120777 << 16
    grouplens.archives["ml-1m"] = zipped("ml-1m", extra=extra)
    grouplens.publish()
    root = tmp_path / "root"
    with pytest.raises(DownloadError) as caught:
        get("ml-1m", root, grouplens.url, QUICK)
    assert says in str(caught.value)
    assert names(tmp_path) == ["root"] and names(root) == ["ml-1m.zip"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"no archive", "ml-1m.zip cannot be unpacked: File is not a zip file"),
        (zipped("ml-20m"), "ml-1m.zip holds no ml-1m/"),
        (zipped("ml-1m", {"ratings.dat": b"r"}), "ml-1m.zip holds no ml-1m/users.dat, ml-1m/movies.dat"),
    ],
)
def test_another_archive(grouplens, tmp_path, body, says):
    grouplens.archives["ml-1m"] = body
    grouplens.publish()
    with pytest.raises(DownloadError, match=says):
        get("ml-1m", tmp_path, grouplens.url, QUICK)
    assert names(tmp_path) == ["ml-1m.zip"]


def test_what_others_put_into_an_archive_stays_there(grouplens, tmp_path):
    grouplens.archives["ml-1m"] = zipped("ml-1m", extra=[("__MACOSX/ml-1m/._users.dat", b"x"), ("note.txt", b"x")])
    grouplens.publish()
    assert get("ml-1m", tmp_path, grouplens.url, QUICK)
    assert names(tmp_path) == ["ml-1m"] and names(tmp_path / "ml-1m") == sorted(FILES["ml-1m"])


def test_no_room_to_unpack(grouplens, tmp_path):
    """The archive is whole and stays; the next call unpacks it, and asks nobody."""
    with full_disk(20_000), pytest.raises(DownloadError, match=f"ml-1m: {tmp_path} cannot be written to"):
        get("ml-1m", tmp_path, grouplens.url, QUICK)
    assert names(tmp_path) == ["ml-1m.zip"]
    grouplens.seen.clear()
    assert get("ml-1m", tmp_path, grouplens.url, QUICK)
    assert names(tmp_path) == ["ml-1m"] and grouplens.seen == []


def test_a_folder_that_is_not_complete_is_left_alone(grouplens, tmp_path):
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / "ratings.dat.gz").write_bytes(b"mine")
    with pytest.raises(
        DownloadError, match="ml-1m is there, but has no users.dat, movies.dat; put that there, or move"
    ):
        get("ml-1m", tmp_path, grouplens.url, QUICK)
    assert names(tmp_path / "ml-1m") == ["ratings.dat.gz"] and grouplens.seen == []
    for name in ("users.dat", "movies.dat"):
        (tmp_path / "ml-1m" / name).touch()
    assert not get("ml-1m", tmp_path, grouplens.url, QUICK)


def test_an_archive_from_elsewhere(grouplens, tmp_path):
    (tmp_path / "ml-1m.zip").write_bytes(b"damaged")
    with pytest.raises(DownloadError, match="ml-1m.zip has the MD5 .*; remove it, and it is downloaded anew"):
        get("ml-1m", tmp_path, grouplens.url, QUICK)
    (tmp_path / "ml-1m.zip").write_bytes(grouplens.archives["ml-1m"])
    assert get("ml-1m", tmp_path, grouplens.url, QUICK)
    assert names(tmp_path) == ["ml-1m"] and grouplens.seen == []


def test_a_checksum_that_is_none(grouplens, tmp_path):
    def page(request):
        request.send_response(200)
        answer(request, b"<html>moved</html>")

    grouplens.script = [page]
    with pytest.raises(DownloadError, match="ml-latest-small.zip.md5: no MD5 in what came: '<html>moved"):
        get("ml-latest-small", tmp_path, grouplens.url, QUICK)
    assert names(tmp_path) == []


def test_two_at_once(grouplens, tmp_path):
    from drsrobust._files import exclusive

    with exclusive(tmp_path / ".ml-1m"), pytest.raises(DownloadError, match="another process is downloading it"):
        get("ml-1m", tmp_path, grouplens.url, QUICK)
    assert grouplens.seen == []


def test_a_root_that_cannot_be_written_to(grouplens, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match="ml-1m: .*file cannot be written to"):
        get("ml-1m", tmp_path / "file", grouplens.url, QUICK)
