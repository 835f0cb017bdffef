"""Vulnerability of layers, tables, components and classes of bits to single errors: statement S20 (notebook 04).

Each layer and table times each class of bits is a part with trials of its own (`layer_partition`). One random error in a
component, in a class of bits or anywhere is a mean over parts, weighted by their numbers of bits.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from drsrobust.campaign import bit_partition
from drsrobust.data import Split
from drsrobust.injection import FixedCount, Target, as_target, resolve
from drsrobust.introspection import component_of, listed, named_modules
from drsrobust.statistics import CONFIDENCE, DEFINITIONS, ENDS, LOSS_IS_BOUNDED, STRATUM, WEIGHT, Strata, across_models
from drsrobust_study import statements
from drsrobust_study.part_curves import MLP, PARTS, TABLE

if TYPE_CHECKING:
    import pandas as pd

# Classes of bits whose flips are taken to lose no more than those that were drawn: all but the highest exponent bit, as in
# stratified campaigns of `BitFlip`, and the codes of quantized rows, but not their scales and biases.
BOUNDED = ("sign", "exponent_high", "exponent_low", "mantissa", "value")
S20_MODELS = ("dcn", "wide_deep", "deepfm", "dlrm")  # with MLPs and tables; others are shown apart
OVER_TRAININGS = f"{CONFIDENCE:.0%} over trainings (Student's t)"


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
        for index, tensors in enumerate(owners.values(), 1):
            is_only = len(owners) == 1 and component not in tables
            names |= dict.fromkeys(tensors, component if is_only else f"{component} {index}")
    for component, owners in tables.items():
        for owner, tensors in owners.items():
            table = owner.rpartition(".")[2]
            names |= dict.fromkeys(tensors, component if table == component else f"{component} {table}")
    return names


def layer_partition(model: nn.Module, target: str | Target = "all") -> "pd.DataFrame":
    """Layers and tables times classes of bits: a partition of the eligible bits, finer than `bit_partition`.

    Args:
        model: any module.
        target: whole tensors.

    Returns:
        the columns of `bit_partition` with `layer` after `component`; `weight` is the share of all the target's bits.

    Raises:
        ValueError: as `bit_partition`, or a target that takes some rows of a tensor.

    Example:
        >>> model = nn.ModuleDict({"bottom": nn.Linear(4, 8), "top": nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))})
        >>> layer_partition(model).groupby("layer")["eligible"].sum().to_dict()
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
        frame = bit_partition(model, union)
        frame.insert(1, "layer", layer)
        frames.append(frame)
    frame_of_all = pd.concat(frames, ignore_index=True)
    if frame_of_all["eligible"].sum() != space.bits:
        raise ValueError(f"target {str(target)!r} takes some rows of a tensor; layer_partition needs whole tensors")
    return frame_of_all.assign(weight=frame_of_all["eligible"] / space.bits)


def study_parts(partition: "pd.DataFrame") -> "pd.DataFrame":
    """Strata with a column `part`: `mlp` or `table` as in the curves of S6 to S12 (`part_curves.PARTS`), else their component.

    Example:
        >>> import pandas as pd
        >>> study_parts(pd.DataFrame({"component": ["over_mlp", "linear", "cross"]}))["part"].tolist()
        ['mlp', 'table', 'cross']
    """
    part_of = {
        name: next((part for part, ones in PARTS.items() if any(fnmatchcase(name, one) for one in ones)), name)
        for name in partition["component"].unique()
    }
    return partition.assign(part=partition["component"].map(part_of))


def single_errors(partition: "pd.DataFrame") -> list[tuple[FixedCount, str | Target]]:
    """The conditions of a campaign with one error per trial in each part of `bit_partition` or `layer_partition`."""
    return [(FixedCount(1, bits=row.bits), row.target) for row in partition.itertuples()]


def stratified_pvf(
    table: "pd.DataFrame",
    partition: "pd.DataFrame",
    split: Split,
    by: Sequence[str] = ("component",),
) -> "pd.DataFrame":
    """PVF of one random error in each part of a model, by three definitions of an incorrect output (see `pvf`).

    Intervals are those of `Strata.share` and `Strata.mean_interval`. An error that was not seen may make as many rows (or
    users) incorrect as any trial of its target reached.

    Args:
        table: of a campaign over `single_errors(partition)`, of one model, with columns `decision_changed`, `list_changed` and
            `score_changed`.
        partition: as `bit_partition` or `layer_partition` returns it.
        split: the rows that were scored.
        by: columns of `partition` to group by, as component, layer, bit_class; none: one error anywhere.

    Returns:
        one row per part and definition: `model`, `dataset`, the columns of `by`, `share` (of all bits), `definition`, `n`
        (trials), `pvf` and `incorrect` with `_low` and `_high`; null (n 0) where the data have none of these outputs.

    Raises:
        ValueError: a part without trials, or several models in one table.
    """
    import pandas as pd

    trials = _by_part(table, partition)
    sizes = {"decision_changed": len(split), "score_changed": len(split)}
    sizes["list_changed"] = 0 if split.users is None else len(np.unique(split.users))
    reach = _reach(table, partition, len(split))
    rows = []
    for part, numbers, weights in _parts(table, partition, by):
        joined = _weighted([trials[number] for number in numbers], partition.iloc[numbers], weights)
        for name in DEFINITIONS:
            # All outputs of a model that raised are incorrect.
            values = joined[name].astype(float).mask(joined["outcome"] == "raised", 1.0).to_numpy()
            row = part | {"definition": name, "n": int((~np.isnan(values)).sum())}
            estimates = (float("nan"),) * 6
            if row["n"] and sizes[name]:
                most = np.minimum(1.0, reach[numbers] / sizes[name])
                frame = Strata.of(joined, values)  # trials with incorrect outputs are the harmed ones
                estimates = frame.share(values > 0)
                estimates += frame.mean_interval(_within(frame, values, 0.0, most), (0.0, most))
            rows.append(
                row | dict(zip([f"{c}{end}" for c in ("pvf", "incorrect") for end in ENDS], estimates, strict=True))
            )
    frame = pd.DataFrame(rows)
    frame.attrs = {
        "pvf": f"share of errors with an incorrect output; {CONFIDENCE:.0%} interval recovered from strata's Wilson intervals",
        "incorrect": f"mean share of incorrect outputs per error; {CONFIDENCE:.0%} interval recovered from strata's intervals",
        **DEFINITIONS,
    }
    return frame


def stratified_loss(
    table: "pd.DataFrame",
    partition: "pd.DataFrame",
    split: Split,
    by: Sequence[str] = ("component",),
) -> "pd.DataFrame":
    """Mean AUC loss of one random error in each part of a model. Arguments as in `stratified_pvf`.

    Trials whose model raised are in no mean; the high end counts them as an AUC of 0. An error that was not seen may change AUC
    as much as r changed rows can: r over the rows of the rarer class, where r is as many as any trial of its target reached
    (all rows if none reached any).

    Returns:
        one row per part: `model`, `dataset`, the columns of `by`, `share` (of all bits), `bits`, `n`, `auc_drop` with `_low`
        and `_high`, and `auc_drop_error`, its standard error over the errors that were drawn.
    """
    import pandas as pd

    trials = _by_part(table, partition)
    clicks = int((split.labels > 0.5).sum())
    most = _reach(table, partition, len(split)) / max(1, min(clicks, len(split) - clicks))
    golden = float(table["auc_golden"].iloc[0])
    rows = []
    for part, numbers, weights in _parts(table, partition, by):
        joined = _weighted([trials[number] for number in numbers], partition.iloc[numbers], weights)
        values, frame = joined["auc_drop"].to_numpy(float, na_value=np.nan), Strata.of(joined)
        least, greatest = -np.minimum(1 - golden, most[numbers]), np.minimum(golden, most[numbers])
        mean, low, high = frame.mean_interval(_within(frame, values, least, greatest), (least, greatest))
        if (raised := np.isnan(values)).any():
            greatest = np.where((frame.members & raised).any(axis=1), golden, greatest)
            worst = _within(frame, np.where(raised, golden, values), least, greatest)
            high = float(np.fmax(high, frame.mean_interval(worst, (least, greatest))[2]))
        row = part | {"bits": int(partition["eligible"].to_numpy()[numbers].sum()), "n": int((~raised).sum())}
        squares = [w**2 * trials[k]["auc_drop"].var() / len(trials[k]) for k, w in zip(numbers, weights, strict=True)]
        error = math.sqrt(sum(squares))
        rows.append(row | {"auc_drop": mean, "auc_drop_low": low, "auc_drop_high": high, "auc_drop_error": error})
    frame = pd.DataFrame(rows)
    frame.attrs = {"auc_drop": f"mean over errors; {CONFIDENCE:.0%} interval recovered from strata's intervals"}
    return frame


def by_training(
    estimate: Callable[..., "pd.DataFrame"],
    table: "pd.DataFrame",
    partition: "pd.DataFrame",
    split: Split,
    by: Sequence[str] = ("component",),
) -> "pd.DataFrame":
    """`stratified_pvf` or `stratified_loss` (`estimate`) of each trained model: their rows with `train_seed`.

    Args:
        table: trials of one or more trained models, with `train_seed`; each should have error maps of its own.
        partition, split, by: as of `stratified_pvf`.
    """
    import pandas as pd

    of_seeds = table.groupby("train_seed", sort=False)
    frames = [estimate(trials, partition, split, by=by).assign(train_seed=seed) for seed, trials in of_seeds]
    return pd.concat(frames, ignore_index=True)


def over_trainings(found: "pd.DataFrame") -> "pd.DataFrame":
    """Rows of `by_training` as means over trained models, with intervals that hold for another one (`across_models`); those of
    one model as they are."""
    values = [name for name in ("pvf", "incorrect", "auc_drop") if name in found]
    frames = [rows.drop(columns="train_seed") for _, rows in found.groupby("train_seed", sort=False)]
    return across_models(
        frames, values, by=["model", "dataset", "part", "component", "layer", "bit_class", "definition"]
    )


def _by_part(table: "pd.DataFrame", partition: "pd.DataFrame") -> "list[pd.DataFrame]":
    """The trials of each part."""
    if (several := table["model"].nunique()) != 1:
        raise ValueError(f"table must hold trials of one model, got {several}")
    groups = dict(list(table.groupby(["error_model", "target"])))
    parts = []
    for error_model, target in single_errors(partition):
        if (error_model.label, str(target)) not in groups:
            raise ValueError(f"table has no trial of {error_model} in {target}; run single_errors(partition)")
        parts.append(groups[error_model.label, str(target)])
    return parts


def _parts(
    table: "pd.DataFrame", partition: "pd.DataFrame", by: Sequence[str]
) -> Iterator[tuple[dict[str, Any], np.ndarray, np.ndarray]]:
    """For each part its names, the numbers of its rows in the partition, and their weights within it."""
    eligible, partition = partition["eligible"].to_numpy(float), partition.reset_index(drop=True)
    for name, part in partition.groupby(list(by), sort=False) if by else [((), partition)]:
        numbers = part.index.to_numpy()
        names = {"model": table["model"].iloc[0], "dataset": table["dataset"].iloc[0]}
        names |= dict(zip(by, name, strict=True)) | {"share": float(eligible[numbers].sum() / eligible.sum())}
        yield names, numbers, eligible[numbers] / eligible[numbers].sum()


def _weighted(trials: "list[pd.DataFrame]", partition: "pd.DataFrame", weights: np.ndarray) -> "pd.DataFrame":
    """The trials of several parts as one table, with the columns of a stratified campaign."""
    import pandas as pd

    bounded = partition["bit_class"].isin(BOUNDED)
    partition = enumerate(zip(trials, weights, bounded, strict=True))
    return pd.concat(
        values.assign(**{STRATUM: str(number), WEIGHT: weight / len(values), LOSS_IS_BOUNDED: is_bounded})
        for number, (values, weight, is_bounded) in partition
    )


def _within(strata: Strata, values: np.ndarray, least: np.ndarray | float, greatest: np.ndarray) -> np.ndarray:
    """Values [trials] that rounding has moved out of the bounds [strata], moved back."""
    low, high = (np.broadcast_to(end, greatest.shape) @ strata.members for end in (least, greatest))
    return np.clip(values, low, high)


def _reach(table: "pd.DataFrame", partition: "pd.DataFrame", rows: int) -> np.ndarray:
    """Rows that any trial of each part's target reached: float64 [parts]; all `rows` if none reached one, or all raised."""
    most = table.groupby("target")["rows_reached"].max().replace(0, rows).fillna(rows)
    return np.array([float(most[str(target)]) for target in partition["target"]])


def part_losses(table: "pd.DataFrame", partition: "pd.DataFrame", split: Split) -> "pd.DataFrame":
    """AUC lost to one flip in the MLPs, in the tables and in each other component, of each trained model.

    Args:
        table, partition, split: as of `by_training`.

    Returns:
        `stratified_loss` by `part`, with `train_seed` and `loss_share`: the part's share of the whole loss where every bit
        flips at the same low rate, which is its loss per flip times its bits over the sum of these.
    """
    found = by_training(stratified_loss, table, study_parts(partition), split, by=["part"])
    total = found["share"] * found["auc_drop"]
    return found.assign(loss_share=total / total.groupby(found["train_seed"]).transform("sum"))


def statement_values(losses: "pd.DataFrame") -> "pd.DataFrame":
    """What S20 is judged by, a row per trained model: the AUC lost to a flip in the MLPs over that to one in the tables.

    Args:
        losses: `part_losses` of all models. A model that is there with several schemas of a data set counts with the first.
    """
    rows = []
    for (model, dataset, seed), parts in losses.groupby(["model", "dataset", "train_seed"], sort=False):
        if model in S20_MODELS and {MLP, TABLE} <= {*parts["part"]}:
            value, error = _ratio(parts.set_index("part"), MLP, TABLE)
            row = {"statement": "S20", "part": "", "dataset": dataset.partition("/")[0], "item": model, "unit": seed}
            rows.append(row | {"what": "per flip, MLPs over tables", "value": value, "error": error})
    return statements.values(rows).drop_duplicates(["dataset", "item", "unit"], ignore_index=True)


def _ratio(named: "pd.DataFrame", top: str, bottom: str) -> tuple[float, float]:
    """The ratio of two rows' values, and the standard error of its decimal logarithm; NaN where the bottom is not over 0."""
    above, below = named.loc[top], named.loc[bottom]
    if not below["auc_drop"] > 0:
        return math.nan, math.nan
    errors = [row["auc_drop_error"] / row["auc_drop"] if row["auc_drop"] else math.nan for row in (above, below)]
    return above["auc_drop"] / below["auc_drop"], math.hypot(*errors) / math.log(10)


def effects(losses: "pd.DataFrame", shares: "pd.DataFrame", layers: "pd.DataFrame") -> "pd.DataFrame":
    """Effects with intervals over trained models; ratios are means of logarithms.

    Args:
        losses: `part_losses` of all models.
        shares: `by_training` of `stratified_pvf` by component, of one model.
        layers: `by_training` of `stratified_loss` by component and layer, of the same.

    Returns:
        rows with `effect`, `what`, `model`, `dataset`, `value`, `low`, `high`, `n` trained models and `interval`. Of all
        models: the loss per flip in MLPs over tables, and each part's share of the whole loss. Of the one: the top MLP over the
        most vulnerable other component, and the least vulnerable other one over the tables, by each kind of incorrect output
        and by AUC; the share of outputs that a flip in the top MLP changes; the total loss of each table, and that of the
        largest table over that of the smallest.
    """
    import pandas as pd

    rows = []
    for keys, found in losses.groupby(["model", "dataset"], sort=False):
        if {MLP, TABLE} <= {*found["part"]}:
            rows.append(_effect("MLPs over tables", "AUC lost per flip", keys, found, "part", top=MLP, bottom=TABLE))
        for part, of_part in found.groupby("part", sort=False):
            rows.append(_effect("share of the whole loss", part, keys, of_part, "part", "loss_share", top=part))
    by_component = [
        (name, found, "incorrect")
        for name, found in shares.dropna(subset=["incorrect"]).groupby("definition", sort=False)
    ]
    keys = tuple(layers[["model", "dataset"]].iloc[0])
    parts = layers.assign(total=layers["share"] * layers["auc_drop"])
    sums = parts.groupby(["train_seed", "component"], sort=False)[["share", "total"]].sum().reset_index()
    by_component.append(("AUC", sums.assign(auc_drop=sums["total"] / sums["share"]), "auc_drop"))
    for what, found, value in by_component:
        if {"over_mlp", "embedding"} <= {*found["component"]}:
            rows.append(
                _effect("top MLP over the next component", what, keys, found, "component", value, top="over_mlp")
            )
            rows.append(_effect("others over the tables", what, keys, found, "component", value, bottom="embedding"))
            if value == "incorrect":
                only = found[found["component"] == "over_mlp"]
                effect = "outputs changed by a flip in the top MLP"
                rows.append(_effect(effect, what, keys, only, "component", value, top="over_mlp"))
    tables = parts[parts["component"] == "embedding"].sort_values("bits", kind="stable")
    for layer, found in tables.groupby("layer", sort=False):
        what = f"{layer}, {found['bits'].iloc[0]:,} bits"
        rows.append(_effect("total loss of a table", what, keys, found, "layer", "total", top=layer))
    if tables["bits"].nunique() > 1:
        least, most = tables.iloc[0], tables.iloc[-1]
        what = f"{most['bits'] / least['bits']:,.0f} times the bits"
        ends = {"top": most["layer"], "bottom": least["layer"]}
        rows.append(_effect("total loss, largest table over smallest", what, keys, tables, "layer", "total", **ends))
    return pd.DataFrame(rows)


def _effect(
    effect: str,
    what: str,
    keys: tuple[str, str],
    found: "pd.DataFrame",
    by: str,
    value: str = "auc_drop",
    *,
    top: str | None = None,
    bottom: str | None = None,
) -> dict[str, Any]:
    """An effect over trained models: the value of `top` where the rows hold nothing else, else over that of `bottom`. None: of
    the rows of other names the greatest as bottom, the least as top."""
    numbers, log = [], found[by].nunique() > 1
    for _, rows in found.groupby("train_seed", sort=False):
        values = rows.set_index(by)[value]
        others = values.drop([name for name in (top, bottom) if name])
        above = values[top] if top else others.min()
        below = (values[bottom] if bottom else others.max()) if log else 1.0
        numbers.append(above / below if below > 0 else math.nan)
    mean, low, high = statements.interval(np.array(numbers), log=log)
    labels = {"effect": effect, "what": what, "model": keys[0], "dataset": keys[1]}
    ends = {"value": mean, "low": low, "high": high, "n": len(numbers)}
    return labels | ends | {"interval": OVER_TRAININGS if low == low else ""}
