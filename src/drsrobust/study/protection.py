"""What mitigations recover, up to which rate they keep the AUC, and at what cost: claims C4 and C5 (notebooks 05, 06, 08)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.statistics.columns import ENDS, NONE, identifying
from drsrobust.statistics.summary import DROP
from drsrobust.study.findings import verdicts

if TYPE_CHECKING:
    import pandas as pd

_CURVE = ["model", "dataset", "protocol", "target"]


def best_recovery_claim(found: "pd.DataFrame", claimed: float, value: str = "recovery") -> "pd.DataFrame":
    """Findings and verdicts on claim C4, "up to so much": of each model, data set and protocol the condition whose interval
    has the highest lower end.

    Args:
        found: as `recovery` returns it, with intervals that hold for the best of its rows (`confidence`).
        claimed: 0.30 is 30 % of the lost AUC, or 0.30 AUC.
        value: `recovery` or `gained`.

    Returns:
        one row each: `mitigation` and `ber` of the best, `value`, `low` and `high`, `conditions` that it was chosen from,
        `verdict`, `detail` in words, and `reason` where nothing can be tested: no condition has a value or an interval, or
        errors cost less than the claimed gain in all conditions (by the interval's high end where some trials raised).
    """
    import pandas as pd

    rows = []
    for where, here in found.groupby(_CURVE[:3], sort=False):
        here = here.dropna(subset=[value])
        row = dict(zip(_CURVE[:3], where, strict=True)) | {"conditions": len(here)}
        row |= {"mitigation": None, "ber": np.nan, "value": np.nan, "low": np.nan, "high": np.nan}
        reason = detail = "nothing lost"
        if len(here):
            low = here[f"{value}_low"]
            best = here.loc[(low if low.notna().any() else here[value]).idxmax()]
            row |= {name: best[name] for name in ("mitigation", "ber")}
            row |= {name: best[f"{value}{end}"] for name, end in zip(("value", "low", "high"), ENDS, strict=True)}
            reason = "no interval" if np.isnan(row["low"]) else ""
            more, less = row["low"] > claimed, row["high"] < claimed
            detail = f"{row['mitigation']} at {row['ber']:g}, best of {len(here)}"
            detail += ": more than claimed" if more else ": less than claimed" if less else ""
            if value == "gained":
                cost = here["lost"].where(here["raised"] == 0, here["lost_high"]).max()
                if cost < claimed:
                    reason = f"not testable here: errors cost at most {cost:.3g} AUC, the claim is {claimed:g}"
            detail += f"; {reason}" if reason else ""
        rows.append(row | {"reason": reason, "detail": detail})
    table = pd.DataFrame(rows)
    return table.assign(verdict=verdicts(table, "recovers", bound=claimed))


def max_safe_rate(summary: "pd.DataFrame", loss: float = DROP) -> "pd.DataFrame":
    """Up to which rate the mean AUC stays within `loss` of the golden one.

    Lower rates need no interval of their own: fewer errors lose less on average. The upper end counts a trial whose model
    raised as an AUC of 0 (see `summarise`).

    Args:
        summary: as `summarise` returns it, over several rates.
        loss: in AUC.

    Returns:
        one row per model, data set, protocol, target and mitigation (with `mitigation_id`): `kept_to`, the highest rate at
        which the upper end of the mean loss's interval is at most `loss`, if at all lower rates of the table the mean itself is
        and no trial raised (NaN: at none); `lost_from`, the lowest rate at which the lower end is over `loss`, or the model
        raised in every trial (NaN: at none). At other rates the trials show neither.
    """
    import pandas as pd

    rows = []
    columns = identifying(summary, [*_CURVE, "mitigation"])
    for where, curve in summary.groupby(columns, sort=False, dropna=False):
        curve = curve.sort_values("ber")
        within = ((curve["auc_drop"] <= loss) & (curve["share_raised"] == 0)).cummin()
        kept = within & (curve["auc_drop_high"] <= loss)
        over = (curve["auc_drop_low"] > loss) | (curve["share_raised"] == 1)
        limits = {"kept_to": curve["ber"][kept].max(), "lost_from": curve["ber"][over].min()}
        rows.append(dict(zip(columns, where, strict=True)) | limits)
    return pd.DataFrame(rows)


def cheapest(kept: "pd.DataFrame", storage: "pd.DataFrame", bers: Sequence[float]) -> "pd.DataFrame":
    """At each rate, the mitigation that keeps the AUC with least storage.

    Args:
        kept: as `max_safe_rate` returns it, of one model, data set, protocol and target, with the model without mitigation.
        storage: as `storage_overhead` returns it, of the mitigations to choose from; the first of equal ones is taken.
        bers: the rates.

    Returns:
        one row per rate: `ber`; `lost`, whether the model without mitigation clearly loses more; `mitigation` and
        `stored_percent` (missing where none keeps the AUC).

    Raises:
        ValueError: a mitigation's label that is in several rows of `kept`.
    """
    import pandas as pd

    _one_row_each(kept)
    limits, rows = kept.set_index("mitigation"), []
    for ber in bers:
        keeps = storage[storage["mitigation"].map(limits["kept_to"]) >= ber]
        keeps = keeps.sort_values("stored_percent", kind="stable")[["mitigation", "stored_percent"]]
        row = {"ber": ber, "lost": bool(limits["lost_from"][NONE] <= ber), "mitigation": None, "stored_percent": np.nan}
        rows.append(row | (keeps.iloc[0].to_dict() if len(keeps) else {}))
    return pd.DataFrame(rows)


def _one_row_each(table: "pd.DataFrame") -> None:
    if len(duplicates := table["mitigation"][table["mitigation"].duplicated()]):
        raise ValueError(
            f"{duplicates.iloc[0]} is in several rows; give the rows of one model, data set, protocol, target and rate, and "
            "give mitigations of one label names of their own (`.name`)"
        )


def protection_verdicts(
    kept: "pd.DataFrame", storage: "pd.DataFrame", families: Mapping[str, Sequence[str]], bers: Sequence[float]
) -> "pd.DataFrame":
    """Findings and verdicts on claim C5: families of mitigations keep the AUC wherever it is lost without them.

    Args:
        kept, storage, bers: as in `cheapest`.
        families: name -> names of its mitigations, as the codes of bit protection.

    Returns:
        one row per family: `model`, `dataset`, `code` (its name), `value`, the highest rate at which one of its mitigations
        keeps the AUC (NaN: at none; `low` and `high` are NaN), `rates_lost` (rates at which the model without mitigation
        clearly loses more), at `kept` of which one keeps it, `verdict`, `reason`, and `detail`: the cheapest at each rate.
    """
    import pandas as pd

    rows = []
    for name, members in families.items():
        choice = cheapest(kept, storage[storage["mitigation"].isin(members)], bers)
        lost, keeps = choice[choice["lost"]], choice["mitigation"].notna()
        row = {"model": kept["model"].iloc[0], "dataset": kept["dataset"].iloc[0], "code": name}
        row |= {"value": choice["ber"][keeps].max(), "low": np.nan, "high": np.nan}
        row |= {"rates_lost": len(lost), "kept": int(lost["mitigation"].notna().sum()), "reason": ""}
        best = [
            f"{rate.ber:g} {rate.mitigation}, +{rate.stored_percent:.2g} % storage"
            if rate.stored_percent >= 0
            else f"{rate.ber:g} none"
            for rate in lost.itertuples()
        ]
        row["detail"] = f"kept at {row['kept']} of {len(lost)} rates: {'; '.join(best)}"
        rows.append(row if len(lost) else row | {"reason": "nothing lost", "detail": "nothing lost"})
    table = pd.DataFrame(rows)
    return table.assign(verdict=verdicts(table, "keeps"))


def cost_benefit(found: "pd.DataFrame", storage: "pd.DataFrame", times: "pd.DataFrame") -> "pd.DataFrame":
    """Recovery of each mitigation with its cost, and those that no other one beats (nor doing nothing).

    Args:
        found: as `recovery` returns it, at one rate: a row per mitigation.
        storage: as `storage_overhead` returns it.
        times: of mitigations that run with the model, a row per timing: `mitigation` and `overhead_percent`.

    Returns:
        the rows of `found` with `stored_bits`, `stored_percent`, `overhead_percent` (median; 0 for mitigations that were not
        timed, which run no code with the model), `overhead_percent_low` and `overhead_percent_high` (range of the timings),
        `timed` and `front` (see there).

    Raises:
        ValueError: a mitigation that is in several rows, or has no row in `storage`.
    """
    for table in (found, storage):
        _one_row_each(table)
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
    """Points that no other one beats: none has at least the value at no more of any cost, and is better in one of these.

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
    beaten = [((numbers <= row).all(axis=1) & (numbers < row).any(axis=1)).any() for row in numbers]
    return pd.Series(np.isfinite(numbers).all(axis=1) & ~np.array(beaten, bool), points.index, bool, name="front")
