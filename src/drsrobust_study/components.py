"""Vulnerability of layers, tables, components and classes of bits to single errors: claims C2 and C9 (notebook 04).

Each layer and table times each class of bits is a part with trials of its own (`layer_partition`). One random error in a
component, in a class of bits or anywhere is a mean over parts, weighted by their numbers of bits. A campaign with errors over
more than one part is split by where they fell (`placed`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from drsrobust.campaign import bit_partition
from drsrobust.data import Split
from drsrobust.injection import AddressSpace, FixedCount, Target, as_target, resolve
from drsrobust.injection.number_formats import bit_classes
from drsrobust.introspection.tensors import component_of, listed, named_modules
from drsrobust.statistics.columns import ENDS, MITIGATION
from drsrobust.statistics.intervals import CONFIDENCE
from drsrobust.statistics.pvf import DEFINITIONS
from drsrobust.statistics.random_effects import across_models
from drsrobust.statistics.strata import LOSS_IS_BOUNDED, STRATUM, WEIGHT, Strata
from drsrobust_study.findings import EXTREMES, interval, number, ratio
from drsrobust_study.thirds import by_thirds

if TYPE_CHECKING:
    import pandas as pd

    from drsrobust.campaign.campaign import Campaign


# Classes of bits whose flips are taken to lose no more than those that were drawn: all but the highest exponent bit, as in
# stratified campaigns of `BitFlip`, and the codes of quantized rows, but not their scales and biases.
BOUNDED = ("sign", "exponent_high", "exponent_low", "mantissa", "value")


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


def mlp_parts(partition: "pd.DataFrame") -> "pd.DataFrame":
    """Strata with a column `part`: their component, with all `*_mlp` as one.

    Example:
        >>> import pandas as pd
        >>> mlp_parts(pd.DataFrame({"component": ["over_mlp", "dense_mlp", "cross"]}))["part"].tolist()
        ['mlp', 'mlp', 'cross']
    """
    return partition.assign(part=partition["component"].str.replace(r".+_mlp$", "mlp", regex=True))


def single_errors(partition: "pd.DataFrame") -> list[tuple[FixedCount, str | Target]]:
    """The conditions of a campaign with one error per trial in each part of `bit_partition` or `layer_partition`."""
    return [(FixedCount(1, bits=row.bits), row.target) for row in partition.itertuples()]


def stratified_pvf(
    table: "pd.DataFrame",
    partition: "pd.DataFrame",
    split: Split,
    by: Sequence[str] = ("component",),
    confidence: float = CONFIDENCE,
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
        confidence: of the intervals.

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
                frame = Strata.of(joined.assign(auc_drop=values))  # trials with incorrect outputs are the harmed ones
                estimates = frame.share(values > 0, confidence)
                estimates += frame.mean_interval(_within(frame, values, 0.0, most), (0.0, most), confidence)
            rows.append(
                row | dict(zip([f"{c}{end}" for c in ("pvf", "incorrect") for end in ENDS], estimates, strict=True))
            )
    frame = pd.DataFrame(rows)
    frame.attrs = {
        "pvf": f"share of errors with an incorrect output; {confidence:.0%} interval recovered from strata's Wilson intervals",
        "incorrect": f"mean share of incorrect outputs per error; {confidence:.0%} interval recovered from strata's intervals",
        **DEFINITIONS,
    }
    return frame


def stratified_loss(
    table: "pd.DataFrame",
    partition: "pd.DataFrame",
    split: Split,
    by: Sequence[str] = ("component",),
    confidence: float = CONFIDENCE,
) -> "pd.DataFrame":
    """Mean AUC loss of one random error in each part of a model. Arguments as in `stratified_pvf`.

    Trials whose model raised are in no mean; the high end counts them as an AUC of 0. An error that was not seen may change AUC
    as much as r changed rows can: r over the rows of the rarer class, where r is as many as any trial of its target reached
    (all rows if none reached any).

    Returns:
        one row per part: `model`, `dataset`, the columns of `by`, `share` (of all bits), `bits`, `n`, `auc_drop` with `_low`
        and `_high`.
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
        mean, low, high = frame.mean_interval(_within(frame, values, least, greatest), (least, greatest), confidence)
        if (raised := np.isnan(values)).any():
            greatest = np.where((frame.members & raised).any(axis=1), golden, greatest)
            worst = _within(frame, np.where(raised, golden, values), least, greatest)
            high = float(np.fmax(high, frame.mean_interval(worst, (least, greatest), confidence)[2]))
        row = part | {"bits": int(partition["eligible"].to_numpy()[numbers].sum()), "n": int((~raised).sum())}
        rows.append(row | {"auc_drop": mean, "auc_drop_low": low, "auc_drop_high": high})
    frame = pd.DataFrame(rows)
    frame.attrs = {"auc_drop": f"mean over errors; {confidence:.0%} interval recovered from strata's intervals"}
    return frame


def over_train_seeds(
    estimate: Callable[..., "pd.DataFrame"],
    table: "pd.DataFrame",
    partition: "pd.DataFrame",
    split: Split,
    by: Sequence[str] = ("component",),
) -> "pd.DataFrame":
    """`stratified_pvf` or `stratified_loss` (`estimate`) of trained models that differ in their seed, with intervals that hold
    for another seed (`across_models`); of one model as it is.

    Args:
        table: trials of all models, which differ in `checkpoint`.
        partition, split, by: as of `stratified_pvf`.
    """
    frames = [estimate(trials, partition, split, by=by) for _, trials in table.groupby("checkpoint", sort=False)]
    values = [name for name in ("pvf", "incorrect", "auc_drop") if name in frames[0]]
    return across_models(frames, values, by=["model", "dataset", *by, "definition"])


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
    merged = table.merge(errors.drop(columns=["rate", "count"]), on=keys, how="left", validate="one_to_one")
    classes, names = {}, layer_names(campaign.evaluator.model)
    spaces = [condition.space for condition in campaign.conditions if isinstance(condition.space, AddressSpace)]
    for tensor in (tensor for space in spaces for tensor in space.tensors):
        for name, bits in bit_classes(tensor.format).items():
            classes |= {(tensor.name, bit): name for bit in bits if isinstance(bit, int)}
    merged["layer"] = [names.get(tensor) for tensor in merged["tensor"]]
    merged["bit_class"] = [classes.get(place) for place in zip(merged["tensor"], merged["bit"], strict=True)]
    return merged


def part_ratio(
    parts: "pd.DataFrame",
    value: str,
    *,
    top: str | None = None,
    bottom: str | None = None,
    by: str = "component",
) -> "pd.DataFrame":
    """Findings on claims C2, C9 and C10: how many times as vulnerable one part of a model is as another.

    Args:
        parts: as `stratified_pvf` or `stratified_loss` returns it, of one or more models.
        value: the column to compare, with `_low` and `_high`.
        top, bottom: names of parts; None: of the other parts the least vulnerable one, or the most vulnerable one.
        by: the column that names parts.

    Returns:
        one row per model, data set (and definition): these, `value`, `low` and `high` of the ratio (`findings.ratio`), `n`
        trials of all parts, `interval`, `detail` (the most and the least vulnerable part in words), and `reason` where a part
        is missing.

    Example:
        >>> import pandas as pd
        >>> parts = pd.DataFrame({"model": "m", "dataset": "d", "component": ["table", "over"], "n": 9, "loss": [0.1, 0.3]})
        >>> parts = parts.assign(loss_low=parts["loss"] - 0.05, loss_high=parts["loss"] + 0.05)
        >>> part_ratio(parts, "loss", top="over", bottom="table")[["value", "low", "n"]].round(2).values.tolist()
        [[3.0, 1.67, 18.0]]
    """
    import pandas as pd

    keys, ends, rows = _names(parts), [f"{value}{end}" for end in ENDS], []
    for names, group in parts.dropna(subset=[value]).groupby(keys, sort=False):
        named = group.set_index(by)[ends]
        others = named.drop(index=[name for name in (top, bottom) if name in named.index])
        row = dict(zip(keys, names, strict=True)) | {"value": np.nan, "low": np.nan, "high": np.nan}
        row |= {"n": int(group["n"].sum()), "interval": EXTREMES, "detail": _described(group, value, by), "reason": ""}
        missing = [name for name in (top, bottom) if name is not None and name not in named.index]
        if missing or (None in (top, bottom) and others.empty):
            rows.append(row | {"reason": f"no {missing[0] if missing else 'other part'} in this model"})
            continue
        # The ends of the least (or greatest) of several numbers are the least (or greatest) of their ends.
        above = named.loc[top] if top else others.min()
        below = named.loc[bottom] if bottom else others.max()
        rows.append(row | ratio(above, below))
    return pd.DataFrame(rows)


_POWERS = np.linspace(-3, 3, 6001)


def size_power(layers: "pd.DataFrame") -> "pd.DataFrame":
    """The finding on claim C2: the power of a table's bits with which the AUC lost to errors in it grows, for one error
    anywhere in the model. A fit of a power law by least squares, in which each table counts by the width of its interval; the
    interval holds the powers that fit as well by Student's t, and is wider where tables scatter more than their intervals say.

    Args:
        layers: of one model, with `component`, `bits`, and `total` (with `_low` and `_high`), the AUC loss of one error
            anywhere that falls there.

    Returns:
        one row: `value`, `low`, `high` (infinite beyond 3), `n` tables, `interval`, `detail` and `reason` (fewer than 3 sizes).
    """
    import pandas as pd
    from scipy.special import ndtri
    from scipy.stats import t

    tables = layers[(layers["component"] == "embedding") & (layers["total_high"] > layers["total_low"])]
    row = {"value": np.nan, "low": np.nan, "high": np.nan, "n": len(tables), "interval": ""}
    row |= {"detail": "", "reason": ""}
    if tables["bits"].nunique() < 3:
        row["reason"] = "fewer than 3 sizes of tables"
    else:
        bits, total = tables["bits"].to_numpy(float), tables["total"].to_numpy(float)
        error = (tables["total_high"] - tables["total_low"]).to_numpy(float) / (2 * ndtri((1 + CONFIDENCE) / 2))
        laws = (bits / bits.min()) ** _POWERS[:, None] / error  # [powers, tables], in units of each table's error
        factors = np.maximum(laws @ (total / error) / (laws**2).sum(axis=1), 0)
        misfit = ((total / error - factors[:, None] * laws) ** 2).sum(axis=1)
        least, free = misfit.min(), len(tables) - 2
        worse = t.ppf((1 + CONFIDENCE) / 2, free) ** 2 * max(1.0, least / free)
        fitting = np.flatnonzero(misfit <= least + worse)
        low, high = (_POWERS[end] if 0 < end < len(_POWERS) - 1 else _POWERS[end] * np.inf for end in fitting[[0, -1]])
        row |= {"value": float(_POWERS[misfit.argmin()]), "low": float(low), "high": float(high)}
        ends = [number(end) for end in (bits.min(), bits.max(), total.min(), total.max())]
        row["detail"] = f"{len(tables)} tables of {ends[0]} to {ends[1]} bits lose {ends[2]} to {ends[3]} AUC"
    labels = {name: layers[name].iloc[0] for name in ("model", "dataset") if name in layers}
    return pd.DataFrame([labels | row])


def _described(group: "pd.DataFrame", value: str, by: str) -> str:
    """The extremes of a group: `over 0.3 [0.25, 0.35], then dense 0.2 [0.15, 0.25], least table 0.1 [0.05, 0.15]`."""
    ordered = group.sort_values(value, ascending=False, kind="stable")
    columns = [by, *(f"{value}{end}" for end in ENDS)]
    texts = [f"{name} {interval(*numbers)}" for name, *numbers in ordered[columns].itertuples(index=False)]
    return ", ".join([texts[0], *(f"then {text}" for text in texts[1:2] if len(texts) > 2), f"least {texts[-1]}"])


def _names(parts: "pd.DataFrame") -> list[str]:
    return [key for key in ("model", "dataset", "definition") if key in parts]


def claims(tables: "Sequence[pd.DataFrame]", partitions: "Sequence[pd.DataFrame]", split: Split) -> "pd.DataFrame":
    """All findings on claims C2, C9, C10 and C11, on all trials and on thirds of them.

    Args:
        tables: trials of campaigns over `single_errors(partition)`, one table per model; C9 to C11 are about the first.
        partitions: of each model, as `layer_partition` returns it.
        split: the rows that were scored.

    Returns:
        rows with `claim`, `reading`, `model`, `dataset`, `definition`, `value`, `low`, `high`, `n`, `interval`, `detail`,
        `reason` and `third`.
    """
    import pandas as pd

    columns = ["claim", "reading", "model", "dataset", "definition", "value", "low", "high", "n", "interval", "detail"]
    columns += ["reason"]

    def find(*trials: "pd.DataFrame") -> "pd.DataFrame":
        findings = [*_first_model_findings(trials[0], partitions[0], split)]
        for trials_of_model, parts in zip(trials, partitions, strict=True):
            loss = over_train_seeds(stratified_loss, trials_of_model, mlp_parts(parts), split, by=["part"])
            ratio = part_ratio(loss, "auc_drop", top="mlp", bottom="embedding", by="part")
            findings.append(ratio.assign(claim="C2", reading="mlp over embedding"))
        return pd.concat(findings).reindex(columns=columns)

    return by_thirds(find, *tables)


def _first_model_findings(table: "pd.DataFrame", partition: "pd.DataFrame", split: Split) -> "Iterator[pd.DataFrame]":
    shares = over_train_seeds(stratified_pvf, table, partition, split)
    losses = over_train_seeds(stratified_loss, table, partition, split)
    yield part_ratio(shares, "incorrect", top="over_mlp").assign(claim="C9", reading="over_mlp over others")
    yield part_ratio(shares, "incorrect", bottom="embedding").assign(claim="C9", reading="others over embedding")
    yield part_ratio(losses, "auc_drop", bottom="embedding").assign(claim="C10", reading="others over embedding")
    top = shares[(shares["component"] == "over_mlp") & (shares["definition"] == "decision_changed")]
    top = top.rename(columns={"incorrect": "value", "incorrect_low": "low", "incorrect_high": "high"})
    yield top.assign(claim="C11", reading="over_mlp", interval="", detail="", reason="")
    layers = over_train_seeds(stratified_loss, table, partition, split, by=["component", "layer"])
    totals = {f"total{end}": layers["share"] * layers[f"auc_drop{end}"] for end in ENDS}
    yield size_power(layers.assign(**totals)).assign(claim="C2", reading="size")
