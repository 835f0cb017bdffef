"""The solver behind `dr.plan`: time and proven gap on random instances, and how far a greedy choice is from it.

The peer is the usual rule: of all upgrades of one group the one with the largest loss removed per cost, while budgets last.
"""

import time
from collections.abc import Iterator

import numpy as np
import pandas as pd

from benchmarks.common import Result, Verdict, about, at_most, text, verdict_text
from drsrobust_extras.risk.planning.choice import choose

SIZES = ((30, 8), (200, 8), (2000, 10))  # tensors, protections
LIMIT_S = 10.0  # of the largest
SHARE = 0.2  # of what all of the dearest options cost: both budgets


def run() -> Result:
    """The benchmark `planning`."""
    table = solver_times(SIZES)
    return Result({"planning": table}, describe(table))


def solver_times(sizes: tuple[tuple[int, int], ...], repeats: int = 3) -> pd.DataFrame:
    """One row per size and instance: `tensors`, `options`, `seconds`, `loss`, `gap` (loss over the proven bound, as a share of
    the loss without protection) and `greedy_gap` (the same of the greedy choice)."""
    rows = []
    for tensors, options in sizes:
        for seed in range(repeats):
            losses, costs, budgets = instance(tensors, options, seed)
            start = time.perf_counter()
            found = choose(losses, costs, budgets)
            seconds, whole = time.perf_counter() - start, losses[:, 0].sum()
            row = {"tensors": tensors, "options": options, "seconds": seconds, "loss": found.loss}
            row["gap"] = (found.loss - found.bound) / whole
            rows.append(row | {"greedy_gap": (greedy(losses, costs, budgets) - found.bound) / whole})
    return pd.DataFrame(rows)


def instance(tensors: int, options: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses [tensors, options], two costs of each, and their budgets; the first option loses most and costs nothing."""
    random = np.random.default_rng(seed)
    losses = random.lognormal(sigma=2.0, size=(tensors, 1)) * np.sort(random.random((tensors, options)))[:, ::-1]
    costs = random.lognormal(size=(2, tensors, 1)) * random.random((2, tensors, options)) * np.arange(options)
    return losses, costs, SHARE * costs.max(axis=2).sum(axis=1)


def greedy(losses: np.ndarray, costs: np.ndarray, budgets: np.ndarray) -> float:
    """The loss of the greedy choice."""
    rows, chosen, left = np.arange(len(losses)), np.zeros(len(losses), int), budgets.copy()
    while True:
        extra = costs - costs[:, rows, chosen][:, :, None]
        removed = losses[rows, chosen][:, None] - losses
        fits = (extra <= left[:, None, None]).all(axis=0) & (removed > 0)
        if not fits.any():
            return float(losses[rows, chosen].sum())
        worth = np.where(fits, removed / np.maximum((extra / budgets[:, None, None]).sum(axis=0), 1e-12), -np.inf)
        group, option = np.unravel_index(worth.argmax(), worth.shape)
        left -= extra[:, group, option]
        chosen[group] = option


def verdicts(table: pd.DataFrame) -> Iterator[Verdict]:
    """The verdict on the time of the largest size."""
    largest = table[table["tensors"] == table["tensors"].max()]
    name = f"{largest['tensors'].iloc[0]:,} tensors, {largest['options'].iloc[0]} options"
    yield at_most(name, largest["seconds"].max(), LIMIT_S, " s", f"gap at most {largest['gap'].max():.1g}")


def describe(table: pd.DataFrame) -> str:
    """Times, gaps and the target as text."""
    means = table.groupby(["tensors", "options"])[["seconds", "gap", "greedy_gap"]].mean()
    return "\n\n".join([about("random instances, both budgets"), text(means), verdict_text(verdicts(table))])
