"""Stores of many chunks: joined when they are opened for writing, whatever kills the process in between."""

import os
import signal
import time
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from drsrobust.campaign import StoreError
from tests.campaign.writer import killed, store, trials
from tests.refusals import refuses


@pytest.fixture(autouse=True)
def not_joined_while_written(monkeypatch):
    """Most tests here make many chunks."""
    monkeypatch.setattr("drsrobust.campaign.store.JOINED_CHUNKS", 1 << 30)


@pytest.fixture
def joined_at(monkeypatch):
    monkeypatch.setattr("drsrobust.campaign.store.JOINED_CHUNKS", 5)
    return 5


def chunks(folder):
    return sorted(path.name for path in Path(folder).glob("*.parquet"))


def spans(folder):
    """Condition, first and last trial of each chunk, by its name."""
    return [tuple(map(int, name.split("-")[:3])) for name in chunks(folder)]


def filled(folder, conditions=2, n=40, step=1):
    """A store whose chunks hold one trial each, or every `step`-th of `step` of them."""
    here = store(folder)
    with here.writing():
        for condition in range(conditions):
            for start in range(0, n, step * step):
                for first in range(start, start + step):
                    here.write(trials(condition, range(first, start + step * step, step)))
    return here


@pytest.mark.parametrize("step", [1, 3])
def test_a_store_of_many_chunks_is_compacted_when_it_is_opened(tmp_path, monkeypatch, step):
    here = filled(tmp_path / "s", n=45, step=step)
    table, keys = here.read(), here.keys()
    assert len(chunks(here.folder)) == 2 * 45 / step
    monkeypatch.setattr("drsrobust.campaign.store.MANY_CHUNKS", 10)
    with here.writing() as opened:
        assert (opened == keys).all()
        refuses(lambda: here.write(trials(1, [7])), StoreError, "trial 7 of condition 1 is stored already")
        here.write(trials(1, [500]))
    assert spans(here.folder) == [(0, 0, 44), (1, 0, 44), (1, 500, 500)]
    again = here.read()
    assert again.slice(0, 90).equals(table) and len(again) == 91 and len(here.keys()) == 91
    assert here.trial(1, 7).equals(table.slice(52, 1))


@pytest.mark.parametrize("many", [35, 36])
def test_how_many_chunks_are_many(tmp_path, monkeypatch, many):
    """40 chunks of 40 trials in 2 conditions, which make 2 chunks and one more for each 16 trials at least: 4."""
    here, compacted = filled(tmp_path / "s", n=20), []
    for name, value in (("JOINED_TRIALS", 16), ("MANY_CHUNKS", many)):
        monkeypatch.setattr(f"drsrobust.campaign.store.{name}", value)
    monkeypatch.setattr(here, "compact", lambda: compacted.append(many))
    with here.writing():
        assert bool(compacted) == (many == 35)


def test_joined_chunks_hold_1024_trials_or_more(tmp_path, monkeypatch):
    monkeypatch.setattr("drsrobust.campaign.store.JOINED_TRIALS", 16)
    here = filled(tmp_path / "s", conditions=1, n=40)
    with here.writing():
        here.compact()
        names = chunks(here.folder)
        assert spans(here.folder) == [(0, 0, 15), (0, 16, 31), (0, 32, 39)]
        here.compact()
    assert chunks(here.folder) == names  # nothing more to join


def test_chunks_that_are_replaced_are_ignored_and_then_deleted(tmp_path):
    """As after a kill between the joined chunk and the end of the deletions."""
    here = filled(tmp_path / "s", n=6)
    old = {path.name: path.read_bytes() for path in here.folder.glob("*.parquet")}
    table = here.read()
    with here.writing():
        here.compact()
    joined = chunks(here.folder)
    for name, content in list(old.items())[1:]:
        (here.folder / name).write_bytes(content)
    assert here.read().equals(table) and len(here.keys()) == 12
    with here.writing():
        here.compact()
    assert chunks(here.folder) == joined
    replaced = [pq.read_schema(here.folder / name).metadata[b"drsrobust.replaces"] for name in joined]
    assert all(name.encode() in b"".join(replaced) for name in old)


@pytest.mark.parametrize(("enough", "left"), [(10, 1 + 4), (1024, 1)])
def test_a_writer_joins_as_it_goes(tmp_path, joined_at, enough, left, monkeypatch):
    """In any order of the chunks; what is stored is the same, and the next writer finds it. Of nine chunks of two trials
    five are joined, which is enough, and four stay; or five, and these with four more."""
    monkeypatch.setattr("drsrobust.campaign.store.JOINED_TRIALS", enough)
    here, order = store(tmp_path / "s"), Random(2)
    numbers = [[condition, first] for condition in range(2) for first in range(0, 18, 2)]
    order.shuffle(numbers)
    with here.writing():
        for condition, first in numbers:
            here.write(trials(condition, [first, first + 1]))
            assert len(chunks(here.folder)) <= 2 * (2 + joined_at)
            with pytest.raises(StoreError, match="is stored already"):
                here.write(trials(condition, [first]))
    assert len(chunks(here.folder)) == 2 * left
    expected = filled(tmp_path / "t", n=18)
    assert here.read().equals(expected.read())
    with here.writing() as keys:
        assert len(keys) == 36


def test_a_full_disk_leaves_the_chunks_as_they_are(tmp_path, joined_at, monkeypatch):
    here = store(tmp_path / "s")
    monkeypatch.setattr(here, "_join", lambda *_: Path("/dev/full").write_text("no space"))
    with here.writing():
        for first in range(7):
            here.write(trials(0, [first]))
    assert len(chunks(here.folder)) == 7 and len(here.keys()) == 7


def test_a_restart_forgets_the_chunks_that_were_not_joined(tmp_path, joined_at):
    here = store(tmp_path / "s")
    with here.writing():
        for first in range(joined_at - 1):
            here.write(trials(0, [first]))
        here.restart("rows affect each other")
        for first in range(joined_at):
            here.write(trials(0, [first]))
    assert len(chunks(here.folder)) == 1 and len(here.keys()) == joined_at


def write_slowly(folder):
    here = store(folder)
    with here.writing() as keys:
        for first in range(len(keys), 400):
            here.write(trials(0, [first]))


def test_kill_9_while_a_writer_joins(tmp_path, joined_at):
    """At twelve moments: the stored trials are a beginning of all, each once, and the next writer goes on."""
    random, folder, stored = Random(4), tmp_path / "s", 0
    for _ in range(12):
        killed(write_slowly, folder, when=lambda: len(chunks(folder)) >= 3, pause=random.uniform(0, 0.15))
        keys = store(folder).keys()
        assert len(keys) >= stored and (keys[:, 1] == range(len(keys))).all()
        stored = len(keys)
    assert stored > 0


def test_a_damaged_chunk_is_not_joined(tmp_path):
    here = filled(tmp_path / "s", n=5)
    path = here.folder / chunks(here.folder)[3]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    before = chunks(here.folder)
    refuses(here.writing().__enter__, StoreError, f"{path.name} is damaged ", " its trials are computed again")
    assert chunks(here.folder) == before


def compact(folder, seconds):
    """Compacts a store, whose disk is slow."""
    for name in ("fsync", "unlink"):
        done = getattr(os, name)
        setattr(os, name, lambda *arguments, done=done: (time.sleep(seconds), done(*arguments)))
    here = store(folder)
    with here.writing():
        here.compact()


@pytest.mark.long
def test_kill_9_while_it_is_compacted(tmp_path):
    """At twelve moments: each trial stays, once; what a reader sees meanwhile is all of them."""
    random, cut = Random(3), 0
    for turn in range(12):
        here = filled(tmp_path / f"s{turn}", n=8)
        table, before, seen = here.read(), chunks(here.folder), []

        def begun(here=here, before=before, seen=seen):
            seen.append(here.read())
            return chunks(here.folder) != before

        code = killed(compact, here.folder, 0.004, when=begun, pause=random.uniform(0, 0.05))
        left = chunks(here.folder)
        assert all(one.equals(table) for one in seen)
        cut += code == -signal.SIGKILL and len(left) > 2
        assert left != before and here.read().equals(table)
        with here.writing():
            here.compact()
        assert here.read().equals(table) and len(chunks(here.folder)) == 2
    assert cut >= 3
