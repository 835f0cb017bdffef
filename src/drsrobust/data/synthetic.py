"""Rows for the training benchmark: large tables, long-tailed ids, and a planted teacher, so that an AUC means something.

Input of the study's untrained dummy model: dense noise and one multi-hot feature of a given density.

Source: D. Ma et al., arXiv:2307.10244 (the dummy DRS: 128 dense values and a 0/1 vector of 8192). The study passes that vector
as look-up indices, so that only rows 0 and 1 of its table are read; here it is a true multi-hot.

Generated data of the two shapes, for machines without the real files: long-tailed ids and a planted teacher.

A teacher is a known function from a row to its click probability, with interactions between features; labels are drawn
from it. So the click rate and the best AUC any model can reach are known: the teacher's own, in `Dataset.facts`. With the
defaults (seed 0): `synthetic-movielens` 200,000 rows, click rate 0.53, best AUC 0.86; `synthetic-criteo` 100,000 rows,
click rate 0.23, best AUC 0.84. `synthetic-dummy` (in `dummy.py`) has no teacher."""

import numpy as np
from scipy.special import expit

from drsrobust.data import Split, movielens
from drsrobust.data import click_logs as criteo
from drsrobust.data.cache import Columns, encoded
from drsrobust.data.dataset import Dataset, Feature, Ids, Schema
from drsrobust.data.large_files import split_order
from drsrobust.metrics import auc

PLANTED_TABLES, PLANTED_DENSE, PLANTED_FACTORS, PLANTED_PAIRS = 26, 13, 4, 6


def planted(table_rows: int, train: int, valid: int, *, seed: int = 0) -> tuple[Schema, Split, Split, float]:
    """Clicks on 13 normal numbers and 26 log-uniform ids, drawn from a teacher whose logit is linear in the numbers, with a
    bias for each id and products of id vectors for six pairs of features.

    Args:
        table_rows: of all 26 tables together.
        train, valid: numbers of rows.
        seed: of everything.

    Returns:
        the schema, the training rows, the validation rows, and the teacher's own AUC on the latter (the best there is).
    """
    rng = np.random.default_rng(seed)
    each, more = divmod(table_rows, PLANTED_TABLES)
    sizes = [each + (i < more) for i in range(PLANTED_TABLES)]
    schema = Schema(
        tuple(f"I{i + 1}" for i in range(PLANTED_DENSE)), tuple(Feature(f"C{i + 1}", n) for i, n in enumerate(sizes))
    )
    rows = train + valid
    dense = rng.standard_normal((rows, PLANTED_DENSE), np.float32)
    logit = -1.2 + dense @ rng.normal(0.0, 0.15, PLANTED_DENSE)
    ids = [log_uniform(rng, n, rows) for n in sizes]
    for column, n in zip(ids, sizes, strict=True):
        logit += rng.normal(0.0, 0.25, n)[column]
    for left in range(0, 2 * PLANTED_PAIRS, 2):
        one, other = (rng.normal(0.0, 0.5, (sizes[i], PLANTED_FACTORS))[ids[i]] for i in (left, left + 1))
        logit += (one * other).sum(axis=1)
    labels = (rng.random(rows) < expit(logit)).astype(np.float32)

    def part(name: str, here: slice) -> Split:
        sparse = {feature.name: Ids(column[here]) for feature, column in zip(schema.features, ids, strict=True)}
        numbers, prior = np.arange(rows)[here], float(labels[:train].mean())
        source = f"planted {table_rows} {train} {valid} {seed}"
        return Split(
            dense[here], sparse, labels[here], None, numbers, "planted/dlrm", name, prior, source, len(numbers)
        )

    best = auc(labels[train:], logit[train:])
    return schema, part("train", slice(train)), part("valid", slice(train, None)), best


def log_uniform(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """Ids 0 .. n - 1, int32 [size]: id k with a probability of log((k + 2) / (k + 1)) / log(n + 1)."""
    drawn = np.exp(rng.random(size) * np.log(n + 1)) - 1
    return np.minimum(drawn, n - 1).astype(np.int32)


DUMMY_VERSION = 1  # of the generator: raise it when it draws differently
DUMMY_ROWS = 10_000
DUMMY_DENSE = 128
DUMMY_CARDINALITY = 8192


def dummy_columns(rows: int, seed: int, density: float) -> Columns:
    """Inputs without a meaning: what is looked at is how far errors move the model's output.

    Dense values `x0` .. `x127` are drawn from N(0, 1). In a row, each of the 8192 ids of `id` is present with probability
    `density`, independently (no id stands for unknown ones; a row may have none). Labels are coin tosses: no model does
    better than AUC 0.5.

    Args:
        rows: how many.
        seed: of the values and of the split.
        density: share of ids that are present, over 0 and under 1.
    """
    rng = np.random.default_rng((seed, DUMMY_VERSION))
    order, sizes = split_order(rows, seed)
    dense = rng.standard_normal((rows, DUMMY_DENSE), np.float32)
    labels = rng.integers(0, 2, rows).astype(np.float32)
    row, present = np.divmod(_successes(rng, rows * DUMMY_CARDINALITY, density), DUMMY_CARDINALITY)
    ids = Ids(present.astype(np.int32), np.bincount(row, minlength=rows).astype(np.int32))
    schema = Schema(tuple(f"x{i}" for i in range(DUMMY_DENSE)), (Feature("id", DUMMY_CARDINALITY, multi_hot=True),))
    facts = {"click_rate": 0.5, "best_auc": 0.5, "density": density}
    # Rows are alike, so the first ones may be the training rows; `order` says which row of a file they would have been.
    return Columns(schema, dense, {"id": ids}, labels, None, order, sizes, facts)


def _successes(rng: np.random.Generator, trials: int, probability: float) -> np.ndarray:
    """The numbers (int64, ascending) of the successes among independent trials 0 .. trials - 1: gaps between successes
    are geometric, so that drawing costs the successes and not the trials."""
    parts, last = [], -1
    while last < trials:
        left = trials - last
        gaps = rng.geometric(probability, int(left * probability + 4 * np.sqrt(left * probability)) + 16)
        parts.append(last + np.cumsum(gaps))
        last = int(parts[-1][-1])
    places = np.concatenate(parts)
    return places[: np.searchsorted(places, trials)]


VERSION = 1  # of the generators: raise it when one draws differently
ROWS = {"synthetic-movielens": 200_000, "synthetic-criteo": 100_000, "synthetic-dummy": DUMMY_ROWS}

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
            return dummy_columns(rows, seed, float(schema))
        if base == "synthetic-criteo":
            return criteo_columns(rows, seed, options.get("min_count"), options.get("hash_size"))
        return movielens_columns(rows, seed, schema == "full")

    version = DUMMY_VERSION if base == "synthetic-dummy" else VERSION
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
