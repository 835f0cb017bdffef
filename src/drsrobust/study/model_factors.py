"""How far errors move the outputs of the untrained dummy recommender, by its sizes: claims C1 and C2 (notebook 02).

`corrected`: every trial draws an error map for a model without errors. `as_released`: the published script, which never
restored the model, drew a map before every batch on top of all maps before, and looked up the 0/1 vector itself. A bit hit by
maps of rates p_m is wrong with probability (1 - prod_m (1 - 2 p_m)) / 2; each batch is a campaign at these rates.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np

from drsrobust._environment import progress_bar, unknown
from drsrobust.campaign.campaign import Campaign
from drsrobust.data import Split, load_dataset
from drsrobust.evaluation import Evaluator, ReachWarning
from drsrobust.injection import BitFlip
from drsrobust.metrics import DEVIATIONS
from drsrobust.models import build_model
from drsrobust.statistics.columns import ENDS
from drsrobust.statistics.intervals import CONFIDENCE, bootstrap_interval, mean_interval, quantile_interval
from drsrobust.statistics.summary import BOUNDS
from drsrobust.study.findings import verdict, verdicts

if TYPE_CHECKING:
    import pandas as pd

PROTOCOLS = ("corrected", "as_released")
FACTORS = ("width", "depth", "embedding_dim", "density")
BATCH = 2048  # inputs, as in the study
SHARES = ("deviated_0.01", "deviated_0.1")
VALUE = SHARES[0]
FALLS, DEPENDS = "falls", "depends"
_CELL = ["protocol", *FACTORS]
_TRIAL = ["target", "ber", "trial"]


def accumulated(bers: Sequence[float], batches: int) -> np.ndarray:
    """The rate at which bits are wrong while each batch is scored, if the model is never restored.

    A second hit of a bit, which repairs it in the script, is not modelled: fewer than one in 100,000 hits at the study's rates.

    Args:
        bers: nominal bit error rates, in the order in which they were run.
        batches: of inputs, per rate.

    Returns:
        float64 [len(bers), batches].

    Example:
        >>> accumulated([1e-8, 1e-6], batches=3).round(10)
        array([[1.00e-08, 2.00e-08, 3.00e-08],
               [1.03e-06, 2.03e-06, 3.03e-06]])
    """
    per_batch = np.repeat(np.asarray(bers, np.float64), batches)
    return (-np.expm1(np.cumsum(np.log1p(-2 * per_batch))) / 2).reshape(len(bers), batches)


def dummy_trials(
    cells: Iterable[Mapping[str, float]],
    *,
    bers: Sequence[float],
    targets: Sequence[str] = ("all", "mlp", "embedding"),
    protocol: str = "corrected",
    inputs: int = 10_000,
    batch: int = BATCH,
    trials: int = 100,
    seed: int = 0,
    progress: bool = True,
) -> "pd.DataFrame":
    """Deviation of the dummy model's outputs: a campaign per cell, stored as it goes.

    Trials of one number share nested error maps over rates; both protocols use the same models and seeds.

    Args:
        cells: each with `width`, `depth`, `embedding_dim` of `Dummy` and `density` of its inputs, as `factor_grid` returns.
        bers: bit error rates, ascending.
        targets: where errors fall.
        protocol: `corrected` or `as_released`.
        inputs: how many each trial scores.
        batch: of `as_released`, inputs per batch: a multiple of 32 from 64 up.
        trials: per cell, rate and target.
        seed: decides parameters, inputs and errors.
        progress: shows a progress bar.

    Returns:
        one row per cell, target, rate and trial: `protocol`, the cell, `target`, `ber` (nominal), `trial`, `n_inputs`; `bits`
        (eligible), `present` (the rate at which they are wrong while inputs are scored; `ber` in `corrected`) and
        `bits_flipped`; the metrics of `drsrobust.metrics.DEVIATIONS`, `nan_inputs` and `inf_inputs` (shares). Of `as_released`
        all but `bits` are means over the batches. A model that raised has no metrics.

    Raises:
        ValueError: an unknown protocol; rates that do not ascend; else as `load_dataset`, `build_model`, `Campaign`.
    """
    import pandas as pd

    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    _ascending("bers", bers)
    cells, tables, released = list(cells), [], protocol == "as_released"
    options = {"targets": targets, "trials": trials, "seed": seed, "protocol": protocol, "metrics": list(DEVIATIONS)}
    with progress_bar(len(cells), f"dummy, {protocol}", progress=progress) as bar:
        for cell in cells:
            evaluators = _evaluators(cell, inputs, batch if released else inputs, released, seed)
            rates = accumulated(bers, len(evaluators)) if released else np.asarray(bers)[:, None]
            batches = []
            for number, evaluator in enumerate(evaluators):
                errors = [BitFlip(float(rate)) for rate in rates[:, number]]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ReachWarning)  # every input reads rows 0 and 1
                    table = Campaign(evaluator, errors=errors, **options).run(progress=False)
                nominal = table["ber"].map(dict(zip(rates[:, number], bers, strict=True)))
                batches.append(_columns(table, len(evaluator.rows)).assign(ber=nominal))
            tables.append(_batch_means(batches).assign(protocol=protocol, **cell))
            bar.update()
    table = pd.concat(tables, ignore_index=True)
    return table[["protocol", *FACTORS, *(name for name in table if name not in ("protocol", *FACTORS))]]


def _ascending(name: str, values: Sequence[float]) -> None:
    if not len(values) or any(one >= other for one, other in pairwise(values)):
        raise ValueError(f"{name} must hold one value or more, ascending, without duplicates, got {list(values)}")


def _evaluators(cell: Mapping[str, float], inputs: int, batch: int, released: bool, seed: int) -> list[Evaluator]:
    """The model of a cell with its inputs, an evaluator per batch."""
    import torch

    sizes = {name: cell[name] for name in FACTORS if name != "density"} | {"as_released": released}
    # Rows are alike in all splits: the training rows are the first 80 %.
    data = load_dataset(f"synthetic-dummy/{cell['density']:g}", rows=-(-inputs * 10 // 8) + 10, seed=seed)
    rows: Split = data.train.head(inputs)
    make = partial(build_model, "dummy", data.schema, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make().eval()
    return [Evaluator(model, rows.take(slice(at, at + batch)), make) for at in range(0, len(rows), batch)]


def _columns(table: "pd.DataFrame", inputs: int) -> "pd.DataFrame":
    """The columns of a campaign's table that `dummy_trials` returns."""
    sizes = {"n_inputs": inputs, "bits": table["n_sites"], "present": table["ber"]}
    shares = {f"{kind}_inputs": table[f"{kind}_rows"].astype(float) / inputs for kind in ("nan", "inf")}
    return table.assign(**sizes, **shares)[[*_TRIAL, *sizes, "bits_flipped", *DEVIATIONS, *shares]]


def _batch_means(batches: "list[pd.DataFrame]") -> "pd.DataFrame":
    """Means over batches, weighted by their inputs."""
    import pandas as pd

    if len(batches) == 1:
        return batches[0]
    keys = [*_TRIAL, "bits"]
    total = sum(part["n_inputs"].iloc[0] for part in batches)
    weighted = [
        part.set_index(keys).drop(columns="n_inputs").astype(float).mul(part["n_inputs"].iloc[0] / total, axis=0)
        for part in batches
    ]
    means = pd.concat(weighted).groupby(level=keys, sort=False).sum(min_count=len(batches)).reset_index()
    means.insert(len(_TRIAL), "n_inputs", total)
    return means


def factor_grid(levels: Mapping[str, Sequence[float]], *, full: bool = False) -> list[dict[str, float]]:
    """Cells of a grid over several factors, the middle one first.

    Args:
        levels: of each factor. The middle cell has the middle one of each (of an even number the lower of the two).
        full: every combination; False: all levels of one factor after the other, the others at their middle.

    Raises:
        ValueError: a factor without levels, or with levels that do not ascend.

    Example:
        >>> factor_grid({"width": [64, 128, 256, 512], "depth": [1, 2]})
        ... # doctest: +NORMALIZE_WHITESPACE
        [{'width': 128, 'depth': 1}, {'width': 64, 'depth': 1}, {'width': 256, 'depth': 1}, {'width': 512, 'depth': 1},
         {'width': 128, 'depth': 2}]
    """
    for factor, values in levels.items():
        _ascending(f"levels of {factor}", values)
    middle = {factor: values[(len(values) - 1) // 2] for factor, values in levels.items()}
    if full:
        cells = [dict(zip(levels, cell, strict=True)) for cell in product(*levels.values())]
    else:
        cells = [middle | {factor: level} for factor, values in levels.items() for level in values]
    return [middle, *(cell for number, cell in enumerate(cells) if cell != middle and cell not in cells[:number])]


def ladders(cells: Sequence[Mapping[str, float]], factor: str) -> Iterator[list[dict[str, float]]]:
    """Cells of a grid that differ in one factor alone, ascending: each list has all of the factor's levels.

    Example:
        >>> [[one["depth"] for one in ladder] for ladder in ladders(factor_grid({"width": [1, 2], "depth": [1, 2]}), "depth")]
        [[1, 2]]
    """
    n_levels = len({cell[factor] for cell in cells})
    groups: dict[tuple, list[dict[str, float]]] = {}
    for cell in cells:
        groups.setdefault(tuple((name, cell[name]) for name in cell if name != factor), []).append(dict(cell))
    for ladder in groups.values():
        if len(ladder) == n_levels:
            yield sorted(ladder, key=lambda cell: cell[factor])


def deviation_summary(table: "pd.DataFrame", confidence: float = CONFIDENCE) -> "pd.DataFrame":
    """One row per protocol, cell, target and rate.

    Args:
        table: as `dummy_trials` returns it, of one or both protocols.
        confidence: of the intervals.

    Returns:
        the columns of the condition; `n_inputs`, `bits`, `present`, `n` (trials); `raised` (share of them); means over the
        trials that did not raise: `bits_flipped`, `nan_inputs`, `inf_inputs`, and with `_low` and `_high` (Student's t; where
        all trials agree, what n trials may have missed) `deviated_0.01`, `deviated_0.1` and `spearman`; and the median over
        trials of `median_change`, with its interval between order statistics.
    """
    import pandas as pd

    rows = []
    for condition, trials in table.groupby([*_CELL, "target", "ber"], sort=False):
        row = dict(zip([*_CELL, "target", "ber"], condition, strict=True))
        row |= {name: trials[name].iloc[0] for name in ("n_inputs", "bits", "present")}
        row |= {"n": len(trials), "raised": float(trials[VALUE].isna().mean())}
        row |= {name: float(trials[name].astype(float).mean()) for name in ("bits_flipped", "nan_inputs", "inf_inputs")}
        for name in (*SHARES, "spearman"):
            interval = mean_interval(trials[name].dropna().to_numpy(float), confidence, BOUNDS[name])
            row |= zip((f"{name}{end}" for end in ENDS), interval, strict=True)
        changes = trials["median_change"].dropna().to_numpy(float)
        with np.errstate(invalid="ignore"):  # between infinities nothing is interpolated
            _, *interval = quantile_interval(changes, 0.5, confidence)
        median = float(np.median(changes)) if len(changes) else float("nan")
        row |= zip((f"median_change{end}" for end in ENDS), (median, *interval), strict=True)
        rows.append(row)
    return pd.DataFrame(rows)


def factor_trends(
    table: "pd.DataFrame",
    claims: Mapping[str, str],
    *,
    ber: float,
    value: str = VALUE,
    confidence: float = CONFIDENCE,
) -> "pd.DataFrame":
    """Findings and verdicts on claim C1: the effect of each factor on the deviation at one rate, by protocol and target.

    Differences are taken within a trial number, whose errors are alike at all levels; in a full grid each is a mean over all
    settings of the other factors. If a model raised, all its outputs count as deviating; by metrics that are no shares, the
    trial number is dropped.

    Args:
        table: as `dummy_trials` returns it.
        claims: factor -> `falls` (robustness falls with it) or `depends` (it changes, in whichever direction).
        ber: nominal rate.
        value: which metric; a larger one is a larger deviation.
        confidence: of the intervals.

    Returns:
        one row per protocol, target and factor with two levels or more: `least`, `greatest` level, the mean deviation there
        (`at_least`, `at_greatest`), their difference `change` with `change_low` and `change_high` (Student's t; where all
        trials agree, what they may have missed); `up` and `down`, numbers of steps between neighbouring levels whose interval
        (Bonferroni over the steps) lies above or below 0, of `steps`; `differs`, whether that of the change or of any step does
        (Bonferroni over all of them); `n` trials; `claim`; and `verdict`.

    Raises:
        ValueError: an unknown factor or claim, or a rate that the table does not hold.
    """
    import pandas as pd

    for factor, claim in claims.items():
        if factor not in FACTORS:
            raise unknown("factor", factor, FACTORS)
        if claim not in (FALLS, DEPENDS):
            raise unknown(f"claim of {factor}", claim, (FALLS, DEPENDS))
    if not (table["ber"] == ber).any():
        raise unknown("rate", f"{ber:g}", [f"{rate:g}" for rate in table["ber"].unique()])
    rows = []
    for (protocol, target), group in table[table["ber"] == ber].groupby(["protocol", "target"], sort=False):
        by_cell = group.pivot(index="trial", columns=list(FACTORS), values=value).astype(float)
        by_cell = (by_cell.fillna(1.0) if value in SHARES else by_cell).dropna()
        cells = [dict(zip(FACTORS, cell, strict=True)) for cell in by_cell.columns]
        for factor, claim in claims.items():
            if len(levels := sorted({cell[factor] for cell in cells})) < 2:
                continue
            values = [
                by_cell[[tuple(cell.values()) for cell in ladder]].to_numpy() for ladder in ladders(cells, factor)
            ]
            row = {"protocol": protocol, "target": target, "factor": factor, "least": levels[0], "greatest": levels[-1]}
            row |= _trend(np.mean(values, axis=0), confidence, BOUNDS.get(value)) | {"claim": claim}
            rows.append(row | {"verdict": verdict(pd.DataFrame([row]), claim)[0]})
    return pd.DataFrame(rows)


def _trend(values: np.ndarray, confidence: float, bounds: tuple[float, float] | None) -> dict[str, float]:
    """The columns of `factor_trends` of values [trials, levels] within bounds."""
    bounds = bounds and (bounds[0] - bounds[1], bounds[1] - bounds[0])  # of differences
    whole = values[:, -1] - values[:, 0]
    change = mean_interval(whole, confidence, bounds)
    row = {"at_least": float(values[:, 0].mean()), "at_greatest": float(values[:, -1].mean())}
    row |= zip((f"change{end}" for end in ENDS), change, strict=True)
    pairs = [values[:, after] - values[:, before] for before, after in pairwise(range(values.shape[1]))]
    steps = [mean_interval(pair, 1 - (1 - confidence) / len(pairs), bounds) for pair in pairs]
    anywhere = [mean_interval(pair, 1 - (1 - confidence) / (len(pairs) + 1), bounds) for pair in (whole, *pairs)]
    up, down = sum(low > 0 for _, low, _ in steps), sum(high < 0 for _, _, high in steps)
    differs = any(low > 0 or high < 0 for _, low, high in anywhere)
    return row | {"up": up, "down": down, "steps": len(steps), "differs": differs, "n": len(values)}


def component_shares(
    table: "pd.DataFrame", parts: Sequence[str] = ("mlp", "embedding"), *, ber: float, confidence: float = CONFIDENCE
) -> "pd.DataFrame":
    """Deviation by errors in each of two components at one rate: in total, and per wrong bit.

    Args:
        table: as `dummy_trials` returns it, with trials of both.
        parts: the two targets; shares are of the first.
        ber: nominal rate.
        confidence: of the intervals.

    Returns:
        one row per protocol and cell: `n` trials; `bits_share`, the share of the two components' bits that are the first's;
        `share`, mean deviation by errors in it over the sum of both means (bootstrap over trials; NaN where no trial deviated);
        `per_bit_<part>`, share of inputs that deviate by over 1 % per wrong bit (the rate times all bits), each with `_low` and
        `_high`; `verdict`: whether the first does `more` per bit than the second, or `less`, or `unclear` where these two
        intervals overlap.

    Raises:
        ValueError: no trials with errors in one of the parts.
    """
    import pandas as pd

    rows = []
    for cell, group in table[table["ber"] == ber].groupby(_CELL, sort=False):
        row = dict(zip(_CELL, cell, strict=True))
        trials = {part: group[group["target"] == part].sort_values("trial") for part in parts}
        if empty := [part for part in parts if not len(trials[part])]:
            raise ValueError(f"the table has no trials with errors in {empty[0]!r} at {ber:g}")
        # Of a model that raised all outputs count as deviating.
        first, second = np.nan_to_num(np.stack([one[VALUE].to_numpy(float) for one in trials.values()]), nan=1.0)
        bits = [float(one["bits"].iloc[0]) for one in trials.values()]
        row |= {"n": len(first), "bits_share": bits[0] / sum(bits)}
        row |= zip((f"share{end}" for end in ENDS), _share(first, second, confidence), strict=True)
        intervals = []
        for part, values, size in zip(parts, (first, second), bits, strict=True):
            wrong = float(trials[part]["present"].iloc[0]) * size
            per_bit = [number / wrong for number in mean_interval(values, confidence, (0.0, 1.0))]
            row |= zip((f"per_bit_{part}{end}" for end in ENDS), per_bit, strict=True)
            intervals.append(per_bit)
        (_, low, high), (_, other_low, other_high) = intervals
        rows.append(row | {"verdict": "more" if low > other_high else "less" if high < other_low else "unclear"})
    return pd.DataFrame(rows)


def _share(first: np.ndarray, second: np.ndarray, confidence: float) -> tuple[float, float, float]:
    """Mean of first over the sum of both means, with its interval. Where one of them never deviated, n trials may have missed
    as much as its own interval allows."""

    def of_both(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
        return first.mean(axis) / (first.mean(axis) + second.mean(axis))

    if not (first.any() or second.any()):
        return (float("nan"),) * 3
    if first.any() and second.any():
        return bootstrap_interval(of_both, first, second, confidence=confidence)
    deviating, quiet = (first, second) if first.any() else (second, first)
    _, _, most = mean_interval(quiet, confidence, (0.0, 1.0))
    reach = most / (most + deviating.mean())
    return (1.0, 1.0 - reach, 1.0) if first.any() else (0.0, 0.0, reach)


def component_claims(shares: "pd.DataFrame") -> "pd.DataFrame":
    """Findings and verdicts on claim C2: per wrong bit, errors in the MLPs do more than errors in the table.

    Args:
        shares: as `component_shares` returns it, with a column `protocol`.

    Returns:
        one row per protocol: `protocol`, `value`, `low` and `high` (the MLPs' part of the deviation by errors in either, in
        the first cell, the middle one), `more` of `cells` in which the MLPs do more per bit, `verdict` and `detail`.
    """
    import pandas as pd

    rows = []
    for protocol, cells in shares.groupby("protocol", sort=False):
        value, low, high = cells[["share", "share_low", "share_high"]].iloc[0]
        row = {"protocol": protocol, "value": value, "low": low, "high": high} | _counts(cells)
        rows.append(row | {"detail": _component_finding(cells, ("mlp", "embedding"))})
    table = pd.DataFrame(rows)
    return table.assign(verdict=verdicts(table, "more_in_all"))


def _counts(cells: "pd.DataFrame") -> dict[str, int]:
    return {"more": int((cells["verdict"] == "more").sum()), "cells": len(cells)}


def _component_finding(shares: "pd.DataFrame", parts: Sequence[str]) -> str:
    first, second = parts
    more, less = (int((shares["verdict"] == word).sum()) for word in ("more", "less"))
    per_bit = [f"{100 * shares[f'per_bit_{part}'].median():.2g} %" for part in parts]
    ends = [f"{100 * shares[name].min():.3g} % to {100 * shares[name].max():.3g} %" for name in ("share", "bits_share")]
    return (
        f"{first} clearly does more per wrong bit than {second} in {more} of {len(shares)} cells, clearly less in {less} "
        f"(medians: {per_bit[0]} and {per_bit[1]} of inputs); in total it causes {ends[0]} of what both do, with {ends[1]} of "
        "the bits"
    )
