"""Data sets by name: Avazu and the CSV sets of MovieLens, from their files to their schemas."""

import gzip

import numpy as np
import pytest

from drsrobust_extras.data.click_logs import FEATURES, HEADER
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.text_lines import DataError


def avazu(n):
    """n lines under a header: two sites, every device once, C20 missing (-1) in every third line."""
    rng = np.random.default_rng(0)
    rows = [",".join(HEADER)]
    for i in range(n):
        hashed = [f"{i % 2:08x}", *["0000000a"] * 5, *[f"{i:08x}"] * 2, "0000000b"]
        numbers = [1, 0, *rng.integers(300, 310, 4), 33, 35, -1 if i % 3 == 0 else 100_000, 79]
        rows.append(
            ",".join(map(str, [10**19 + i, i % 2, f"1410{21 + i % 2}{i % 24:02}", 1005, i % 7, *hashed, *numbers]))
        )
    return "\n".join(rows) + "\n"


def test_avazu(tmp_path):
    folder = tmp_path / "avazu"
    folder.mkdir()
    (folder / "train.csv.gz").write_bytes(gzip.compress(avazu(400).encode()))
    data = load_dataset("avazu", tmp_path)
    assert data.name == "avazu/fields" and data.schema.dense == ()
    assert [f.name for f in data.schema.features] == list(FEATURES) and len(FEATURES) == 23
    sizes = {f.name: f.cardinality for f in data.schema.features}
    assert sizes["day"] == sizes["site_id"] == 3 and sizes["device_ip"] == 1 and sizes["C20"] == 3
    for split in (data.train, data.valid, data.test):
        assert split.labels.tolist() == [row % 2 for row in split.rows]
        assert split.sparse["day"].values.tolist() == [1 + row % 2 for row in split.rows]
        assert split.sparse["site_id"].values.tolist() == [1 + row % 2 for row in split.rows]
        assert split.sparse["C20"].values.tolist() == [1 if row % 3 == 0 else 2 for row in split.rows]
        assert not split.sparse["device_ip"].values.any()
    hashed = load_dataset("avazu", path=folder / "train.csv.gz", hash_size=50)
    for split in (hashed.train, hashed.valid, hashed.test):
        assert (split.sparse["C20"].values == 0).tolist() == [row % 3 == 0 for row in split.rows]
        assert split.sparse["device_ip"].values.min() > 0  # 0 is for missing values alone
    wrong = tmp_path / "wrong.csv"
    wrong.write_text(avazu(400) + "x\n")
    with pytest.raises(DataError, match="wrong.csv, line 402: 1 fields where 24 are expected"):
        load_dataset("avazu", path=wrong)
    with pytest.warns(UserWarning, match=r"skipped: 1, rows kept: 400; the first: wrong.csv, line 402: 1 fields"):
        assert load_dataset("avazu", path=wrong, bad_lines="skip").fingerprint == data.fingerprint


@pytest.fixture
def ratings():
    """200 ratings, as (user, movie, half stars); no pair of user and movie occurs twice."""
    rng = np.random.default_rng(1)
    user, movie = np.divmod(rng.permutation(29 * 19)[:200], 19)
    return np.stack([user + 1, movie + 1, rng.integers(1, 11, 200)], axis=1).tolist()


@pytest.mark.parametrize("kaggle", [False, True])
def test_movielens_20m(tmp_path, ratings, kaggle):
    """The form of GroupLens and the copy on Kaggle give the same contents."""
    folder = tmp_path / "ml-20m"
    folder.mkdir()
    if kaggle:
        text = '"userId","movieId","rating","timestamp"\n'
        text += "".join(f'{u},{m},{r / 2},"2005-04-02 23:53:47"\n' for u, m, r in ratings)
        (folder / "rating.csv").write_text(text)
        movies, quote = folder / "movie.csv", '"'
    else:
        text = "userId,movieId,rating,timestamp\r\n" + "".join(f"{u},{m},{r / 2},1112486027\r\n" for u, m, r in ratings)
        (folder / "ratings.csv").write_text(text)
        movies, quote = folder / "movies.csv", ""
    header = ",".join(f"{quote}{name}{quote}" for name in ("movieId", "title", "genres"))
    movies.write_text(header + "\n" + "".join(f'{m},"Film, A ({1990 + m})",Drama|War\n' for m in range(1, 20)))
    ids, full = load_dataset("movielens-20m", tmp_path), load_dataset("movielens-20m/full", tmp_path)
    assert [f.name for f in ids.schema.features] == ["user", "movie"]
    assert [f.name for f in full.schema.features] == ["user", "movie", "year", "genres"] and len(full.schema.dense) == 4
    assert np.array_equal(ids.train.rows, full.train.rows)
    assert ids.train.labels.tolist() == [float(ratings[row][2] > 6) for row in ids.train.rows]
    assert ids.train.users.tolist() == [ratings[row][0] for row in ids.train.rows]


def test_movielens_20m_says_what_is_missing(tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match=r"no .*ml-20m/ratings.csv or rating.csv \(nor .gz\)\. Get .* Kaggle and put ratings.csv",
    ):
        load_dataset("movielens-20m", tmp_path)


def test_skipped_lines_of_all_files_of_movielens(tmp_path, ratings):
    folder = tmp_path / "ml-latest-small"
    folder.mkdir()
    lines = [f"{u},{m},{r / 2},1112486027\n" for u, m, r in ratings]
    lines[9] = "what\n"
    (folder / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "".join(lines))
    (folder / "movies.csv").write_text(
        "movieId,title,genres\nbad\n" + "".join(f"{m},Film,Drama\n" for m in range(1, 20))
    )
    says = r"^bad lines skipped: 2, .*; the first: movies.csv, line 2:"
    with pytest.warns(UserWarning, match=says):
        data = load_dataset("movielens-latest-small/full", tmp_path, bad_lines="skip")
    assert [(file, line) for file, line, _ in data.skipped] == [("movies.csv", 2), ("ratings.csv", 11)]


def test_every_data_set_has_its_line():
    from drsrobust_extras.data.registry import SOURCES, describe

    lines = describe().splitlines()
    assert len(lines) == len(SOURCES) and all(line.partition(": ")[2] for line in lines)
    assert "movielens-1m/ids|full: 1,000,209 ratings: user and movie; full: all attributes of both" in lines


def write(folder, files):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def flags(*genres):
    return "|".join(str(int(number in genres)) for number in range(19))


def item(number, *genres):
    """A line of u.item, Latin-1; as movie 267, number 19 has neither a year nor dates nor an address."""
    if number == 19:
        return f"19|unknown||||{flags(*genres)}\n".encode()
    return f"{number}|Amélie {number} ({1980 + number})|01-Jan-1995||http://us.imdb.com/{number}|{flags(*genres)}\n".encode(
        "latin-1"
    )


@pytest.fixture
def hundred(tmp_path, ratings):
    """A folder in the form of ml-100k, with ratings 1 to 5."""
    stars = [(user, movie, 1 + half % 5) for user, movie, half in ratings]
    users = "".join(f"{u}|{20 + u}|{'MF'[u % 2]}|{'artist' if u % 3 else 'other'}|V{u:04}\n" for u in range(1, 30))
    files = {
        "u.data": "".join(f"{u}\t{m}\t{r}\t881250949\n" for u, m, r in stars).encode(),
        "u.user": users.encode(),
        "u.item": b"".join(item(m, 0) if m == 19 else item(m, 8, 1 + m % 3) for m in range(1, 20)),
    }
    return write(tmp_path / "ml-100k", files), stars


def test_movielens_100k(tmp_path, hundred):
    _, stars = hundred
    ids, full = load_dataset("movielens-100k", tmp_path), load_dataset("movielens-100k/full", tmp_path)
    assert [f.name for f in ids.schema.features] == ["user", "movie"]
    names = ["user", "movie", "gender", "age", "occupation", "zip", "year", "genres"]
    assert [f.name for f in full.schema.features] == names and len(full.schema.dense) == 4
    assert ids.train.labels.tolist() == [float(stars[row][2] > 3) for row in ids.train.rows]
    assert np.array_equal(ids.train.rows, full.train.rows)
    genders = full.train.sparse["gender"].values  # in alphabetical order: F 1, M 2
    assert genders.tolist() == [1 if stars[row][0] % 2 else 2 for row in full.train.rows]
    genres = full.train.sparse["genres"]
    assert genres.lengths.tolist() == [1 if stars[row][1] == 19 else 2 for row in full.train.rows]
    assert {f.name: f.cardinality for f in full.schema.features}["genres"] == 6  # four of them, unknown, and none


@pytest.mark.parametrize(
    ("file", "text", "line", "fault"),
    [
        ("u.data", b"1\t2\t3.5\t0\n", 201, r"field 3 \(rating\): '3.5' is not a rating of 1 to 5"),
        ("u.data", b"1::2::3::0\n", 201, r"1 fields where 4 are expected \(separated by '\\t'\)"),
        ("u.user", b"30|x|M|artist|12345\n", 30, r"field 2 \(age\): 'x' is not an integer"),
        ("u.user", b"30|20|M|artist\n", 30, "4 fields where 5 are expected"),
        ("u.item", item(20), 20, r"no field of a genre \(unknown to Western\) is 1"),
        ("u.item", item(20, 3)[:-3] + b"\n", 20, "23 fields where 24 are expected"),
        ("u.item", item(20, 3)[:-2] + b"2\n", 20, r"field 24 \(Western\): '2' is not 0 or 1"),
    ],
)
def test_bad_lines_of_movielens_100k(hundred, file, text, line, fault):
    folder, _ = hundred
    good = load_dataset("movielens-100k/full", path=folder)
    with open(folder / file, "ab") as handle:
        handle.write(text)
    with pytest.raises(DataError, match=f"{file}, line {line}[:,] {fault}"):
        load_dataset("movielens-100k/full", path=folder)
    with pytest.warns(
        UserWarning, match=f"bad lines skipped: 1, rows kept: 200; the first: {file}, line {line}: {fault}"
    ):
        skipped = load_dataset("movielens-100k/full", path=folder, bad_lines="skip")
    assert skipped.fingerprint == good.fingerprint


def test_movielens_10m(tmp_path, ratings):
    """Half stars in the form of 1M, titles in UTF-8, no attributes of users."""
    lines = [f"{u}::{m}::{f'{r / 2:g}'}::838985046\n" for u, m, r in ratings]
    movies = "".join(
        f"{m}::Amélie: {m} ({1980 + m})::{'Drama|War' if m % 2 else '(no genres listed)'}\n" for m in range(1, 20)
    )
    folder = write(tmp_path / "ml-10M100K", {"ratings.dat": "".join(lines).encode(), "movies.dat": movies.encode()})
    ids, full = load_dataset("movielens-10m", tmp_path), load_dataset("movielens-10m/full", tmp_path)
    assert [f.name for f in full.schema.features] == ["user", "movie", "year", "genres"]
    assert ids.train.labels.tolist() == [float(ratings[row][2] > 6) for row in ids.train.rows]
    (folder / "ratings.dat").write_text("".join([*lines[:5], "30::1::3.7::0\n", *lines[5:]]))
    (folder / "movies.dat").write_bytes(movies.encode() + "20::Am\xe9lie::Drama\n".encode("latin-1"))
    with pytest.raises(
        DataError, match=r"ratings.dat, line 6, field 3 \(rating\): '3.7' is not a rating of 0.5 to 5.0"
    ):
        load_dataset("movielens-10m", tmp_path)
    with pytest.warns(UserWarning, match="bad lines skipped: 2"):
        skipped = load_dataset("movielens-10m/full", tmp_path, bad_lines="skip")
    assert skipped.skipped[0][:2] == ("movies.dat", 20) and "not utf-8" in skipped.skipped[0][2]
    assert skipped.skipped[1][:2] == ("ratings.dat", 6) and skipped.fingerprint == full.fingerprint


def test_movielens_25m(tmp_path, ratings):
    text = "userId,movieId,rating,timestamp\n" + "".join(f"{u},{m},{r / 2},1147880044\n" for u, m, r in ratings)
    movies = "movieId,title,genres\n" + "".join(f'{m},"Film, A ({1990 + m})",Drama|War\n' for m in range(1, 20))
    folder = write(tmp_path / "ml-25m", {"ratings.csv": text.encode(), "movies.csv": movies.encode()})
    ids, full = load_dataset("movielens-25m", tmp_path), load_dataset("movielens-25m/full", tmp_path)
    assert ids.train.labels.tolist() == [float(ratings[row][2] > 6) for row in ids.train.rows]
    assert [f.name for f in full.schema.features] == ["user", "movie", "year", "genres"]
    with open(folder / "ratings.csv", "a") as handle:
        handle.write("1,2,6.0,0\n")
    with pytest.raises(
        DataError, match=r"ratings.csv, line 202, field 3 \(rating\): '6.0' is not a rating of 0.5 to 5.0"
    ):
        load_dataset("movielens-25m", tmp_path)


@pytest.mark.parametrize("size", ["100k", "10m", "25m"])
def test_movielens_schemas_and_missing_files(tmp_path, size):
    with pytest.raises(ValueError, match=f"unknown schema of movielens-{size} 'fields'.* known: ids, full"):
        load_dataset(f"movielens-{size}/fields", tmp_path)
    with pytest.raises(FileNotFoundError, match=f"Get MovieLens {size.upper()}, ml-{size}.zip from GroupLens"):
        load_dataset(f"movielens-{size}", tmp_path)
