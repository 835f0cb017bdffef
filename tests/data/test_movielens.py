import numpy as np
import pytest

from drsrobust.data import load_dataset
from drsrobust.data.movielens import RATE_WEIGHT, encode, read_ratings, read_side

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
    rng = np.random.default_rng(0)
    users, movies, ratings = rng.integers(1, 3, n), rng.choice([10, 20, 30], n), rng.integers(1, 6, n)
    lines = [f"{u}::{m}::{r}::0\n" for u, m, r in zip(users, movies, ratings, strict=True)]
    (folder / "ratings.dat").write_text("".join(lines))
    return users, movies, ratings


def test_ratings(folder):
    ratings = read_ratings(folder / "ratings.dat")
    assert ratings.user.tolist() == [1, 1, 2, 2]
    assert ratings.movie.tolist() == [10, 20, 10, 30]
    assert ratings.label.tolist() == [1, 0, 1, 0]


def test_side(folder):
    side = read_side(folder / "users.dat", folder / "movies.dat")
    assert side.user == {1: ("F", "1", "10", "480"), 2: ("M", "56", "16", "700")}
    assert side.movie[10] == (("Animation", "Comedy"), 1995)
    assert side.movie[20] == (("Drama",), 0)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("ratings.dat", RATINGS + "1::10::6::0\n", "line 5, field 3 (rating): 6 is not a rating of 1 to 5"),
        ("ratings.dat", RATINGS + "1,10,5,0\n", "line 5: 1 fields"),
        ("ratings.dat", RATINGS + "one::10::5::0\n", "line 5, field 1 (user): 'one' is not an integer"),
        ("users.dat", USERS + "3::M::1::2\n", "line 3: 4 fields where 5 are expected"),
        ("users.dat", USERS + "x::M::1::2::3\n", "line 3, field 1 (id): 'x' is not an integer"),
        ("users.dat", USERS + "3::\xe9::1::2::3\n", "line 3: bytes that are not ascii"),
        ("movies.dat", MOVIES + "40::No genre\n", "line 4: 2 fields where 3 are expected"),
        ("users.dat", "1::F::1::10::48067\n", "field user: 2 is not in users.dat"),
        ("users.dat", USERS + "3::Q::1::2::3\n", "line 3, field 2 (gender): 'Q' is not F or M"),
        ("users.dat", USERS + "3::F::abc::2::3\n", "line 3, field 3 (age): 'abc' is not an integer"),
        ("users.dat", USERS + "3::F::1::2::\n", "line 3, field 5 (zip code): '' is not a zip code"),
        ("users.dat", USERS + "2::F::1::2::3\n", "line 3, field 1 (id): 2 stands twice"),
        ("movies.dat", MOVIES + "40::A::Drama||War\n", "line 4, field 3 (genres): 'Drama||War' is not one or more"),
        ("ratings.dat", RATINGS, "4 rows cannot be split"),
    ],
)
def test_errors_leave_no_cache(folder, empty_cache, file, content, says):
    big(folder)
    (folder / file).write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError) as caught:
        load_dataset("movielens-1m/full", folder.parent)
    assert says in str(caught.value)
    assert not [path for path in (empty_cache / "data").iterdir() if path.suffix != ".lock"]


def test_full_schema(folder, empty_cache):
    users, movies, ratings = big(folder)
    data = load_dataset("movielens-1m", folder.parent, schema="full")
    assert data.name == "movielens-1m/full"
    assert [f.name for f in data.schema.features] == [
        "user",
        "movie",
        "gender",
        "age",
        "occupation",
        "zip",
        "year",
        "genres",
    ]
    for split in (data.train, data.valid, data.test):
        assert split.users.tolist() == users[split.rows].tolist()
        assert split.labels.tolist() == (ratings[split.rows] > 3).astype(float).tolist()
        genres = split.sparse["genres"]
        assert genres.lengths.tolist() == [2 if movie == 10 else 1 for movie in movies[split.rows]]
    rows = np.concatenate([data.train.rows, data.valid.rows, data.test.rows])
    assert sorted(rows) == list(range(40))
    assert (len(data.train), len(data.valid), len(data.test)) == (32, 4, 4)


def test_rates_leave_the_own_label_out(folder):
    """Against a loop over rows, in which a row's own label does not occur."""
    big(folder)
    ratings, side = read_ratings(folder / "ratings.dat"), read_side(folder / "users.dat", folder / "movies.dat")
    columns = encode(ratings, side, seed=0)
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


def test_real_rows(real_data):
    ids = load_dataset("movielens-1m", real_data)
    assert len(ids.train) + len(ids.valid) + len(ids.test) == 1_000_209
    assert ids.schema.dense == () and [f.cardinality for f in ids.schema.features][0] == 6041
    everything = np.concatenate([split.labels for split in (ids.train, ids.valid, ids.test)])
    assert everything.mean(dtype=float) == pytest.approx(0.575161, abs=1e-6)
    full = load_dataset("movielens-1m/full", real_data)
    assert [f.cardinality for f in full.schema.features if f.name == "genres"] == [19]
    assert np.array_equal(full.test.rows, ids.test.rows)
