"""Claims of the form "this part of a model is the most vulnerable, that one the least", judged part by part."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from drsrobust.campaign.post_stratified import described, extremes, verdicts

if TYPE_CHECKING:
    import pandas as pd


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
