"""MovieLens-1M: parsing, and its two schemas.

Source: F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015. A row is one
rating; it is positive when the rating is over 3, as in arXiv:2307.10244.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drsrobust.data.dataset import Feature, Ids, Schema
from drsrobust.data.encoding import Columns, encode_ids, split_order
from drsrobust.data.text import INTEGER, NOTHING, DataError, read_columns, read_text

# '::' separates the fields; to a parser of single characters that is a field of nothing between two.
_RATING_FIELDS = {
    "user": INTEGER,
    "gap 1": NOTHING,
    "movie": INTEGER,
    "gap 2": NOTHING,
    "rating": INTEGER,
    "gap 3": NOTHING,
    "timestamp": INTEGER,
}
_NUMBER = (re.compile(r"[0-9]{1,18}"), "an integer")
_USER_FIELDS = {
    "id": _NUMBER,
    "gender": (re.compile("[FM]"), "F or M"),
    "age": _NUMBER,
    "occupation": _NUMBER,
    "zip code": (re.compile(r"\S+"), "a zip code"),
}
_MOVIE_FIELDS = {
    "id": _NUMBER,
    "title": (re.compile(r".+"), "a title"),
    "genres": (re.compile(r"[^|]+(\|[^|]+)*"), "one or more genres, separated by '|'"),
}
_YEAR = re.compile(r"\((\d{4})\)\s*$")
RATE_WEIGHT = 10.0  # rows of the overall click rate mixed into each user's and movie's rate
RATE_COLUMNS = ("user_count", "movie_count", "user_rate", "movie_rate")


@dataclass
class Ratings:
    """What people did. Arrays [n]: user and movie ids int64, label float32 (1: liked)."""

    user: np.ndarray
    movie: np.ndarray
    label: np.ndarray


@dataclass
class Side:
    """What is known of users and movies: id -> attribute. Genres and years are text and numbers as in the files."""

    user: dict[int, tuple[str, str, str, str]]  # gender, age group, occupation, first three characters of the zip code
    movie: dict[int, tuple[tuple[str, ...], int]]  # genres, release year (0: unknown)


def read_ratings(path: Path) -> Ratings:
    """Parses `ratings.dat` (`UserID::MovieID::Rating::Timestamp`).

    Raises:
        DataError: a line that is not of this form, or a rating outside 1..5.
    """
    blocks = list(read_columns(path, _RATING_FIELDS, ":"))
    user, movie, rating = (np.concatenate([block[name] for block in blocks]) for name in ("user", "movie", "rating"))
    wrong = np.flatnonzero((rating < 1) | (rating > 5))
    if len(wrong):
        line = int(wrong[0]) + 1
        raise DataError(f"{path}, line {line}, field 3 (rating): {rating[wrong[0]]} is not a rating of 1 to 5")
    return Ratings(user, movie, (rating > 3).astype(np.float32))


def read_side(users: Path, movies: Path) -> Side:
    """Parses `users.dat` (`UserID::Gender::Age::Occupation::Zip-code`) and `movies.dat` (`MovieID::Title::Genres`).

    Raises:
        DataError: a line that is not of this form.
    """
    side = Side({}, {})
    for line, (key, gender, age, occupation, zip_code) in _lines(users, _USER_FIELDS, "ascii"):
        _add(side.user, users, line, int(key), (gender, age, occupation, zip_code[:3]))
    for line, (key, title, genres) in _lines(movies, _MOVIE_FIELDS, "latin-1"):
        year = _YEAR.search(title)
        _add(side.movie, movies, line, int(key), (tuple(genres.split("|")), int(year[1]) if year else 0))
    return side


def _lines(
    path: Path, fields: dict[str, tuple[re.Pattern[str], str]], encoding: str
) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of a small '::'-separated file, each field held to its pattern."""
    for line, text in read_text(path, encoding):
        parts = text.split("::")
        if len(parts) != len(fields):
            raise DataError(
                f"{path}, line {line}: {len(parts)} fields where {len(fields)} are expected (separated by '::'): {text[:80]!r}"
            )
        for position, (part, (name, (pattern, meaning))) in enumerate(zip(parts, fields.items(), strict=True), 1):
            if not pattern.fullmatch(part):
                raise DataError(f"{path}, line {line}, field {position} ({name}): {part[:80]!r} is not {meaning}")
        yield line, parts


def _add(table: dict, path: Path, line: int, key: int, value: tuple) -> None:
    if key in table:
        raise DataError(f"{path}, line {line}, field 1 (id): {key} stands twice")
    table[key] = value


def encode(ratings: Ratings, side: Side | None, seed: int) -> Columns:
    """Model inputs of all ratings.

    Args:
        ratings: the rows.
        side: None for the schema `ids` (user and movie, no dense column); given for `full`: also gender, age group,
            occupation, zip prefix, genres (multi-hot), release year, and as dense columns how often the row's user and
            movie occur in the training rows and with which click rate.
        seed: of the random split.

    Raises:
        DataError: a rating of a user or movie that `side` does not know.
    """
    order, sizes = split_order(len(ratings.label), seed)
    user, movie, labels = ratings.user[order], ratings.movie[order], ratings.label[order]
    n_train = sizes[0]
    sparse: dict[str, Ids] = {}
    features: list[Feature] = []

    def add(name: str, values: np.ndarray) -> None:
        ids, cardinality = encode_ids(values, n_train)
        sparse[name] = Ids(ids)
        features.append(Feature(name, cardinality))

    add("user", user)
    add("movie", movie)
    dense, dense_names = np.zeros((len(order), 0), np.float32), ()
    if side is not None:
        user_place, user_table = _join("user", user, side.user, order)
        movie_place, movie_table = _join("movie", movie, side.movie, order)
        for position, name in enumerate(("gender", "age", "occupation", "zip")):
            add(name, _codes([row[position] for row in user_table])[user_place])
        add("year", np.array([year for _, year in movie_table])[movie_place])
        ids, cardinality = _genres([genres for genres, _ in movie_table], movie_place)
        sparse["genres"] = ids
        features.append(Feature("genres", cardinality, multi_hot=True))
        dense, dense_names = _rates(sparse["user"].values, sparse["movie"].values, labels, n_train), RATE_COLUMNS
    return Columns(Schema(dense_names, tuple(features)), dense, sparse, labels, user, order, sizes)


def _join(thing: str, keys: np.ndarray, table: dict, rows: np.ndarray) -> tuple[np.ndarray, list]:
    """Each key's place in `table` [n], and the table's rows as a list; `rows` are the keys' lines, from 0."""
    known = np.array(sorted(table))
    place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    missing = np.flatnonzero(known[place] != keys)
    if len(missing):
        first = missing[np.argmin(rows[missing])]
        raise DataError(f"ratings.dat, line {rows[first] + 1}, field {thing}: {keys[first]} is not in {thing}s.dat")
    return place, [table[key] for key in known.tolist()]


def _codes(values: list[str]) -> np.ndarray:
    """Numbers for names, in alphabetical order: vocabularies of a million rows are made of numbers."""
    return np.unique(values, return_inverse=True)[1]


def _genres(genres: list[tuple[str, ...]], place: np.ndarray) -> tuple[Ids, int]:
    """Multi-hot ids of each row's movie; genre names in alphabetical order are 1, 2, ..."""
    number = {name: i for i, name in enumerate(sorted({name for names in genres for name in names}), 1)}
    table = Ids(
        np.array([number[name] for names in genres for name in names], np.int32),
        np.array([len(names) for names in genres], np.int32),
    )
    return table.take(place), len(number) + 1


def _rates(user: np.ndarray, movie: np.ndarray, labels: np.ndarray, n_train: int) -> np.ndarray:
    """Dense columns [n, 4]: log counts and click rates of the row's user and movie over the *other* training rows.

    A training row leaves itself out: a rate that contained its own label would leak it. With s clicks in c other rows and
    the click rate r of all other training rows, the rate is (s + RATE_WEIGHT r) / (c + RATE_WEIGHT). Columns are then
    standardised by their mean and deviation on the training rows.
    """
    train = np.arange(len(labels)) < n_train
    own = np.where(train, labels, 0.0)
    overall = (labels[:n_train].sum(dtype=np.float64) - own) / (n_train - train)
    counts, rates = [], []
    for ids in (user, movie):
        count = np.bincount(ids[:n_train], minlength=ids.max() + 1)[ids] - train
        clicks = np.bincount(ids[:n_train], labels[:n_train], minlength=ids.max() + 1)[ids] - own
        counts.append(np.log1p(count))
        rates.append((clicks + RATE_WEIGHT * overall) / (count + RATE_WEIGHT))
    dense = np.stack([*counts, *rates], axis=1)
    scale = dense[:n_train].std(axis=0)
    return ((dense - dense[:n_train].mean(axis=0)) / np.where(scale > 0, scale, 1.0)).astype(np.float32)
