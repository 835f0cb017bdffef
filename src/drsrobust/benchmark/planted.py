"""Rows for the training benchmark: large tables, long-tailed ids, and a planted teacher, so that an AUC means something."""

import numpy as np
from scipy.special import expit

from drsrobust.data import Feature, Ids, Schema, Split
from drsrobust.metrics import auc

TABLES, DENSE, FACTORS, PAIRS = 26, 13, 4, 6


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
    each, more = divmod(table_rows, TABLES)
    sizes = [each + (i < more) for i in range(TABLES)]
    schema = Schema(
        tuple(f"I{i + 1}" for i in range(DENSE)), tuple(Feature(f"C{i + 1}", n) for i, n in enumerate(sizes))
    )
    rows = train + valid
    dense = rng.standard_normal((rows, DENSE), np.float32)
    logit = -1.2 + dense @ rng.normal(0.0, 0.15, DENSE)
    ids = [log_uniform(rng, n, rows) for n in sizes]
    for column, n in zip(ids, sizes, strict=True):
        logit += rng.normal(0.0, 0.25, n)[column]
    for left in range(0, 2 * PAIRS, 2):
        one, other = (rng.normal(0.0, 0.5, (sizes[i], FACTORS))[ids[i]] for i in (left, left + 1))
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
