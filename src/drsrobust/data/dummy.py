"""Input of the study's untrained dummy model: dense noise and one multi-hot feature of a given density.

Source: D. Ma et al., arXiv:2307.10244 (the dummy DRS: 128 dense values and a 0/1 vector of 8192). The study passes that vector
as look-up indices, so that only rows 0 and 1 of its table are read; here it is a true multi-hot.
"""

import numpy as np

from drsrobust.data.dataset import Feature, Ids, Schema
from drsrobust.data.encoding import Columns, split_order

VERSION = 1  # of the generator: raise it when it draws differently
ROWS = 10_000
DENSE = 128
CARDINALITY = 8192


def columns(rows: int, seed: int, density: float) -> Columns:
    """Inputs without a meaning: what is looked at is how far errors move the model's output.

    Dense values `x0` .. `x127` are drawn from N(0, 1). In a row, each of the 8192 ids of `id` is present with probability
    `density`, independently (no id stands for unknown ones; a row may have none). Labels are coin tosses: no model does
    better than AUC 0.5.

    Args:
        rows: how many.
        seed: of the values and of the split.
        density: share of ids that are present, over 0 and under 1.
    """
    rng = np.random.default_rng((seed, VERSION))
    order, sizes = split_order(rows, seed)
    dense = rng.standard_normal((rows, DENSE), np.float32)
    labels = rng.integers(0, 2, rows).astype(np.float32)
    row, present = np.divmod(_successes(rng, rows * CARDINALITY, density), CARDINALITY)
    ids = Ids(present.astype(np.int32), np.bincount(row, minlength=rows).astype(np.int32))
    schema = Schema(tuple(f"x{i}" for i in range(DENSE)), (Feature("id", CARDINALITY, multi_hot=True),))
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
