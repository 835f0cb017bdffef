"""Criteo and Avazu, from their lines to data sets; hashed ids; bad lines; a call after a killed one."""

import gzip
import hashlib
import os
import signal
import warnings

import numpy as np
import pytest

from drsrobust._hashing import folder_digests
from drsrobust_extras.data import click_logs, id_encoding, text_lines
from drsrobust_extras.data.click_logs import CATEGORIES, COUNT_COLUMNS, FEATURES, HEADER, TABLES, buckets
from drsrobust_extras.data.id_encoding import hash_ids
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.text_lines import BadLines, DataError
from tests.refusals import refuses


def criteo_line(label, integers, categories):
    return "\t".join([str(label), *(str(i) for i in integers), *categories]) + "\n"


def many(n, seed=0):
    """n lines with every kind of value: missing, negative and large integers, frequent, rare and missing categories."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        integers = [x if x > -3 else "" for x in rng.integers(-5, 40, 13)]
        categories = ["" if x == 0 else f"{x * 999_999_937 % 2**32:08x}" for x in rng.geometric(0.2, 26) - 1]
        lines.append(criteo_line(rng.integers(0, 2), integers, categories))
    return lines


def test_buckets():
    """By hand: ln(3)^2 = 1.2, ln(7)^2 = 3.8, ln(8)^2 = 4.3, ln(1000)^2 = 47.7, ln(2^63 - 1)^2 = 1906.9."""
    values = [text_lines.EMPTY_INTEGER, -(2**63) + 1, -2, -1, 0, 1, 2, 3, 7, 8, 1000, 2**63 - 1]
    found = buckets(np.array(values)).tolist()
    assert found[2:] == [-4, -3, -2, -1, 0, 1, 3, 4, 47, 1906]
    assert len(set(found)) == len(found)  # all of them are different categories


@pytest.mark.parametrize("schema", ["dlrm", "fields"])
def test_against_a_plain_reading(file, schema):
    """Every cell, against Python's own split and dictionaries; vocabularies are made of training rows alone."""
    lines = many(400)
    data = load_dataset("criteo-sample", path=file("".join(lines)), schema=schema, min_count=3)
    cells = [text.rstrip("\n").split("\t") for text in lines]
    splits = (data.train, data.valid, data.test)
    for place, name in enumerate(["label", *COUNT_COLUMNS, *CATEGORIES]):
        column = [row[place] for row in cells]
        if name == "label":
            assert all(split.labels.tolist() == [float(column[row]) for row in split.rows] for split in splits)
            continue
        if name in COUNT_COLUMNS and schema == "dlrm":
            expected = [np.log1p(np.float64(max(int(text or 0), 0))) for text in column]
            for split in splits:
                np.testing.assert_allclose(split.dense[:, place - 1], [expected[row] for row in split.rows], rtol=1e-6)
            continue
        if name in COUNT_COLUMNS:
            keys = [2000 if text == "" else buckets(np.array([int(text)]))[0] for text in column]
        else:
            keys = [int(text or "-1", 16) for text in column]
        seen = [keys[row] for row in data.train.rows]
        known = sorted(key for key in set(seen) if seen.count(key) >= 3)
        assert {f.name: f.cardinality for f in data.schema.features}[name] == len(known) + 1
        for split in splits:
            ids = [known.index(keys[row]) + 1 if keys[row] in known else 0 for row in split.rows]
            assert split.sparse[name].values.tolist() == ids, name


def test_hashing(file):
    """Id 0 is for what is missing; a value has one id in all parts."""
    lines = many(300)
    data = load_dataset("criteo-sample", path=file("".join(lines)), schema="fields", hash_size=7)
    cells = [text.rstrip("\n").split("\t") for text in lines]
    for place, feature in enumerate(data.schema.features, 1):
        of = {}
        for split in (data.train, data.valid, data.test):
            for row, i in zip(split.rows, split.sparse[feature.name].values, strict=True):
                text = cells[row][place]
                key = buckets(np.array([int(text)]))[0] if text and feature.name in COUNT_COLUMNS else text
                assert (i == 0) == (text == "") and of.setdefault(key, i) == i


def test_days(tmp_path):
    folder = tmp_path / "criteo-terabyte"
    folder.mkdir()
    days = {0: many(30, 0), 2: many(40, 2), 10: many(50, 10)}
    for day, lines in days.items():
        (folder / f"day_{day}").write_text("".join(lines))
    (folder / "day_10").rename(folder / "day_10.txt")
    (folder / "day_10.gz").write_bytes(gzip.compress((folder / "day_10.txt").read_bytes()))

    def same_rows(data, numbers):
        """Whether the set is that of these days' lines, one after the other."""
        joined = tmp_path / "joined.txt"
        joined.write_text("".join(text for number in numbers for text in days[number]))
        plain = load_dataset("criteo-sample", path=joined, min_count=2)
        assert np.array_equal(data.train.rows, plain.train.rows)
        assert np.array_equal(data.train.dense, plain.train.dense)
        return all(np.array_equal(i.values, plain.test.sparse[name].values) for name, i in data.test.sparse.items())

    assert same_rows(load_dataset("criteo-terabyte", tmp_path, min_count=2), (0, 2, 10))
    assert same_rows(load_dataset("criteo-terabyte", tmp_path, days=(10, 0), min_count=2), (10, 0))
    assert same_rows(load_dataset("criteo-terabyte", path=folder, days=[2], min_count=2), (2,))
    assert same_rows(load_dataset("criteo-terabyte", path=folder / "day_2", min_count=2), (2,))


def test_real_rows(real_data):
    data = load_dataset("criteo-sample", real_data)
    labels = np.concatenate([split.labels for split in (data.train, data.valid, data.test)])
    assert len(labels) == 109_711 and labels.mean(dtype=float) == pytest.approx(0.256720, abs=1e-6)
    assert np.isfinite(data.train.dense).all()
    # The contents that published figures were made of.
    assert data.fingerprint == "779e21f71fe99469f2c9633012e7f5f540549c9a818264c3052e5fbdd7b440e0"


FIRST = "1000009418151094273,0,14102100,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,"
FIRST += "a99f214a,ddd2926e,44956a24,1,2,15706,320,50,1722,0,35,-1,79"
HEAD = ",".join(HEADER) + "\n"


def line(**changes):
    return ",".join(str(changes.get(name, value)) for name, value in zip(HEADER, FIRST.split(","), strict=True)) + "\n"


def read(path, **options):
    blocks = list(TABLES["avazu"].blocks(path, **options))
    return {name: np.concatenate([block[name] for block in blocks]).tolist() for name in blocks[0]}


def test_values(file):
    content = HEAD + line() + line(id=18446744073709551999, click=1, hour=14103023, site_id="FFFFFFFF", C20=100084)
    columns = read(file(content))
    assert list(columns) == ["label", *FEATURES] and len(FEATURES) == 23
    assert columns["label"] == [0, 1]
    assert columns["day"] == [141021, 141030] and columns["hour"] == [0, 23]
    assert columns["site_id"] == [0x1FBE01FE, 0xFFFFFFFF]
    assert columns["C20"] == [-1, 100084]
    for name, text_there in zip(HEADER[3:], FIRST.split(",")[3:], strict=True):
        number = int(text_there, 16) if len(text_there) == 8 else int(text_there)
        assert columns[name][0] == number, name
    other = file(HEAD.replace("click,", "") + line())
    refuses(lambda: read(other), DataError, "line 1: 'id,hour,C1", " is not the header 'id,click,hour,C1")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"id": "1.0000094181510943e+19"}, "field 1 (id): '1.0000094181510943e+19'"),
        ({"click": 2}, "field 2 (click): '2' is not a label, 0 or 1"),
        ({"hour": 14102124}, "field 3 (hour): '14102124' is not an hour of the form YYMMDDHH"),
        ({"hour": 14130100}, "field 3 (hour): '14130100'"),
        ({"site_id": ""}, "field 6 (site_id): '' is not 8 hexadecimal digits"),
        ({"device_ip": "ddd2926"}, "field 13 (device_ip): 'ddd2926'"),
        ({"C21": "1.5"}, "field 24 (C21): '1.5' is not an integer"),
        ({"C21": "79,1"}, "25 fields where 24 are expected"),
    ],
)
def test_bad_lines(file, changes, says):
    path = file(HEAD + line() + line(**changes) + line(click=1), "train.csv")
    refuses(lambda: read(path), DataError, f"{path}, line 3", says)
    bad = BadLines("skip")
    assert read(path, bad=bad)["label"] == [0, 1]
    assert [found[:2] for found in bad.skipped] == [("train.csv", 3)] and says in bad.skipped[0][2]


def test_a_data_set(file):
    """Of two sites, with every device once, and C20 missing (-1) in every third line."""
    text = HEAD
    for i in range(400):
        ids = {"site_id": f"{i % 2:08x}", "device_ip": f"{i:08x}", "C20": i % 3 - 1}
        text += line(id=i, click=i % 2, hour=14102100 + i % 2 * 100, **ids)
    path = file(text, "train.csv.gz")
    data, hashed = load_dataset("avazu", path=path), load_dataset("avazu", path=path, hash_size=50)
    assert data.name == "avazu/fields" and data.schema.dense == ()
    assert [f.name for f in data.schema.features] == list(FEATURES) and len(FEATURES) == 23
    sizes = {f.name: f.cardinality for f in data.schema.features}
    assert sizes["day"] == sizes["site_id"] == 3 and sizes["device_ip"] == 1
    assert {f.cardinality for f in hashed.schema.features} == {51}
    for split, of_hashes in zip((data.train, data.test), (hashed.train, hashed.test), strict=True):
        assert split.labels.tolist() == [row % 2 for row in split.rows]
        for name in ("day", "site_id"):
            assert split.sparse[name].values.tolist() == [1 + row % 2 for row in split.rows]
        assert not split.sparse["device_ip"].values.any()
        assert (of_hashes.sparse["C20"].values == 0).tolist() == [row % 3 == 0 for row in of_hashes.rows]
        assert of_hashes.sparse["device_ip"].values.min() > 0  # 0 is for missing values alone


@pytest.mark.parametrize("feature", ["C1", "C2"])
@pytest.mark.parametrize("size", [1, 100, 1000, 2**31 - 2])
def test_hashed_ids_follow_the_documented_rule(size, feature):
    """In Python's own integers, with the published generator SplitMix64; id 0 is for what is missing alone."""
    key, mask = int.from_bytes(hashlib.sha256(feature.encode()).digest()[:8], "little"), 2**64 - 1
    values, expected = np.array([*range(-2, 1000), 4_000_000_000]), []
    for value in values.tolist():
        mixed = (((value & mask) ^ key) + 0x9E3779B97F4A7C15) & mask
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        expected.append(1 + ((mixed ^ (mixed >> 31)) & mask) % size)
    ids = hash_ids(values, size, feature)
    assert ids.dtype == np.int32 and ids.tolist() == expected
    expected[1] = 0  # of -1
    assert hash_ids(values, size, feature, missing=-1).tolist() == expected
    assert hash_ids((values + 2).astype(np.uint32), size, feature, missing=-1, low=-2).tolist() == expected


@pytest.fixture
def criteo_file(file):
    """60 lines, two of them bad: 17 has a field too few, 40 a letter that is no digit."""
    lines = many(60)
    lines[16] = lines[16].partition("\t")[2]
    lines[39] = criteo_line(1, [1] * 13, ["0000000g"] * 26)
    return file("".join(lines), "lines.txt")


def test_skipped_lines_are_listed_and_a_changed_list_is_noticed(criteo_file, empty_cache):
    expected = "skipped: 2, rows kept: 58; .*lines.txt, line 17: 39 fields where 40 .*skipped.csv$"
    with pytest.warns(UserWarning, match=expected) as caught:
        data = load_dataset("criteo-sample", path=criteo_file, bad_lines="skip", min_count=1)
    assert caught[0].filename == __file__  # it points to the caller
    assert [(name, line) for name, line, _ in data.skipped] == [("lines.txt", 17), ("lines.txt", 40)]
    assert data.skipped[1][2] == "field 15 (C1): '0000000g' is not 8 hexadecimal digits or empty"
    assert data.log.read_text().splitlines()[0] == "file,line,reason"
    with pytest.warns(UserWarning, match="bad lines skipped: 2, "):  # each time
        assert load_dataset("criteo-sample", path=criteo_file, bad_lines="skip", min_count=1).skipped == data.skipped
    good = criteo_file.with_name("good.txt")
    texts = enumerate(criteo_file.read_text().splitlines(True), 1)
    good.write_text("".join(text for number, text in texts if number not in (17, 40)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clean = load_dataset("criteo-sample", path=good, bad_lines="skip", min_count=1)
    assert clean.fingerprint == data.fingerprint and clean.skipped == () and clean.log is None
    data.log.write_text("file,line,reason\n")
    with pytest.warns(UserWarning) as caught:
        again = load_dataset("criteo-sample", path=criteo_file, bad_lines="skip", min_count=1)
    assert again.skipped == data.skipped
    assert ["is damaged" in str(one.message) for one in caught] == [True, False]
    assert {one.filename for one in caught} == {__file__}


def test_skipped_lines_name_their_day(tmp_path):
    folder = tmp_path / "criteo-terabyte"
    folder.mkdir()
    for day in (0, 1):
        (folder / f"day_{day}").write_text("".join([*many(20, day), "x\n", *many(5, day)]))
    with pytest.warns(UserWarning, match=r"skipped: 2, rows kept: 50; the first: day_0, line 21:"):
        data = load_dataset("criteo-terabyte", tmp_path, bad_lines="skip")
    assert [(name, line) for name, line, _ in data.skipped] == [("day_0", 21), ("day_1", 21)]


@pytest.mark.parametrize(
    ("limit", "says"),
    [(text_lines.MOSTLY_BAD, "^60 of 118 lines .*lines.txt, line 17:"), (5, "^59 of 117 lines .*lines.txt, line 17:")],
)
def test_more_bad_than_good(criteo_file, empty_cache, monkeypatch, limit, says):
    monkeypatch.setattr(text_lines, "MOSTLY_BAD", limit)
    criteo_file.write_text(criteo_file.read_text() + "bad\n" * 58)
    with pytest.raises(DataError, match=says):
        load_dataset("criteo-sample", path=criteo_file, bad_lines="skip")
    assert not [path for path in (empty_cache / "data").iterdir() if path.suffix != ".lock"]


# Kills itself, as kill -9 does, when `what` of the module is called for the n-th time; before it does its work.
KILLED = """
import os, signal
from drsrobust.data import load_dataset
from drsrobust_extras.data import click_logs, raw_cache as cache, text_lines
text_lines.BLOCK_BYTES = 4000
calls, real = [0], {what}
def killer(*arguments, **options):
    calls[0] += 1
    if calls[0] == {n}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)
{what} = killer
load_dataset({name!r}, path={path!r}, bad_lines={bad_lines!r}, min_count=2)
"""


@pytest.fixture
def long_file(file):
    """300 lines, of which lines 3 and 251 are bad: about twenty blocks of 4000 bytes."""
    lines = many(300)
    lines[2], lines[250] = "what\n", criteo_line(7, range(13), [""] * 26)
    return file("".join(lines), "lines.txt")


def finished(cache):
    return next(path for path in (cache / "data").iterdir() if (path / "manifest.json").exists())


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "what", "n", "damaged"),
    [
        ("criteo-sample/dlrm", "click_logs.pa.table", 8, False),  # while parsing, before the 8th block
        ("criteo-sample/fields", "click_logs.save_array", 12, False),  # while encoding, before the 12th array
        ("criteo-sample/dlrm", "click_logs.np.lib.format.write_array_header_1_0", 1, False),  # before the dense matrix
        ("criteo-sample/fields", "cache._publish", 1, False),  # when all is written, before it is renamed
        ("criteo-sample/fields", "cache._publish", 1, True),
    ],
)
def test_kill_and_resume(long_file, tmp_path, monkeypatch, warm_python, name, what, n, damaged):
    """Also where an array was damaged before it was renamed: it is made again."""
    once, again = tmp_path / "once", tmp_path / "again"
    monkeypatch.setenv("DRSROBUST_CACHE", str(once))
    options = {"path": long_file, "bad_lines": "skip", "min_count": 2}
    with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298"):
        whole = load_dataset(name, **options)

    code = KILLED.format(what=what, n=n, name=name, path=str(long_file), bad_lines="skip")
    killed = warm_python.run("-c", code, env=os.environ | {"DRSROBUST_CACHE": str(again)})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    part = next((again / "data").glob(".*.part"))
    done = {path for path in part.rglob("*") if path.is_file() and path.suffix != ".part"}
    assert (part / click_logs.RAW in done) == (what != "click_logs.pa.table")
    if damaged:
        labels, done = part / "labels.npy", set()
        labels.write_bytes(labels.read_bytes()[:-1] + b"x")
    saved, real_save = [], click_logs.save_array
    monkeypatch.setattr(click_logs, "save_array", lambda path, array: (saved.append(path), real_save(path, array)))
    if part / click_logs.RAW in done:
        monkeypatch.setattr(click_logs, "read_columns", None)  # not read again
    monkeypatch.setenv("DRSROBUST_CACHE", str(again))
    with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298; the first: lines.txt, line 3: 1 fields"):
        resumed = load_dataset(name, **options)
    assert not set(saved) & done
    # Also the manifest, since it names no machine and no time.
    assert folder_digests(finished(again)) == folder_digests(finished(once))
    assert resumed.fingerprint == whole.fingerprint and resumed.skipped == whole.skipped
    assert [number for _, number, _ in resumed.skipped] == [3, 251]
    kept = {path.name for path in (again / "data").iterdir() if path.suffix != ".lock"}
    assert kept == {finished(again).name}


def test_block_size_changes_nothing(long_file, tmp_path, monkeypatch):
    prints = []
    for size in (3000, 1 << 20):
        monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / str(size)))
        monkeypatch.setattr(text_lines, "BLOCK_BYTES", size)
        monkeypatch.setattr(click_logs, "STRIPE", size // 50)
        monkeypatch.setattr(id_encoding, "CHUNK", size // 70)
        monkeypatch.setattr(id_encoding, "HASH_CHUNK", size // 90)
        with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298"):
            for options in ({"min_count": 2}, {"hash_size": 50}):
                prints.append(load_dataset("criteo-sample", path=long_file, bad_lines="skip", **options).fingerprint)
    assert prints[:2] == prints[2:] and len(set(prints)) == 2
