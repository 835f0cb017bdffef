"""Trials of the study's untrained dummy recommender (experiment E2), under both protocols.

`corrected`: every trial draws a fresh error map for a model without errors, and scores all inputs with it.

`as_released`: what the published script did. It never restored the model: before every batch of inputs it drew another map
at the nominal rate and put it on top of all maps before, of earlier batches and of lower rates. And it looked up the 0/1
vector itself (`as_released` of the model). With maps m = 1, 2, ... of rates p_m behind it a bit is wrong when it was hit an odd
number of times, with probability (1 - prod_m (1 - 2 p_m)) / 2. So each batch is a campaign of its own at these rates, and one
trial number draws nested maps in all of them: what was wrong in an earlier batch is wrong still. (In the script a second hit
puts a bit right again. At the study's rates this happens to fewer than one in 100,000 of the bits hit; here, to none.)
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from drsrobust._names import unknown
from drsrobust._progress import progress
from drsrobust.campaign.campaign import Campaign
from drsrobust.data import Split, load_dataset
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip
from drsrobust.metrics import DEVIATIONS
from drsrobust.models import build_model

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
    show: bool = True,
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
        show: a progress bar.

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
    with progress(len(cells), f"dummy, {protocol}", show=show) as bar:
        for cell in cells:
            judges = _judges(cell, inputs, batch if protocol == "as_released" else inputs, protocol, seed)
            rates = accumulated(bers, len(judges)) if protocol == "as_released" else np.asarray(bers)[:, None]
            parts = []
            for number, judge in enumerate(judges):
                options = {"targets": targets, "trials": trials, "seed": seed, "protocol": protocol}
                errors = [BitFlip(float(rate)) for rate in rates[:, number]]
                with warnings.catch_warnings():
                    # Every input reads rows 0 and 1, so this is no news.
                    warnings.filterwarnings("ignore", "errors in .* are taken to reach every sample")
                    table = Campaign(judge, errors=errors, metrics=list(DEVIATIONS), **options).run(show=False)
                nominal = table["ber"].map(dict(zip(rates[:, number], bers, strict=True)))
                parts.append(_batch(table, len(judge.split)).assign(ber=nominal))
            found.append(_joined(parts).assign(protocol=protocol, **cell))
            bar.update()
    table = pd.concat(found, ignore_index=True)
    return table[["protocol", *FACTORS, *(name for name in table if name not in ("protocol", *FACTORS))]]


def _judges(cell: Mapping[str, float], inputs: int, batch: int, protocol: str, seed: int) -> list[Evaluator]:
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
    about = {"n_inputs": inputs, "bits": table["places"], "present": table["ber"]}
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
