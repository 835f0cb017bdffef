"""MovieLens, from its files to its schemas; data sets by name: what is refused, and files that are missing."""

import numpy as np
import pytest

from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.movielens import RATE_WEIGHT, encode_ratings, read_ratings, read_side
from drsrobust_extras.data.text_lines import BadLines, DataError
from tests.refusals import refuses

RATINGS = "1::10::5::978300760\n1::20::3::0\n2::10::4::0\n2::30::1::0\n"
USERS = "1::F::1::10::48067\n2::M::56::16::70072-11\n"
MOVIES = "10::Toy: Story (1995)::Animation|Comedy\n20::Am\xe9lie::Drama\n30::Heat (1995)::Comedy\n"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "ml-1m"
    write(folder, {"ratings.dat": RATINGS, "users.dat": USERS, "movies.dat": MOVIES.encode("latin-1")})
    return folder


def big(folder, n=40):
    """Ratings of 20 users and 3 movies, each pair once at most."""
    rng = np.random.default_rng(0)
    users, movies = np.divmod(rng.permutation(60)[:n], 3)
    users, movies, ratings = users + 1, 10 * (movies + 1), rng.integers(1, 6, n)
    (folder / "users.dat").write_text(USERS + "".join(f"{user}::M::56::16::70072\n" for user in range(3, 21)))
    lines = [f"{u}::{m}::{r}::0\n" for u, m, r in zip(users, movies, ratings, strict=True)]
    (folder / "ratings.dat").write_text("".join(lines))
    return users, movies, ratings


def test_ratings_and_attributes(folder):
    ratings = read_ratings(folder / "ratings.dat")
    assert ratings.user.tolist() == [1, 1, 2, 2]
    assert ratings.movie.tolist() == [10, 20, 10, 30]
    assert ratings.label.tolist() == [1, 0, 1, 0]
    side = read_side(folder / "users.dat", folder / "movies.dat")
    assert side.user == {1: ("F", "1", "10", "480"), 2: ("M", "56", "16", "700")}
    assert side.movie[10] == (("Animation", "Comedy"), 1995)
    assert side.movie[20] == (("Drama",), 0)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("ratings.dat", RATINGS + "1::10::6::0\n", "line 5, field 3 (rating): '6' is not a rating of 1 to 5"),
        ("ratings.dat", RATINGS + "1,10,5,0\n", "line 5: 1 fields"),
        ("ratings.dat", RATINGS + "-1::10::5::0\n", "line 5, field 1 (user): '-1' is not an id"),
        ("ratings.dat", RATINGS + "1::ten::5::0\n", "line 5, field 2 (movie): 'ten' is not an id"),
        ("ratings.dat", RATINGS + "1::30::5::9783007\n", "line 5, field 4 (timestamp): '9783007'"),
        ("ratings.dat", RATINGS + "1::20::5::0\n", "line 5, field 2 (movie): user 1 has rated 20 in line 2 already"),
        ("users.dat", USERS + "x::M::1::2::3\n", "line 3, field 1 (id): 'x' is not an integer"),
        ("users.dat", USERS + "3::\xe9::1::2::3\n", "line 3: bytes that are not ascii"),
        ("users.dat", "1::F::1::10::48067\n", "is not in users.dat"),
        ("users.dat", USERS + "3::Q::1::2::3\n", "line 3, field 2 (gender): 'Q' is not F or M"),
        ("users.dat", USERS + "3::F::abc::2::3\n", "line 3, field 3 (age): 'abc' is not an integer"),
        ("users.dat", USERS + "3::F::1::2::\n", "line 3, field 5 (zip code): '' is not a zip code"),
        ("users.dat", USERS + "2::F::1::2::3\n", "line 3, field 1 (id): 2 is a repeated id"),
        ("movies.dat", MOVIES + "40::A::Drama||War\n", "line 4, field 3 (genres): 'Drama||War' is not one or more"),
        ("ratings.dat", RATINGS, "4 rows cannot be split"),
    ],
)
def test_errors_leave_no_cache(folder, empty_cache, file, content, says):
    big(folder)
    (folder / file).write_bytes(content.encode("latin-1"))
    refuses(lambda: load_dataset("movielens-1m/full", folder.parent), ValueError, says)
    assert not [path for path in (empty_cache / "data").iterdir() if path.suffix != ".lock"]


def test_rates_leave_the_own_label_out(folder):
    """Against a loop over rows, in which a row's own label does not occur."""
    big(folder)
    ratings, side = read_ratings(folder / "ratings.dat"), read_side(folder / "users.dat", folder / "movies.dat")
    columns = encode_ratings(ratings, side, seed=0)
    n_train = columns.sizes[0]
    order, labels = columns.rows, columns.labels
    expected = np.zeros((40, 4))
    for row in range(40):
        overall = np.mean([labels[i] for i in range(n_train) if i != row])
        for place, ids in enumerate((ratings.user[order], ratings.movie[order])):
            others = [i for i in range(n_train) if i != row and ids[i] == ids[row]]
            clicks = sum(labels[i] for i in others)
            expected[row, place] = np.log1p(len(others))
            expected[row, 2 + place] = (clicks + RATE_WEIGHT * overall) / (len(others) + RATE_WEIGHT)
    mean, std = expected[:n_train].mean(axis=0), expected[:n_train].std(axis=0)
    np.testing.assert_allclose(columns.dense, (expected - mean) / std, rtol=1e-4, atol=1e-5)


ROWS = [
    (1, 10, "4.0", 964982703),
    (1, 20, "3.5", 789652004),
    (2**31, 10, "0.5", 1427784002),
    (3, 30, "3", 0),
    (3, 10, "5.0", 4102444800),
]
PLAIN = "userId,movieId,rating,timestamp"
MOVIE_CSV = (
    "movieId,title,genres\n10,Toy Story (1995),Adventure|Animation\n"
    '20,"American President, The (1995)",Drama\n30,"11\'09""01 (2002)",(no genres listed)\n40,Amélie (2001) ,Comedy\n'
)
KNOWN = {10: (("Adventure", "Animation"), 1995), 20: (("Drama",), 1995), 30: (("(no genres listed)",), 2002)}
KNOWN[40] = (("Comedy",), 2001)


def moment(seconds):
    return str(np.datetime64(seconds, "s")).replace("T", " ")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["ratings.csv", "rating.csv.gz"])
@pytest.mark.parametrize(
    "row",
    [
        lambda u, m, r, t: f"{u},{m},{r},{t}",
        lambda u, m, r, t: f"{u},{m},{r},{moment(t)}",
        lambda u, m, r, t: f'{u},{m},{r},"{moment(t)}"',
        lambda u, m, r, t: f'"{u}","{m}","{r}","{t}"',
    ],
)
def test_csv_ratings(file, end, name, row):
    content = "".join(text + end for text in (PLAIN, *(row(*values) for values in ROWS)))
    ratings = read_ratings(file(content, name))
    assert ratings.user.tolist() == [row[0] for row in ROWS] and ratings.user.dtype == np.int64
    assert ratings.movie.tolist() == [row[1] for row in ROWS] and ratings.movie.dtype == np.int32
    assert ratings.label.tolist() == [1, 1, 0, 0, 1]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["movies.csv", "movie.csv.gz"])
def test_csv_movies(file, end, name):
    side = read_side(None, file(MOVIE_CSV.replace("\n", end), name))
    assert side.user is None and side.movie == KNOWN and side.files == ("", name)
    other = file("userId,movieId,tag,timestamp\n1,10,funny,0\n", "tags.csv")
    refuses(lambda: read_side(None, other), DataError, "tags.csv, line 1: 'userId,movieId,tag,timestamp'")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('50,"Open (1999),Drama', "not a line of a CSV file"),
        ("50,One, two (1999),Drama", "4 fields where 3 are expected (separated by ','): '50,One"),
        ("10,One,Drama", "field 1 (id): 10 is a repeated id"),
        ("", "1 fields where 3"),
        ("50,Am\xe9lie,Drama", "bytes that are not utf-8: '50,Am\\xe9lie,Drama'"),
    ],
)
def test_bad_lines_of_movies(file, line, says):
    path = file(MOVIE_CSV.encode() + line.encode("latin-1") + b"\n60,Heat (1995),Crime\n", "movies.csv")
    refuses(lambda: read_side(None, path), DataError, f"{path}, line 6", says)
    bad = BadLines("skip")
    assert read_side(None, path, bad).movie == KNOWN | {60: (("Crime",), 1995)}
    assert [row[:2] for row in bad.skipped] == [("movies.csv", 6)] and says in bad.skipped[0][2]


def test_ratings_of_the_same_movie_are_left_out_but_the_first(file):
    """Under their lines in the file, which a bad line before them moves."""
    rows = ["1,10,4.0,0", "bad", "2,10,1.0,0", "1,10,0.5,0", "1,20,5.0,0", "2,10,5.0,0", "1,10,5.0,0"]
    path = file("\n".join([PLAIN, *rows]), "ratings.csv")
    refuses(lambda: read_ratings(path), DataError, "ratings.csv, line 3: 1 fields")
    bad = BadLines("skip")
    ratings = read_ratings(path, bad)
    assert list(zip(ratings.user, ratings.movie, ratings.label, strict=True)) == [(1, 10, 1), (2, 10, 0), (1, 20, 1)]
    assert ratings.line.tolist() == [2, 4, 6]
    assert [line for _, line, _ in bad.skipped] == [3, 5, 7, 8]
    assert bad.skipped[3][2] == "field 2 (movie): user 1 has rated 10 in line 5 already"


def test_real_rows(real_data):
    small = read_ratings(real_data / "ml-latest-small" / "ratings.csv")
    assert len(small.label) == 100_836 and len(np.unique(small.user)) == 610 and len(np.unique(small.movie)) == 9724
    side = read_side(None, real_data / "ml-latest-small" / "movies.csv")
    assert len(side.movie) == 9742 and side.movie[7789] == (("Drama",), 2002)
    assert encode_ratings(small, side, 0).sizes == (80668, 10083, 10085)
    grouplens = read_ratings(real_data / "ml-20m-sample" / "ratings.csv")
    assert [len(np.unique(ids)) for ids in (grouplens.user, grouplens.movie)] == [28, 309]
    assert len(grouplens.label) == 1000
    kaggle = read_ratings(real_data / "ml-20m-sample" / "rating.csv")
    assert len(kaggle.label) == 10_000 and len(np.unique(kaggle.user)) == 8990 and kaggle.user.dtype == np.int32
    ids = load_dataset("movielens-1m", real_data)
    assert len(ids.train) + len(ids.valid) + len(ids.test) == 1_000_209
    assert ids.schema.dense == () and [f.cardinality for f in ids.schema.features][0] == 6041
    everything = np.concatenate([split.labels for split in (ids.train, ids.valid, ids.test)])
    assert everything.mean(dtype=float) == pytest.approx(0.575161, abs=1e-6)
    full = load_dataset("movielens-1m/full", real_data)
    assert [f.cardinality for f in full.schema.features if f.name == "genres"] == [19]
    assert np.array_equal(full.test.rows, ids.test.rows)


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


@pytest.mark.parametrize(
    ("name", "kaggle"), [("20m", False), ("20m", True), ("25m", False), ("latest-small", False), ("10m", False)]
)
def test_movielens_of_half_stars(tmp_path, ratings, ten_million, name, kaggle):
    if name != "10m":
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
        ("synthetic-movielens", {"min_count": 5}, "min_count=5 .*synthetic-movielens"),
        ("synthetic-movielens", {"hash_size": 5}, "hash_size=5 .*synthetic-movielens"),
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
