"""Bad lines: refused, or skipped, listed and counted in a warning."""

import warnings

import pytest

from drsrobust_extras.data import text_lines
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.text_lines import DataError
from tests.extras.data.criteo_lines import line, many


@pytest.fixture
def file(tmp_path):
    """60 lines, two of them bad: 17 has a field too few, 40 a letter that is no digit."""
    lines = many(60)
    lines[16] = lines[16].partition("\t")[2]
    lines[39] = line(1, [1] * 13, ["0000000g"] * 26)
    path = tmp_path / "lines.txt"
    path.write_text("".join(lines))
    return path


def test_strict_is_the_default(file):
    with pytest.raises(DataError, match=r"lines.txt, line 17: 39 fields where 40 are expected"):
        load_dataset("criteo-sample", path=file)


def test_skip(file, empty_cache):
    expected = (
        r"^bad lines skipped: 2, rows kept: 58; the first: lines.txt, line 17: 39 fields where 40 are expected "
        r"\(.*\): .*; all in .*/skipped.csv$"
    )
    with pytest.warns(UserWarning, match=expected) as caught:
        data = load_dataset("criteo-sample", path=file, bad_lines="skip", min_count=1)
    assert caught[0].filename == __file__  # it points to the caller
    assert [(name, line) for name, line, _ in data.skipped] == [("lines.txt", 17), ("lines.txt", 40)]
    assert data.skipped[1][2] == "field 15 (C1): '0000000g' is not 8 hexadecimal digits or empty"
    assert data.log.read_text().splitlines()[0] == "file,line,reason"
    with pytest.warns(UserWarning, match="bad lines skipped: 2, "):  # each time
        assert load_dataset("criteo-sample", path=file, bad_lines="skip", min_count=1).skipped == data.skipped
    good = file.with_name("good.txt")
    good.write_text("".join(text for i, text in enumerate(file.read_text().splitlines(True)) if i not in (16, 39)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clean = load_dataset("criteo-sample", path=good, bad_lines="skip", min_count=1)
    assert clean.fingerprint == data.fingerprint and clean.skipped == () and clean.log is None


def test_a_changed_list_is_noticed(file, empty_cache):
    with pytest.warns(UserWarning, match="bad lines skipped: 2, "):
        log = load_dataset("criteo-sample", path=file, bad_lines="skip").log
    log.write_text("file,line,reason\n")
    with pytest.warns(UserWarning) as caught:
        assert len(load_dataset("criteo-sample", path=file, bad_lines="skip").skipped) == 2
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
    [
        (text_lines.MOSTLY_BAD, r"^60 of 118 lines are bad, too many for .* the first: lines.txt, line 17: 39 fields"),
        (5, r"^59 of 117 lines are bad, too many for .* the first: lines.txt, line 17: 39 fields"),
    ],
)
def test_more_bad_than_good(file, empty_cache, monkeypatch, limit, says):
    monkeypatch.setattr(text_lines, "MOSTLY_BAD", limit)
    file.write_text(file.read_text() + "bad\n" * 58)
    with pytest.raises(DataError, match=says):
        load_dataset("criteo-sample", path=file, bad_lines="skip")
    assert not [path for path in (empty_cache / "data").iterdir() if path.suffix != ".lock"]
    file.write_text("bad\n" * 50)
    with pytest.raises(DataError, match="lines.txt"):
        load_dataset("criteo-sample", path=file, bad_lines="skip")


def test_movielens_too(tmp_path):
    folder = tmp_path / "ml-1m"
    folder.mkdir()
    good = [f"{i % 10 + 1}::{i // 10 + 1}::{i % 5 + 1}::0\n" for i in range(50)]
    (folder / "ratings.dat").write_text("".join([*good, "1::20::9::0\n"]))
    with pytest.warns(
        UserWarning, match=r"skipped: 1, rows kept: 50; the first: ratings.dat, line 51: field 3"
    ) as caught:
        data = load_dataset("movielens-1m", tmp_path, bad_lines="skip")
    assert caught[0].filename == __file__ and len(data.skipped) == 1


def test_wrong_calls(file):
    with pytest.raises(ValueError, match="unknown bad_lines 'ignore'; known: strict, skip"):
        load_dataset("criteo-sample", path=file, bad_lines="ignore")
    with pytest.raises(ValueError, match="bad_lines='skip' is for sets that are read; synthetic-criteo is generated"):
        load_dataset("synthetic-criteo", bad_lines="skip")
