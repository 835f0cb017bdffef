"""Data sets by name: Avazu and the CSV sets of MovieLens, from their files to their schemas."""

import gzip

import numpy as np
import pytest

from drsrobust.data import DataError, load_dataset
from drsrobust.data.click_logs import FEATURES, HEADER


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
    from drsrobust.data import SOURCES, describe

    lines = describe().splitlines()
    assert len(lines) == len(SOURCES) and all(line.partition(": ")[2] for line in lines)
    assert "movielens-1m/ids|full: 1,000,209 ratings: user and movie; full: all attributes of both" in lines
