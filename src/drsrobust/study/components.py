"""What one error does, by any part of a model: layers, tables, components, classes of bits, from one stratified campaign.

Each layer and table times each class of bits is a stratum with trials of its own (`layer_strata`); what one random error in a
component, in a class of bits or anywhere does is a mean over strata, weighted by their numbers of bits. A campaign whose
errors were drawn over more than one part is split by where they fell (`placed`).

Claims of the form "this part of a model is the most vulnerable, that one the least", judged part by part."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from drsrobust.campaign.conditions import strata
from drsrobust.data import Split
from drsrobust.injection import AddressSpace, FixedCount, Target, as_target, resolve
from drsrobust.injection.number_formats import bit_classes
from drsrobust.introspection.tensors import component_of, listed, named_modules
from drsrobust.statistics.columns import MITIGATION
from drsrobust.statistics.intervals import CONFIDENCE
from drsrobust.statistics.pvf import DEFINITIONS
from drsrobust.statistics.stratified import stratified_mean, stratified_proportion

if TYPE_CHECKING:
    import pandas as pd

    from drsrobust.campaign.campaign import Campaign

_ENDS = ("", "_low", "_high")  # of column names: a value and its interval


def layer_names(model: nn.Module) -> dict[str, str]:
    """Tensor name -> what to call the layer or table that it belongs to: its component with the table's name, or with the
    layer's number in the model's order where the component has several.

    Example:
        >>> model = nn.ModuleDict({"embedding": nn.EmbeddingBag(9, 4), "over": nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))})
        >>> sorted(set(layer_names(model).values()))
        ['embedding', 'over 1', 'over 2']
    """
    home, modules = component_of(model), dict(named_modules(model))
    tables, layers = {}, {}
    for one in listed(model):
        owner = one.name.rpartition(".")[0] or one.name
        component = home[one.name]
        of_rows = component == "embedding" or isinstance(modules.get(owner), nn.Embedding | nn.EmbeddingBag)
        kind = tables if of_rows else layers
        if one.parameter or owner in kind.get(component, {}):
            kind.setdefault(component, {}).setdefault(owner, []).append(one.name)
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
    """Layers and tables times classes of bits: a partition of the bits that errors may hit, as `strata` but finer.

    Args:
        model: any module.
        target: what may be hit; whole tensors.

    Returns:
        the columns of `strata` with `layer` behind `component`; `weight` is the share of all the target's bits.

    Raises:
        ValueError: as `strata`.

    Example:
        >>> model = nn.ModuleDict({"bottom": nn.Linear(4, 8), "top": nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))})
        >>> layer_strata(model).groupby("layer")["eligible"].sum().to_dict()
        {'bottom': 1280, 'top 1': 1152, 'top 2': 160}
    """
    import pandas as pd

    whole, names, parts = resolve(model, target), layer_names(model), {}
    order = {layer: number for number, layer in enumerate(dict.fromkeys(names.values()))}
    for tensor in whole.tensors:
        parts.setdefault(names[tensor.name], []).append(tensor.name)
    frames = []
    for layer, tensors in sorted(parts.items(), key=lambda part: order[part[0]]):
        here: str | Target = tensors[0]
        for other in tensors[1:]:
            here = as_target(here) | other
        frame = strata(model, here)
        frame.insert(1, "layer", layer)
        frames.append(frame)
    found = pd.concat(frames, ignore_index=True)
    if found["eligible"].sum() != whole.bits:
        raise ValueError(f"target {str(target)!r} takes some rows of a tensor; layers are taken whole")
    return found.assign(weight=found["eligible"] / whole.bits)


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
    """PVF of one random error in each part of a model, by three definitions of an incorrect output (see `pvf`), from a
    campaign over `single_errors(strata)`.

    `pvf` has the interval of `stratified_proportion`, `incorrect` that of `stratified_mean`. Of a stratum whose trials were
    all alike what was not seen counts with as many rows (or users) as any trial of its target reached.

    Args:
        table: a campaign's, of one model, with columns `decision_changed`, `list_changed` and `score_changed`.
        strata: as `strata` or `layer_strata` returns it.
        split: the rows that were scored.
        by: columns of `strata` to group by, as component, layer, bit_class; none: one error anywhere.
        confidence: of confidence.

    Returns:
        one row per part and definition: `model`, `dataset`, the columns of `by`, `share` (of all bits), `definition`, `n`
        (trials), `pvf` and `incorrect` with `_low` and `_high`; null (n 0) where there is nothing to tell by, as no users.

    Raises:
        ValueError: a stratum without trials (two, but for `pvf` alone, are needed), or several models in one table.
    """
    import pandas as pd

    trials = _by_stratum(table, strata)
    sizes = {"decision_changed": len(split), "score_changed": len(split)}
    sizes["list_changed"] = 0 if split.users is None else len(np.unique(split.users))
    reach = _reach(table, strata, len(split))
    rows = []
    for about, here, weights in _parts(table, strata, by):
        for name in DEFINITIONS:
            values = [_shares(trials[number], name) for number in here]
            row = about | {"definition": name, "n": sum(map(len, values))}
            if row["n"] and sizes[name]:
                counts, ns = [(one > 0).sum() for one in values], [len(one) for one in values]
                numbers = stratified_proportion(weights, counts, ns, confidence)
                most = np.minimum(1.0, reach[here] / sizes[name])
                numbers += _mean(weights, values, confidence, (np.zeros(len(most)), most))
            else:
                numbers = (float("nan"),) * 6
            row |= zip([f"{column}{end}" for column in ("pvf", "incorrect") for end in _ENDS], numbers, strict=True)
            rows.append(row)
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

    Trials whose model raised have no AUC and are in no mean; the high end takes them as an AUC of 0. What was not seen in a
    stratum whose trials were all alike counts with what r changed rows can do to AUC: r over the rows of the rarer class, where
    r is as many as any trial of its target reached, or all rows where none reached any.

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
    for about, here, weights in _parts(table, strata, by):
        drops = [trials[number]["auc_drop"].to_numpy(float, na_value=np.nan) for number in here]
        values, raised = [one[~np.isnan(one)] for one in drops], np.array([np.isnan(one).any() for one in drops])
        bounds = -np.minimum(1 - golden, most[here]), np.minimum(golden, most[here])
        numbers = _mean(weights, values, confidence, bounds)
        if raised.any():
            worst = [np.nan_to_num(one, nan=golden) for one in drops]
            highest = _mean(weights, worst, confidence, (bounds[0], np.where(raised, golden, bounds[1])))[2]
            numbers = (*numbers[:2], float(np.fmax(numbers[2], highest)))
        bits = int(strata["eligible"].to_numpy()[here].sum())
        row = about | {"bits": bits, "n": sum(map(len, values))}
        rows.append(row | dict(zip([f"auc_drop{end}" for end in _ENDS], numbers, strict=True)))
    found = pd.DataFrame(rows)
    found.attrs = {"auc_drop": f"mean over errors; {confidence:.0%} interval of a stratified mean"}
    return found


def extremes(parts: "pd.DataFrame", value: str = "incorrect", by: str = "component") -> "pd.DataFrame":
    """The most and the least vulnerable part of each model, and whether that is sure.

    Args:
        parts: as `stratified_pvf` or `stratified_loss` returns it.
        value: the column to judge by, with `_low` and `_high`.
        by: the column that names parts.

    Returns:
        one row per model, data set (and definition): `most`, `next` and `least` (names), each with `_value`, `_low` and
        `_high`; `most_apart`: the interval of the most vulnerable lies above all others; `least_apart`: that of the least
        vulnerable below all others. Groups without values are left out.

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
    for group, here in parts.dropna(subset=[value]).groupby(keys, sort=False):
        ordered = here.sort_values(value, ascending=False, kind="stable")
        row = dict(zip(keys, group, strict=True))
        for name, one in (("most", 0), ("next", min(1, len(ordered) - 1)), ("least", -1)):
            row[name] = ordered[by].iloc[one]
            ends = {"_value": value, "_low": f"{value}_low", "_high": f"{value}_high"}
            row |= {f"{name}{end}": float(ordered[column].iloc[one]) for end, column in ends.items()}
        low, high = ordered[f"{value}_low"].to_numpy(), ordered[f"{value}_high"].to_numpy()
        row["most_apart"] = bool(len(ordered) > 1 and low[0] > high[1:].max())
        row["least_apart"] = bool(len(ordered) > 1 and high[-1] < low[:-1].min())
        rows.append(row)
    return pd.DataFrame(rows)


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


def verdicts(found: "pd.DataFrame", most: str, least: str) -> "pd.Series":
    """Whether a claim on the most and the least vulnerable part holds, for each row of `extremes`.

    Returns:
        `reproduced` (both are these parts, and their intervals lie apart from all others), `partly` (one of them is, or both
        without that), or `not`.

    Example:
        >>> import pandas as pd
        >>> found = pd.DataFrame({"most": ["over"], "least": ["table"], "most_apart": [True], "least_apart": [False]})
        >>> verdicts(found, "over", "table").tolist(), verdicts(found, "dense", "over").tolist()
        (['partly'], ['not'])
    """
    right = (found["most"] == most).astype(int) + (found["least"] == least)
    sure = (right == 2) & found["most_apart"] & found["least_apart"]
    return right.map({0: "not", 1: "partly", 2: "partly"}).mask(sure, "reproduced").rename("verdict")


def placed(campaign: "Campaign") -> "pd.DataFrame":
    """The table of a campaign with one error per trial, and where the error fell: `component`, `layer`, `tensor`, `bit` (0 the
    lowest) and `bit_class`; null in trials without an error, and `bit_class` where a bit's number does not tell it, as in
    quantized rows.

    By it trials are split after the fact, as `pvf(placed(campaign), by=["component"])`.

    Raises:
        ValueError: a trial with more than one error.
    """
    table, errors = campaign.table(), campaign.errors()
    if (many := table.loc[table["bits_flipped"] > 1]).size:
        raise ValueError(
            f"trial {many['trial'].iloc[0]} of {many['error_model'].iloc[0]} flipped {many['bits_flipped'].iloc[0]} bits; "
            "only a single error fell into one place"
        )
    keys = ["error_model", "target", *MITIGATION, "trial"]
    found = table.merge(errors.drop(columns=["rate", "count"]), on=keys, how="left", validate="one_to_one")
    classes, names = _classes(campaign), layer_names(campaign.evaluator.model)
    places = list(zip(found["tensor"], found["bit"], strict=True))
    found["layer"] = [names.get(tensor) for tensor, _ in places]
    found["bit_class"] = [classes.get(place) for place in places]
    return found


def _classes(campaign: "Campaign") -> dict[tuple[str, int], str]:
    """(Tensor, number of the bit) -> class of bits, of all words that the campaign may hit."""
    found = {}
    for condition in campaign.conditions:
        if isinstance(condition.hits, AddressSpace):
            for tensor in condition.hits.tensors:
                for name, bits in bit_classes(tensor.format).items():
                    found |= {(tensor.name, bit): name for bit in bits if isinstance(bit, int)}
    return found


def _by_stratum(table: "pd.DataFrame", strata: "pd.DataFrame") -> "list[pd.DataFrame]":
    """The trials of each stratum."""
    if (several := table["model"].nunique()) != 1:
        raise ValueError(f"the table holds trials of {several} models; strata are of one")
    groups = dict(list(table.groupby(["error_model", "target"])))
    found = []
    for error_model, target in single_errors(strata):
        if (error_model.label, str(target)) not in groups:
            raise ValueError(f"there is no trial of {error_model} in {target}; run single_errors(strata)")
        found.append(groups[error_model.label, str(target)])
    return found


def _parts(table: "pd.DataFrame", strata: "pd.DataFrame", by: Sequence[str]):
    """For each part what names it, the numbers of its strata, and their weights within it."""
    eligible = strata["eligible"].to_numpy(float)
    by = list(by)
    groups = strata.reset_index(drop=True).groupby(by, sort=False) if by else [((), strata.reset_index(drop=True))]
    for name, part in groups:
        here = part.index.to_numpy()
        about = {"model": table["model"].iloc[0], "dataset": table["dataset"].iloc[0]}
        about |= dict(zip(by, name, strict=True)) | {"share": float(eligible[here].sum() / eligible.sum())}
        yield about, here, eligible[here] / eligible[here].sum()


def _shares(trials: "pd.DataFrame", name: str) -> np.ndarray:
    """The shares of incorrect outputs that are known; all outputs of a model that raised are incorrect."""
    values = trials[name].astype(float).mask(trials["outcome"] == "raised", 1.0)
    return values.dropna().to_numpy()


def _reach(table: "pd.DataFrame", strata: "pd.DataFrame", rows: int) -> np.ndarray:
    """How many rows the errors of each stratum's target reached at most, whatever the bit: float64 [strata]. Where no trial
    reached a row, or all raised, all `rows`."""
    most = table.groupby("target")["rows_reached"].max().replace(0, rows).fillna(rows)
    return np.array([float(most[str(target)]) for target in strata["target"]])


def _mean(
    weights: np.ndarray, values: list[np.ndarray], confidence: float, bounds: tuple[np.ndarray, np.ndarray]
) -> tuple[float, float, float]:
    if min(map(len, values)) < 2:
        return (float("nan"),) * 3
    means, ns = np.array([one.mean() for one in values]), [len(one) for one in values]
    # All alike is no variance at all, whatever rounding says; and a mean is not outside by rounding.
    variances = [0.0 if one.min() == one.max() else one.var(ddof=1) for one in values]
    return stratified_mean(weights, np.clip(means, *bounds), variances, ns, confidence, bounds)


def most_and_least(
    parts: "pd.DataFrame", quantities: Mapping[str, str], *, most: str, least: str, by: str = "component"
) -> "pd.DataFrame":
    """Whether one part is the most and another the least vulnerable, by each quantity (see `post_stratified.verdicts`).

    Args:
        parts: as `stratified_pvf` or `stratified_loss` returns it, of one or more models.
        quantities: column of `parts` to judge by (with `_low` and `_high`) -> what to call it.
        most, least: names of parts.
        by: the column that names parts.

    Returns:
        one row per quantity, model, data set (and definition): `quantity`, these, `value`, `low` and `high` of the part that
        is said to be the most vulnerable (NaN where there is none), `verdict`, and `detail`: the extremes in words.

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
        ours = parts.loc[parts[by] == most, [*keys, *ends]].rename(columns=ends)
        frame = found[keys].merge(ours, on=keys, how="left")
        frame.insert(0, "quantity", meaning)
        frames.append(frame.assign(verdict=verdicts(found, most, least).to_numpy(), detail=described(found)))
    return pd.concat(frames, ignore_index=True)


def mlp_parts(strata: "pd.DataFrame") -> "pd.DataFrame":
    """Strata with a column `part`: their component, all those whose names end in `_mlp` as one.

    Example:
        >>> import pandas as pd
        >>> mlp_parts(pd.DataFrame({"component": ["over_mlp", "dense_mlp", "cross"]}))["part"].tolist()
        ['mlp', 'mlp', 'cross']
    """
    return strata.assign(part=strata["component"].str.replace(r".+_mlp$", "mlp", regex=True))
