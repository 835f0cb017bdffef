"""Titles of figures: the message of each in one sentence, computed from the numbers that it shows."""

from typing import TYPE_CHECKING

from drsrobust.plots.curves import mitigation_label
from drsrobust.plots.names import display_name
from drsrobust.statistics.columns import ENDS, NONE
from drsrobust_study.findings import interval, number

if TYPE_CHECKING:
    import pandas as pd

LOSS = 0.001  # of AUC, that a protection may leave
_NAN = {"wrong": "as wrong", "no click": "as no click", "caught": "caught"}


def _clear(value: float, low: float, high: float, scale: float = 1.0) -> str:
    """A number of a title, times `scale`; where its interval holds 0 or spans a factor of over 10, the ends instead."""
    if (
        low == high
        or not low <= high
        or max(low, -high) > 0
        and max(abs(low), abs(high)) <= 10 * min(abs(low), abs(high))
    ):
        return number(float(f"{scale * value:.3g}"))
    ends = [number(float(f"{scale * end:.2g}")) for end in (low, high)]
    return f"{ends[0]} to {ends[1]}" if low > 0 else f"at most {ends[1]}"


def bits(data: "pd.DataFrame") -> str:
    """Of `bit_sensitivity_data` of one model: how many times as much the worst bit costs as the next one, by means over
    components."""
    ends = ["auc_drop", "auc_drop_low", "auc_drop_high"]
    losses = data.groupby("bit")[ends].mean().sort_values("auc_drop", ascending=False)
    if len(losses) < 2 or losses["auc_drop"].iloc[0] <= 0:
        return "No flip of a single bit costs AUC in these trials."
    worst, top, other = losses.index[0], losses.iloc[0], losses.iloc[1]
    if top["auc_drop_low"] <= losses["auc_drop_high"].iloc[1:].max():
        return f"A flip of bit {worst} costs most AUC in these trials, not clearly more than others."
    if other["auc_drop"] < 1e-6:
        return f"Bit {worst} alone costs AUC: {number(top['auc_drop'])} a flip."
    times = float(f"{top['auc_drop'] / other['auc_drop']:.1g}")
    text = f"a flip of bit {worst} costs some {times:,.0f} times as much AUC as one of any other bit"
    return f"On average over components, {text}."


def factors(trends: "pd.DataFrame", ber: float) -> str:
    """Of `factor_trends` at one rate under one protocol: the change between the ends of each factor."""
    parts = []
    for row in trends.itertuples():
        name = row.factor.replace("_dim", " dimension")
        parts.append(f"{100 * row.at_least:.0f} to {100 * row.at_greatest:.0f} % by {name}")
    return f"Outputs changed at a bit error rate of {number(ber)}: {', '.join(parts)}."


def contributions(parts: "pd.DataFrame") -> str:
    """Of `component_contribution_data` under one protocol: the MLPs' part of the bits and of the changed outputs."""
    ends = [
        " to ".join(dict.fromkeys(f"{100 * end:.2g} %" for end in (parts[name].min(), parts[name].max())))
        for name in ("bits_share", "share")
    ]
    return f"The MLPs hold {ends[0]} of the bits, and errors in them cause {ends[1]} of the changed outputs."


def curves(rates: "pd.DataFrame") -> str:
    """Of `rate_at_loss` of one data set and protocol: where the first and the last model have lost half."""
    half = rates[rates["loss"] == "half"].sort_values("knee")
    half = half[half["knee"] < float("inf")]
    if half.empty:
        return "No model loses half of its AUC over 0.5 at these rates."
    ends = [
        f"{number(float(f'{row.knee:.1g}'))} ({display_name(row.model)})" for row in half.iloc[[0, -1]].itertuples()
    ]
    where = ends[0] if len(half) == 1 else " to ".join(ends)
    return f"Half of the AUC over 0.5 is lost at a bit error rate of {where}."


def ranking_rules(ranked: "pd.DataFrame") -> str:
    """Of `scoring_rules`: how far ranking logits, and other rules for NaN, move an AUC from that of `NaN tie`."""
    wide = ranked.pivot_table(index=["model", "dataset", "ber"], columns="rule", values="auc")
    moved = wide.sub(wide["probability, NaN tie"], axis=0).abs().max()
    rules = moved[[name for name in moved.index if name.startswith("probability")]].max()
    logits = moved[[name for name in moved.index if name.startswith("logit")]].max()
    return f"Ranking logits would move AUC by up to {number(logits)}, another rule for NaN by up to {number(rules)}."


def layers(ratio: "pd.DataFrame") -> str:
    """Of one row of `part_ratio`, the MLPs over the tables."""
    row = ratio.iloc[0]
    if not row["value"] > 0:
        return "AUC lost to one flipped bit, by layer and table."
    times = number(float(f"{row['value']:.2g}"))
    model = display_name(row["model"])
    return f"On average, a flipped bit of the MLPs costs {model} {times} times as much AUC as one of the tables."


def clipping(claims: "pd.DataFrame") -> str:
    """Of the findings on C4 by `best_recovery` over all data sets."""
    best = claims[(claims["scope"] == "all") & (claims["reading"] == "recovery")].set_index("protocol")["value"]
    if not {"as_released", "corrected"} <= set(best.dropna().index):
        return "Recovery by clipping activations."
    released_best, learnt = (f"{100 * best[name]:.0f} %" for name in ("as_released", "corrected"))
    released = f"With errors as in its scripts, the study's clipping gives back at best {released_best} of the lost AUC"
    return f"{released}; with errors everywhere, bounds learnt from data up to {learnt}."


def protected_bits(losses: "pd.DataFrame", released: "pd.DataFrame") -> str:
    """Of the findings on C5 by `worst_loss` and, as released, by `released_gain`: the claim's own number."""
    row, shares = losses.loc[losses["value"].idxmax()], sorted({released["value"].min(), released["value"].max()})
    changed = f"changed {' to '.join(f'{100 * share:.0f}' for share in shares)} % of the trials"
    text = "changed nothing" if shares == [0] else changed
    loss = f"{interval(row['value'], row['low'], row['high'])} AUC on {display_name(row['dataset'])} ({row['detail']})"
    return f"With {row['code']} protected the mean loss is {loss}; the protection as first released {text}."


def detection(claims: "pd.DataFrame", part: str) -> str:
    """Of the findings on C6 in `layers` or `tables`."""
    where = {"layers": "linear layers", "tables": "embedding look-ups"}[part]
    rows = claims[(claims["part"] == part) & (claims["reading"] == "noticed")].dropna(subset=["value"])
    if rows.empty:
        return f"Errors that checksums of {where} find."
    shares = [f"{100 * value:.3g} %" for value in sorted({rows["value"].min(), rows["value"].max()})]
    return f"Checksums of {where} find {' to '.join(dict.fromkeys(shares))} of {int(rows['n'].sum()):,} harmful errors."


def mitigations(points: "pd.DataFrame", ber: float) -> str:
    """Of `cost_benefit` at one rate: the free mitigation that recovers most, and the best one of all."""
    measured = points.dropna(subset=["recovery"])
    if measured.empty:
        return "Recovery against cost, by mitigation."
    cheap = measured[(measured["overhead_percent"] == 0) & (measured["stored_percent"] < 1)]
    best = (cheap if len(cheap) else measured).sort_values("recovery").iloc[-1]
    time = "no extra time" if best["overhead_percent"] == 0 else f"{best['overhead_percent']:.0f} % more time"
    share = f"{100 * best['recovery']:.3g} %"
    cost = f"{time} and {number(float(f'{best.stored_percent:.1g}'))} % more storage"
    return f"At a bit error rate of {number(ber)}, {best['mitigation']} gives back {share} of the lost AUC for {cost}."


def protection_plan(measured: "pd.DataFrame") -> str:
    """Of `Plan.compare`: the cheapest plan that leaves at most 1 % of the loss on fresh maps, and that of least mean loss."""
    lost = measured[measured["kind"] == "none"]["auc_drop"].iloc[0]
    plans = measured[(measured["kind"] == "plan") & (measured["auc_drop"] <= 0.01 * lost)]
    if plans.empty:
        return "Expected loss of AUC against extra stored bits, by plan."
    best, means = plans.sort_values("stored_percent").iloc[0], measured[measured["kind"] == "plan by means"]
    loss = number(float(f"{max(0.0, best['auc_drop']):.2g}"))
    text = f"A plan for {best['stored_percent']:.2g} % more bits cuts the loss of AUC from {lost:.2g} to {loss}"
    if means.empty or means["auc_drop"].iloc[0] <= best["auc_drop"]:
        return f"{text}."
    return f"{text}; the one that looks best on its own error maps leaves {number(float(f'{means.auc_drop.iloc[0]:.2g}'))}."


def places(data: "pd.DataFrame") -> str:
    """Of `protection_places_data`: the most that comes back at each place."""
    best = data.groupby("place", sort=False)["recovery"].max().dropna()
    if best.empty:
        return "Where mitigations act."
    parts = [f"{100 * share:.0f} % at {place}" for place, share in best.items()]
    return f"Of the AUC lost at {number(data['ber'].iloc[0])}, mitigations give back up to {', '.join(parts)}."


def speed(data: "pd.DataFrame") -> str:
    """Of `injection_speed_data`: the least and the greatest ratio to the dense error map at equal sizes and rates."""
    keys = ["panel", "parameters", "dtype", "rate"]
    ours, dense = (data[data["method"] == name].set_index(keys) for name in ("drsrobust", "dense error map"))
    ratios = (dense["total_ms"] / ours["total_ms"]).dropna()
    if ratios.empty:
        return "Time of one injection, by method."
    ends = [number(end) for end in (ratios.min(), ratios.max())]
    return f"Sparse injection is {' to '.join(dict.fromkeys(ends))} times as fast as a dense error map."


def shapes(data: "pd.DataFrame") -> str:
    """Of `error_shapes_data`: the worst shape of error against one flip, where it costs most."""
    of_target = data[data["target"] == data.loc[data["auc_drop"].idxmax(), "target"]] if len(data) else data
    single = of_target.loc[of_target["shape"] == "one flip", "auc_drop"]
    if single.empty or not single.iloc[0] > 0:
        return "AUC lost to one event, by its shape."
    worst = of_target.loc[of_target["auc_drop"].idxmax()]
    times = number(float(f"{worst['auc_drop'] / single.iloc[0]:.2g}"))
    return f"In the {display_name(worst['target'])}, {worst['shape']} costs {times} times the AUC of one flip."


def one_flip(data: "pd.DataFrame", bit: int) -> str:
    """Of the table of `one_flip`: what a flip of this bit does to the weight, to the rank of the item and to AUC."""
    (before,), (after,) = (data[data["flipped"] == flipped].to_dict("records") for flipped in (-1, bit))
    start = f"A flip of bit {bit} turns a weight of {number(before['value'])} into {number(after['value'])}"
    if after["rank"] == before["rank"] and abs(after["auc"] - before["auc"]) < LOSS:
        return f"{start}; the item keeps rank {after['rank']}, and AUC stays {after['auc']:.3f}."
    auc = f"AUC from {before['auc']:.3f} to {after['auc']:.3f}"
    return f"{start}: the item goes from rank {before['rank']} to {after['rank']}, {auc}."


def memory_faults(expected: "pd.DataFrame") -> str:
    """Of `expected_loss`: what a fault of any mode costs without protection, and what codes leave of that."""
    total = expected[expected["error_mode"] == "any"].set_index("mitigation")[[f"auc_drop{end}" for end in ENDS]]
    if "none" not in total.index or not total.loc["none", "auc_drop"] > 0:
        return "AUC lost to faults of a memory chip, by mode."
    remaining = (total.drop("none") / total.loc["none", "auc_drop"]).clip(lower=0).round(2)
    parts = [f"{mitigation_label(name)} {_clear(*ends, scale=100)} %" for name, *ends in remaining.itertuples()]
    return (
        f"A fault that reaches the model costs {_clear(*total.loc['none'])} AUC; codes leave of it: {', '.join(parts)}."
    )


def ranking(data: "pd.DataFrame") -> str:
    """Of `memory_faults.ranking`: whether the order under flips holds under faults, and where recovery differs most."""
    measured = data.dropna(subset=["flips", "faults"])
    if len(measured) < 2:
        return "Recovery under faults of memory chips and under independent flips."
    order = measured["flips"].rank().corr(measured["faults"].rank())
    change = (measured["faults"] - measured["flips"]).abs()
    most = measured.loc[change.idxmax()]
    name = mitigation_label(most["mitigation"])
    before, after = (
        _clear(*(round(most[f"{kind}{end}"], 2) for end in ENDS), scale=100) for kind in ("flips", "faults")
    )
    moved = f"{name} goes from {before} to {after} %"
    holds = "keep" if order > 0.8 else "lose"
    return f"Under faults of chips protections {holds} their order under random flips (rank correlation {order:.2f}): {moved}."


def assumptions(data: "pd.DataFrame") -> str:
    """Of `fault_assumptions_data`: the least and the greatest loss to any fault."""
    total = data[data["error_mode"] == "any"].set_index("assumption")[[f"auc_drop{end}" for end in ENDS]]
    if total.empty or not total["auc_drop"].max() > 0:
        return "AUC lost to a fault, by assumption."
    least, greatest = total["auc_drop"].idxmin(), total["auc_drop"].idxmax()
    ends = [f"{_clear(*total.loc[name])} ({name})" for name in (least, greatest)]
    return f"A fault costs {' to '.join(ends)} AUC on average, by what is assumed."


def fleet_risk(data: "pd.DataFrame", hosts: int) -> str:
    """Of `fleet_risk_data`, its first rate, which is named: wrong recommendations without protection by each rule for NaN,
    and how many hosts a code stops in their place. Of a wide interval both ends are given."""
    of_rate = data[data["rate"] == data["rate"].iloc[0]]
    text = f"{of_rate['kind'].iloc[0].capitalize()} in the memory of {hosts:,} hosts ({of_rate['rate'].iloc[0]})"
    plain, protected = (of_rate[(of_rate["mitigation"] == NONE) == is_plain] for is_plain in (True, False))
    if plain.empty or not plain["wrong_per_day"].iloc[0] > 0:
        return f"{text}: wrong recommendations a day."
    text += f" make {_estimate(plain.iloc[0], 'wrong_per_day')} recommendations a day wrong"
    others = [f"{_estimate(row, 'wrong_per_day')} with NaN {_NAN[row['nonfinite']]}" for _, row in plain[1:].iterrows()]
    text += f" ({', '.join(others)})" if others else ""
    protected = protected[protected["nonfinite"] == plain["nonfinite"].iloc[0]]
    few = protected["wrong_per_day"] < 0.01 * plain["wrong_per_day"].iloc[0]
    for _, row in protected[few & (protected["stops_anywhere_per_day"] > 0)].iterrows():
        stops, wrong = (_estimate(row, name) for name in ("stops_anywhere_per_day", "wrong_per_day"))
        text += f"; where {row['mitigation']} stops the host instead, {stops} hosts stop a day and {wrong} stay wrong"
    return f"{text}."


def _estimate(row: "pd.Series", name: str) -> str:
    """A count with two digits; the ends of its interval where these are further apart than a factor of 2."""
    value, low, high = (float(f"{row[f'{name}{end}']:.2g}") for end in ENDS)
    if high <= 2 * low:
        return number(value)
    return f"{number(low)} to {number(high)}" if low >= 1 else f"up to {number(high)}"


def fleet_tail(tail: "pd.DataFrame") -> str:
    """Of `Fleet.tail`: the largest loss without protection, and how often a fault costs half of it."""
    plain = tail[tail["mitigation"] == NONE]
    worst = plain["loss"].max()
    if plain.empty or not worst > 0:
        return "AUC that a host loses to a fault of its memory, by how rare it is."
    days = 365 * plain.loc[plain["loss"] >= worst / 2, "years"].min()
    return f"Without protection a fault costs some host {worst / 2:.2g} AUC at least once in {days:,.0f} days."
