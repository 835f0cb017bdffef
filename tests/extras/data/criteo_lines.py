"""Small Criteo files for tests."""

import numpy as np


def line(label, integers, categories):
    return "\t".join([str(label), *(str(i) for i in integers), *categories]) + "\n"


def many(n, seed=0):
    """n lines with every kind of value: missing, negative and large integers, frequent, rare and missing categories."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        integers = [x if x > -3 else "" for x in rng.integers(-5, 40, 13)]
        categories = ["" if x == 0 else f"{x * 999_999_937 % 2**32:08x}" for x in rng.geometric(0.2, 26) - 1]
        lines.append(line(rng.integers(0, 2), integers, categories))
    return lines
