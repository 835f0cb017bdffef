import gzip

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
    folder.mkdir()
    (folder / "ratings.dat").write_text(RATINGS)
    (folder / "users.dat").write_text(USERS)
    (folder / "movies.dat").write_bytes(MOVIES.encode("latin-1"))
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
def test_csv_ratings(tmp_path, end, name, row):
    path = tmp_path / name
    content = "".join(text + end for text in (PLAIN, *(row(*values) for values in ROWS))).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    ratings = read_ratings(path)
    assert ratings.user.tolist() == [row[0] for row in ROWS] and ratings.user.dtype == np.int64
    assert ratings.movie.tolist() == [row[1] for row in ROWS] and ratings.movie.dtype == np.int32
    assert ratings.label.tolist() == [1, 1, 0, 0, 1]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["movies.csv", "movie.csv.gz"])
def test_csv_movies(tmp_path, end, name):
    path = tmp_path / name
    content = MOVIE_CSV.replace("\n", end).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    side = read_side(None, path)
    assert side.user is None and side.movie == KNOWN and side.files == ("", name)
    other = tmp_path / "tags.csv"
    other.write_text("userId,movieId,tag,timestamp\n1,10,funny,0\n")
    with pytest.raises(DataError, match="tags.csv, line 1: 'userId,movieId,tag,timestamp'"):
        read_side(None, other)


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
def test_bad_lines_of_movies(tmp_path, line, says):
    path = tmp_path / "movies.csv"
    path.write_bytes(MOVIE_CSV.encode() + line.encode("latin-1") + b"\n60,Heat (1995),Crime\n")
    with pytest.raises(DataError) as caught:
        read_side(None, path)
    assert str(caught.value).startswith(f"{path}, line 6") and says in str(caught.value)
    bad = BadLines("skip")
    assert read_side(None, path, bad).movie == KNOWN | {60: (("Crime",), 1995)}
    assert [row[:2] for row in bad.skipped] == [("movies.csv", 6)] and says in bad.skipped[0][2]


def test_ratings_of_the_same_movie_are_left_out_but_the_first(tmp_path):
    """Under their lines in the file, which a bad line before them moves."""
    path = tmp_path / "ratings.csv"
    rows = ["1,10,4.0,0", "bad", "2,10,1.0,0", "1,10,0.5,0", "1,20,5.0,0", "2,10,5.0,0", "1,10,5.0,0"]
    path.write_text("\n".join([PLAIN, *rows]))
    with pytest.raises(DataError, match=r"ratings.csv, line 3: 1 fields"):
        read_ratings(path)
    bad = BadLines("skip")
    ratings = read_ratings(path, bad)
    assert list(zip(ratings.user, ratings.movie, ratings.label, strict=True)) == [(1, 10, 1), (2, 10, 0), (1, 20, 1)]
    assert ratings.line.tolist() == [2, 4, 6]
    assert [line for _, line, _ in bad.skipped] == [3, 5, 7, 8]
    assert bad.skipped[3][2] == "field 2 (movie): user 1 has rated 10 in line 5 already"


def test_real_csv_rows(real_data):
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


def test_real_rows(real_data):
    ids = load_dataset("movielens-1m", real_data)
    assert len(ids.train) + len(ids.valid) + len(ids.test) == 1_000_209
    assert ids.schema.dense == () and [f.cardinality for f in ids.schema.features][0] == 6041
    everything = np.concatenate([split.labels for split in (ids.train, ids.valid, ids.test)])
    assert everything.mean(dtype=float) == pytest.approx(0.575161, abs=1e-6)
    full = load_dataset("movielens-1m/full", real_data)
    assert [f.cardinality for f in full.schema.features if f.name == "genres"] == [19]
    assert np.array_equal(full.test.rows, ids.test.rows)
