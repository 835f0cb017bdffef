"""Which protection is worth its price: claims of the form "up to so much", rates up to which it holds, storage, and what no
other one beats."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.statistics.columns import ENDS, NONE, identifying
from drsrobust.statistics.summary import DROP

if TYPE_CHECKING:
    import pandas as pd

_WHERE = ["model", "dataset", "protocol", "target"]


def best_recovery_claim(found: "pd.DataFrame", claimed: float, value: str = "recovery") -> "pd.DataFrame":
    """Whether a claim "up to so much" holds: for each model, data set and protocol the condition in which it is surely most,
    that is, whose interval has the highest lower end.

    Args:
        found: as `recovery` returns it, with intervals that hold for the best of its rows (`confidence`).
        claimed: how much: 0.30 is 30 % of the lost AUC, or 0.30 AUC.
        value: `recovery` or `gained`.

    Returns:
        `mitigation` and `ber` of the best, its `value`, `low` and `high`, `conditions` that it was chosen from, `verdict`:
        `reproduced` (the interval lies at the claimed value or above), `partly` (it lies above 0), `not`; and `detail`, in
        words. Three verdicts say why there is no test: `nothing lost`, where no condition has a value; `no interval`, where
        none has an interval; and, of `gained`, that errors cost less than the claimed value on average in all conditions (the
        high end of the cost where some trials raised), so that nothing could give back as much.
    """
    import pandas as pd

    rows = []
    for where, here in found.groupby(_WHERE[:3], sort=False):
        here = here.dropna(subset=[value])
        row = dict(zip(_WHERE[:3], where, strict=True)) | {"conditions": len(here), "verdict": "nothing lost"}
        if len(here):
            surest = here[f"{value}_low"]
            best = here.loc[(surest if surest.notna().any() else here[value]).idxmax()]
            row |= {name: best[name] for name in ("mitigation", "ber")}
            row |= {name: best[f"{value}{end}"] for name, end in zip(("value", "low", "high"), ENDS, strict=True)}
            row["verdict"] = "reproduced" if row["low"] >= claimed else "partly" if row["low"] > 0 else "not"
            if row["low"] != row["low"]:
                row["verdict"] = "no interval"
            beside = (
                "more than claimed" if row["low"] > claimed else "less than claimed" if row["high"] < claimed else ""
            )
            row["detail"] = f"{row['mitigation']} at {row['ber']:g}, best of {len(here)}{beside and f': {beside}'}"
            if value == "gained":
                most = here["lost"].where(here["raised"] == 0, here["lost_high"]).max()
                if most < claimed:
                    row["verdict"] = f"errors cost {most:.3g} AUC at most: none could give back {claimed:g}"
        rows.append(row)
    return pd.DataFrame(rows)


def max_safe_rate(summary: "pd.DataFrame", loss: float = DROP) -> "pd.DataFrame":
    """Up to which rate the mean AUC stays within `loss` of the golden one.

    Args:
        summary: as `summarise` returns it, over several rates.
        loss: in AUC.

    Returns:
        one row per model, data set, protocol, target and mitigation (with `mitigation_id`): `kept_to`, the highest rate at
        which the upper end of the mean loss's interval is at most `loss`, if at all lower rates of the table the mean itself is
        and no trial raised (NaN: at none); `lost_from`, the lowest rate at which the lower end is over `loss`, or the model
        raised in every trial (NaN: at none). At other rates the trials do not show either. Lower rates need no interval of
        their own: fewer errors lose less on average, and where all trials agree the interval holds what n trials may miss,
        which is more than `loss`. The upper end counts a trial whose model raised as an AUC of 0 (see `summarise`).
    """
    import pandas as pd

    rows = []
    columns = identifying(summary, [*_WHERE, "mitigation"])
    for where, curve in summary.groupby(columns, sort=False, dropna=False):
        curve = curve.sort_values("ber")
        within = ((curve["auc_drop"] <= loss) & (curve["share_raised"] == 0)).cummin()
        kept = within & (curve["auc_drop_high"] <= loss)
        over = (curve["auc_drop_low"] > loss) | (curve["share_raised"] == 1)
        row = dict(zip(columns, where, strict=True))
        row |= {"kept_to": curve["ber"][kept].max(), "lost_from": curve["ber"][over].min()}
        rows.append(row)
    return pd.DataFrame(rows)


def cheapest(kept: "pd.DataFrame", storage: "pd.DataFrame", bers: Sequence[float]) -> "pd.DataFrame":
    """By rate, what stores least of that which keeps the AUC.

    Args:
        kept: as `max_safe_rate` returns it, of one model, data set, protocol and target, with the model without mitigation.
        storage: as `stored` returns it, of the mitigations to choose from; of those that store equally much the first is taken.
        bers: the rates.

    Returns:
        one row per rate: `ber`; `lost`, whether the model without mitigation surely loses more there (False: it does not, or
        the trials do not tell); `mitigation` and `stored_percent` (missing where none of them keeps it).

    Raises:
        ValueError: a mitigation's label that is in several rows of `kept`.
    """
    import pandas as pd

    limits = kept.set_index("mitigation")
    if len(doubles := limits.index[limits.index.duplicated()]):
        raise ValueError(
            f"{doubles[0]} is in several rows; give the rows of one model, data set, protocol and target, and give "
            "mitigations of one label names of their own (`.name`)"
        )
    rows = []
    for ber in bers:
        keeps = storage[storage["mitigation"].map(limits["kept_to"]) >= ber].sort_values(
            "stored_percent", kind="stable"
        )
        row = {"ber": ber, "lost": bool(limits["lost_from"][NONE] <= ber), "mitigation": None, "stored_percent": np.nan}
        rows.append(row | (keeps[["mitigation", "stored_percent"]].iloc[0].to_dict() if len(keeps) else {}))
    return pd.DataFrame(rows)


def protection_verdicts(
    kept: "pd.DataFrame", storage: "pd.DataFrame", families: Mapping[str, Sequence[str]], bers: Sequence[float]
) -> "pd.DataFrame":
    """Whether families of mitigations, as the codes of bit protection, keep the AUC wherever it is lost without them.

    Args:
        kept, storage, bers: as in `cheapest`.
        families: name -> names of its mitigations.

    Returns:
        one row per family: `model`, `dataset`, `code` (its name), `value`, the highest rate at which one of its mitigations
        keeps the AUC (NaN: at none; `low` and `high` are NaN), `verdict`: `reproduced` (kept at all rates at which the
        model without mitigation surely loses more), `partly` (at some), `not`, or `nothing lost`; and `detail`: by rate,
        the one that stores least.
    """
    import pandas as pd

    rows = []
    for name, members in families.items():
        choice = cheapest(kept, storage[storage["mitigation"].isin(members)], bers)
        lost, some = choice[choice["lost"]], choice[choice["mitigation"].notna()]
        held = int(lost["mitigation"].notna().sum())
        row = {"model": kept["model"].iloc[0], "dataset": kept["dataset"].iloc[0], "code": name}
        row |= {"value": some["ber"].max(), "low": np.nan, "high": np.nan}
        row["verdict"] = "reproduced" if held == len(lost) else "partly" if held else "not"
        row["verdict"] = row["verdict"] if len(lost) else "nothing lost"
        least = []
        for one in lost.itertuples():
            what = f"{one.mitigation}, +{one.stored_percent:.2g} % storage" if one.stored_percent >= 0 else "none"
            least.append(f"{one.ber:g} {what}")
        rows.append(row | {"detail": f"kept at {held} of {len(lost)} rates: {'; '.join(least)}" if least else ""})
    return pd.DataFrame(rows)


def cost_benefit(found: "pd.DataFrame", storage: "pd.DataFrame", times: "pd.DataFrame") -> "pd.DataFrame":
    """What mitigations recover beside what they cost, and which of them no other one beats: none has at least the recovery at
    no more time and storage, and is better in one of these; nor does doing nothing, which recovers nothing.

    Args:
        found: as `recovery` returns it, at one rate: a row per mitigation.
        storage: as `stored` returns it.
        times: of those that run with the model, a row per timing: `mitigation` and `overhead_percent`.

    Returns:
        the rows of `found` with `stored_bits`, `stored_percent`, `overhead_percent` (median; 0 for what was not timed, since
        nothing of it runs with the model), `overhead_percent_low` and `overhead_percent_high` (range of the timings), `timed`
        and `front`.

    Raises:
        ValueError: a mitigation that stands twice, or has no row in `storage`.
    """
    for rows in (found, storage):
        if (doubles := rows["mitigation"][rows["mitigation"].duplicated()]).size:
            raise ValueError(
                f"{doubles.iloc[0]} stands in {1 + doubles.size} rows; give the rows of one rate, target and model, and give "
                "mitigations of one label names of their own (`.name`)"
            )
    if missing := sorted({*found["mitigation"]} - {*storage["mitigation"]}):
        raise ValueError(f"storage has no row for {', '.join(missing)}")
    spread = times.groupby("mitigation")["overhead_percent"].agg(["median", "min", "max"])
    ends = [f"overhead_percent{end}" for end in ENDS]
    points = found.merge(storage, on="mitigation").join(spread.set_axis(ends, axis=1), on="mitigation")
    points["timed"] = points["overhead_percent"].notna()
    points[ends] = points[ends].fillna(0.0)
    points.attrs = dict(found.attrs)
    points["front"] = front(points, "recovery", ["overhead_percent", "stored_percent"]) & (points["recovery"] > 0)
    return points


def front(points: "pd.DataFrame", value: str, costs: Iterable[str]) -> "pd.Series":
    """Which points no other one beats: none has at least the value at no more of any cost, and is better in one of these.

    Args:
        points: one row each.
        value: the column that should be high.
        costs: columns that should be low.

    Returns:
        bool [points]; a point without a value or a cost is not on the front.

    Example:
        >>> import pandas as pd
        >>> points = pd.DataFrame({"gain": [0.2, 0.9, 0.8], "time": [0.0, 5.0, 6.0]})
        >>> front(points, "gain", ["time"]).tolist()
        [True, True, False]
    """
    import pandas as pd

    numbers = np.column_stack([-points[value].to_numpy(float), *(points[cost].to_numpy(float) for cost in costs)])
    on = []
    for one in numbers:
        beaten = (numbers <= one).all(axis=1) & (numbers < one).any(axis=1)
        on.append(bool(np.isfinite(one).all() and not beaten.any()))
    return pd.Series(on, points.index, bool, name="front")
