"""The report of a campaign: what it found in sentences, figures, all conditions, and how it was made."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.campaign import Campaign, Condition
from drsrobust.extend import new_file, strata_of, versions
from drsrobust.injection import CriticalBits
from drsrobust.statistics import (
    CONDITION,
    DROP,
    ENDS,
    FEW_TRIALS,
    LARGE_LOSS,
    NONE,
    STRATUM,
    WEIGHT,
    Headline,
    Strata,
    identifying,
    recovery,
    summarise,
)
from drsrobust_extras.pages.plots import curves, losses
from drsrobust_extras.pages.plots.save import save, write_csv
from drsrobust_extras.pages.plots.style import COIN_TOSS, SMALLEST, legend_outside, new_panels, styled
from drsrobust_extras.pages.report import figure_entries, templates
from drsrobust_extras.pages.report.own_files import PAGE, report_files

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_SHOWN = ("target", "mitigation", "error_model", "rate", "n")
SURE = 0.95  # of cases in which the stated number of trials holds enough harmful ones
GROWN = 2  # times: the largest loss may grow as much with more trials
WIDE = 2  # an upper end that is more times higher than the mean makes an interval wide
_HARMLESS = "harmless"  # a column of what is drawn: where no map harmed, the words that say so


def write_campaign(campaign: Campaign, folder: Path, bounds: Mapping[str, tuple[float, float]] | None) -> Path:
    """As `drsrobust_extras.pages.report.write`."""
    table, summary, headline = found_in(campaign, bounds)
    if headline is None and not campaign.metrics:
        raise ValueError("a campaign of rankings has no AUC; give it metrics=, as ['ndcg@10']")
    main = campaign.metrics[0] if headline is None else headline.drop
    recovered = recovery(table) if headline is not None and table["mitigation"].nunique() > 1 else None
    with report_files(folder) as part:
        _write(campaign, table, summary, recovered, main, headline, part)
    return folder / PAGE


def found_in(
    campaign: Campaign, bounds: Mapping[str, tuple[float, float]] | None = None
) -> "tuple[pd.DataFrame, pd.DataFrame, Headline | None]":
    """The trials of a campaign, the summary that reports hold, and the headline.

    Raises:
        ValueError: no trial is finished.
    """
    table, headline = campaign.table(), next(iter(campaign.headlines), None)
    if table.empty:
        raise ValueError(f"{campaign!r} has no finished trial; call run() first")
    others = [name for name in ("logloss", "ne") if table[name].notna().any()]
    metrics = [*(() if headline is None else headline.columns), *others, *campaign.metrics]
    return table, summarise(table, list(dict.fromkeys(metrics)), bounds=bounds), headline


def write_numbers(table: "pd.DataFrame", summary: "pd.DataFrame", folder: Path) -> None:
    """Writes the trials and their summary."""
    write_csv(table, folder / "trials.csv", digits=None)
    write_csv(summary, folder / "summary.csv")


def _write(
    campaign: Campaign,
    table: "pd.DataFrame",
    summary: "pd.DataFrame",
    recovered: "pd.DataFrame | None",
    main: str,
    headline: Headline | None,
    folder: Path,
) -> None:
    figures = folder / "figures"
    names = []
    others = [name for name in campaign.metrics if name != main and summary[name].notna().any()]
    by_condition = trials_by_condition(table)
    found = with_harmless(summary, by_condition, headline)
    for name, ax, data, caption, title in _figures(found, recovered, main, headline, others):
        save(ax, name, data, caption, title=title, folder=figures)
        names.append(name)
    write_numbers(table, summary, folder)
    evaluator = campaign.evaluator
    columns = [*_SHOWN, *(f"{metric}{end}" for metric in (main, *others) for end in ENDS)]
    cards = [*_cards(found, recovered, main, headline), *_unsure(campaign, by_condition, summary)]
    cards += [*_raised(campaign), *_left_out(campaign)]
    page = (
        templates()
        .get_template("campaign.html.j2")
        .render(
            title=f"What bit errors do to {evaluator.name} on {evaluator.rows.dataset}",
            opening=_opening(campaign, table, len(summary)),
            cards=cards,
            figures=figure_entries(figures, names),
            caption=f"Means over trials with their intervals ({'; '.join(summary['interval'].unique())})",
            heads=[name.replace("_low", " low").replace("_high", " high") for name in columns],
            rows=[[cell(row[name]) for name in columns] for row in summary.to_dict("records")],
            facts=facts_of(campaign).items(),
        )
    )
    with new_file(folder / PAGE) as part:
        part.write_text(page, encoding="utf-8")


def _opening(campaign: Campaign, table: "pd.DataFrame", n_conditions: int) -> str:
    known = campaign.headlines[:1]
    start = "".join(f"Without errors its {headline.unit} is {headline.golden:.4f}. " for headline in known)
    return f"{start}{len(table):,} error maps in {n_conditions} conditions, {len(campaign.evaluator.rows):,} rows."


def _cards(
    summary: "pd.DataFrame", recovered: "pd.DataFrame | None", main: str, headline: Headline | None
) -> list[dict[str, str]]:
    """What was found, a sentence with its number each."""
    ordered = summary.dropna(subset=[main]).sort_values(main, ascending=headline is None)
    cards = []
    if len(plain := ordered[ordered["mitigation"] == NONE]):
        worst = plain.iloc[0]
        what = f"leaves {main} at" if headline is None else f"costs {_article(headline.unit)} {headline.unit} of"
        cards.append({"head": "Worst without protection", "text": f"{_where(worst)} {what} {_interval(worst, main)}."})
        best = plain.iloc[-1]
        text = f"{_where(best)} {what} {_interval(best, main)}."
        if best[_HARMLESS]:
            text = f"{_where(best)}: {best[_HARMLESS]}."
        cards.append({"head": "Least harm", "text": text})
    if recovered is not None:
        protected = recovered[recovered["mitigation"] != NONE].dropna(subset=["recovery_low"])
        for _, row in protected.sort_values("recovery_low", ascending=False).head(1).iterrows():
            text = f"{row['mitigation']} gives back {_interval(row, 'recovery', '.0%')} of what {_where(row)} costs."
            cards.append({"head": "Best protection", "text": text})
    return cards


def _article(noun: str) -> str:
    return "an" if noun[0] in "AEIOaeio" else "a"


def trials_by_condition(table: "pd.DataFrame") -> "list[pd.DataFrame]":
    """The trials of each condition, in the order of a summary."""
    return [trials for _, trials in table.groupby(identifying(table, CONDITION), sort=False, dropna=False)]


def with_harmless(
    summary: "pd.DataFrame", by_condition: "Sequence[pd.DataFrame]", headline: Headline | None
) -> "pd.DataFrame":
    """A summary with the words of conditions whose maps all do no harm, as `by_condition` draws it."""
    return summary.assign(**{_HARMLESS: [_harmless(trials, headline) for trials in by_condition]})


def _harmless(trials: "pd.DataFrame", headline: Headline | None) -> str:
    """Of a condition whose maps all do no harm; else empty."""
    maps = trials[trials[WEIGHT] > 0] if WEIGHT in trials else trials  # pilots hold more flips than maps do
    return "" if _harmed(maps, headline).any() else f"{len(maps)} of {len(maps)} maps harmless"


def _harmed(trials: "pd.DataFrame", headline: Headline | None) -> np.ndarray:
    """Whether trials are harmed, or may be: bool [trials]."""
    return (
        np.ones(len(trials), bool) if headline is None else ~(headline.losses(trials) <= DROP)
    )  # NaN of raised trials


def _unsure(
    campaign: Campaign, by_condition: "Sequence[pd.DataFrame]", summary: "pd.DataFrame"
) -> list[dict[str, str]]:
    """How many trials a condition needs where few show harm, and its interval is wide for that reason."""
    headline = next(iter(campaign.headlines), None)
    few = summary[summary["few_harmful"]]
    if headline is not None:
        few = few[~(few[f"{headline.drop}_high"] <= WIDE * few[headline.drop])]
    if few.empty:
        return []
    text = (
        f"In {len(few)} of {len(summary)} conditions too few trials show harm: their intervals are bounds, drawn as open "
        f"marks or as bars that end at over {WIDE} times the mean."
    )
    needed, now = max((_needed(by_condition[number], headline), len(by_condition[number])) for number in few.index)
    if needed:
        text += f" About {needed:,} trials per condition would do ({now:,} now)."
        text += f" By as few as there are now that number is a cautious one, enough in {SURE:.0%} of cases."
    if len(unseen := few[few["trials_harmed"] == 0]):
        text += f" {len(unseen)} of these conditions showed none in {unseen['n'].max():,} trials."
    if STRATUM not in by_condition[0] and any(map(_has_strata, campaign.conditions)):
        text += ' Without sampling="plain" the campaign draws harmful maps on purpose, and needs far fewer.'
    return [{"head": "Not yet sure", "text": text}]


def _needed(trials: "pd.DataFrame", headline: Headline | None) -> int:
    """How many trials of a condition hold enough harmful ones, and enough with a large loss, in each stratum that shows any,
    with a probability of `SURE`, if strata keep their shares of the trials: two digits, rounded up; 0 where none that has few
    of them shows any.

    Few harmful trials are a vague estimate of their rate. The time to the first k events of a Poisson process and the time from
    there to the K-th are independent gamma variables, whose ratio, by K - k and k, has an F distribution: its quantile says how
    many times longer the trials so far, in which there were k, must be.
    """
    from scipy.special import fdtri

    strata, harmed = Strata.of(trials), _harmed(trials, headline)
    losses = np.zeros(len(trials)) if headline is None else np.nan_to_num(headline.losses(trials))
    needed = []
    for member in strata.members[strata.few_harmful]:
        large = harmed & (losses > GROWN * LARGE_LOSS * losses[member].max())
        for count in {np.count_nonzero(flags & member) for flags in (harmed, large)}:
            if 0 < count < FEW_TRIALS:
                more = FEW_TRIALS - count
                needed.append(len(trials) * (1 + more / count * fdtri(2 * more, 2 * count, SURE)))
    step = 10 ** max(0, math.floor(math.log10(max(needed, default=1))) - 1)
    return math.ceil(max(needed, default=0) / step) * step


def _has_strata(condition: Condition) -> bool:
    return len(strata_of(condition.error_model, condition.space, CriticalBits(), where_possible=True)) > 1


def _raised(campaign: Campaign) -> list[dict[str, str]]:
    text = campaign.raised_text()
    return [{"head": "Without scores", "text": f"{text}."}] if text else []


def _left_out(campaign: Campaign) -> list[dict[str, str]]:
    text = campaign.left_out_text()
    return [{"head": "Left out", "text": f"{text}."}] if text else []


def _where(row: Mapping[str, Any]) -> str:
    rate = f" at {row['rate']:.2g}" if row["rate"] == row["rate"] else ""
    return f"{row['error_model']}{rate} in {row['target']}"


def _under(row: Mapping[str, Any]) -> str:
    return "" if row["mitigation"] == NONE else f", {row['mitigation']}"


def _interval(row: Mapping[str, Any], name: str, form: str = ".3g") -> str:
    return f"{row[name]:{form}} [{row[f'{name}_low']:{form}}, {row[f'{name}_high']:{form}}]"


def _figures(
    summary: "pd.DataFrame",
    recovered: "pd.DataFrame | None",
    main: str,
    headline: Headline | None,
    others: Sequence[str],
) -> Any:
    """Name, axes, data, caption and title (None: of `save`) of each figure. Two rates or more make a curve."""
    has_curve = headline is not None and headline.name == curves.METRIC
    is_rate = (summary["rate"] == summary["ber"]) & (summary["ber"] > 0) & has_curve
    curve = [summary["error_model"], summary["target"]]
    is_rate &= summary["ber"].where(is_rate).groupby(curve).transform("nunique") > 1
    rates, single = summary[is_rate], summary[~is_rate]
    if len(plain := rates[rates["mitigation"] == NONE]):
        data = curves.auc_vs_ber_data(plain)
        yield "auc", curves.auc_vs_ber(data), data, "AUC against the bit error rate, without protection.", None
    if recovered is not None and has_curve:
        of_rates = recovered[recovered["rate"] == recovered["ber"]]
        for number, (errors, rows) in enumerate(rates.groupby(["error_model", "target"], sort=False)):
            where = " in ".join(errors)
            data = curves.mitigated_auc_data(rows)
            yield f"protected_{number}", curves.mitigated_auc(data), data, f"AUC lost under protections, {where}.", None
            back = of_rates[(of_rates[["error_model", "target"]] == list(errors)).all(axis=1)]
            if back["recovery_low"].notna().any():
                data = curves.recovery_vs_ber_data(back)
                yield f"recovery_{number}", curves.recovery_vs_ber(data), data, f"Recovered AUC, {where}.", None
    shown = [(main, single), *((metric, summary) for metric in others)]
    for number, (metric, rows) in enumerate(shown):
        columns = [*_SHOWN, *(f"{metric}{end}" for end in ENDS), *[_HARMLESS][: not number]]
        if len(data := rows[columns].dropna(subset=[metric])):
            caption = f"{metric} of each condition: mean over trials with its 95 % interval."
            title = f"{metric}, by errors and protection"  # the largest of means with wide intervals is no message
            ax = by_condition(data, metric, None if number else headline)
            yield f"metric_{number}" if number else "conditions", ax, data, caption, title


@styled
def by_condition(data: "pd.DataFrame", metric: str, headline: Headline | None) -> "Axes":
    """Losses, or a metric, of conditions: `_SHOWN` columns, `metric` with its ends and, of a headline, the words of
    `with_harmless`."""
    (ax,) = new_panels()
    ax.figure.set_size_inches(7, 1.2 + 0.3 * len(data))
    places = range(len(data))
    if headline is not None:
        is_drawn = data[_HARMLESS] == ""
        drawn, where = data[is_drawn], np.flatnonzero(is_drawn)
        floor, most = losses.loss_floor(drawn, metric), headline.worst_of(headline.drop)
        if headline.name == curves.METRIC:
            most = max(headline.golden - COIN_TOSS, 0.0)
        losses.draw_losses(ax, drawn, where, value=metric, floor=floor, most=most, vertical=False, marker="o")
        highest = drawn[f"{metric}_high"].clip(upper=most).max() if len(drawn) else floor
        highest = np.fmax(highest, drawn[metric].max())
        losses.loss_axis(ax, floor, highest, axis="x", label=f"{headline.unit} lost")
        paper = {"facecolor": "white", "pad": 1, "linewidth": 0}
        for place in np.flatnonzero(~is_drawn):
            text = data[_HARMLESS].iloc[place]
            style = {"va": "center", "size": SMALLEST, "color": "#444444", "bbox": paper}
            ax.annotate(text, (floor, place), (4, 0), textcoords="offset points", **style)
        if notes := losses.bound_handles(drawn, metric, floor=floor, vertical=False):
            legend_outside(ax, notes)
    else:
        ax.errorbar(data[metric], places, xerr=curves.interval(data, metric), fmt="o", capsize=2.5, markersize=5)
        ax.set_xlabel(metric)
    ax.set_yticks(places, [_where(row) + _under(row) for row in data.to_dict("records")])
    ax.set_ylim(len(data) - 0.5, -0.5)
    return ax


def cell(value: Any) -> tuple[float | None, str]:
    """What a cell sorts by, and its text."""
    if isinstance(value, str) or value is None:
        return None, value or ""
    return (value, f"{value:.4g}") if value == value else (-1e300, "")


def _workers(campaign: Campaign) -> str:
    """As `12 processes of 3 machines, 4.1 hours`."""
    timings = campaign.timings()
    processes, machines = timings["worker"].nunique(), timings["worker"].str.rpartition(":")[0].nunique()
    hours = timings["seconds"].sum() / 3600
    return f"{processes} process{'es' * (processes > 1)} of {machines} machine{'s' * (machines > 1)}, {hours:.2g} hours"


def facts_of(campaign: Campaign) -> dict[str, str]:
    evaluator = campaign.evaluator
    return {
        "model": f"{evaluator.name}, state {evaluator.checkpoint[:12]}",
        "rows": f"{evaluator.rows.dataset}, {len(evaluator.rows):,} rows, contents {evaluator.rows.fingerprint[:12]}",
        "errors": ", ".join(dict.fromkeys(str(condition.error_model) for condition in campaign.conditions)),
        "targets": ", ".join(dict.fromkeys(str(condition.target) for condition in campaign.conditions)),
        "protections": ", ".join(dict.fromkeys(condition.protection for condition in campaign.conditions)),
        "metrics": ", ".join(campaign.metrics) or "AUC, log loss",
        "seed": str(campaign.seed),
        "computed by": _workers(campaign),
        "trials are stored in": str(campaign.store.folder),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
