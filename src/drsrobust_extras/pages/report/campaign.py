"""The report of a campaign: what it found in sentences, figures, all conditions, and how it was made."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.campaign import Campaign
from drsrobust.extend import new_file, versions
from drsrobust.statistics import ENDS, FEW_TRIALS, NONE, STRATUM, Headline, recovery, summarise
from drsrobust_extras.pages.plots import curves, losses
from drsrobust_extras.pages.plots.save import save, write_csv
from drsrobust_extras.pages.plots.style import legend_outside, new_panels, styled
from drsrobust_extras.pages.report import figure_entries, templates
from drsrobust_extras.pages.report.own_files import PAGE, report_files

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_SHOWN = ("target", "mitigation", "error_model", "rate", "n")


def write_campaign(campaign: Campaign, folder: Path, bounds: Mapping[str, tuple[float, float]] | None) -> Path:
    """As `drsrobust_extras.pages.report.write`."""
    table = campaign.table()
    if table.empty:
        raise ValueError(f"{campaign!r} has no finished trial; call run() first")
    headline = next(iter(campaign.headlines), None)
    if headline is None and not campaign.metrics:
        raise ValueError("a campaign of rankings has no AUC; give it metrics=, as ['ndcg@10']")
    others = [name for name in ("logloss", "ne") if table[name].notna().any()]
    metrics = [*(() if headline is None else headline.columns), *others, *campaign.metrics]
    main = campaign.metrics[0] if headline is None else headline.drop
    summary = summarise(table, list(dict.fromkeys(metrics)), bounds=bounds)
    recovered = recovery(table) if headline is not None and table["mitigation"].nunique() > 1 else None
    with report_files(folder) as part:
        _write(campaign, table, summary, recovered, main, headline, part)
    return folder / PAGE


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
    for name, ax, data, caption, title in _figures(summary, recovered, main, headline, others):
        save(ax, name, data, caption, title=title, folder=figures)
        names.append(name)
    write_csv(table, folder / "trials.csv", digits=None)
    write_csv(summary, folder / "summary.csv")
    evaluator = campaign.evaluator
    columns = [*_SHOWN, *(f"{metric}{end}" for metric in (main, *others) for end in ENDS)]
    cards = _cards(summary, recovered, main, headline)
    cards += [*_unsure(summary, is_stratified=STRATUM in table), *_raised(campaign), *_left_out(campaign)]
    page = (
        templates()
        .get_template("campaign.html.j2")
        .render(
            title=f"What bit errors do to {evaluator.name} on {evaluator.rows.dataset}",
            opening=_opening(campaign, table),
            cards=cards,
            figures=figure_entries(figures, names),
            caption=f"Means over trials with their intervals ({'; '.join(summary['interval'].unique())})",
            heads=[name.replace("_low", " low").replace("_high", " high") for name in columns],
            rows=[[_cell(row[name]) for name in columns] for row in summary.to_dict("records")],
            facts=_facts(campaign).items(),
        )
    )
    with new_file(folder / PAGE) as part:
        part.write_text(page, encoding="utf-8")


def _opening(campaign: Campaign, table: "pd.DataFrame") -> str:
    known = campaign.headlines[:1]
    start = "".join(f"Without errors its {headline.unit} is {headline.golden:.4f}. " for headline in known)
    return f"{start}{len(table):,} error maps in {len(campaign.conditions)} conditions, {len(campaign.evaluator.rows):,} rows."


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
        if headline is not None and best[f"{main}_low"] <= 0:
            text = f"{_where(best)} shows no loss of {headline.unit} in {best['n']} trials; "
            text += f"it is at most {best[f'{main}_high']:.2g}."
        cards.append({"head": "Least harm", "text": text})
    if recovered is not None:
        protected = recovered[recovered["mitigation"] != NONE].dropna(subset=["recovery_low"])
        for _, row in protected.sort_values("recovery_low", ascending=False).head(1).iterrows():
            text = f"{row['mitigation']} gives back {_interval(row, 'recovery', '.0%')} of what {_where(row)} costs."
            cards.append({"head": "Best protection", "text": text})
    return cards


def _article(noun: str) -> str:
    return "an" if noun[0] in "AEIOaeio" else "a"


def _unsure(summary: "pd.DataFrame", *, is_stratified: bool) -> list[dict[str, str]]:
    """How many trials a condition needs where few show harm."""
    few = summary[summary["few_harmful"]]
    if few.empty:
        return []
    text = (
        f"In {len(few)} of {len(summary)} conditions too few trials show harm, so that their intervals are wide bounds."
    )
    harmed, unseen = few[few["trials_harmed"] > 0], few[few["trials_harmed"] == 0]
    if len(harmed):
        needed = int(np.ceil(FEW_TRIALS / harmed["trials_harmed"].min()))
        text += f" Where some were harmful, some {needed:,} trials hold {FEW_TRIALS} harmful ones, which are enough."
    if len(unseen):
        text += f" {len(unseen)} of these conditions showed none in {unseen['n'].max():,} trials."
    if not is_stratified:
        text += ' Campaign(sampling="stratified") draws the harmful maps of many error models on purpose, and needs far fewer.'
    return [{"head": "Not yet sure", "text": text}]


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
        if len(data := rows[[*_SHOWN, *(f"{metric}{end}" for end in ENDS)]].dropna(subset=[metric])):
            caption = f"{metric} of each condition: mean over trials with its 95 % interval."
            title = f"{metric}, by errors and protection"  # the largest of means with wide intervals is no message
            ax = _by_condition(data, metric, loss_of=None if number or headline is None else headline.unit)
            yield f"metric_{number}" if number else "conditions", ax, data, caption, title


@styled
def _by_condition(data: "pd.DataFrame", metric: str, *, loss_of: str | None) -> "Axes":
    (ax,) = new_panels()
    ax.figure.set_size_inches(7, 1.2 + 0.3 * len(data))
    places = range(len(data))
    if loss_of is not None:
        floor = losses.loss_floor(data, metric)
        losses.draw_losses(ax, data, places, value=metric, floor=floor, vertical=False, marker="o")
        losses.loss_axis(ax, floor, data[[metric, f"{metric}_high"]].max(axis=None), axis="x", label=f"{loss_of} lost")
        if notes := losses.bound_handles(data, metric, floor=floor, vertical=False):
            legend_outside(ax, notes)
    else:
        ax.errorbar(data[metric], places, xerr=curves.interval(data, metric), fmt="o", capsize=2.5, markersize=5)
        ax.set_xlabel(metric)
    ax.set_yticks(places, [_where(row) + _under(row) for row in data.to_dict("records")])
    ax.invert_yaxis()
    return ax


def _cell(value: Any) -> tuple[float | None, str]:
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


def _facts(campaign: Campaign) -> dict[str, str]:
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
