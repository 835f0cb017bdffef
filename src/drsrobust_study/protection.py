"""What mitigations recover, up to which rate they keep the AUC, and at what cost: claims C4 and C5 (notebooks 05, 06, 08)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.statistics.columns import ENDS, NONE, identifying
from drsrobust.statistics.random_effects import across_models
from drsrobust.statistics.recovery import recovery
from drsrobust.statistics.summary import DROP, summarise
from drsrobust_study.findings import COUNTS, EXACT, exact_share, number
from drsrobust_study.thirds import by_thirds

if TYPE_CHECKING:
    import pandas as pd

WIDEST, LEAST_LOSS = 0.4, 0.01  # of an interval, and of the mean loss, that test a recovery
_CURVE = ["model", "dataset", "protocol", "target"]


def best_recovery(
    recoveries: "pd.DataFrame",
    claimed: float,
    value: str = "recovery",
    by: Sequence[str] = ("model", "dataset", "protocol"),
) -> "pd.DataFrame":
    """Findings on claim C4, "up to so much": the condition whose interval has the highest lower end.

    Args:
        recoveries: as `recovery` returns it, with intervals that hold for the best of its rows (`confidence`).
        claimed: 0.30 is 30 % of the lost AUC, or 0.30 AUC.
        value: `recovery` or `gained`.
        by: one best condition for each combination of these columns.

    Returns:
        one row each: the columns of `by`, `mitigation`, `ber` and `dataset` of the best, `value`, `low` and `high`,
        `n` trials, `conditions` that it was chosen from, `detail` in words, and `reason` where nothing can be tested (no
        condition has a value or an interval, the interval is wider than 0.4, errors cost under 0.01 AUC, or less than the
        claimed gain in all conditions, by the interval's high end where some trials raised).
    """
    import pandas as pd

    rows, by = [], list(by)
    for where, group in recoveries.reset_index(drop=True).groupby(by, sort=False):
        row = dict(zip(by, where, strict=True))
        row = {"dataset": ", ".join(dict.fromkeys(group["dataset"]))} | row
        group = group.dropna(subset=[value])
        row |= {
            "conditions": len(group),
            "mitigation": None,
            "ber": np.nan,
            "value": np.nan,
            "low": np.nan,
            "high": np.nan,
            "n": 0,
        }
        reason = detail = "nothing lost"
        if len(group):
            low = group[f"{value}_low"]
            best = group.loc[(low if low.notna().any() else group[value]).idxmax()]
            row |= {name: best[name] for name in ("mitigation", "ber", "dataset", "n")}
            row |= {name: best[f"{value}{end}"] for name, end in zip(("value", "low", "high"), ENDS, strict=True)}
            detail = f"{row['mitigation']} at {number(row['ber'])}, best of {len(group)}"
            reason = _untestable(best, group, value, claimed)
        rows.append(row | {"reason": reason, "detail": detail})
    return pd.DataFrame(rows)


def _untestable(best: "pd.Series", group: "pd.DataFrame", value: str, claimed: float) -> str:
    """Why the best of some conditions does not test a recovery; empty if it does."""
    width = best[f"{value}_high"] - best[f"{value}_low"]
    if value == "recovery" and best["lost"] < LEAST_LOSS:
        return f"errors cost {best['lost']:.2g} AUC, under {LEAST_LOSS:g}"
    if value == "gained":
        cost = group["lost"].where(group["raised"] == 0, group["lost_high"]).max()
        if cost < claimed:
            return f"errors cost at most {cost:.3g} AUC, the claim is {claimed:g}"
    if np.isnan(width):
        return "no interval"
    return f"the interval is wider than {WIDEST:g}" if width > WIDEST else ""


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
        and no trial raised (NaN: at none); `held_to`, the same of the mean itself; `lost_from`, the lowest rate at which the
        lower end is over `loss`, or the model raised in every trial (NaN: at none). At other rates the trials show neither.
    """
    import pandas as pd

    rows = []
    columns = identifying(summary, [*_CURVE, "mitigation"])
    for where, curve in summary.groupby(columns, sort=False, dropna=False):
        curve = curve.sort_values("ber")
        within = ((curve["auc_drop"] <= loss) & (curve["share_raised"] == 0)).cummin()
        is_safe = within & (curve["auc_drop_high"] <= loss)
        over = (curve["auc_drop_low"] > loss) | (curve["share_raised"] == 1)
        limits = {"kept_to": curve["ber"][is_safe].max(), "held_to": curve["ber"][within].max()}
        limits["lost_from"] = curve["ber"][over].min()
        rows.append(dict(zip(columns, where, strict=True)) | limits)
    return pd.DataFrame(rows)


def cheapest(
    safe_rates: "pd.DataFrame", storage: "pd.DataFrame", bers: Sequence[float], limit: str = "kept_to"
) -> "pd.DataFrame":
    """At each rate, the mitigation that keeps the AUC with least storage.

    Args:
        safe_rates: as `max_safe_rate` returns it, of one model, data set, protocol and target, and without
            mitigation.
        storage: as `storage_overhead` returns it, of the mitigations to choose from; the first of equal ones is taken.
        bers: the rates.
        limit: column of `safe_rates`: up to which rate a mitigation keeps the AUC.

    Returns:
        one row per rate: `ber`; `lost`, whether the model without mitigation clearly loses more; `mitigation` and
        `stored_percent` (missing where none keeps the AUC).

    Raises:
        ValueError: a mitigation's label that is in several rows of `safe_rates`.
    """
    import pandas as pd

    _one_row_each(safe_rates)
    limits, rows = safe_rates.set_index("mitigation"), []
    for ber in bers:
        keeps = storage[storage["mitigation"].map(limits[limit]) >= ber]
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


def kept_rates(
    safe_rates: "pd.DataFrame", storage: "pd.DataFrame", families: Mapping[str, Sequence[str]], bers: Sequence[float]
) -> "pd.DataFrame":
    """Findings on claim C5: at how many rates at which AUC is lost without protection a family of mitigations keeps it.

    Args:
        safe_rates, storage, bers: as in `cheapest`.
        families: name -> names of its mitigations, as the codes of bit protection.

    Returns:
        one row per family: `reading` (`rates`), `model`, `dataset`, `code` (its name); `value`, the share of the rates that
        clearly need protection at which the mean loss with one of the family is within the limit (`low`: clearly, `high`: not
        clearly over it); `n` such rates, `interval`, `reason`, and `detail`: the cheapest at each rate.
    """
    import pandas as pd

    rows = []
    for name, members in families.items():
        stored = storage[storage["mitigation"].isin(members)]
        choice = cheapest(safe_rates, stored, bers, "held_to")
        lost = choice[choice["lost"]]
        has_loss = lost["mitigation"].notna()
        clearly = cheapest(safe_rates, stored, lost["ber"])["mitigation"].notna() if len(lost) else has_loss
        over = safe_rates.loc[safe_rates["mitigation"].isin(members), "lost_from"].fillna(np.inf).max()
        row = {
            "reading": "rates",
            "model": safe_rates["model"].iloc[0],
            "dataset": safe_rates["dataset"].iloc[0],
            "code": name,
        }
        best = [
            f"{number(rate.ber)} {rate.mitigation}, +{rate.stored_percent:.2g} % storage"
            if rate.stored_percent >= 0
            else f"{number(rate.ber)} none"
            for rate in lost.itertuples()
        ]
        detail = f"held at {has_loss.sum()} of {len(lost)} rates, clearly at {clearly.sum()}: {'; '.join(best)}"
        row |= {"value": has_loss.mean(), "low": clearly.mean(), "high": (lost["ber"] < over).mean(), "n": len(lost)}
        row |= {"interval": COUNTS, "detail": detail if len(lost) else ""}
        rows.append(row | {"reason": "" if len(lost) else "nothing lost"})
    return pd.DataFrame(rows)


def worst_loss(summary: "pd.DataFrame", mitigation: str) -> "pd.DataFrame":
    """The finding on claim C5: the mean AUC loss with a mitigation at the rate where most is lost, with an upper bound that
    assumes nothing.

    Args:
        summary: as `summarise` returns it, of one model and protocol over several rates.
        mitigation: its name.

    Returns:
        one row per data set: `reading` (`loss`), `model`, `dataset`, `code` (the mitigation), `value`, `low`, `high`
        (`auc_drop_bound`), `n` trials, `interval`, `detail` and `reason`.
    """
    import pandas as pd

    rows = []
    for (model, dataset), curve in summary[summary["mitigation"] == mitigation].groupby(
        ["model", "dataset"], sort=False
    ):
        worst = curve.loc[curve["auc_drop_bound"].idxmax()]
        row = {"reading": "loss", "model": model, "dataset": dataset, "code": mitigation, "n": int(worst["n"])}
        row |= {"value": worst["auc_drop"], "low": worst["auc_drop_low"], "high": worst["auc_drop_bound"]}
        row |= {"interval": "distribution-free upper bound", "reason": ""}
        rows.append(row | {"detail": f"at {number(worst['ber'])}, {row['n']:,} trials"})
    return pd.DataFrame(rows)


def released_gain(table: "pd.DataFrame", released: str) -> "pd.DataFrame":
    """The finding on claim C5 as released: in what share of the trials the published protection changes the AUC at all.

    Args:
        table: trials of one model and data set with and without it, as a campaign returns them.
        released: the mitigation's name.

    Returns:
        one row: `reading` (`released`), `model`, `dataset`, `code`, `value`, `low`, `high` (`exact_share`), `n` trials,
        `interval`, `detail` and `reason`.
    """
    import pandas as pd

    pairs = table.pivot(index=["ber", "trial"], columns="mitigation", values="auc")
    changed = ~(pairs[NONE] == pairs[released]) & pairs[[NONE, released]].notna().any(axis=1)
    row = {
        "reading": "released",
        "model": table["model"].iloc[0],
        "dataset": table["dataset"].iloc[0],
        "code": released,
    }
    row |= exact_share(int(changed.sum()), len(pairs)) | {"n": len(pairs), "interval": EXACT}
    row |= {"detail": f"AUC differs in {int(changed.sum())} of {len(pairs)} trials", "reason": ""}
    return pd.DataFrame([row])


def cost_benefit(recoveries: "pd.DataFrame", storage: "pd.DataFrame", times: "pd.DataFrame") -> "pd.DataFrame":
    """Recovery of each mitigation with its cost, and those that no other one beats (nor doing nothing).

    Args:
        recoveries: as `recovery` returns it, at one rate: a row per mitigation.
        storage: as `storage_overhead` returns it.
        times: of mitigations that run with the model, a row per timing: `mitigation` and `overhead_percent`.

    Returns:
        the rows of `recoveries` with `stored_bits`, `stored_percent`, `overhead_percent` (median; 0 for mitigations that were
        not timed, which run no code with the model), `overhead_percent_low` and `overhead_percent_high` (range of the timings),
        `timed` and `front` (see there).

    Raises:
        ValueError: a mitigation that is in several rows, or has no row in `storage`.
    """
    for table in (recoveries, storage):
        _one_row_each(table)
    if missing := sorted({*recoveries["mitigation"]} - {*storage["mitigation"]}):
        raise ValueError(f"storage has no row for {', '.join(missing)}")
    spread = times.groupby("mitigation")["overhead_percent"].agg(["median", "min", "max"])
    ends = [f"overhead_percent{end}" for end in ENDS]
    points = recoveries.merge(storage, on="mitigation").join(spread.set_axis(ends, axis=1), on="mitigation")
    points["timed"] = points["overhead_percent"].notna()
    points[ends] = points[ends].fillna(0.0)
    points.attrs = dict(recoveries.attrs)
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


def recovery_of_models(table: "pd.DataFrame", **options: float) -> "pd.DataFrame":
    """`recovery` of each trained model; of models that differ in their training seed, as one (`across_models`)."""
    by_model = [
        recovery(trials, **options).drop(columns="why") for _, trials in table.groupby("checkpoint", sort=False)
    ]
    return across_models(by_model, ["recovery", "gained", "lost"])


def best_recoveries(tables: "Sequence[pd.DataFrame]", claimed: float) -> "pd.DataFrame":
    """`best_recovery` in both readings, of each data set and of all, with intervals that hold for all conditions at once.

    Args:
        tables: trials of campaigns with clipping, one table per data set.
        claimed: as of `best_recovery`.

    Returns:
        its rows with `reading` (`recovery`, `gained`), `scope` (`all`, `each`) and `interval`.
    """
    import pandas as pd

    conditions = sum(len(table.groupby(["protocol", "mitigation", "ber"])) for table in tables)
    confidence = 1 - 0.05 / conditions
    joint = pd.concat([recovery_of_models(table, confidence=confidence) for table in tables])
    words = f"{100 * confidence:.4g} %: best of {conditions} (Bonferroni)"
    scopes = {"all": ["model", "protocol"], "each": ["model", "dataset", "protocol"]}
    return pd.concat(
        best_recovery(joint, claimed, reading, by=by).assign(reading=reading, scope=scope, interval=words)
        for scope, by in scopes.items()
        for reading in ("recovery", "gained")
    )


def clipping_claims(tables: "Sequence[pd.DataFrame]", claimed: float) -> "pd.DataFrame":
    """All findings on claim C4 (`best_recoveries`), on all trials and on thirds of them."""
    return by_thirds(lambda *trials: best_recoveries(trials, claimed), *tables)


def bit_protection_claims(
    tables: "Sequence[pd.DataFrame]",
    proofs: "pd.DataFrame",
    costs: "Sequence[pd.DataFrame]",
    families: Mapping[str, Sequence[str]],
    *,
    released: str,
    loss: float = DROP,
) -> "pd.DataFrame":
    """All findings on claim C5, on all trials and on thirds of them.

    Args:
        tables: trials of each data set under both protocols, without and with the protections.
        proofs: trials of one protection.
        costs: `storage_overhead` in each model.
        families: as of `kept_rates`.
        released: name of the protection as released.
        loss: in AUC.

    Returns:
        the rows of `worst_loss` of the proofs, and of each data set of `kept_rates` and `released_gain`.
    """
    import pandas as pd

    def find(many: "pd.DataFrame", *trials: "pd.DataFrame") -> "pd.DataFrame":
        findings = [worst_loss(summarise(many), many["mitigation"].iloc[0])]
        for cost, trials_of in zip(costs, trials, strict=True):
            summary = summarise(trials_of[trials_of["protocol"] == "corrected"])
            bers = sorted(summary["ber"].unique())
            findings.append(kept_rates(max_safe_rate(summary, loss), cost, families, bers))
            findings.append(released_gain(trials_of[trials_of["protocol"] == "as_released"], released))
        return pd.concat(findings)

    return by_thirds(find, proofs, *tables)
