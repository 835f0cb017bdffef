"""How far errors move the outputs of the untrained dummy recommender over its design space: Table I and Fig. 6 to 8 of ISSRE
2025, and statements S1, S3, S4 and S5 (notebook 02).

A trial is one error map in a drawn model without errors. The models look rows up by the ids of the input (`corrected`), or by
its 0/1 vector, as the published script (`as_released`). That script never restored the model either, so that its errors pile
up; here all maps are fresh.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.extend import count_done, progress_bar
from drsrobust.injection import BitFlip, ErrorMap, inject
from drsrobust.metrics import deviated
from drsrobust.models import build_model
from drsrobust_extras.data.dummy import released_lookups
from drsrobust_extras.data.load import load_dataset
from drsrobust_study.statements import values

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import nn

LOOKUPS = ("corrected", "as_released")
FACTORS = ("width", "depth", "embedding_dim", "density")
ALL, MLP, TABLE = "all", "mlp", "embedding"
MOVED = 0.01  # an output moved if it changed by over this share of itself
HUGE = 1e6  # a larger RMSE, or one that is not finite, is huge
MEASURES = {"moved": "moved outputs", "huge": "huge RMSE"}


def factor_grid(levels: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Every combination of the factors' levels: the cells of the grid.

    Args:
        levels: of each factor, ascending.

    Raises:
        ValueError: a factor without levels, or with levels that do not ascend.

    Example:
        >>> factor_grid({"width": [64, 128], "depth": [1]})
        [{'width': 64, 'depth': 1}, {'width': 128, 'depth': 1}]
    """
    for factor, of_factor in levels.items():
        _ascending(f"levels of {factor}", of_factor)
    return [dict(zip(levels, cell, strict=True)) for cell in product(*levels.values())]


def _ascending(name: str, levels: Sequence[float]) -> None:
    if not len(levels) or any(level >= other for level, other in pairwise(levels)):
        raise ValueError(f"{name} must hold one value or more, ascending, without duplicates, got {list(levels)}")


class DummyOutputs:
    """The outputs of a dummy model for some inputs. Under an error map only what it can change is computed again.

    Args:
        model: a `Dummy` without errors, that was built with the correct look-up.
        batch: of N inputs with one multi-hot feature.
        lookup: `corrected` or `as_released`.

    Attributes:
        golden: outputs without errors, float32 [N].
        words_read: target -> number of its parameters that are read for some input.
    """

    def __init__(self, model: "nn.Module", batch: Any, lookup: str = "corrected") -> None:
        import torch

        self.model, self._dense_columns, ids = model, batch.dense_features, batch.sparse_features
        (self._table,) = model.embeddings.parameters()
        if lookup == "as_released":
            ids = released_lookups(ids, dict.fromkeys(ids.keys(), len(self._table)))
        self._ids, self._lengths, self._weights = ids.values().long(), ids.lengths().long(), ids.weights_or_none()
        self._input_of = torch.repeat_interleave(torch.arange(len(self._lengths)), self._lengths)
        read = len(self._ids.unique()) * self._table.shape[1]
        mlp = sum(parameter.numel() for parameter in model.parameters()) - self._table.numel()
        self.words_read = {ALL: mlp + read, MLP: mlp, TABLE: read}
        with torch.no_grad():
            self._pooled = self._pool(torch.ones(len(self._lengths), dtype=torch.bool))
            self._dense = model.dense(self._dense_columns)
            self._golden = self._predict(self._dense, self._pooled)
        self.golden = self._golden.numpy()

    def under(self, error_map: ErrorMap) -> np.ndarray:
        """Outputs [N] while the map is applied to the model's parameters."""
        import torch

        hit = np.array([one.component for one in error_map.fingerprint])[error_map.tensor]
        wrong = torch.zeros(len(self._table), dtype=torch.bool)
        wrong[torch.from_numpy(error_map.word[hit == TABLE] // self._table.shape[1])] = True
        changed = torch.zeros(len(self._lengths), dtype=torch.bool)
        changed[self._input_of[wrong[self._ids]]] = True
        dense, pooled, scores = self._dense, self._pooled, self._golden.clone()
        with torch.no_grad():
            if changed.any():
                pooled = pooled.clone()
                pooled[changed] = self._pool(changed)
            if "dense_mlp" in hit:
                dense = self.model.dense(self._dense_columns)
            if (hit != TABLE).any():
                return self._predict(dense, pooled).numpy()
            if changed.any():
                scores[changed] = self._predict(dense[changed], pooled[changed])
        return scores.numpy()

    def _pool(self, inputs: "torch.Tensor") -> "torch.Tensor":
        """Sums of the rows that some inputs (bool [N]) read."""
        import torch

        chosen, lengths = inputs[self._input_of], self._lengths[inputs]
        weights = None if self._weights is None else self._weights[chosen]
        starts = lengths.cumsum(0) - lengths
        return torch.nn.functional.embedding_bag(
            self._ids[chosen], self._table, starts, mode="sum", per_sample_weights=weights
        )

    def _predict(self, dense: "torch.Tensor", pooled: "torch.Tensor") -> "torch.Tensor":
        import torch

        return self.model.predictor(torch.cat((dense, pooled), dim=1)).squeeze(1)


def dummy_trials(
    cells: Sequence[Mapping[str, float]],
    *,
    bers: Sequence[float],
    targets: Sequence[str] = (ALL, MLP, TABLE),
    inputs: int = 10_000,
    released_inputs: int = 1_000,
    models: int = 8,
    trials: int = 1,
    seed: int = 0,
    progress: bool = True,
) -> "pd.DataFrame":
    """Deviation of the dummy model's outputs. Models and error maps of different cells are drawn independently; the maps of one
    trial are nested over rates, and scored with both look-ups.

    Args:
        cells: each with `width`, `depth`, `embedding_dim` of `Dummy` and `density` of its inputs, as `factor_grid` returns.
        bers: bit error rates, ascending.
        targets: where errors fall.
        inputs: how many each trial scores.
        released_inputs: the first so many of them are scored with the released look-up, where all read the same rows.
        models: drawn per cell; models of one number have the same inputs in cells of the same density.
        trials: per cell, model, rate and target.
        seed: decides parameters, inputs and errors.
        progress: shows a progress bar.

    Returns:
        one row per model, cell, target, trial, rate and look-up: the cell, `drawn` (number of the model), `target`, `trial`,
        `ber`, `bits_flipped`, `lookup`, `n_inputs`, `words_read`, and as of `deviation`.

    Raises:
        ValueError: rates that do not ascend; else as `load_dataset`, `build_model`, `inject`.
    """
    import pandas as pd

    _ascending("bers", bers)
    rows, numbers = [], {LOOKUPS[0]: inputs, LOOKUPS[1]: min(released_inputs, inputs)}
    with progress_bar(len(cells) * models, "dummy", progress=progress) as bar:
        for drawn, density in product(range(models), sorted({cell["density"] for cell in cells})):
            # Rows are alike in all splits: the training rows are the first 80 %.
            sizes = {"rows": -(-inputs * 10 // 8) + 10, "seed": _derived(seed, drawn)}
            data = load_dataset(f"synthetic-dummy/{density:g}", **sizes)
            batches = {lookup: data.train.head(number).batch() for lookup, number in numbers.items()}
            for cell in (one for one in cells if one["density"] == density):
                key = [seed, drawn, *cell.values()]
                model = _drawn(data.schema, cell, _derived(*key))
                outputs = {lookup: DummyOutputs(model, batch, lookup) for lookup, batch in batches.items()}
                for target, trial in product(targets, range(trials)):
                    map_seed = _derived(*key, *target.encode(), trial)
                    about = {**cell, "drawn": drawn, "target": target, "trial": trial}
                    rows += [about | row for row in _over_rates(model, outputs, target, bers, map_seed)]
                bar.update()
                count_done("trials", len(targets) * trials * len(bers))
    return pd.DataFrame(rows)


def _derived(*numbers: float) -> int:
    """A seed from others, for each list of numbers another one."""
    parts = [round(1e6 * number) for number in numbers]
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def _drawn(schema: Any, cell: Mapping[str, float], seed: int) -> "nn.Module":
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_model("dummy", schema, **{name: cell[name] for name in FACTORS if name != "density"}).eval()


def _over_rates(
    model: "nn.Module", outputs: Mapping[str, DummyOutputs], target: str, bers: Sequence[float], seed: int
) -> Iterator[dict[str, Any]]:
    for ber in bers:
        with inject(model, BitFlip(float(ber)), target, seed=seed) as error_map:
            about = {"ber": ber, "bits_flipped": error_map.bits}
            for lookup, own in outputs.items():
                read = {"lookup": lookup, "n_inputs": len(own.golden), "words_read": own.words_read[target]}
                yield about | read | deviation(own.under(error_map), own.golden)


def deviation(scores: np.ndarray, golden: np.ndarray) -> dict[str, float]:
    """What is measured of a map: `moved`, the share of the outputs that moved by over 1 % or are not finite; `rmse` of all
    against those without errors (infinite if one is not finite); `huge`, whether it is over 1e6, as 0 or 1.

    Args:
        scores, golden: [N] each.

    Example:
        >>> deviation(np.array([1.0, 5.0]), np.array([1.0, 2.0]))
        {'moved': 0.5, 'rmse': 2.1213203435596424, 'huge': 0.0}
    """
    rmse = np.inf
    if np.isfinite(scores).all():
        rmse = float(np.sqrt(np.mean(np.square(np.subtract(scores, golden, dtype=np.float64)))))
    return {"moved": deviated(scores, golden, MOVED), "rmse": rmse, "huge": float(rmse > HUGE)}


def averaged(table: "pd.DataFrame", by: Sequence[str]) -> "pd.DataFrame":
    """Means over all trials of a group; cells have the same weight at each rate, since each has as many.

    Args:
        table: as `dummy_trials` returns it.
        by: columns; a row per combination of their values.

    Returns:
        `by`; `maps`; `huge`, the share of maps with a huge RMSE, and `formula`, the share with a flip of bit 30 in a word that
        is read, 1 - (1 - BER)^words; `rmse_of_others`, the median RMSE of the maps without a huge one; `moved`;
        `bits_flipped`.
    """
    flips = table.assign(formula=-np.expm1(table["words_read"] * np.log1p(-table["ber"])))
    others = flips.assign(rmse_of_others=flips["rmse"].where(flips["huge"] == 0))
    columns = {name: (name, "mean") for name in ("huge", "formula", "moved", "bits_flipped")}
    columns = {"maps": ("trial", "size"), **columns, "rmse_of_others": ("rmse_of_others", "median")}
    return others.groupby(list(by), sort=False).agg(**columns).reset_index()


def statement_values(table: "pd.DataFrame") -> "pd.DataFrame":
    """What S1, S3, S4 and S5 are judged by, a row per drawn model: means over the grid; those of S3 to S5 are at the highest
    rate. A factor with one level, or densities other than 0.001 and 0.01, give no rows.

    Args:
        table: as `dummy_trials` returns it.
    """
    last = table[table["ber"] == table["ber"].max()]
    correct = last[last["lookup"] == "corrected"]
    rises = table[(table["lookup"] == "corrected") & (table["target"] == ALL)]
    rows = [*_rises(rises)]
    for (target, lookup), group in last[last["target"] != TABLE].groupby(["target", "lookup"], sort=False):
        for measure, name in MEASURES.items():
            gaps = _effect(group, "width", measure) - _effect(group, "embedding_dim", measure)
            part = f"{target}, {name}, {lookup.replace('_', ' ')}"
            rows += _of_models("S3", gaps, "width minus dimension", part=part)
    rows += _of_models("S4", _effect(correct[correct["target"] == ALL], "depth"), "depth 2 minus 1")
    means = _means(correct[correct["target"] == TABLE], "density")
    if {0.001, 0.01} <= {*means.columns}:
        rows += _of_models("S5", means[0.01] / means[0.001], "ratio")
    return values(rows)


def _rises(table: "pd.DataFrame") -> Iterator[dict[str, Any]]:
    for measure, name in MEASURES.items():
        means = _means(table, "ber", measure)
        for before, after in pairwise(means.columns):
            yield from _of_models("S1", means[after] - means[before], "rise", item=f"{name}, {before:g} to {after:g}")


def _means(table: "pd.DataFrame", factor: str, measure: str = "moved") -> "pd.DataFrame":
    """A row per drawn model, a column per level."""
    return table.pivot_table(index="drawn", columns=factor, values=measure, aggfunc="mean")


def _effect(table: "pd.DataFrame", factor: str, measure: str = "moved") -> "pd.Series":
    """Mean at the greatest level of a factor less that at the least, by drawn model; NaN where it has one level."""
    means = _means(table, factor, measure)
    gaps = means.iloc[:, -1] - means.iloc[:, 0] if len(means.columns) else means.sum(axis=1)
    return gaps if len(means.columns) > 1 else gaps * np.nan


def _of_models(statement: str, of_models: "pd.Series", what: str, **place: str) -> list[dict[str, Any]]:
    about = {"statement": statement, "part": "", "dataset": "", "item": "grid", "what": what} | place
    return [about | {"unit": drawn, "value": value} for drawn, value in of_models.dropna().items()]


def deeper_moves_more(table: "pd.DataFrame") -> tuple[int, int]:
    """In how many settings of the other factors the greatest depth moves more outputs than the least (means over models, all
    parameters, correct look-up, highest rate); and the number of settings."""
    chosen = (table["lookup"] == "corrected") & (table["target"] == ALL) & (table["ber"] == table["ber"].max())
    others = [name for name in FACTORS if name != "depth"]
    means = table[chosen].pivot_table(index=others, columns="depth", values="moved", aggfunc="mean")
    more = means.iloc[:, -1] > means.iloc[:, 0]
    return int(more.sum()), len(more)
