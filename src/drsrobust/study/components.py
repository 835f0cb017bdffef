"""Vulnerability of layers, tables, components and classes of bits to single errors: claims C2 and C9 (notebook 04).

Each layer and table times each class of bits is a stratum with trials of its own (`layer_strata`). One random error in a
component, in a class of bits or anywhere is a mean over strata, weighted by their numbers of bits. A campaign with errors over
more than one part is split by where they fell (`placed`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from drsrobust.campaign.conditions import strata
from drsrobust.data import Split
from drsrobust.injection import AddressSpace, FixedCount, Target, as_target, resolve
from drsrobust.injection.number_formats import bit_classes
from drsrobust.introspection.tensors import component_of, listed, named_modules
from drsrobust.statistics.columns import ENDS, MITIGATION
from drsrobust.statistics.intervals import CONFIDENCE
from drsrobust.statistics.pvf import DEFINITIONS
from drsrobust.statistics.stratified import stratified_mean, stratified_proportion
from drsrobust.study.findings import verdicts

if TYPE_CHECKING:
    import pandas as pd

    from drsrobust.campaign.campaign import Campaign


def layer_names(model: nn.Module) -> dict[str, str]:
    """Tensor name -> name of its layer or table: the component with the table's name, or with the layer's number in the model's
    order where the component has several.

    Example:
        >>> model = nn.ModuleDict({"embedding": nn.EmbeddingBag(9, 4), "over": nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))})
        >>> sorted(set(layer_names(model).values()))
        ['embedding', 'over 1', 'over 2']
    """
    component_by_tensor, modules = component_of(model), dict(named_modules(model))
    tables, layers = {}, {}
    for tensor in listed(model):
        owner = tensor.name.rpartition(".")[0] or tensor.name
        component = component_by_tensor[tensor.name]
        is_table = component == "embedding" or isinstance(modules.get(owner), nn.Embedding | nn.EmbeddingBag)
        kind = tables if is_table else layers
        if tensor.parameter or owner in kind.get(component, {}):
            kind.setdefault(component, {}).setdefault(owner, []).append(tensor.name)
    names = {}
    for component, owners in layers.items():
        for number, tensors in enumerate(owners.values(), 1):
            alone = len(owners) == 1 and component not in tables
            names |= dict.fromkeys(tensors, component if alone else f"{component} {number}")
    for component, owners in tables.items():
        for owner, tensors in owners.items():
            table = owner.rpartition(".")[2]
            names |= dict.fromkeys(tensors, component if table == component else f"{component} {table}")
    return names


def layer_strata(model: nn.Module, target: str | Target = "all") -> "pd.DataFrame":
    """Layers and tables times classes of bits: a partition of the eligible bits, finer than `strata`.

    Args:
        model: any module.
        target: whole tensors.

    Returns:
        the columns of `strata` with `layer` after `component`; `weight` is the share of all the target's bits.

    Raises:
        ValueError: as `strata`, or a target that takes some rows of a tensor.

    Example:
        >>> model = nn.ModuleDict({"bottom": nn.Linear(4, 8), "top": nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))})
        >>> layer_strata(model).groupby("layer")["eligible"].sum().to_dict()
        {'bottom': 1280, 'top 1': 1152, 'top 2': 160}
    """
    import pandas as pd

    space, names, parts = resolve(model, target), layer_names(model), {}
    order = {layer: number for number, layer in enumerate(dict.fromkeys(names.values()))}
    for tensor in space.tensors:
        parts.setdefault(names[tensor.name], []).append(tensor.name)
    frames = []
    for layer, tensors in sorted(parts.items(), key=lambda part: order[part[0]]):
        union: str | Target = tensors[0]
        for other in tensors[1:]:
            union = as_target(union) | other
        frame = strata(model, union)
        frame.insert(1, "layer", layer)
        frames.append(frame)
    found = pd.concat(frames, ignore_index=True)
    if found["eligible"].sum() != space.bits:
        raise ValueError(f"target {str(target)!r} takes some rows of a tensor; layer_strata needs whole tensors")
    return found.assign(weight=found["eligible"] / space.bits)


def mlp_parts(strata: "pd.DataFrame") -> "pd.DataFrame":
    """Strata with a column `part`: their component, with all `*_mlp` as one.

    Example:
        >>> import pandas as pd
        >>> mlp_parts(pd.DataFrame({"component": ["over_mlp", "dense_mlp", "cross"]}))["part"].tolist()
        ['mlp', 'mlp', 'cross']
    """
    return strata.assign(part=strata["component"].str.replace(r".+_mlp$", "mlp", regex=True))


def single_errors(strata: "pd.DataFrame") -> list[tuple[FixedCount, str | Target]]:
    """The conditions of a campaign with one error per trial in each stratum of `strata` or `layer_strata`."""
    return [(FixedCount(1, bits=row.bits), row.target) for row in strata.itertuples()]


def stratified_pvf(
    table: "pd.DataFrame",
    strata: "pd.DataFrame",
    split: Split,
    by: Sequence[str] = ("component",),
    confidence: float = CONFIDENCE,
) -> "pd.DataFrame":
    """PVF of one random error in each part of a model, by three definitions of an incorrect output (see `pvf`).

    `pvf` has the interval of `stratified_proportion`, `incorrect` that of `stratified_mean`. In a stratum whose trials all
    agree, an error that was not seen may make as many rows (or users) incorrect as any trial of its target reached.

    Args:
        table: of a campaign over `single_errors(strata)`, of one model, with columns `decision_changed`, `list_changed` and
            `score_changed`.
        strata: as `strata` or `layer_strata` returns it.
        split: the rows that were scored.
        by: columns of `strata` to group by, as component, layer, bit_class; none: one error anywhere.
        confidence: of the intervals.

    Returns:
        one row per part and definition: `model`, `dataset`, the columns of `by`, `share` (of all bits), `definition`, `n`
        (trials), `pvf` and `incorrect` with `_low` and `_high`; null (n 0) where the data have none of these outputs.

    Raises:
        ValueError: a stratum without trials (two, but for `pvf` alone, are needed), or several models in one table.
    """
    import pandas as pd

    trials = _by_stratum(table, strata)
    sizes = {"decision_changed": len(split), "score_changed": len(split)}
    sizes["list_changed"] = 0 if split.users is None else len(np.unique(split.users))
    reach = _reach(table, strata, len(split))
    rows = []
    for part, numbers, weights in _parts(table, strata, by):
        for name in DEFINITIONS:
            values = [_shares(trials[number], name) for number in numbers]
            row = part | {"definition": name, "n": sum(map(len, values))}
            estimates = (float("nan"),) * 6
            if row["n"] and sizes[name]:
                counts, ns = [(shares > 0).sum() for shares in values], [len(shares) for shares in values]
                most = np.minimum(1.0, reach[numbers] / sizes[name])
                estimates = stratified_proportion(weights, counts, ns, confidence)
                estimates += _mean(weights, values, confidence, (np.zeros(len(most)), most))
            rows.append(
                row | dict(zip([f"{c}{end}" for c in ("pvf", "incorrect") for end in ENDS], estimates, strict=True))
            )
    found = pd.DataFrame(rows)
    found.attrs = {
        "pvf": f"share of errors with an incorrect output; {confidence:.0%} interval recovered from strata's Wilson intervals",
        "incorrect": f"mean share of incorrect outputs per error; {confidence:.0%} interval of a stratified mean",
        **DEFINITIONS,
    }
    return found


def stratified_loss(
    table: "pd.DataFrame",
    strata: "pd.DataFrame",
    split: Split,
    by: Sequence[str] = ("component",),
    confidence: float = CONFIDENCE,
) -> "pd.DataFrame":
    """Mean AUC loss of one random error in each part of a model. Arguments as in `stratified_pvf`.

    Trials whose model raised are in no mean; the high end counts them as an AUC of 0. In a stratum whose trials all agree, an
    error that was not seen may change AUC as much as r changed rows can: r over the rows of the rarer class, where r is as many
    as any trial of its target reached (all rows if none reached any).

    Returns:
        one row per part: `model`, `dataset`, the columns of `by`, `share` (of all bits), `bits`, `n`, `auc_drop` with `_low`
        and `_high`.
    """
    import pandas as pd

    trials = _by_stratum(table, strata)
    clicks = int((split.labels > 0.5).sum())
    most = _reach(table, strata, len(split)) / max(1, min(clicks, len(split) - clicks))
    golden = float(table["auc_golden"].iloc[0])
    rows = []
    for part, numbers, weights in _parts(table, strata, by):
        drops = [trials[number]["auc_drop"].to_numpy(float, na_value=np.nan) for number in numbers]
        values, raised = [drop[~np.isnan(drop)] for drop in drops], np.array([np.isnan(drop).any() for drop in drops])
        bounds = -np.minimum(1 - golden, most[numbers]), np.minimum(golden, most[numbers])
        mean, low, high = _mean(weights, values, confidence, bounds)
        if raised.any():
            worst = [np.nan_to_num(drop, nan=golden) for drop in drops]
            highest = _mean(weights, worst, confidence, (bounds[0], np.where(raised, golden, bounds[1])))[2]
            high = float(np.fmax(high, highest))
        row = part | {"bits": int(strata["eligible"].to_numpy()[numbers].sum()), "n": sum(map(len, values))}
        rows.append(row | {"auc_drop": mean, "auc_drop_low": low, "auc_drop_high": high})
    found = pd.DataFrame(rows)
    found.attrs = {"auc_drop": f"mean over errors; {confidence:.0%} interval of a stratified mean"}
    return found


def _by_stratum(table: "pd.DataFrame", strata: "pd.DataFrame") -> "list[pd.DataFrame]":
    """The trials of each stratum."""
    if (several := table["model"].nunique()) != 1:
        raise ValueError(f"table must hold trials of one model, got {several}")
    groups = dict(list(table.groupby(["error_model", "target"])))
    found = []
    for error_model, target in single_errors(strata):
        if (error_model.label, str(target)) not in groups:
            raise ValueError(f"table has no trial of {error_model} in {target}; run single_errors(strata)")
        found.append(groups[error_model.label, str(target)])
    return found


def _parts(
    table: "pd.DataFrame", strata: "pd.DataFrame", by: Sequence[str]
) -> Iterator[tuple[dict[str, Any], np.ndarray, np.ndarray]]:
    """For each part its names, the numbers of its strata, and their weights within it."""
    eligible, strata = strata["eligible"].to_numpy(float), strata.reset_index(drop=True)
    for name, part in strata.groupby(list(by), sort=False) if by else [((), strata)]:
        numbers = part.index.to_numpy()
        names = {"model": table["model"].iloc[0], "dataset": table["dataset"].iloc[0]}
        names |= dict(zip(by, name, strict=True)) | {"share": float(eligible[numbers].sum() / eligible.sum())}
        yield names, numbers, eligible[numbers] / eligible[numbers].sum()


def _shares(trials: "pd.DataFrame", name: str) -> np.ndarray:
    """Known shares of incorrect outputs; all outputs of a model that raised are incorrect."""
    values = trials[name].astype(float).mask(trials["outcome"] == "raised", 1.0)
    return values.dropna().to_numpy()


def _reach(table: "pd.DataFrame", strata: "pd.DataFrame", rows: int) -> np.ndarray:
    """Rows that any trial of each stratum's target reached: float64 [strata]; all `rows` if none reached one, or all raised."""
    most = table.groupby("target")["rows_reached"].max().replace(0, rows).fillna(rows)
    return np.array([float(most[str(target)]) for target in strata["target"]])


def _mean(
    weights: np.ndarray, values: list[np.ndarray], confidence: float, bounds: tuple[np.ndarray, np.ndarray]
) -> tuple[float, float, float]:
    if min(map(len, values)) < 2:
        return (float("nan"),) * 3
    means, ns = np.array([one.mean() for one in values]), [len(one) for one in values]
    # Rounding must neither make a variance where all values agree, nor move a mean out of its bounds.
    variances = [0.0 if one.min() == one.max() else one.var(ddof=1) for one in values]
    return stratified_mean(weights, np.clip(means, *bounds), variances, ns, confidence, bounds)


def placed(campaign: "Campaign") -> "pd.DataFrame":
    """The table of a campaign with one error per trial, and where the error fell: `component`, `layer`, `tensor`, `bit` (0 the
    lowest) and `bit_class`; null in trials without an error, `bit_class` also in formats without classes, as quantized rows.

    It splits trials after the fact, as in `pvf(placed(campaign), by=["component"])`.

    Raises:
        ValueError: a trial with more than one error.
    """
    table, errors = campaign.table(), campaign.errors()
    if (several := table.loc[table["bits_flipped"] > 1]).size:
        trial = several.iloc[0]
        raise ValueError(
            f"every trial must flip one bit, got {trial['bits_flipped']} in trial {trial['trial']} of {trial['error_model']}"
        )
    keys = ["error_model", "target", *MITIGATION, "trial"]
    found = table.merge(errors.drop(columns=["rate", "count"]), on=keys, how="left", validate="one_to_one")
    classes, names = {}, layer_names(campaign.evaluator.model)
    spaces = [condition.hits for condition in campaign.conditions if isinstance(condition.hits, AddressSpace)]
    for tensor in (tensor for space in spaces for tensor in space.tensors):
        for name, bits in bit_classes(tensor.format).items():
            classes |= {(tensor.name, bit): name for bit in bits if isinstance(bit, int)}
    found["layer"] = [names.get(tensor) for tensor in found["tensor"]]
    found["bit_class"] = [classes.get(place) for place in zip(found["tensor"], found["bit"], strict=True)]
    return found


def extremes(parts: "pd.DataFrame", value: str = "incorrect", by: str = "component") -> "pd.DataFrame":
    """The most and the least vulnerable part of each model, and whether their intervals lie apart from all others.

    Args:
        parts: as `stratified_pvf` or `stratified_loss` returns it.
        value: the column to compare, with `_low` and `_high`.
        by: the column that names parts.

    Returns:
        one row per model, data set (and definition) with values: `most`, `next` and `least` (names), each with `_value`, `_low`
        and `_high`; `most_apart` and `least_apart`.

    Example:
        >>> import pandas as pd
        >>> parts = pd.DataFrame({"model": "m", "component": ["table", "over"], "loss": [0.1, 0.3]})
        >>> parts = parts.assign(loss_low=parts["loss"] - 0.05, loss_high=parts["loss"] + 0.05)
        >>> extremes(parts, "loss")[["most", "most_value", "least", "most_apart"]].values.tolist()
        [['over', 0.3, 'table', True]]
    """
    import pandas as pd

    keys = [key for key in ("model", "dataset", "definition") if key in parts]
    rows = []
    for names, group in parts.dropna(subset=[value]).groupby(keys, sort=False):
        ordered = group.sort_values(value, ascending=False, kind="stable")
        row = dict(zip(keys, names, strict=True))
        for name, number in (("most", 0), ("next", min(1, len(ordered) - 1)), ("least", -1)):
            row[name] = ordered[by].iloc[number]
            ends = {"_value": value, "_low": f"{value}_low", "_high": f"{value}_high"}
            row |= {f"{name}{end}": float(ordered[column].iloc[number]) for end, column in ends.items()}
        low, high = ordered[f"{value}_low"].to_numpy(), ordered[f"{value}_high"].to_numpy()
        row["most_apart"] = bool(len(ordered) > 1 and low[0] > high[1:].max())
        row["least_apart"] = bool(len(ordered) > 1 and high[-1] < low[:-1].min())
        rows.append(row)
    return pd.DataFrame(rows)


def most_and_least(
    parts: "pd.DataFrame", quantities: Mapping[str, str], *, most: str, least: str, by: str = "component"
) -> "pd.DataFrame":
    """Findings and verdicts on claims C2 and C9: one part is the most and another the least vulnerable.

    Args:
        parts: as `stratified_pvf` or `stratified_loss` returns it, of one or more models.
        quantities: column of `parts` to compare (with `_low` and `_high`) -> its name in words.
        most, least: names of parts.
        by: the column that names parts.

    Returns:
        one row per quantity, model, data set (and definition): `quantity`, these, `value`, `low` and `high` of the part that
        is claimed to be the most vulnerable (NaN where there is none), `right` (how many of the two parts are as claimed),
        `apart` (whether both intervals lie apart from all others), `detail`: the extremes in words, `verdict`.

    Example:
        >>> import pandas as pd
        >>> parts = pd.DataFrame({"model": "m", "dataset": "d", "component": ["table", "over"], "loss": [0.1, 0.3]})
        >>> parts = parts.assign(loss_low=parts["loss"] - 0.05, loss_high=parts["loss"] + 0.05)
        >>> found = most_and_least(parts, {"loss": "AUC lost"}, most="over", least="table")
        >>> found[["quantity", "value", "verdict", "detail"]].values.tolist()
        [['AUC lost', 0.3, 'reproduced', 'over 0.3 [0.25, 0.35], least table 0.1 [0.05, 0.15]']]
    """
    import pandas as pd

    frames = []
    for column, meaning in quantities.items():
        found = extremes(parts, column, by)
        keys = [key for key in ("model", "dataset", "definition") if key in found]
        ends = {column: "value", f"{column}_low": "low", f"{column}_high": "high"}
        claimed = parts.loc[parts[by] == most, [*keys, *ends]].rename(columns=ends)
        frame = found[keys].merge(claimed, on=keys, how="left")
        frame.insert(0, "quantity", meaning)
        frame["right"] = (found["most"] == most).astype(int) + (found["least"] == least)
        frame["apart"] = found["most_apart"] & found["least_apart"]
        frames.append(frame.assign(detail=described(found)))
    table = pd.concat(frames, ignore_index=True)
    return table.assign(verdict=verdicts(table, "most_and_least"))


def described(found: "pd.DataFrame") -> list[str]:
    """Each row of `extremes` in words: `over 0.3 [0.25, 0.35], then dense 0.2 [0.15, 0.25], least table 0.1 [0.05, 0.15]`."""
    texts = []
    for row in found.to_dict("records"):
        numbers = {
            name: f"{row[name]} {row[f'{name}_value']:.2g} [{row[f'{name}_low']:.2g}, {row[f'{name}_high']:.2g}]"
            for name in ("most", "next", "least")
        }
        then = f", then {numbers['next']}" if row["next"] not in (row["most"], row["least"]) else ""
        texts.append(f"{numbers['most']}{then}, least {numbers['least']}")
    return texts
