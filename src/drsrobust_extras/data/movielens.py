"""MovieLens: files of GroupLens (100K, 1M, 10M; 20M and the later CSV sets) and Kaggle's copies; the schemas `ids` and `full`.

Source: F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015. A row is one
rating; it is positive if the rating is over 3, as in arXiv:2307.10244.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from drsrobust.data import Feature, Ids, Schema
from drsrobust_extras.data.id_encoding import encode_ids, split_order
from drsrobust_extras.data.raw_cache import Columns
from drsrobust_extras.data.text_lines import (
    STRICT,
    BadLines,
    DataError,
    FieldType,
    LineFormat,
    blocks,
    excerpt,
    integer,
    read_columns,
)

ID = integer("an id, a whole number of at least 0", "[0-9]{1,18}", lambda number: 0 <= number < 2**63)
STARS = integer("a rating of 1 to 5", "[1-5]", lambda number: 1 <= number <= 5)
HALF_STARS = FieldType("a rating of 0.5 to 5.0 in steps of a half", r"0\.50*|[1-4](\.[05]0*)?|5(\.0+)?", pa.float64())
SECONDS = integer(
    "0 or a time in seconds since 1970, from 788918400 (1995) to 4102444800 (2100)",
    "0|[89][0-9]{8}|[1-3][0-9]{9}",
    lambda number: number == 0 or 788918400 <= number <= 4102444800,
    parsed=False,
)
TIME = FieldType(
    "a time of the form YYYY-MM-DD HH:MM:SS",
    r"\d{4}-((0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31) "
    r"([01]\d|2[0-3])(:[0-5]\d){2}",  # all but February 29th
    pattern=r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
    holds=lambda text: _is_time(text.decode()),
)


def _is_time(text: str) -> bool:
    try:
        return np.datetime64(text, "s") is not None
    except ValueError:  # February 30th
        return False


_FIELDS = {"user": ID, "movie": ID, "rating": HALF_STARS, "timestamp": SECONDS}
_DAT_HALF_STARS = LineFormat(_FIELDS, "::")
_DAT = LineFormat(_FIELDS | {"rating": STARS}, "::")
_TAB = LineFormat(_FIELDS | {"rating": STARS}, "\t")
_CSV = LineFormat(_FIELDS, ",", ("userId", "movieId", "rating", "timestamp"), quoted=True)
_NUMBER = FieldType("an integer", "[0-9]{1,18}")
_USER_FIELDS = {"id": _NUMBER, "gender": FieldType("F or M", "[FM]"), "age": _NUMBER, "occupation": _NUMBER}
_ZIP = {"zip code": FieldType("a zip code", r"\S+")}
_USERS = LineFormat(_USER_FIELDS | _ZIP, "::")
_USERS_100K = LineFormat(
    {name: _USER_FIELDS[name] for name in ("id", "age", "gender")} | {"occupation": FieldType("text", ".+")} | _ZIP,
    "|",
)
_MOVIE_FIELDS = {
    "id": _NUMBER,
    "title": FieldType("a title", ".+"),
    "genres": FieldType("one or more genres, separated by '|'", r"[^|]+(\|[^|]+)*"),
}
_MOVIES = LineFormat(_MOVIE_FIELDS, "::")
_MOVIES_CSV = LineFormat(_MOVIE_FIELDS, ",", ("movieId", "title", "genres"), quoted=True)
_GENRES_100K = (  # of the 0/1 fields of u.item, as in u.genre
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
_ANY, _FLAG = FieldType("text", ".*"), FieldType("0 or 1", "[01]")
_MOVIES_100K = LineFormat(
    {name: _MOVIE_FIELDS[name] for name in ("id", "title")}
    | dict.fromkeys(("release date", "video release date", "address"), _ANY)
    | dict.fromkeys(_GENRES_100K, _FLAG),
    "|",
)
_YEAR = re.compile(r"\((\d{4})\)\s*$")

RATE_WEIGHT = 10.0  # weight of the overall click rate, in rows, in each user's and movie's rate
RATE_COLUMNS = ("user_count", "movie_count", "user_rate", "movie_rate")


@dataclass
class Ratings:
    """Ratings. Arrays [n]: user and movie ids (int32 where they fit, else int64), label float32 (1: liked)."""

    user: np.ndarray
    movie: np.ndarray
    label: np.ndarray
    line: np.ndarray  # numbers of their lines, from 1
    path: Path = Path("ratings.dat")  # their file

    def take(self, keep: np.ndarray) -> "Ratings":
        """The rows at which `keep` (bool [n]) is true."""
        return Ratings(self.user[keep], self.movie[keep], self.label[keep], self.line[keep], self.path)


@dataclass
class Side:
    """Attributes of users and movies, by id. Genres and years are text and numbers as in the files."""

    # Gender, age group, occupation, first three characters of the zip code; None: no attributes of users.
    user: dict[int, tuple[str, str, str, str]] | None
    movie: dict[int, tuple[tuple[str, ...], int]]  # genres, release year (0: unknown)
    files: tuple[str, str] = ("users.dat", "movies.dat")  # their names


def read_ratings(path: Path, bad: BadLines = STRICT, *, half_stars: bool = False) -> Ratings:
    """Parses ratings in any format, plain or .gz.

    Args:
        path: `*.dat`: `UserID::MovieID::Rating::Timestamp`, ratings 1..5. `*.data`: the same, separated by tabs. Any other: CSV
            with the header `userId,movieId,rating,timestamp`, ratings 0.5..5.0 in steps of a half, times in epoch seconds
            (GroupLens) or as `YYYY-MM-DD HH:MM:SS` (Kaggle); header and fields may be in double quotes. Times in seconds are 0
            (unknown) or from 1995 to 2100, which excludes a time that lost digits.
        bad: how to treat bad lines.
        half_stars: whether ratings of a `*.dat` are 0.5..5 in steps of a half (10M).

    Raises:
        DataError: another header, or (`strict`) a malformed line, or one that rates a movie again for the same user.
    """
    form = rating_lines(path, half_stars=half_stars)
    parts = [
        (_small(b["user"]), _small(b["movie"]), (b["rating"] > 3).astype(np.float32), _small(b["line"]))
        for b in read_columns(path, form, bad)
    ]
    return _rated_once(Ratings(*(np.concatenate(column) for column in zip(*parts, strict=True)), path), bad)


def rating_lines(path: Path, *, half_stars: bool = False) -> LineFormat:
    """The form of a file's lines; arguments as of `read_ratings`."""
    if _ends(path, ".dat", ".data"):
        return _TAB if _ends(path, ".data") else _DAT_HALF_STARS if half_stars else _DAT
    start = next(blocks(path))[: 1 << 16]
    has_dates = start.count(b":") >= start.count(b"\n")  # two colons per line, or none
    return replace(_CSV, fields=_FIELDS | {"timestamp": TIME}) if has_dates else _CSV


def _rated_once(ratings: Ratings, bad: BadLines) -> Ratings:
    """The first rating of each user and movie; later ones are bad lines."""
    order = np.lexsort((ratings.movie, ratings.user))  # stable: rows of one pair stay in their order
    user, movie = ratings.user[order], ratings.movie[order]
    repeats = np.flatnonzero((user[1:] == user[:-1]) & (movie[1:] == movie[:-1])) + 1
    if not len(repeats):
        return ratings
    repeats = repeats[np.argsort(order[repeats])]  # in the order of the file
    rows = order[repeats]
    for row, earlier in zip(rows.tolist(), ratings.line[order[repeats - 1]].tolist(), strict=True):
        fault = f"field 2 (movie): user {ratings.user[row]} has rated {ratings.movie[row]} in line {earlier} already"
        bad.add(ratings.path, int(ratings.line[row]), fault)
    return ratings.take(~np.isin(np.arange(len(order)), rows))


def _small(values: np.ndarray) -> np.ndarray:
    """As int32 where they fit, since tens of millions are kept."""
    limits = np.iinfo(np.int32)
    fits = not len(values) or (values.min() >= limits.min and values.max() <= limits.max)
    return values.astype(np.int32) if fits else values


def read_side(users: Path | None, movies: Path, bad: BadLines = STRICT, *, encoding: str = "latin-1") -> Side:
    """Parses the attributes of users and movies.

    Args:
        users: `users.dat` (`UserID::Gender::Age::Occupation::Zip-code`), `u.user` (`id|age|gender|occupation|zip`), or None,
            since the other sets do not describe users.
        movies: `*.dat` (`MovieID::Title::Genres`), `u.item` (`id|title|`, two dates, an address, 19 genres as 0 or 1; Latin-1),
            or CSV with the header `movieId,title,genres` (UTF-8). `(no genres listed)` counts as a genre.
        bad: how to treat bad lines.
        encoding: of a `*.dat` of movies; that of 10M is UTF-8.

    Raises:
        DataError: another header, or a malformed line (`strict`).
    """
    user = None
    if users is not None:
        form = _USERS_100K if _ends(users, ".user") else _USERS
        user = {}
        for key, row in _by_id(users, _read_rows(users, "ascii", form, bad), bad).items():
            facts = dict(zip(list(form.fields)[1:], row, strict=True))
            user[key] = facts["gender"], facts["age"], facts["occupation"], facts["zip code"][:3]
    movie = {}
    for key, (title, genres) in _by_id(movies, _movie_rows(movies, encoding, bad), bad).items():
        year = _YEAR.search(title)
        movie[key] = tuple(genres.split("|")), int(year[1]) if year else 0
    return Side(user, movie, (users.name if users is not None else "", movies.name))


def _read_rows(path: Path, encoding: str, form: LineFormat, bad: BadLines = STRICT) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of the good lines of a small text file; with a header it is a CSV file."""
    before, good = len(bad.skipped), 0
    lines = (line for block in blocks(path) for raw in io.BytesIO(block) for line in raw.splitlines())
    for number, line in enumerate(lines, 1):
        parts = []
        try:
            text = line.decode(encoding)
            parts = text.split(form.delimiter) if form.header is None else next(csv.reader([text], strict=True)) or [""]
            fault = form.fault([part.encode() for part in parts], line)
        except UnicodeDecodeError:
            fault = f"bytes that are not {encoding}: {excerpt(line)}"
        except csv.Error as error:
            fault = f"not a line of a CSV file ({error}): {excerpt(line)}"
        if number == 1 and form.header is not None:
            form.check_header(path, line)
        elif fault:
            bad.add(path, number, fault, before)
        else:
            good += 1
            yield number, parts
    if not good:
        raise DataError(f"{path}: no line has the expected form, so it is another file")


def _movie_rows(movies: Path, encoding: str, bad: BadLines) -> Iterator[tuple[int, list[str]]]:
    """(line number, [id, title, genres]) of the good lines; genres are separated by `|`."""
    if not _ends(movies, ".item"):
        dat = _ends(movies, ".dat")
        yield from _read_rows(movies, encoding if dat else "utf-8", _MOVIES if dat else _MOVIES_CSV, bad)
        return
    for line, (key, title, _, _, _, *flags) in _read_rows(movies, "latin-1", _MOVIES_100K, bad):
        genres = [genre for genre, flag in zip(_GENRES_100K, flags, strict=True) if flag == "1"]
        if genres:
            yield line, [key, title, "|".join(genres)]
        else:
            bad.add(movies, line, f"no field of a genre ({_GENRES_100K[0]} to {_GENRES_100K[-1]}) is 1")


def _ends(path: Path, *ends: str) -> bool:
    """Whether a file, plain or .gz, has one of these endings."""
    return path.name.removesuffix(".gz").endswith(ends)


def _by_id(path: Path, rows: Iterable[tuple[int, list[str]]], bad: BadLines) -> dict[int, list[str]]:
    """id -> other fields; a repeated id is a bad line."""
    table: dict[int, list[str]] = {}
    for line, (key, *values) in rows:
        if int(key) in table:
            bad.add(path, line, f"field 1 (id): {key} is a repeated id")
        else:
            table[int(key)] = values
    return table


def encode_ratings(ratings: Ratings, side: Side | None, seed: int, bad: BadLines = STRICT) -> Columns:
    """Model inputs of all ratings.

    Args:
        ratings: the rows.
        side: None for the schema `ids` (user and movie, no dense column). For `full` it adds gender, age group, occupation, zip
            prefix (if it has users), release year, genres (multi-hot), and as dense columns the log count and click rate, in
            the training rows, of the row's user and movie.
        seed: of the random split.
        bad: how to treat a rating of a user or movie that is not in `side`.

    Raises:
        DataError: such a rating (`strict`), or too few ratings to split.
    """
    if side is not None:
        ratings = _known(ratings, side, bad)
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
            index, table = _join(user, side.user)
            for position, name in enumerate(("gender", "age", "occupation", "zip")):
                codes = np.unique([row[position] for row in table], return_inverse=True)[1]  # in alphabetical order
                add(name, codes[index])
        index, table = _join(movie, side.movie)
        add("year", np.array([year for _, year in table])[index])
        ids, cardinality = _genres([genres for genres, _ in table], index)
        sparse["genres"] = ids
        features.append(Feature("genres", cardinality, multi_hot=True))
        dense, dense_names = _rates(sparse["user"].values, sparse["movie"].values, labels, n_train), RATE_COLUMNS
    users = user.astype(np.int64)
    return Columns(Schema(dense_names, tuple(features)), dense, sparse, labels, users, order, sizes)


def _known(ratings: Ratings, side: Side, bad: BadLines) -> Ratings:
    """The ratings whose user and movie are in `side`; the others are bad lines."""
    unknown = ~np.isin(ratings.movie, list(side.movie))
    if side.user is not None:
        unknown |= ~np.isin(ratings.user, list(side.user))
    for row in np.flatnonzero(unknown).tolist():
        thing, key, file = "movie", ratings.movie[row], side.files[1]
        if side.user is not None and ratings.user[row] not in side.user:
            thing, key, file = "user", ratings.user[row], side.files[0]
        bad.add(ratings.path, int(ratings.line[row]), f"field {thing}: {key} is not in {file}")
    return ratings.take(~unknown) if unknown.any() else ratings


def _join(keys: np.ndarray, table: dict) -> tuple[np.ndarray, list]:
    """Each key's index [n] in the list of the table's values, and that list, in ascending order of keys."""
    sorted_keys = np.array(sorted(table))
    return np.searchsorted(sorted_keys, keys), [table[key] for key in sorted_keys.tolist()]


def _genres(genres: list[tuple[str, ...]], index: np.ndarray) -> tuple[Ids, int]:
    """Multi-hot ids of each row's movie; genre names in alphabetical order are 1, 2, ..."""
    number = {name: i for i, name in enumerate(sorted({name for names in genres for name in names}), 1)}
    table = Ids(
        np.array([number[name] for names in genres for name in names], np.int32),
        np.array([len(names) for names in genres], np.int32),
    )
    return table.take(index), len(number) + 1


def _rates(user: np.ndarray, movie: np.ndarray, labels: np.ndarray, n_train: int) -> np.ndarray:
    """Dense columns [n, 4]: log counts and click rates of the row's user and movie over the *other* training rows.

    A training row is not counted for itself, which would leak its label. With s clicks in c other rows and the click rate r of
    all other training rows, the rate is (s + RATE_WEIGHT r) / (c + RATE_WEIGHT). Columns are then standardised by mean and
    deviation on the training rows.
    """
    train = np.arange(len(labels)) < n_train
    label = np.where(train, labels, 0.0)
    overall = (labels[:n_train].sum(dtype=np.float64) - label) / (n_train - train)
    dense = np.empty((len(labels), 4))
    for column, ids in enumerate((user, movie)):
        count = np.bincount(ids[:n_train], minlength=ids.max() + 1)[ids] - train
        clicks = np.bincount(ids[:n_train], labels[:n_train], minlength=ids.max() + 1)[ids] - label
        dense[:, column] = np.log1p(count)
        dense[:, 2 + column] = (clicks + RATE_WEIGHT * overall) / (count + RATE_WEIGHT)
    mean, scale = dense[:n_train].mean(axis=0), dense[:n_train].std(axis=0)
    dense -= mean
    dense /= np.where(scale > 0, scale, 1.0)
    return dense.astype(np.float32)
