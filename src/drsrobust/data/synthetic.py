"""Generated data of the two shapes, for machines without the real files: long-tailed ids and a planted teacher.

A teacher is a known function from a row to its click probability, with interactions between features; labels are drawn
from it. So the click rate and the best AUC any model can reach are known: the teacher's own, in `Dataset.facts`. With the
defaults (seed 0): `synthetic-movielens` 200,000 rows, click rate 0.53, best AUC 0.86; `synthetic-criteo` 100,000 rows,
click rate 0.23, best AUC 0.84. `synthetic-dummy` (in `dummy.py`) has no teacher.
"""

import numpy as np
from scipy.special import expit

from drsrobust.data import criteo, dummy, movielens
from drsrobust.data.dataset import Dataset
from drsrobust.data.encoding import Columns
from drsrobust.data.store import encoded
from drsrobust.metrics import auc

VERSION = 1  # of the generators: raise it when one draws differently
ROWS = {"synthetic-movielens": 200_000, "synthetic-criteo": 100_000, "synthetic-dummy": dummy.ROWS}

USERS, MOVIES, GENRES, FACTORS = 1_000, 600, 18, 2
INTERACTING = (4, 5, 8, 13, 16, 19, 21, 22)  # places of C5, C6, C9, ...: paired in the teacher of the Criteo shape
# Categories of C1..C26, in the proportions of the real sample.
CARDINALITIES = (560, 515, 5050, 2712, 141, 11, 816, 264, 3, 1259, 393, 4620, 287, 26, 551, 3826, 10, 268, 128, 3, 4291)
CARDINALITIES += (12, 14, 1277, 52, 972)


def load(name: str, options: dict) -> Dataset:
    """A generated data set, from the cache where it is there.

    Args:
        name: with the schema.
        options: `seed`, `rows`; of `synthetic-criteo` also `min_count` or `hash_size`.
    """
    base, schema = name.split("/")
    rows, seed = options["rows"], options["seed"]

    def make() -> Columns:
        if base == "synthetic-dummy":
            return dummy.columns(rows, seed, float(schema))
        if base == "synthetic-criteo":
            return criteo_columns(rows, seed, options.get("min_count"), options.get("hash_size"))
        return movielens_columns(rows, seed, schema == "full")

    version = dummy.VERSION if base == "synthetic-dummy" else VERSION
    return encoded(name, options | {"generator": version}, make, stacklevel=4)


def movielens_columns(rows: int, seed: int, full: bool) -> Columns:
    """Ratings of Zipf-distributed users and movies, encoded in the schema `ids` or `full`.

    The teacher's logit is b + user bias + movie bias + <u, m> + taste, with u, m in R^2 and a taste for each pair of age
    group and genre.
    """
    rng = np.random.default_rng((seed, VERSION))
    user = 1 + _zipf(rng, USERS, 0.5, rows)
    movie = 1 + _zipf(rng, MOVIES, 0.8, rows)
    age = rng.integers(0, 7, USERS + 1)
    genre = rng.integers(0, GENRES, (MOVIES + 1, 2))
    taste = rng.normal(0.0, 0.5, (7, GENRES))
    u, m = rng.normal(0.0, 0.9, (USERS + 1, FACTORS)), rng.normal(0.0, 0.9, (MOVIES + 1, FACTORS))
    logit = 0.45 + rng.normal(0.0, 0.8, USERS + 1)[user] + rng.normal(0.0, 0.9, MOVIES + 1)[movie]
    logit += (u[user] * m[movie]).sum(axis=1) + taste[age[user][:, None], genre[movie]].sum(axis=1)
    ratings = movielens.Ratings(user, movie, _labels(rng, logit))
    side = None
    if full:
        gender, job, area = (rng.integers(0, n, USERS + 1) for n in (2, 21, 200))
        year = rng.integers(1930, 2001, MOVIES + 1)
        side = movielens.Side(
            {i: ("FM"[gender[i]], f"{age[i]:02}", f"{job[i]:02}", f"{area[i]:03}") for i in range(1, USERS + 1)},
            {
                i: (tuple(sorted({f"genre {g:02}" for g in genre[i].tolist()})), int(year[i]))
                for i in range(1, MOVIES + 1)
            },
        )
    columns = movielens.encode(ratings, side, seed)
    columns.facts = _facts(logit, columns)
    return columns


def criteo_columns(rows: int, seed: int, min_count: int | None, hash_size: int | None = None) -> Columns:
    """Clicks on 13 counts and 26 Zipf-distributed categories, encoded in the schema `dlrm`.

    The teacher's logit is b + a linear term in the log counts + a bias per category + the sum of <v_i, v_j> over four
    pairs of features, with a vector in R^2 per category.
    """
    rng = np.random.default_rng((seed, VERSION))
    columns: dict[str, np.ndarray] = {}
    logit = np.full(rows, -1.6)
    for name in criteo.INTEGERS:
        counts = np.exp(rng.normal(1.0, 1.5, rows)).astype(np.int64)
        counts[rng.random(rows) < 0.2] = -1  # as missing ones
        columns[name] = criteo.log_counts(counts)
        logit += rng.normal(0.0, 0.15) * (columns[name] - 1.0)
    vectors = {}
    for number, (name, cardinality) in enumerate(zip(criteo.CATEGORIES, CARDINALITIES, strict=True)):
        category = _zipf(rng, cardinality, 1.1, rows)
        columns[name] = category
        logit += rng.normal(0.0, 0.3, cardinality)[category]
        if number in INTERACTING:
            vectors[number] = rng.normal(0.0, 0.6, (cardinality, FACTORS))[category]
    for left, right in zip(INTERACTING[::2], INTERACTING[1::2], strict=True):
        logit += (vectors[left] * vectors[right]).sum(axis=1)
    columns["label"] = _labels(rng, logit)
    encoded = criteo.encode(columns, seed, min_count, hash_size)
    encoded.facts = _facts(logit, encoded)
    return encoded


def _zipf(rng: np.random.Generator, n: int, exponent: float, size: int) -> np.ndarray:
    """Numbers 0 .. n - 1 [size] with probabilities proportional to rank^-exponent, ranks in random order."""
    weight = np.arange(1, n + 1, dtype=np.float64) ** -exponent
    rank = np.searchsorted(np.cumsum(weight) / weight.sum(), rng.random(size), side="right")
    return rng.permutation(n)[np.minimum(rank, n - 1)]


def _labels(rng: np.random.Generator, logit: np.ndarray) -> np.ndarray:
    return (rng.random(len(logit)) < expit(logit)).astype(np.float32)


def _facts(logit: np.ndarray, columns: Columns) -> dict[str, float | None]:
    """Click rate the teacher expects over all rows, and its AUC on the test rows (None: they are all of one class)."""
    test = slice(len(logit) - columns.sizes[2], None)
    best = auc(columns.labels[test], logit[columns.rows[test]])
    return {"click_rate": float(expit(logit).mean()), "best_auc": None if np.isnan(best) else best}
