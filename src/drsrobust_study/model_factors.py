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

from drsrobust._choices import unknown
from drsrobust._progress import count_done, progress_bar
from drsrobust.campaign.campaign import Campaign
from drsrobust.data import Split, load_dataset
from drsrobust.evaluation import Evaluator, ReachWarning
from drsrobust.injection import BitFlip
from drsrobust.metrics import DEVIATIONS
from drsrobust.models import build_model
from drsrobust.statistics.columns import ENDS
from drsrobust.statistics.intervals import CONFIDENCE, mean_interval, quantile_interval
from drsrobust.statistics.summary import BOUNDS

if TYPE_CHECKING:
    import pandas as pd

PROTOCOLS = ("corrected", "as_released")
FACTORS = ("width", "depth", "embedding_dim", "density")
BATCH = 2048  # inputs, as in the study
SHARES = ("deviated_0.01", "deviated_0.1")
VALUE = SHARES[0]
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
    models: int = 8,
    trials: int = 16,
    seed: int = 0,
    progress: bool = True,
) -> "pd.DataFrame":
    """Deviation of the dummy model's outputs: a campaign per cell and drawn model, stored as it goes.

    Trials of one number share nested error maps over rates; both protocols use the same models and seeds.

    Args:
        cells: each with `width`, `depth`, `embedding_dim` of `Dummy` and `density` of its inputs, as `factor_grid` returns.
        bers: bit error rates, ascending.
        targets: where errors fall.
        protocol: `corrected` or `as_released`.
        inputs: how many each trial scores.
        batch: of `as_released`, inputs per batch: a multiple of 32 from 64 up.
        models: drawn per cell, each with inputs of its own.
        trials: per cell, model, rate and target.
        seed: decides parameters, inputs and errors.
        progress: shows a progress bar.

    Returns:
        one row per cell, model, target, rate and trial: `protocol`, the cell, `drawn` (number of the model), `target`, `ber`
        (nominal), `trial`, `n_inputs`; `bits`
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
    options = {"targets": targets, "trials": trials, "label": protocol, "metrics": list(DEVIATIONS)}
    with progress_bar(len(cells) * models, f"dummy, {protocol}", progress=progress) as bar:
        for cell, model_number in product(cells, range(models)):
            evaluators = _evaluators(cell, inputs, batch if released else inputs, released, seed + model_number)
            rates = accumulated(bers, len(evaluators)) if released else np.asarray(bers)[:, None]
            batches = []
            for number, evaluator in enumerate(evaluators):
                errors = [BitFlip(float(rate)) for rate in rates[:, number]]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ReachWarning)  # every input reads rows 0 and 1
                    table = Campaign(evaluator, errors=errors, seed=seed + model_number, **options).run(progress=False)
                nominal = table["ber"].map(dict(zip(rates[:, number], bers, strict=True)))
                batches.append(_columns(table, len(evaluator.rows)).assign(ber=nominal))
            tables.append(_batch_means(batches).assign(protocol=protocol, drawn=model_number, **cell))
            bar.update()
            count_done("trials", trials * len(bers) * len(targets))
    table = pd.concat(tables, ignore_index=True)
    first = ["protocol", *FACTORS, "drawn"]
    return table[[*first, *(name for name in table if name not in first)]]


def _ascending(name: str, values: Sequence[float]) -> None:
    if not len(values) or any(value >= other for value, other in pairwise(values)):
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
    return [Evaluator(model, rows.take(slice(at, at + batch)), factory=make) for at in range(0, len(rows), batch)]


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
        the columns of the condition; `n_inputs`, `bits`, `present`, `n` (trials), `models`; `raised` (share of the trials);
        means over the trials that did not raise: `bits_flipped`, `nan_inputs`, `inf_inputs`, and with `_low` and `_high` by
        `unit_interval` `deviated_0.01`, `deviated_0.1` and `spearman`; and the median over trials of `median_change`, with its
        interval between order statistics.
    """
    import pandas as pd

    rows = []
    for condition, trials in table.groupby([*_CELL, "target", "ber"], sort=False):
        row = dict(zip([*_CELL, "target", "ber"], condition, strict=True))
        row |= {name: trials[name].iloc[0] for name in ("n_inputs", "bits", "present")}
        row |= {"n": len(trials), "models": trials["drawn"].nunique(), "raised": float(trials[VALUE].isna().mean())}
        row |= {name: float(trials[name].astype(float).mean()) for name in ("bits_flipped", "nan_inputs", "inf_inputs")}
        for name in (*SHARES, "spearman"):
            interval = unit_interval(trials.dropna(subset=[name]), name, confidence, BOUNDS[name])
            row |= zip((f"{name}{end}" for end in ENDS), interval, strict=True)
        changes = trials["median_change"].dropna().to_numpy(float)
        with np.errstate(invalid="ignore"):  # between infinities nothing is interpolated
            _, *interval = quantile_interval(changes, 0.5, confidence)
        median = float(np.median(changes)) if len(changes) else float("nan")
        row |= zip((f"median_change{end}" for end in ENDS), (median, *interval), strict=True)
        rows.append(row)
    return pd.DataFrame(rows)


def unit_interval(
    trials: "pd.DataFrame", name: str, confidence: float = CONFIDENCE, bounds: tuple[float, float] | None = None
) -> tuple[float, float, float]:
    """The mean of a column over drawn models, with Student's interval over the models' means: it holds for another drawn model.
    Where all trials agree, or there is one model, the interval is that over trials.

    Args:
        trials: with a column `drawn`, as many of each model.
        name: of the column.
        confidence: of the interval.
        bounds: least and greatest possible value.
    """
    values, means = trials[name].to_numpy(float), trials.groupby("drawn")[name].mean().to_numpy(float)
    return mean_interval(values if len(means) < 2 or np.ptp(values) == 0 else means, confidence, bounds)
