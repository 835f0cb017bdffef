"""MovieLens: its two schemas. What the files hold is read in `movielens_files`."""

import numpy as np

from drsrobust.data.dataset import Feature, Ids, Schema
from drsrobust.data.encoding import Columns, encode_ids, split_order
from drsrobust.data.movielens_files import Ratings, Side, read_ratings, read_side
from drsrobust.data.text import BadLines

__all__ = ["RATE_COLUMNS", "RATE_WEIGHT", "Ratings", "Side", "encode", "read_ratings", "read_side"]

RATE_WEIGHT = 10.0  # rows of the overall click rate mixed into each user's and movie's rate
RATE_COLUMNS = ("user_count", "movie_count", "user_rate", "movie_rate")


def encode(ratings: Ratings, side: Side | None, seed: int, bad: BadLines | None = None) -> Columns:
    """Model inputs of all ratings.

    Args:
        ratings: the rows.
        side: None for the schema `ids` (user and movie, no dense column); given for `full`: also gender, age group,
            occupation, zip prefix (where users are known at all), release year, genres (multi-hot), and as dense columns
            how often the row's user and movie occur in the training rows and with which click rate.
        seed: of the random split.
        bad: what to do with a rating of a user or movie that `side` does not know; None: `BadLines("strict")`.

    Raises:
        DataError: such a rating (`strict`), or too few ratings to split.
    """
    if side is not None:
        ratings = _known(ratings, side, BadLines() if bad is None else bad)
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
        if side.user is not None:
            place, table = _join(user, side.user)
            for position, name in enumerate(("gender", "age", "occupation", "zip")):
                add(name, _codes([row[position] for row in table])[place])
        movie_place, movie_table = _join(movie, side.movie)
        add("year", np.array([year for _, year in movie_table])[movie_place])
        ids, cardinality = _genres([genres for genres, _ in movie_table], movie_place)
        sparse["genres"] = ids
        features.append(Feature("genres", cardinality, multi_hot=True))
        dense, dense_names = _rates(sparse["user"].values, sparse["movie"].values, labels, n_train), RATE_COLUMNS
    users = user.astype(np.int64)
    return Columns(Schema(dense_names, tuple(features)), dense, sparse, labels, users, order, sizes)


def _known(ratings: Ratings, side: Side, bad: BadLines) -> Ratings:
    """The ratings whose user and movie `side` knows; the others are bad lines."""
    unknown = ~np.isin(ratings.movie, list(side.movie))
    if side.user is not None:
        unknown |= ~np.isin(ratings.user, list(side.user))
    rows = np.flatnonzero(unknown)
    for row, line in zip(rows.tolist(), ratings.lines(rows), strict=True):
        thing, key, file = "movie", ratings.movie[row], side.files[1]
        if side.user is not None and ratings.user[row] not in side.user:
            thing, key, file = "user", ratings.user[row], side.files[0]
        bad.add(ratings.path, line, f"field {thing}: {key} is not in {file}")
    return ratings.take(~unknown) if unknown.any() else ratings


def _join(keys: np.ndarray, table: dict) -> tuple[np.ndarray, list]:
    """Each key's place in `table` [n], and the table's rows as a list, in ascending order of their keys."""
    known = np.array(sorted(table))
    return np.searchsorted(known, keys), [table[key] for key in known.tolist()]


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
    dense = np.empty((len(labels), 4))
    for column, ids in enumerate((user, movie)):
        count = np.bincount(ids[:n_train], minlength=ids.max() + 1)[ids] - train
        clicks = np.bincount(ids[:n_train], labels[:n_train], minlength=ids.max() + 1)[ids] - own
        dense[:, column] = np.log1p(count)
        dense[:, 2 + column] = (clicks + RATE_WEIGHT * overall) / (count + RATE_WEIGHT)
    mean, scale = dense[:n_train].mean(axis=0), dense[:n_train].std(axis=0)
    dense -= mean
    dense /= np.where(scale > 0, scale, 1.0)
    return dense.astype(np.float32)
