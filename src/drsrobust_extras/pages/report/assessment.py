"""The page of `drsrobust assess`: what one flip costs, how many a model bears, what protections give back, what to do first."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.campaign import Campaign
from drsrobust.extend import new_file
from drsrobust.statistics import ENDS, NONE, Headline, recovery
from drsrobust_extras.pages.column_kinds import ColumnKind
from drsrobust_extras.pages.plots import losses
from drsrobust_extras.pages.plots.save import save
from drsrobust_extras.pages.plots.style import (
    COIN_TOSS,
    GUIDE,
    legend_outside,
    name_line,
    new_panels,
    series_style,
    styled,
)
from drsrobust_extras.pages.report import figure_entries, templates
from drsrobust_extras.pages.report.campaign import (
    by_condition,
    facts_of,
    found_in,
    trials_by_condition,
    with_harmless,
    write_numbers,
)
from drsrobust_extras.pages.report.own_files import PAGE
from drsrobust_extras.protection import rates

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LEVEL = 0.01  # of the headline: the loss that a model may bear
NEAR = 4  # ends of an interval of flips, one so many times the other, that are said as a number with its interval
ENOUGH = 0.9  # of what the best protection gives back: one that asks for less is as good
_CLASSES = {
    "sign": "sign",
    "exponent_top": "highest exponent bit",
    "exponent_high": "upper exponent bits",
    "exponent_low": "lower exponent bits",
}


def write_assessment(
    campaign: Campaign,
    parts: "pd.DataFrame",
    columns: dict[str, ColumnKind],
    fit: float | None,
    toml: Path,
    folder: Path,
) -> list[str]:
    """Writes page, figures and numbers to a new folder.

    Args:
        campaign: of the assessment, which has run.
        parts: of one flip, as of `bit_partition`, with the `error_model` and the text of the `target` of each.
        columns: how those of the rows were read.
        fit: failures of memory in 10**9 hours per 2**20 bits; None: unknown.
        toml: the file that repeats the campaign.
        folder: where to.

    Returns:
        the main numbers, a line each.
    """
    table, summary, headline = found_in(campaign)
    if headline is None:
        raise ValueError("these rows have no AUC")
    found = with_harmless(summary, trials_by_condition(table), headline)
    by_part = parts.merge(found.iloc[: len(parts)], on=["error_model", "target"], validate="one_to_one")
    counts = found.iloc[len(parts) :].assign(k=lambda rows: rows["error_count"].astype(int))
    plain = counts[(counts["mitigation"] == NONE) & (counts["target"] == "all")]
    recovered = recovery(table[table["error_model"].isin(counts["error_model"])])
    recovered = recovered.merge(
        counts[["error_model", "target", "mitigation", "mitigation_kind", "k"]],
        on=["error_model", "target", "mitigation"],
    )
    clear = _clear(counts[counts["mitigation"] == NONE], headline)
    back = recovered[recovered["k"] == clear]
    flips = flips_until(plain["k"].to_numpy(), *(plain[headline.drop + end].to_numpy(float) for end in ENDS))
    bears = f"{_first_upper(flips)} until {LEVEL} {headline.unit} is lost"
    bits = int(parts["eligible"].sum())
    rate = f"One flip is a bit error rate of {1 / bits:.2g}, 1 of the model's {bits:,} bits"
    if fit is not None:
        rate += f"; memory of {fit:,g} FIT/Mbit has one in {_time(rates.hours(1 / bits, fit))}"
    figures = folder / "figures"
    _draw_parts(by_part, headline, figures)
    _draw_counts(counts, headline, bears, figures)
    write_numbers(table, summary, folder)
    evaluator = campaign.evaluator
    page = (
        templates()
        .get_template("assess.html.j2")
        .render(
            title=f"What bit flips cost {evaluator.name}, and what to do first",
            opening=f"Without errors its {headline.unit} is {headline.golden:.4f} on {len(evaluator.rows):,} rows. "
            f"{len(table):,} trials, each with its own flips.",
            cards=[
                {"head": "What to do first", "text": _advice(back, plain, clear, headline)},
                {"head": "How many flips it bears", "text": f"{bears}, if they hit any stored bit ('all'). {rate}."},
                {"head": "One flip", "text": _worst(by_part, headline)},
            ],
            figures={entry["name"]: entry for entry in figure_entries(figures, ["one_flip", "flips"])},
            parts=[_part_row(row, total=_expected(by_part, headline), headline=headline) for row in _rows(by_part)],
            counts=[_count_row(row, headline, bits, fit) for row in _rows(plain)],
            count_heads=["flips", "bit error rate", *["memory has so many in"] * (fit is not None)],
            clear=clear,
            clear_ber=f"{clear / bits:.2g}",
            rule=_rule(plain, clear, headline),
            memory=list(dict.fromkeys(back["target"][back["target"] != "all"])),
            back=[_back_row(row) for row in _rows(back)],
            columns=[(name, column.kind, column.how) for name, column in columns.items()],
            unit=headline.unit,
            level=LEVEL,
            toml=toml.read_text(encoding="utf-8"),
            command=f"drsrobust campaign {os.path.relpath(toml)}",
            facts=facts_of(campaign).items(),
            raised=campaign.raised_text(),
        )
    )
    with new_file(folder / PAGE) as part:
        part.write_text(page, encoding="utf-8")
    one = plain[plain["k"] == 1].iloc[0]
    return [
        f"without errors: {headline.unit} {headline.golden:.4f} on {len(evaluator.rows):,} rows",
        f"one flip of a random bit costs: {_loss(one, headline)} {headline.unit}",
        f"{bears[0].lower()}{bears[1:]}",
    ]


def flips_until(k: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray, level: float = LEVEL) -> str:
    """How many flips cost `level`, as `about 120 flips [80, 200]` or `between 30 and 300 flips`.

    Args:
        k: numbers of flips, ascending.
        mean, low, high: the expected loss at each, and its interval.
        level: of the loss.

    Example:
        >>> k, mean = np.array([1, 10, 100]), np.array([1e-4, 1e-3, 1e-2])
        >>> flips_until(k, mean, mean / 1.5, mean * 1.5), flips_until(k, mean, mean / 9, mean * 9)
        ('about 100 flips [67, or more than 100]', 'between 12 flips and more than 100')
    """
    least, about, most = (_crossing(k, losses_at, level) for losses_at in (high, mean, low))
    if least is None:
        return f"more than {k[-1]:,} flips"
    if most is not None and most <= k[0]:
        return "one flip" if k[0] == 1 else f"at most {k[0]:,} flips"
    end = f"more than {k[-1]:,}" if most is None else f"{most:,}"
    if about is not None and (most or k[-1]) <= NEAR * least:
        return f"about {about:,} flips [{least:,}, {'or ' * (most is None)}{end}]"
    return f"between {least:,} {'flips ' * (most is None)}and {end}{' flips' * (most is not None)}"


def _crossing(k: np.ndarray, losses_at: np.ndarray, level: float) -> int | None:
    """The fewest flips whose losses, as far as they grow, reach a level, by a power law between neighbours, rounded up to two
    digits; None: nowhere."""
    grown = np.maximum.accumulate(np.nan_to_num(losses_at))
    reached = np.flatnonzero(grown >= level)
    if not len(reached):
        return None
    if not (at := reached[0]):
        return int(k[0])
    before, after = max(grown[at - 1], 1e-6), grown[at]
    share = np.log(level / before) / np.log(after / before)
    flips = float(k[at - 1] * (k[at] / k[at - 1]) ** share)
    step = 10 ** max(0, int(np.floor(np.log10(flips))) - 1)
    return int(np.ceil(round(flips / step, 6))) * step


def _clear(plain: "pd.DataFrame", headline: Headline) -> int:
    """The fewest flips whose loss is clearly over `LEVEL` in all conditions without protection; without any, those of the
    largest lower end."""
    low = plain.groupby("k")[f"{headline.drop}_low"].min()
    clear = low.index[low >= LEVEL]
    return int(clear[0] if len(clear) else low.idxmax())


def _advice(back: "pd.DataFrame", plain: "pd.DataFrame", clear: int, headline: Headline) -> str:
    """What to do first, from what was measured."""
    row = plain[plain["k"] == clear].iloc[0]
    lost = f"what {clear:,} flips cost, {_interval(row, headline.drop)} {headline.unit}"
    if row[headline.drop] < LEVEL:
        most = int(plain["k"].iloc[-1])
        return f"Nothing: up to {most:,} flips were tried, and none of these numbers clearly costs {LEVEL} {headline.unit}."
    known = back[back["recovery_low"] > 0]
    if known.empty:
        return f"Measure with more trials (--trials): no protection clearly gives back any of {lost}."
    best = known["recovery"].max()
    first = known[known["recovery"] >= ENOUGH * best].iloc[0]
    text = f"Use {_named(first)}: it gives back {_percent(first)} of {lost}."
    if first["target"] != row["target"] and len(software := known[known["target"] == row["target"]]):
        second = software.loc[software["recovery"].idxmax()]
        text += f" Without other memory, {_named(second)} gives back {_percent(second)}."
    return text


def _worst(by_part: "pd.DataFrame", headline: Headline) -> str:
    worst = by_part.loc[by_part[headline.drop].idxmax()]
    if worst["harmless"]:
        return "No flip of one bit showed harm, in any part of the model."
    bits = f"{_class(worst['bit_class'])} of {worst['component']}"
    text = f"The worst bit to lose is the {bits}: {_interval(worst, headline.drop)} {headline.unit}."
    total = _expected(by_part, headline)
    shares = by_part["weight"] * by_part[headline.drop].clip(lower=0) / total if total else by_part["weight"] * 0
    most = by_part.loc[shares.idxmax()]
    if total and shares.max() > 0.5:
        bits = f"{_class(most['bit_class'])} of {most['component']}"
        text += f" {shares.max():.0%} of what a random flip costs comes from the {bits}."
    return text


def _expected(by_part: "pd.DataFrame", headline: Headline) -> float:
    """What a flip of a random bit costs."""
    return float((by_part["weight"] * by_part[headline.drop].clip(lower=0)).sum())


def _class(name: str) -> str:
    return _CLASSES.get(name, name.replace("_", " "))


def _interval(row: Any, name: str) -> str:
    return f"{row[name]:.2g} [{row[f'{name}_low']:.2g}, {row[f'{name}_high']:.2g}]"


def _percent(row: Any, whole: str = "all") -> str:
    """What is given back, `whole` at most: more is noise of the pairs."""
    share = whole if row["recovery"] >= 1 else "over 99%" if row["recovery"] > 0.99 else f"{row['recovery']:.0%}"
    return f"{share} [{min(row['recovery_low'], 1):.0%}, {min(row['recovery_high'], 1):.0%}]"


def _named(row: Any) -> str:
    """A protection as tables name it, and its class."""
    return f"{row['mitigation']} ({row['mitigation_kind']})"


def _rule(plain: "pd.DataFrame", clear: int, headline: Headline) -> str:
    """How `_advice` chooses, after the number of flips."""
    is_clear = plain.loc[plain["k"] == clear, f"{headline.drop}_low"].iloc[0] >= LEVEL
    chosen = (
        f"the fewest flips that were tried whose loss is clearly over {LEVEL} {headline.unit} (the lower end of its interval)"
        if is_clear
        else f"of no number of flips that was tried is the loss clearly over {LEVEL} {headline.unit}, and here it is surest"
    )
    return (
        f"{chosen}. What to do first is the protection that asks least, in the order of this table, of those that give back "
        f"at least {ENOUGH:.0%} of what the best one does."
    )


def _time(hours: float) -> str:
    for unit, length in (("years", 24 * 365.25), ("days", 24)):
        if hours >= 2 * length:
            return f"{float(f'{hours / length:.2g}'):,g} {unit}"
    return f"{hours:.2g} hours"


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _rows(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    return frame.to_dict("records")


def _loss(row: dict[str, Any], headline: Headline) -> str:
    return row["harmless"] or _interval(row, headline.drop)


def _part_row(row: dict[str, Any], total: float, headline: Headline) -> tuple[str, ...]:
    share = row["weight"] * max(0.0, row[headline.drop]) / total if total else 0.0
    return row["component"], _class(row["bit_class"]), f"{row['weight']:.2%}", _loss(row, headline), f"{share:.1%}"


def _count_row(row: dict[str, Any], headline: Headline, bits: int, fit: float | None) -> tuple[str, ...]:
    ber = row["k"] / bits
    times = [] if fit is None else [_time(rates.hours(ber, fit))]
    return f"{row['k']:,}", f"{ber:.2g}", *times, _loss(row, headline)


def _back_row(row: dict[str, Any]) -> tuple[str, ...]:
    name, lost = (row["mitigation"], row["mitigation_kind"]), f"{row['lost']:.2g}"
    if row["recovery_low"] != row["recovery_low"]:
        return *name, lost, f"not clear: {row['why']}", ""
    left, low, high = (max(0.0, 1 - row[f"recovery{end}"]) * row["lost"] for end in ("", "_high", "_low"))
    return *name, lost, _percent(row, "all of it"), f"{left:.2g} [{low:.2g}, {high:.2g}]"


def _draw_parts(by_part: "pd.DataFrame", headline: Headline, folder: Path) -> None:
    """A figure of the loss of one flip; components have the names that one types."""
    names = by_part["bit_class"].map(_class)
    data = by_part.assign(error_model=names, target=by_part["component"], rate=np.nan)
    columns = ["target", "mitigation", "error_model", "rate", "n", *(headline.drop + end for end in ENDS), "harmless"]
    data = data[columns]
    caption = f"{headline.unit} lost by one flip, by the part it hits: mean over trials with its 95 % interval."
    title = "What one flip costs, by component and class of bits"
    save(by_condition(data, headline.drop, headline), "one_flip", data, caption, title=title, folder=folder)


def _draw_counts(counts: "pd.DataFrame", headline: Headline, title: str, folder: Path) -> None:
    columns = ["k", "target", "mitigation", "mitigation_kind", "n", *(headline.drop + end for end in ENDS)]
    software = counts["target"] == "all"
    data = counts[software | (counts["mitigation"] != NONE)][columns]
    caption = f"Expected {headline.unit} lost by so many flips of any stored bits, without and with protection."
    save(_counts(data, headline), "flips", data, caption, title=title, folder=folder)


@styled
def _counts(data: "pd.DataFrame", headline: Headline) -> "Axes":
    (ax,) = new_panels()
    floor, most = losses.loss_floor(data, headline.drop), headline.worst_of(headline.drop)
    if headline.name == "auc":
        most = max(headline.golden - COIN_TOSS, 0.0)
    ax.set_xscale("log")
    groups = list(data.groupby("mitigation", sort=False))
    for number, (kind, rows) in enumerate(groups):
        label = "without protection" if kind == NONE else kind
        places = rows["k"].to_numpy(float) * 1.06 ** (number - (len(groups) - 1) / 2)
        losses.draw_losses(ax, rows, places, headline.drop, floor=floor, most=most, label=label, **series_style(number))
    losses.loss_axis(ax, floor, max(most, LEVEL), label=f"{headline.unit} lost")
    ax.axhline(LEVEL, **GUIDE)
    name_line(ax, LEVEL, f"{LEVEL} lost", at="left")
    ax.set_xlabel("flipped bits, anywhere in the model")
    handles = [*ax.get_legend_handles_labels()[0], *losses.bound_handles(data, headline.drop, floor=floor)]
    legend_outside(ax, handles)
    return ax
