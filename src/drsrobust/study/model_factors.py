"""Trials of the study's untrained dummy recommender (experiment E2), under both protocols.

`corrected`: every trial draws a fresh error map for a model without errors, and scores all inputs with it.

`as_released`: what the published script did. It never restored the model: before every batch of inputs it drew another map
at the nominal rate and put it on top of all maps before, of earlier batches and of lower rates. And it looked up the 0/1
vector itself (`as_released` of the model). With maps m = 1, 2, ... of rates p_m behind it a bit is wrong when it was hit an odd
number of times, with probability (1 - prod_m (1 - 2 p_m)) / 2. So each batch is a campaign of its own at these rates, and one
trial number draws nested maps in all of them: what was wrong in an earlier batch is wrong still. (In the script a second hit
puts a bit right again. At the study's rates this happens to fewer than one in 100,000 of the bits hit; here, to none.)

Grids over the sizes of a model: every combination, or one factor at a time around a middle.

How far outputs deviate by a model's sizes: intervals, trends over factors, and what each component contributes (E2).

What trials of the dummy model show, in words with their numbers (E2)."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np

from drsrobust._environment import progress_bar, unknown
from drsrobust.campaign.campaign import Campaign
from drsrobust.data import Split, load_dataset
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip
from drsrobust.metrics import DEVIATIONS
from drsrobust.models import build_model
from drsrobust.statistics.columns import ENDS
from drsrobust.statistics.intervals import CONFIDENCE, bootstrap_interval, mean_interval, quantile_interval
from drsrobust.statistics.summary import BOUNDS

if TYPE_CHECKING:
    import pandas as pd

PROTOCOLS = ("corrected", "as_released")
FACTORS = ("width", "depth", "embedding_dim", "density")
BATCH = 2048  # inputs, as in the study
_OF_A_TRIAL = ["target", "ber", "trial"]


def accumulated(bers: Sequence[float], batches: int) -> np.ndarray:
    """The rate at which bits are wrong while each batch is scored, if the model is never restored: float64
    [len(bers), batches]. Before every batch errors are drawn anew at the nominal rate, on top of those that are there.

    Args:
        bers: nominal bit error rates, in the order in which they were run.
        batches: of inputs, per rate.

    Example:
        >>> accumulated([1e-8, 1e-6], batches=3).round(10)
        array([[1.00e-08, 2.00e-08, 3.00e-08],
               [1.03e-06, 2.03e-06, 3.03e-06]])
    """
    drawn = np.repeat(np.asarray(bers, np.float64), batches)
    return (-np.expm1(np.cumsum(np.log1p(-2 * drawn))) / 2).reshape(len(bers), batches)


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
    """How far errors move the outputs of the dummy model, by its sizes: a campaign per cell, stored as it goes.

    Trials of one number share what can be shared: over rates nested error maps, under both protocols the same models and
    seeds.

    Args:
        cells: each with `width`, `depth`, `embedding_dim` of `Dummy` and `density` of its inputs, as `factor_grid` gives
            them.
        bers: bit error rates, ascending (`as_released` runs them in this order).
        targets: where errors fall.
        protocol: `corrected` or `as_released`.
        inputs: how many are scored in each trial.
        batch: of `as_released`, inputs per batch: a multiple of 32 from 64 up.
        trials: how many per cell, rate and target.
        seed: decides parameters, inputs and errors.
        progress: a progress bar.

    Returns:
        one row per cell, target, rate and trial: `protocol`, the cell, `target`, `ber` (nominal), `trial`, `n_inputs`; `bits`
        that could be hit, `present` (the rate at which they are wrong while inputs are scored, `ber` in `corrected`) and
        `bits_flipped`; the metrics of `drsrobust.metrics.DEVIATIONS`, `nan_inputs` and `inf_inputs` (shares). Of `as_released`
        all but `bits` are means over inputs' batches: medians and rank correlations are of one batch. A model that raised
        has no metrics.

    Raises:
        ValueError: an unknown protocol; rates that do not ascend; else as `load_dataset`, `build_model`, `Campaign`.
    """
    import pandas as pd

    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    if not len(bers) or any(one >= other for one, other in zip(bers, bers[1:], strict=False)):
        raise ValueError(f"bers is {list(bers)}; it must hold one rate or more, ascending, none twice")
    cells, found = list(cells), []
    with progress_bar(len(cells), f"dummy, {protocol}", progress=progress) as bar:
        for cell in cells:
            evaluators = _evaluators(cell, inputs, batch if protocol == "as_released" else inputs, protocol, seed)
            rates = accumulated(bers, len(evaluators)) if protocol == "as_released" else np.asarray(bers)[:, None]
            parts = []
            for number, evaluator in enumerate(evaluators):
                options = {"targets": targets, "trials": trials, "seed": seed, "protocol": protocol}
                errors = [BitFlip(float(rate)) for rate in rates[:, number]]
                with warnings.catch_warnings():
                    # Every input reads rows 0 and 1, so this is no news.
                    warnings.filterwarnings("ignore", "errors in .* are taken to reach every sample")
                    table = Campaign(evaluator, errors=errors, metrics=list(DEVIATIONS), **options).run(progress=False)
                nominal = table["ber"].map(dict(zip(rates[:, number], bers, strict=True)))
                parts.append(_batch(table, len(evaluator.rows)).assign(ber=nominal))
            found.append(_joined(parts).assign(protocol=protocol, **cell))
            bar.update()
    table = pd.concat(found, ignore_index=True)
    return table[["protocol", *FACTORS, *(name for name in table if name not in ("protocol", *FACTORS))]]


def _evaluators(cell: Mapping[str, float], inputs: int, batch: int, protocol: str, seed: int) -> list[Evaluator]:
    """The model of a cell on its inputs, an evaluator per batch."""
    import torch

    sizes = {name: cell[name] for name in FACTORS if name != "density"} | {"as_released": protocol == "as_released"}
    # Rows are alike in all splits: the training rows are the first 80 %.
    data = load_dataset(f"synthetic-dummy/{cell['density']:g}", rows=-(-inputs * 10 // 8) + 10, seed=seed)
    rows: Split = data.train.head(inputs)
    make = partial(build_model, "dummy", data.schema, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make().eval()
    return [Evaluator(model, rows.take(slice(at, at + batch)), make) for at in range(0, len(rows), batch)]


def _batch(table: "pd.DataFrame", inputs: int) -> "pd.DataFrame":
    """What is kept of a campaign's table."""
    about = {"n_inputs": inputs, "bits": table["n_sites"], "present": table["ber"]}
    shares = {f"{kind}_inputs": table[f"{kind}_rows"].astype(float) / inputs for kind in ("nan", "inf")}
    columns = [*_OF_A_TRIAL, *about, "bits_flipped", *DEVIATIONS, *shares]
    return table.assign(**about, **shares)[columns]


def _joined(parts: "list[pd.DataFrame]") -> "pd.DataFrame":
    """Batches as one: means over them, weighted by their inputs."""
    import pandas as pd

    if len(parts) == 1:
        return parts[0]
    keys = [*_OF_A_TRIAL, "bits"]
    total = sum(part["n_inputs"].iloc[0] for part in parts)
    weighted = [
        part.set_index(keys).drop(columns="n_inputs").astype(float).mul(part["n_inputs"].iloc[0] / total, axis=0)
        for part in parts
    ]
    joined = pd.concat(weighted).groupby(level=keys, sort=False).sum(min_count=len(parts)).reset_index()
    joined.insert(len(_OF_A_TRIAL), "n_inputs", total)
    return joined


def factor_grid(levels: Mapping[str, Sequence[float]], *, full: bool = False) -> list[dict[str, float]]:
    """Cells of a grid over several factors, the middle one first.

    Args:
        levels: of each factor. The middle cell has the middle one of each (of an even number the lower of the two).
        full: every combination; False: all levels of one factor after the other, the others at their middle.

    Raises:
        ValueError: a factor without levels, with one that stands twice, or with levels that do not ascend.

    Example:
        >>> factor_grid({"width": [64, 128, 256, 512], "depth": [1, 2]})
        ... # doctest: +NORMALIZE_WHITESPACE
        [{'width': 128, 'depth': 1}, {'width': 64, 'depth': 1}, {'width': 256, 'depth': 1}, {'width': 512, 'depth': 1},
         {'width': 128, 'depth': 2}]
    """
    for factor, given in levels.items():
        if not given or any(one >= other for one, other in zip(given, given[1:], strict=False)):
            raise ValueError(f"levels of {factor} are {list(given)}; there must be one or more, ascending, none twice")
    middle = {factor: given[(len(given) - 1) // 2] for factor, given in levels.items()}
    if full:
        cells = [dict(zip(levels, one, strict=True)) for one in product(*levels.values())]
    else:
        cells = [middle | {factor: level} for factor, given in levels.items() for level in given]
    return [middle, *(cell for number, cell in enumerate(cells) if cell != middle and cell not in cells[:number])]


def ladders(cells: Sequence[Mapping[str, float]], factor: str) -> Iterator[list[dict[str, float]]]:
    """The cells of a grid that differ in one factor alone, ascending: each list has all of the factor's levels.

    Example:
        >>> [[one["depth"] for one in ladder] for ladder in ladders(factor_grid({"width": [1, 2], "depth": [1, 2]}), "depth")]
        [[1, 2]]
    """
    levels = {cell[factor] for cell in cells}
    found: dict[tuple, list[dict[str, float]]] = {}
    for cell in cells:
        found.setdefault(tuple((name, cell[name]) for name in cell if name != factor), []).append(dict(cell))
    for ladder in found.values():
        if len(ladder) == len(levels):
            yield sorted(ladder, key=lambda cell: cell[factor])


SHARES = ("deviated_0.01", "deviated_0.1")
VALUE = SHARES[0]
FALLS, DEPENDS = "falls", "depends"
_CELL = ["protocol", *FACTORS]


def deviation_summary(table: "pd.DataFrame", confidence: float = CONFIDENCE) -> "pd.DataFrame":
    """One row per protocol, cell, target and rate.

    Args:
        table: as `dummy_trials` returns it, of one or both protocols.
        confidence: of the intervals.

    Returns:
        the columns that name the condition; `n_inputs`, `bits`, `present`, `n` (trials); `raised` (share of them); means over
        the trials that did not raise: `bits_flipped`, `nan_inputs`, `inf_inputs`, and with `_low` and `_high` (Student's t;
        where all trials are alike, what n trials may have missed) `deviated_0.01`, `deviated_0.1` and `spearman`; and the
        median over trials of `median_change`, with its interval between order statistics.
    """
    import pandas as pd

    rows = []
    for condition, trials in table.groupby([*_CELL, "target", "ber"], sort=False):
        row = dict(zip([*_CELL, "target", "ber"], condition, strict=True))
        row |= {name: trials[name].iloc[0] for name in ("n_inputs", "bits", "present")}
        row |= {"n": len(trials), "raised": float(trials[VALUE].isna().mean())}
        row |= {name: float(trials[name].astype(float).mean()) for name in ("bits_flipped", "nan_inputs", "inf_inputs")}
        for name in (*SHARES, "spearman"):
            interval = mean_interval(_known(trials, name), confidence, BOUNDS[name])
            row |= zip((f"{name}{end}" for end in ENDS), interval, strict=True)
        changes = _known(trials, "median_change")
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
    """What each factor does to the deviation at one rate, by protocol and target.

    Robustness falls with a factor where the deviation is larger at its greatest level than at its least. All differences
    are taken within a trial number (errors of one number are alike at all levels), and their mean over trials has an interval
    by Student's t (where all trials agree, with what they may have missed). In a full grid each is a mean over all settings of
    the other factors. If a model raised, all its outputs count as deviating; by other metrics the trial number is left out.

    Args:
        table: as `dummy_trials` returns it.
        claims: factor -> `falls` (robustness falls with it) or `depends` (it changes, in whichever direction).
        ber: nominal rate.
        value: which metric; a larger one is a larger deviation.
        confidence: of the intervals.

    Returns:
        one row per protocol, target and factor with two levels or more: `least`, `greatest` level, the mean deviation there
        (`at_least`, `at_greatest`), their difference `change` with `change_low` and `change_high`; `up` and `down`, numbers of
        steps between neighbouring levels at which the deviation surely rises or falls (confidence 1 - (1 - confidence) /
        steps each,
        Bonferroni), of `steps`; `differs`, whether the change or any step is surely not 0 (Bonferroni over all of them);
        `n` trials; `claim`; and `verdict`. Of `falls`: `reproduced` where the change is surely positive and no step goes
        down, `partly` where one does, `not` else. Of `depends`: `reproduced` where it `differs`, else `not`.

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
        raise unknown("rate", f"{ber:g}", [f"{one:g}" for one in table["ber"].unique()])
    rows = []
    for (protocol, target), here in table[table["ber"] == ber].groupby(["protocol", "target"], sort=False):
        by_cell = here.pivot(index="trial", columns=list(FACTORS), values=value).astype(float)
        by_cell = (by_cell.fillna(1.0) if value in SHARES else by_cell).dropna()
        cells = [dict(zip(FACTORS, cell, strict=True)) for cell in by_cell.columns]
        for factor, claim in claims.items():
            if len(levels := sorted({cell[factor] for cell in cells})) < 2:
                continue
            found = [by_cell[[tuple(cell.values()) for cell in ladder]].to_numpy() for ladder in ladders(cells, factor)]
            row = {"protocol": protocol, "target": target, "factor": factor, "least": levels[0], "greatest": levels[-1]}
            row |= _trend(np.mean(found, axis=0), confidence, BOUNDS.get(value)) | {"claim": claim}
            rows.append(row | {"verdict": _verdict(row, claim)})
    return pd.DataFrame(rows)


def _trend(values: np.ndarray, confidence: float, bounds: tuple[float, float] | None) -> dict[str, float]:
    """Of values [trials, levels], within bounds."""
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


def _verdict(row: Mapping[str, float], claim: str) -> str:
    if claim == DEPENDS:
        return "reproduced" if row["differs"] else "not"
    if not row["change_low"] > 0:
        return "not"
    return "partly" if row["down"] else "reproduced"


def component_shares(
    table: "pd.DataFrame", parts: Sequence[str] = ("mlp", "embedding"), *, ber: float, confidence: float = CONFIDENCE
) -> "pd.DataFrame":
    """What errors in each of two components do at one rate: in total, and per bit that is wrong.

    Args:
        table: as `dummy_trials` returns it, with trials of both.
        parts: the two targets; shares are of the first.
        ber: nominal rate.
        confidence: of the intervals.

    Returns:
        one row per protocol and cell: `n` trials; `bits_share`, the share of the two components' bits that are the first's;
        `share`, its part of what errors do in either: mean deviation by errors in it, over the sum of both means (bootstrap
        over trials; NaN where no trial deviated); `per_bit_<part>`, inputs' share that deviates by over 1 % per bit that is
        wrong, on average (the rate times all bits), each with `_low` and `_high`; `verdict`: whether the first does `more`
        per bit than the second, or `less`, or `unclear`, by whether these two intervals overlap.
    """
    import pandas as pd

    rows = []
    for cell, here in table[table["ber"] == ber].groupby(_CELL, sort=False):
        row = dict(zip(_CELL, cell, strict=True))
        trials = [here[here["target"] == part].sort_values("trial") for part in parts]
        if empty := [part for part, one in zip(parts, trials, strict=True) if not len(one)]:
            raise ValueError(f"the table has no trials with errors in {empty[0]!r} at {ber:g}")
        both = np.stack([one[VALUE].to_numpy(float) for one in trials])
        first, second = np.nan_to_num(both, nan=1.0)  # of a model that raised all outputs count as deviating
        bits = [float(one["bits"].iloc[0]) for one in trials]
        row |= {"n": len(first), "bits_share": bits[0] / sum(bits)}
        row |= zip((f"share{end}" for end in ENDS), _share(first, second, confidence), strict=True)
        ends = []
        for part, values, one, size in zip(parts, (first, second), trials, bits, strict=True):
            wrong = float(one["present"].iloc[0]) * size
            per_bit = [number / wrong for number in mean_interval(values, confidence, (0.0, 1.0))]
            row |= zip((f"per_bit_{part}{end}" for end in ENDS), per_bit, strict=True)
            ends.append(per_bit)
        (_, low, high), (_, other_low, other_high) = ends
        row["verdict"] = "more" if low > other_high else "less" if high < other_low else "unclear"
        rows.append(row)
    return pd.DataFrame(rows)


def _share(first: np.ndarray, second: np.ndarray, confidence: float) -> tuple[float, float, float]:
    """Mean of first over the sum of both means, and its interval. Where one of them never deviated, n trials may have missed
    what its own interval leaves room for."""
    if not (first.any() or second.any()):
        return (float("nan"),) * 3
    if first.any() and second.any():
        return bootstrap_interval(_of_both, first, second, confidence=confidence)
    seen, unseen = (first, second) if first.any() else (second, first)
    _, _, most = mean_interval(unseen, confidence, (0.0, 1.0))
    room = most / (most + seen.mean())
    return (1.0, 1.0 - room, 1.0) if first.any() else (0.0, 0.0, room)


def _of_both(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
    return first.mean(axis) / (first.mean(axis) + second.mean(axis))


def _known(trials: "pd.DataFrame", name: str) -> np.ndarray:
    return trials[name].dropna().to_numpy(float)


def _component_finding(shares: "pd.DataFrame", parts: Sequence[str]) -> tuple[str, str]:
    """Whether the first component has more effect per wrong bit than the second, in words, and the verdict."""
    first, second = parts
    more, less = (int((shares["verdict"] == word).sum()) for word in ("more", "less"))
    verdict = "not" if not more else "reproduced" if more == len(shares) else "partly"
    per_bit = [f"{100 * shares[f'per_bit_{part}'].median():.2g} %" for part in parts]
    ends = [f"{100 * shares[name].min():.3g} % to {100 * shares[name].max():.3g} %" for name in ("share", "bits_share")]
    return (
        f"{first} does surely more per wrong bit than {second} in {more} of {len(shares)} cells, surely less in {less} "
        f"(medians: {per_bit[0]} and {per_bit[1]} of inputs); in total it causes {ends[0]} of what both do, with {ends[1]} of "
        "the bits"
    ), verdict


def component_claims(shares: "pd.DataFrame") -> "pd.DataFrame":
    """Whether the MLP has more effect per wrong bit than the embedding: one row per protocol.

    Returns:
        `protocol`, `value`, `low` and `high` (the MLP's part of what errors do in either, in the first, middle cell),
        `verdict`, and `detail` in words.

    Args:
        shares: as `component_shares` returns it, with a column `protocol`.
    """
    import pandas as pd

    rows = []
    for protocol, here in shares.groupby("protocol", sort=False):
        detail, verdict = _component_finding(here, ("mlp", "embedding"))
        value, low, high = here[["share", "share_low", "share_high"]].iloc[0]
        rows.append(
            {"protocol": protocol, "value": value, "low": low, "high": high, "verdict": verdict, "detail": detail}
        )
    return pd.DataFrame(rows)
