"""Generated data in the shapes of MovieLens and Criteo: long-tailed ids, and labels drawn from a planted teacher.

The teacher gives each row's click probability, so the click rate and the best reachable AUC, its own, are known
(`Dataset.facts`). Defaults (seed 0): `synthetic-movielens` 200,000 rows, click rate 0.53, AUC 0.86; `synthetic-criteo` 100,000
rows, click rate 0.23, AUC 0.84. `synthetic-dummy`, the input of the model `dummy`, has no teacher.
"""

import numpy as np
from scipy.special import expit

from drsrobust.data import Dataset, Feature, Ids, Schema, Split
from drsrobust.extend import check_choice
from drsrobust.metrics import auc
from drsrobust_extras.data import click_logs, movielens
from drsrobust_extras.data.generated_sequences import kuairand_like
from drsrobust_extras.data.id_encoding import encode_column, split_order
from drsrobust_extras.data.raw_cache import Columns, cached_columns

VERSION = 1  # of the generators: raise it when one draws differently
ROWS = {
    "synthetic-movielens": 200_000,
    "synthetic-criteo": 100_000,
    "synthetic-dummy": 10_000,
    "synthetic-kuairand": 60_000,
}

USERS, MOVIES, GENRES, FACTORS = 1_000, 600, 18, 2
INTERACTING = (4, 5, 8, 13, 16, 19, 21, 22)  # numbers of C5, C6, C9, ...: paired in the teacher of the Criteo shape
# Categories of C1..C26, in the proportions of the real sample.
CARDINALITIES = (560, 515, 5050, 2712, 141, 11, 816, 264, 3, 1259, 393, 4620, 287, 26, 551, 3826, 10, 268, 128, 3, 4291)
CARDINALITIES += (12, 14, 1277, 52, 972)
DUMMY_DENSE, DUMMY_CARDINALITY = 128, 8192
PLANTED_TABLES, PLANTED_DENSE, PLANTED_FACTORS, PLANTED_PAIRS = 26, 13, 4, 6


def load(name: str, options: dict) -> Dataset:
    """A generated data set; options are `seed`, `rows` and, of `synthetic-criteo`, `min_count` or `hash_size`.

    Raises:
        ValueError: a set that nothing here generates.
    """
    base, schema = name.split("/")
    check_choice("generated data set (a set of your own needs read=)", base, ROWS)
    rows, seed = options["rows"], options["seed"]
    if base == "synthetic-kuairand":
        return kuairand_like(name, rows, seed)

    def make() -> Columns:
        if base == "synthetic-dummy":
            return dummy_columns(rows, seed, float(schema))
        if base == "synthetic-criteo":
            return criteo_columns(rows, seed, options.get("min_count"), options.get("hash_size"))
        return movielens_columns(rows, seed, schema == "full")

    return cached_columns(name, options | {"generator": VERSION}, make, stacklevel=4)


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
    ratings = movielens.Ratings(user, movie, _labels(rng, logit), np.arange(1, rows + 1))
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
    columns = movielens.encode_ratings(ratings, side, seed)
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
    for name in click_logs.COUNT_COLUMNS:
        counts = np.exp(rng.normal(1.0, 1.5, rows)).astype(np.int64)
        counts[rng.random(rows) < 0.2] = -1  # like a missing one
        columns[name] = click_logs.log_counts(counts)
        logit += rng.normal(0.0, 0.15) * (columns[name] - 1.0)
    vectors = {}
    for number, (name, cardinality) in enumerate(zip(click_logs.CATEGORIES, CARDINALITIES, strict=True)):
        category = _zipf(rng, cardinality, 1.1, rows)
        columns[name] = category
        logit += rng.normal(0.0, 0.3, cardinality)[category]
        if number in INTERACTING:
            vectors[number] = rng.normal(0.0, 0.6, (cardinality, FACTORS))[category]
    for first, right in zip(INTERACTING[::2], INTERACTING[1::2], strict=True):
        logit += (vectors[first] * vectors[right]).sum(axis=1)
    labels = _labels(rng, logit)
    order, sizes = split_order(rows, seed)
    dense = np.stack([columns[name][order] for name in click_logs.COUNT_COLUMNS], axis=1)
    sparse, features = {}, []
    for name in click_logs.CATEGORIES:
        ids, cardinality = encode_column(
            name, columns[name][order], sizes[0], min_count, hash_size, click_logs.NO_CATEGORY
        )
        sparse[name] = Ids(ids)
        features.append(Feature(name, cardinality))
    schema = Schema(click_logs.COUNT_COLUMNS, tuple(features))
    encoded = Columns(schema, dense, sparse, labels[order], None, order, sizes)
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
    """The teacher's mean click probability over all rows, and its AUC on the test rows (None if they are of one class)."""
    test = slice(len(logit) - columns.sizes[2], None)
    best = auc(columns.labels[test], logit[columns.rows[test]])
    return {"click_rate": float(expit(logit).mean()), "best_auc": None if np.isnan(best) else best}


def dummy_columns(rows: int, seed: int, density: float) -> Columns:
    """Input of the study's untrained dummy model (D. Ma et al., arXiv:2307.10244), without meaning.

    Dense values `x0` .. `x127` are drawn from N(0, 1). Each of the 8192 ids of the multi-hot feature `id` is present in a row
    with probability `density`, between 0 and 1, independently (none means "unknown"; a row may have none). The study passes
    the 0/1 vector of these ids as look-up indices, so that only rows 0 and 1 of its table are read. Labels are coin tosses.
    """
    rng = np.random.default_rng((seed, VERSION))
    order, sizes = split_order(rows, seed)
    dense = rng.standard_normal((rows, DUMMY_DENSE), np.float32)
    labels = rng.integers(0, 2, rows).astype(np.float32)
    row, present = np.divmod(_successes(rng, rows * DUMMY_CARDINALITY, density), DUMMY_CARDINALITY)
    ids = Ids(present.astype(np.int32), np.bincount(row, minlength=rows).astype(np.int32))
    schema = Schema(tuple(f"x{i}" for i in range(DUMMY_DENSE)), (Feature("id", DUMMY_CARDINALITY, multi_hot=True),))
    facts = {"click_rate": 0.5, "best_auc": 0.5, "density": density}
    # Rows are exchangeable, so the first ones may be the training rows; `order` gives their row numbers in a file.
    return Columns(schema, dense, {"id": ids}, labels, None, order, sizes, facts)


def _successes(rng: np.random.Generator, trials: int, probability: float) -> np.ndarray:
    """Numbers (int64, ascending) of the successes among independent trials 0 .. trials - 1, drawn by geometric gaps, in time
    proportional to the successes."""
    parts, last = [], -1
    while last < trials:
        remaining = trials - last
        gaps = rng.geometric(probability, int(remaining * probability + 4 * np.sqrt(remaining * probability)) + 16)
        parts.append(last + np.cumsum(gaps))
        last = int(parts[-1][-1])
    numbers = np.concatenate(parts)
    return numbers[: np.searchsorted(numbers, trials)]


def planted(table_rows: int, train: int, valid: int, *, seed: int = 0) -> tuple[Schema, Split, Split, float]:
    """Clicks for benchmarks with large tables: 13 normal numbers and 26 log-uniform ids. The teacher's logit is linear in the
    numbers, with a bias for each id and products of id vectors for six pairs of features.

    Args:
        table_rows: of all 26 tables together.
        train, valid: numbers of rows.
        seed: of all draws.

    Returns:
        the schema, the training rows, the validation rows, and the teacher's AUC on the latter, which no model exceeds.
    """
    rng = np.random.default_rng(seed)
    rows_each, extra = divmod(table_rows, PLANTED_TABLES)
    sizes = [rows_each + (i < extra) for i in range(PLANTED_TABLES)]
    schema = Schema(
        tuple(f"I{i + 1}" for i in range(PLANTED_DENSE)), tuple(Feature(f"C{i + 1}", n) for i, n in enumerate(sizes))
    )
    rows = train + valid
    dense = rng.standard_normal((rows, PLANTED_DENSE), np.float32)
    logit = -1.2 + dense @ rng.normal(0.0, 0.15, PLANTED_DENSE)
    ids = [log_uniform(rng, n, rows) for n in sizes]
    for column, n in zip(ids, sizes, strict=True):
        logit += rng.normal(0.0, 0.25, n)[column]
    for pair_start in range(0, 2 * PLANTED_PAIRS, 2):
        first, second = (
            rng.normal(0.0, 0.5, (sizes[i], PLANTED_FACTORS))[ids[i]] for i in (pair_start, pair_start + 1)
        )
        logit += (first * second).sum(axis=1)
    labels = (rng.random(rows) < expit(logit)).astype(np.float32)

    def part(name: str, chosen: slice) -> Split:
        sparse = {feature.name: Ids(column[chosen]) for feature, column in zip(schema.features, ids, strict=True)}
        prior, source = float(labels[:train].mean()), f"planted {table_rows} {train} {valid} {seed}"
        numbers = np.arange(rows)[chosen]
        return Split(
            dense[chosen], sparse, labels[chosen], None, numbers, "planted/dlrm", name, prior, source, len(numbers)
        )

    best = auc(labels[train:], logit[train:])
    return schema, part("train", slice(train)), part("valid", slice(train, None)), best


def log_uniform(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """Ids 0 .. n - 1, int32 [size]: id k with a probability of log((k + 2) / (k + 1)) / log(n + 1)."""
    values = np.exp(rng.random(size) * np.log(n + 1)) - 1
    return np.minimum(values, n - 1).astype(np.int32)
