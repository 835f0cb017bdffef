"""The store against everything that befalls files: kills, full disks, damage, mix-ups, and readers beside a writer."""

import errno
import os
import shutil
import signal
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice, product
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drsrobust._processes import process_context
from drsrobust.campaign import Store, StoreError
from drsrobust.campaign.store import PATIENCE
from drsrobust.campaign.table import LATER, SCHEMA, stored_schema
from tests import processes
from tests.campaign import writer
from tests.campaign.writer import CONDITIONS, TRIALS, store, trials
from tests.extras.data.test_download import full_disk
from tests.refusals import refuses


def start(folder, seed, sync_seconds=0):
    """A process that writes, and a generator of what it says: nothing at first, then the keys it stored."""
    said, ours = process_context().Pipe(duplex=False)
    process = processes.start(writer.write_all, folder, seed, ours.send, sync_seconds)
    ours.close()  # so that the end of the process is the end of what it says
    return process, iter_said(said)


def iter_said(said):
    with said, suppress(EOFError):
        while True:
            yield said.recv()


def keys_of(table):
    return set(zip(table["condition"].to_pylist(), table["trial"].to_pylist(), strict=True))


def chunks(folder):
    return sorted(Path(folder).glob("*.parquet"))


def hidden(folder):
    return [path for path in Path(folder).iterdir() if path.name.startswith(".")]


def unreadable(here, message):
    """All that reads a store refuses it."""
    for read in (here.read, here.keys, here.writing().__enter__):
        with pytest.raises(StoreError, match=message):
            read()


@pytest.fixture
def filled(tmp_path):
    """A store with conditions 0 and 2, two chunks each."""
    here = store(tmp_path / "s")
    with here.writing():
        for condition in (2, 0):
            here.write(trials(condition, [4, 6, 7]))
            here.write(trials(condition, [0, 1, 5]))
    return here


def test_what_was_written_is_read(filled):
    table = store(filled.folder).read()
    assert table.schema == stored_schema(["gauc"])
    expected = [(condition, trial) for condition in (0, 2) for trial in (0, 1, 4, 5, 6, 7)]
    assert table.equals(pa.concat_tables([trials(condition, [trial]) for condition, trial in expected]))
    assert filled.keys().tolist() == [list(key) for key in expected] and filled.keys().dtype == np.int64
    some = filled.read(["seconds", "errors", "trial"])
    assert some.equals(table.select(["seconds", "errors", "trial"]))
    assert [path.name[:23] for path in chunks(filled.folder)] == [
        "00000-00000000-00000005",
        "00000-00000004-00000007",
        "00002-00000000-00000005",
        "00002-00000004-00000007",
    ]


def test_consecutive_chunks_are_not_copied(filled):
    with filled.writing():
        filled.write(trials(1, [0, 1]))
        filled.write(trials(1, [2, 3, 9]))
    assert [len(part) for part in filled.read()["trial"].chunks if len(part)] == [6, 2, 3, 6]


def test_a_store_of_another_shard(tmp_path):
    shards = (None, {"index": 0, "of": 2}, {"index": 1, "of": 2}, {"index": 0, "of": 3})
    for asked, held in product(shards, shards):
        settings = tmp_path / f"{shards.index(held)}", {"what": "made up"}, {}, stored_schema()
        with Store(*settings, held).writing(), nullcontext() if asked == held else pytest.raises(StoreError):
            Store(*settings, asked)


def test_chunks_of_an_earlier_version_lack_columns(tmp_path):
    here, table = store(tmp_path / "s"), trials(1, [2, 4])
    schema = pa.schema([field for field in here.schema if field.name not in LATER])
    early = Store(here.folder, {"what": "made up"}, {}, schema)
    with early.writing():
        early.write(table.drop_columns(list(LATER)))
    for columns in (table.schema.names, ["trial", "auc"], [LATER[0]]):
        assert here.read(columns).equals(table.select(columns).replace_schema_metadata(None))


def test_nothing_there(tmp_path):
    here = store(tmp_path / "deep" / "s")
    assert here.read().equals(stored_schema(["gauc"]).empty_table()) and here.keys().shape == (0, 2)
    assert not (tmp_path / "deep").exists()
    with here.writing() as keys:
        assert keys.shape == (0, 2)
    assert [path.name for path in here.folder.iterdir()] == ["manifest.json"]


def test_schema():
    assert stored_schema().names == [*SCHEMA.names, "condition", "error", "seconds", "worker", "errors"]
    for name in ("auc", "errors", "gauc"):
        with pytest.raises(ValueError, match=f"'{name}' is a column of the campaign's table already"):
            stored_schema(["gauc", name])


def test_what_is_no_chunk_is_not_written(filled):
    good = trials(1, [3, 4])
    narrow = good.set_column(8, "trial", pa.array([3, 4], pa.int32()))
    with filled.writing():
        before = chunks(filled.folder)
        for table, message in [
            (good.slice(0, 0), "must hold at least one trial"),
            (good.drop_columns("gauc"), rf"column {len(SCHEMA)} is condition \(int64\), and must be gauc \(double\)"),
            (good.append_column("more", pa.nulls(2)), rf"column {len(good.schema)} is more \(null\), and must be none"),
            (narrow, r"trial \(int32\), and must be trial \(int64\)"),
            (pa.concat_tables([good, trials(2, [9])]), r"must be of one condition; this one is of \[1, 2\]"),
            (trials(1, [3, 5, 4]), "must ascend; in this one 4 follows 5"),
            (trials(1, [3, 3]), "in this one 3 follows 3"),
            (trials(-1, [3]), "condition -1, trial 3: neither may be negative"),
            (good.set_column(8, "trial", pa.array([3, None], pa.int64())), "in this one some are null"),
            (trials(2, [2, 5, 8]), "trial 5 of condition 2 is stored already"),
        ]:
            with pytest.raises(StoreError, match=message):
                filled.write(table)
        filled.write(good)
        refuses(lambda: filled.write(trials(1, [4])), StoreError, "trial 4 of condition 1 is stored already")
    refuses(lambda: filled.write(trials(1, [5])), StoreError, "not held for writing; use `with store.writing")
    assert len(chunks(filled.folder)) == len(before) + 1


@pytest.mark.long
def test_kill_9_at_twenty_moments(tmp_path):
    """Nothing that was reported is lost, nothing stands twice, the next writer goes on."""
    random, here, reported, cut = Random(1), store(tmp_path / "s"), set(), 0
    for turn in range(20):
        child, said = start(here.folder, turn, sync_seconds=0.003)
        reported = reported.union(*islice(said, 1 + random.randrange(6)))
        time.sleep(random.uniform(0, 0.01))
        child.kill()
        reported = reported.union(*said)
        child.join()
        assert child.exitcode == -signal.SIGKILL
        found = here.read(["condition", "trial"])  # refuses what stands twice
        assert reported <= keys_of(found) == set(map(tuple, here.keys().tolist()))
        cut += here.folder.exists() and len(hidden(here.folder))
    assert cut and len(reported) < CONDITIONS * TRIALS
    child, said = start(here.folder, 50)
    new = set().union(*said)
    child.join()
    assert child.exitcode == 0 and not hidden(here.folder)
    assert new and not reported & new
    expected = [trials(condition, range(TRIALS)) for condition in range(CONDITIONS)]
    assert here.read().equals(pa.concat_tables(expected))


def test_reading_beside_a_writer(tmp_path):
    """Every read holds all that was reported before it began, and what an earlier one held."""
    here, heard, reads, before = store(tmp_path / "s"), [], 0, set()
    child, said = start(here.folder, 1, sync_seconds=0.003)
    thread = threading.Thread(target=lambda: heard.extend(said))
    thread.start()
    while child.is_alive() and reads < 60:
        reported = set().union(*list(heard))
        found = keys_of(here.read(["condition", "trial"]))
        assert reported | before <= found
        before, reads = found, reads + bool(found)
    child.kill()
    thread.join()
    assert reads > 3


@contextmanager
def failing(owner, attribute, call, number):
    """The system's error in one call of a function, an interrupt if there is no number."""
    real, calls = getattr(owner, attribute), iter(range(100))

    def fails(*arguments):
        if next(calls) != call:
            return real(*arguments)
        if attribute == "write_bytes":
            real(arguments[0], bytes(arguments[1])[:1000])
        raise OSError(number, os.strerror(number)) if number else KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, attribute, fails)
        yield


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        *((full_disk(size), errno.EFBIG) for size in (0, 1, 4096, 9000)),
        (failing(Path, "write_bytes", 0, errno.ENOSPC), errno.ENOSPC),
        (failing(os, "fsync", 0, errno.ENOSPC), errno.ENOSPC),
        (failing(os, "replace", 0, errno.EROFS), errno.EROFS),
        (failing(os, "fsync", 1, errno.ENOSPC), errno.ENOSPC),
        (failing(os, "fsync", 1, None), None),
    ],
)
def test_errors_of_the_system(filled, fault, number):
    """And an interrupt: at each step of a write in turn, the last one when the chunk has its name already."""
    table, names = filled.read(), sorted(os.listdir(filled.folder))
    said = f"cannot be written: {os.strerror(number)}.* Nothing of it is left; the 12 trials" if number else "^$"
    with filled.writing():
        with fault, pytest.raises(StoreError if number else KeyboardInterrupt, match=said):
            filled.write(trials(1, range(200)))
        assert sorted(os.listdir(filled.folder)) == names and filled.read().equals(table)
        filled.write(trials(1, range(200)))
    assert len(store(filled.folder).read()) == 212


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "s").write_text("x")
    for folder in (tmp_path / "s", tmp_path / "s" / "below"):
        with pytest.raises(StoreError, match="s is a file; it must be a folder. Pass another store="):
            store(folder)


def test_cut_off_chunks_and_flipped_bits_are_found(filled):
    chunk, random = chunks(filled.folder)[1], np.random.default_rng(0)
    whole = chunk.read_bytes()
    damaged = [whole[:length] for length in (0, 1, 10, len(whole) // 2, len(whole) - 1)]
    for position in random.integers(0, 8 * len(whole), 100).tolist():
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        damaged.append(flipped)
    for number, content in enumerate(damaged):
        chunk.write_bytes(content)
        with pytest.raises(StoreError, match=rf"{chunk.name} is damaged .*delete it and its trials are computed again"):
            filled.read()
        try:
            assert len(filled.keys()) == 12 and number >= 5
        except StoreError as error:
            assert chunk.name in str(error)
    chunk.unlink()
    with filled.writing() as keys:
        filled.write(trials(0, [4, 6, 7]))
    assert len(keys) == 9 and chunk.read_bytes() == whole


def test_chunks_under_other_names(filled):
    chunk = chunks(filled.folder)[1]
    crc = chunk.name[-16:]
    message = "was renamed or copied: it holds trials 4 to 7 of condition 0"
    for name in ("00001-00000004-00000007", "00000-00000004-00000008", "00000-00000003-00000007"):
        moved = chunk.rename(chunk.with_name(name + crc))
        unreadable(filled, f"{moved.name} {message}")
        moved.rename(chunk)
    shutil.copy(chunk, chunk.with_name(f"copy of {chunk.name}"))
    unreadable(filled, f"copy of {chunk.name} was renamed or copied")


@pytest.mark.parametrize("parts", [([1, 5], [2, 5], [3, 6, 8], [4, 8]), ([1, 5], [5, 7])])
def test_trials_that_stand_twice(filled, tmp_path, parts):
    """As when parts of a store were computed apart and put together. The first one is named, with its two chunks."""
    for number, part in enumerate(parts):
        other = store(tmp_path / f"{number}")
        with other.writing():
            other.write(trials(1, part))
        shutil.copy(chunks(other.folder)[0], filled.folder)
    chunk = r"00001-00000001-00000005-\w+.parquet"
    unreadable(filled, f"trial 5 of condition 1 is in two chunks, {chunk} and 00001-0000000[25]-0000")


def test_foreign_files(filled, tmp_path):
    def refused(name, message):
        unreadable(filled, f"{name} {message}")
        (filled.folder / name).unlink()

    (filled.folder / "notes.parquet").write_text("what is to be done")
    refused("notes.parquet", r"is no chunk of a campaign \(.*\); remove it from")
    pq.write_table(pa.table({"trial": [1, 2]}), filled.folder / "table.parquet")
    refused("table.parquet", "is no chunk of a campaign; remove it from")
    other = store(tmp_path / "t", seed=5)
    with other.writing():
        other.write(trials(1, [0]))
    name = Path(shutil.copy(chunks(other.folder)[0], filled.folder)).name
    refused(name, "belongs to another campaign; remove it from")
    wider = Store(filled.folder, {"what": "made up"}, {}, stored_schema(["gauc", "regret"]))
    other = f"parquet has other columns than its campaign, column {len(SCHEMA) + 1} is condition "
    refuses(wider.read, StoreError, other, "regret")
    (filled.folder / "notes.txt").write_text("files of other kinds are nobody's business")
    assert len(filled.read()) == 12


def test_manifests(filled, tmp_path):
    manifest = filled.folder / "manifest.json"
    text = manifest.read_text()
    assert '"versions"' in text and '"what": "made up"' in text
    with pytest.raises(StoreError, match=r"another campaign; they differ in seed.\nthere: .*None.*\nasked: .*5"):
        store(filled.folder, seed=5)
    other = "another version of drsrobust (format None; this one reads 3)"
    refuses(lambda: store(filled.folder, format=3), StoreError, other)
    late = store(tmp_path / "late", seed=5)
    with store(tmp_path / "late").writing():
        pass
    refuses(late.writing().__enter__, StoreError, "they differ in seed")
    manifest.unlink()
    refuses(store(filled.folder, seed=5).writing().__enter__, StoreError, "belongs to another campaign")
    assert not manifest.exists()
    with store(filled.folder).writing() as keys:
        assert len(keys) == 12 and manifest.read_text() == text


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"definition": {"a": 1}}', '{"definition": 3}', '{"name": "app"}', "{", "\0"]
)
def test_a_manifest_of_something_else(text, tmp_path):
    """As of a web application: no advice to delete it, or its folder."""
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(StoreError, match="manifest.json is .*not of a campaign.* pass another store=") as caught:
        store(tmp_path)
    assert f"delete {tmp_path}" not in str(caught.value)
    assert (tmp_path / "manifest.json").read_text() == text


def test_what_a_killed_writer_left_is_deleted_and_nothing_else(filled):
    """Hidden files of a user, and of other programs, stay in the folder of a store."""
    hexadecimal = "0123456789abcdef"
    own = [f".00000-00000000-00000009-0a1b2c3d.parquet.{hexadecimal}.part", f".manifest.json.{hexadecimal}.part"]
    foreign = [
        *(".film.part", ".draft.part", ".notes.parquet.part", ".manifest.json.part", ".manifest.json.1234.part"),
        *(f".film.{hexadecimal}.part", f"manifest.json.{hexadecimal}.part", f".x.parquet.{hexadecimal[:-1]}g.part"),
    ]
    for name in (*own, *foreign):
        (filled.folder / name).write_bytes(b"PAR1")
    assert len(filled.read()) == len(filled.keys()) == 12
    with filled.writing():
        pass
    assert {path.name for path in filled.folder.iterdir() if path.suffix == ".part"} == set(foreign)


def test_a_chunk_that_goes_while_it_is_read(filled, monkeypatch):
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [*real(path), "00001-00000000-00000001-12345678.parquet"])
    unreadable(filled, "00001-00000000-00000001-12345678.parquet was deleted while it was read")


def test_one_writer(filled, monkeypatch):
    monkeypatch.setattr("drsrobust.campaign.store.PATIENCE", 0.1)
    other = store(filled.folder)
    with filled.writing():
        refuses(other.writing().__enter__, StoreError, f"{filled.folder} is in use: another process is writing")
        assert len(other.read()) == 12
    with other.writing():
        other.write(trials(1, [0]))


@pytest.mark.parametrize(("patience", "wait"), [(PATIENCE, ""), (0.1, "1")])
def test_a_writer_waits_for_the_other_one(filled, monkeypatch, patience, wait):
    """For a while, since a killed run's lock vanishes soon; if asked, for as long as it takes."""
    monkeypatch.setattr("drsrobust.campaign.store.PATIENCE", patience)
    monkeypatch.setenv("DRSROBUST_WAIT", wait)
    ended = []

    def write():
        with store(filled.folder).writing() as keys:
            ended.append(len(keys))

    with filled.writing():
        waiting = threading.Thread(target=write, daemon=True)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive() and not ended
    waiting.join(10)
    assert ended == [12]
