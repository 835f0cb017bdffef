"""How often intervals of the mean of skewed values hold it: Student's t alone, and as `mean_interval` gives them."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from drsrobust._progress import progress_bar
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, inject
from drsrobust.statistics.intervals import mean_interval

SIZES = (20, 50, 150)
SAMPLES = 20_000
MAPS = 1200  # error maps of a population of losses
RATES = (1e-4, 3e-4, 1e-3, 2e-3)  # of a DLRM, from a sixth of its loss to all of it
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def shapes() -> dict[str, tuple[Draw, float]]:
    """Made-up values: how they are drawn, and their mean."""
    return {
        "normal": (lambda random, size: random.normal(size=size), 0.0),
        "uniform": (lambda random, size: random.random(size), 0.5),
        "exponential": (lambda random, size: random.exponential(size=size), 1.0),
        "gamma(2), negative": (lambda random, size: -random.gamma(2, size=size), -2.0),
        "lognormal(0.5)": (lambda random, size: random.lognormal(0, 0.5, size), float(np.exp(0.125))),
        "15 % anywhere below 0.31": (_saturated, 0.85 * 0.31 + 0.15 * 0.15),
        "half lose 0 to 0.3": (lambda random, size: 0.3 * random.random(size) * (random.random(size) < 0.5), 0.075),
    }


def _saturated(random: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return np.where(random.random(size) < 0.85, random.normal(0.31, 0.01, size), 0.3 * random.random(size))


def losses(evaluator: Evaluator, rate: float, maps: int = MAPS) -> np.ndarray:
    """AUC lost by independent error maps, float64 [maps]."""
    lost = np.empty(maps)
    with progress_bar(maps, f"{evaluator.name} at {rate:g}") as bar:
        for seed in range(maps):
            with inject(evaluator.model, BitFlip(rate), seed=seed) as error_map:
                lost[seed] = evaluator.golden.auc - (evaluator.rerun(error_map).auc or 0.0)
            bar.update()
    return lost


def coverage(populations: Mapping[str, np.ndarray], samples: int = SAMPLES, seed: int = 0) -> pd.DataFrame:
    """The share of 95 % intervals that lie above and below the mean, of made-up values and of populations of losses.

    Returns:
        one row per values and size: `values`, `skewness`, `n`, `t_above`, `t_below` (Student's t alone), `above`, `below`, and
        `wider`, the ratio of median widths.
    """
    from scipy.special import stdtrit

    cases = shapes() | {
        name: (lambda random, size, lost=lost: random.choice(lost, size), float(lost.mean()))
        for name, lost in populations.items()
    }
    rows = []
    for name, (draw, mean) in cases.items():
        random = np.random.default_rng(seed)
        many = draw(random, (1, 10**6)).ravel()
        skewness = float(((many - many.mean()) ** 3).mean() / many.std() ** 3)
        for n in SIZES:
            drawn = draw(random, (samples, n))
            half = stdtrit(n - 1, 0.975) * drawn.std(axis=1, ddof=1) / np.sqrt(n)
            centre = drawn.mean(axis=1)
            low, high = np.array([mean_interval(values)[1:] for values in drawn]).T
            row = {"values": name, "skewness": skewness, "n": n}
            row |= {"t_above": np.mean(centre - half > mean), "t_below": np.mean(centre + half < mean)}
            row |= {"above": np.mean(low > mean), "below": np.mean(high < mean)}
            rows.append(row | {"wider": float(np.median(high - low) / np.median(2 * half))})
    return pd.DataFrame(rows)
