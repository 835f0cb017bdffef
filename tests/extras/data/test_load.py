"""Data sets by name: MovieLens, from its files to its schemas; what is refused, and files that are missing."""

import numpy as np
import pytest

from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.text_lines import DataError


@pytest.fixture
def ratings():
    """200 ratings, as (user, movie, half stars); no pair of user and movie occurs twice."""
    rng = np.random.default_rng(1)
    user, movie = np.divmod(rng.permutation(29 * 19)[:200], 19)
    return np.stack([user + 1, movie + 1, rng.integers(1, 11, 200)], axis=1).tolist()


def write(folder, files):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def csv_files(ratings, kaggle=False):
    """In the form of GroupLens, or of the copy on Kaggle."""
    time = '"2005-04-02 23:53:47"' if kaggle else "1112486027"
    end, (quote, s) = "\n" if kaggle else "\r\n", ('"', "") if kaggle else ("", "s")
    heads = ("userId", "movieId", "rating", "timestamp"), ("movieId", "title", "genres")
    first, second = (",".join(f"{quote}{name}{quote}" for name in names) for names in heads)
    return {
        f"rating{s}.csv": first + end + "".join(f"{u},{m},{r / 2},{time}{end}" for u, m, r in ratings),
        f"movie{s}.csv": second + "\n" + "".join(f'{m},"Film, A ({1990 + m})",Drama|War\n' for m in range(1, 20)),
    }


@pytest.mark.parametrize(("name", "kaggle"), [("20m", False), ("20m", True), ("25m", False), ("latest-small", False)])
def test_movielens_of_csv(tmp_path, ratings, name, kaggle):
    write(tmp_path / f"ml-{name}", csv_files(ratings, kaggle))
    ids, full = load_dataset(f"movielens-{name}", tmp_path), load_dataset(f"movielens-{name}/full", tmp_path)
    assert [f.name for f in ids.schema.features] == ["user", "movie"]
    assert [f.name for f in full.schema.features] == ["user", "movie", "year", "genres"]
    assert full.schema.dense == ("user_count", "movie_count", "user_rate", "movie_rate")
    assert np.array_equal(ids.train.rows, full.train.rows)
    assert ids.train.labels.tolist() == [float(ratings[row][2] > 6) for row in ids.train.rows]
    assert ids.train.users.tolist() == [ratings[row][0] for row in ids.train.rows]


def flags(*genres):
    return "|".join(str(int(number in genres)) for number in range(19))


def item(number, *genres):
    """A line of u.item, Latin-1; as movie 267, number 19 has neither a year nor dates nor an address."""
    if number == 19:
        return f"19|unknown||||{flags(*genres)}\n".encode()
    about = f"{number}|Amélie {number} ({1980 + number})|01-Jan-1995||http://us.imdb.com/{number}"
    return f"{about}|{flags(*genres)}\n".encode("latin-1")


@pytest.fixture
def hundred(tmp_path, ratings):
    """In the form of ml-100k, with ratings 1 to 5."""
    stars = [(user, movie, 1 + half % 5) for user, movie, half in ratings]
    files = {
        "u.data": "".join(f"{u}\t{m}\t{r}\t881250949\n" for u, m, r in stars),
        "u.user": "".join(f"{u}|{20 + u}|{'MF'[u % 2]}|{'ab'[u % 2]}|V{u:04}\n" for u in range(1, 30)),
        "u.item": b"".join(item(m, 0) if m == 19 else item(m, 8, 1 + m % 3) for m in range(1, 20)),
    }
    write(tmp_path / "ml-100k", files)
    return stars


@pytest.fixture
def ten_million(tmp_path, ratings):
    """In the form of ml-10m: half stars in the form of 1M, titles in UTF-8, no attributes of users."""
    genres = ["(no genres listed)", "Drama|War"]
    files = {
        "ratings.dat": "".join(f"{u}::{m}::{r / 2:g}::838985046\n" for u, m, r in ratings),
        "movies.dat": "".join(f"{m}::Amélie: {m} ({1980 + m})::{genres[m % 2]}\n" for m in range(1, 20)),
    }
    write(tmp_path / "ml-10M100K", files)


def test_movielens_100k(tmp_path, hundred):
    ids, full = load_dataset("movielens-100k", tmp_path), load_dataset("movielens-100k/full", tmp_path)
    assert [f.name for f in ids.schema.features] == ["user", "movie"]
    names = ["user", "movie", "gender", "age", "occupation", "zip", "year", "genres"]
    assert [f.name for f in full.schema.features] == names and len(full.schema.dense) == 4
    assert ids.train.labels.tolist() == [float(hundred[row][2] > 3) for row in ids.train.rows]
    assert np.array_equal(ids.train.rows, full.train.rows)
    genders = full.train.sparse["gender"].values  # in alphabetical order: F 1, M 2
    assert genders.tolist() == [1 if hundred[row][0] % 2 else 2 for row in full.train.rows]
    genres = full.train.sparse["genres"]
    assert genres.lengths.tolist() == [1 if hundred[row][1] == 19 else 2 for row in full.train.rows]
    assert {f.name: f.cardinality for f in full.schema.features}["genres"] == 6  # four of them, unknown, and none


def test_movielens_10m(tmp_path, ratings, ten_million):
    full = load_dataset("movielens-10m/full", tmp_path)
    assert [f.name for f in full.schema.features] == ["user", "movie", "year", "genres"]
    assert full.train.labels.tolist() == [float(ratings[row][2] > 6) for row in full.train.rows]


@pytest.mark.parametrize(
    ("name", "file", "text", "line", "fault"),
    [
        ("100k", "u.data", b"1\t2\t3.5\t0\n", 201, r"field 3 \(rating\): '3.5' is not a rating of 1 to 5"),
        ("100k", "u.user", b"30|x|M|artist|12345\n", 30, r"field 2 \(age\): 'x'"),
        ("100k", "u.item", item(20), 20, "no field of a genre"),
        ("100k", "u.item", item(20, 3)[:-3] + b"\n", 20, "23 fields where 24"),
        ("100k", "u.item", item(20, 3)[:-2] + b"2\n", 20, r"field 24 \(Western\): '2'"),
        ("10m", "ratings.dat", b"30::1::3.7::0\n", 201, r"field 3 \(rating\): '3.7' is not a rating of 0.5 to 5.0"),
        ("10m", "movies.dat", b"20::Am\xe9lie::Drama\n", 20, "bytes that are not utf-8"),
        ("25m", "ratings.csv", b"1,2,6.0,0\n", 202, r"field 3 \(rating\): '6.0'"),
        ("25m", "ratings.csv", b"1,77,4.0,0\n", 202, "field movie: 77 is not in movies.csv"),
    ],
)
def test_bad_lines_of_movielens(tmp_path, ratings, hundred, ten_million, name, file, text, line, fault):
    write(tmp_path / "ml-25m", csv_files(ratings))
    good = load_dataset(f"movielens-{name}/full", tmp_path)
    with open(next(tmp_path.glob(f"ml-{name[:2]}*/{file}")), "ab") as handle:
        handle.write(text)
    with pytest.raises(DataError, match=f"{file}, line {line}[:,] {fault}"):
        load_dataset(f"movielens-{name}/full", tmp_path)
    said = f"skipped: 1, rows kept: 200; the first: {file}, line {line}: {fault}"
    with pytest.warns(UserWarning, match=said):
        skipped = load_dataset(f"movielens-{name}/full", tmp_path, bad_lines="skip")
    assert skipped.fingerprint == good.fingerprint


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("movielens-1M", {}, r"'movielens-1M'; did you mean 'movielens-1m'\? known: .*synthetic-criteo"),
        ("movielens-1m", {"schema": "dlrm"}, "movielens-1m 'dlrm'; known: ids, full"),
        *[(f"movielens-{size}/fields", {}, f"movielens-{size} 'fields'.*ids, full") for size in ("100k", "10m", "25m")],
        ("synthetic-dummy/0.5", {}, "synthetic-dummy '0.5'; .*0.01, 0.001, 0.1"),
        ("movielens-1m/full", {"schema": "ids"}, "'full'.*'ids'"),
        ("movielens-1m", {"rows": 5}, "rows=5"),
        *[
            ("synthetic-movielens", {option: 5}, f"{option}=5 .*synthetic-movielens")
            for option in ("min_count", "hash_size")
        ],
        ("synthetic-criteo", {"path": "x"}, "path='x'.* synthetic-criteo"),
        ("criteo-sample", {"root": "a", "path": "b"}, "root='a', path='b'"),
        ("criteo-sample", {"root": ".", "days": (0,)}, r"days=\(0,\)"),
        *[("criteo-terabyte", {"root": ".", "days": days}, "days") for days in ((), (0, 0), (-1,))],
        ("synthetic-criteo", {"min_count": 0}, "min_count .*0"),
        ("synthetic-criteo", {"hash_size": 0}, "hash_size .*0"),
        ("synthetic-criteo", {"hash_size": 2**31 - 1}, "hash_size .*2147483646, got 2147483647"),
        ("synthetic-criteo", {"hash_size": 5, "min_count": 5}, "hash_size .*min_count=5"),
        ("criteo-sample", {"root": ".", "bad_lines": "ignore"}, "bad_lines 'ignore'; known: strict, skip"),
        ("synthetic-criteo", {"bad_lines": "skip"}, "bad_lines='skip' .*synthetic-criteo"),
    ],
)
def test_what_is_refused(name, options, said):
    with pytest.raises(ValueError, match=said):
        load_dataset(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("movielens-1m", {}, "root=, or set DRSROBUST_DATA .*GroupLens"),
        ("movielens-1m", {"root": "."}, r"ml-1m/ratings.dat \(nor .gz\).*GroupLens.* ratings.dat there"),
        ("movielens-20m", {"root": "."}, r"ml-20m/ratings.csv or rating.csv \(nor .gz\).* Kaggle"),
        *[(f"movielens-{size}", {"root": "."}, f"{size.upper()}, ml-{size}.zip") for size in ("100k", "10m", "25m")],
        ("criteo-sample", {"root": "."}, "criteo_sample.txt"),
        ("criteo-terabyte", {"root": ".", "days": (0, 1)}, r"no .*day_1 \(nor .gz\).* day_1 there"),
        ("criteo-terabyte", {"root": "elsewhere"}, r"no .*day_0 \(nor .gz\)"),
    ],
)
def test_missing_files_are_named(tmp_path, monkeypatch, name, options, said):
    (tmp_path / "criteo-terabyte").mkdir()
    (tmp_path / "criteo-terabyte" / "day_0").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=said):
        load_dataset(name, **options)
    if options.get("root") == ".":
        monkeypatch.setenv("DRSROBUST_DATA", str(tmp_path))
        with pytest.raises(FileNotFoundError, match=str(tmp_path)):
            load_dataset(name, days=options.get("days"))
