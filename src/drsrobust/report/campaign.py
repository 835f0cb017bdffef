"""The report of a campaign: what it found in sentences, figures, all conditions, and how it was made."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drsrobust._files import new_file
from drsrobust._provenance import versions
from drsrobust.campaign import Campaign
from drsrobust.campaign.campaign import raised_trials
from drsrobust.plots import curves, save
from drsrobust.plots.save import write_csv
from drsrobust.plots.style import new_panels
from drsrobust.report import figure_entries, templates
from drsrobust.report.own_files import PAGE, report_files
from drsrobust.statistics import recovery, summarise
from drsrobust.statistics.columns import NONE

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = ("target", "mitigation", "error_model", "rate", "n")


def write_campaign(campaign: Campaign, folder: Path, bounds: Mapping[str, tuple[float, float]] | None) -> Path:
    """As `drsrobust.report.write`."""
    table = campaign.table()
    if table.empty:
        raise ValueError(f"{campaign!r} has no finished trial; call run() first")
    click = campaign.evaluator.golden.auc is not None
    if not click and not campaign.metrics:
        raise ValueError("a campaign of rankings has no AUC; give it metrics=, as ['ndcg@10']")
    metrics = [*(("auc", "auc_drop", "logloss", "ne") if click else ()), *campaign.metrics]
    main = "auc_drop" if click else campaign.metrics[0]
    summary = summarise(table, metrics, bounds=bounds)
    recovered = recovery(table) if click and table["mitigation"].nunique() > 1 else None
    with report_files(folder) as part:
        _write(campaign, table, summary, recovered, main, part)
    return folder / PAGE


def _write(
    campaign: Campaign,
    table: "pd.DataFrame",
    summary: "pd.DataFrame",
    recovered: "pd.DataFrame | None",
    main: str,
    folder: Path,
) -> None:
    figures = folder / "figures"
    names = []
    for name, ax, data, caption in _figures(summary, recovered, main):
        save(ax, name, data, caption, folder=figures)
        names.append(name)
    write_csv(table, folder / "trials.csv", digits=None)
    write_csv(summary, folder / "summary.csv")
    evaluator = campaign.evaluator
    others = [name for name in campaign.metrics if name != main and summary[name].notna().any()]
    page = (
        templates()
        .get_template("campaign.html.j2")
        .render(
            title=f"What bit errors do to {evaluator.name} on {evaluator.rows.dataset}",
            opening=_opening(campaign, table),
            cards=[*_cards(summary, recovered, main), *_raised(campaign)],
            figures=figure_entries(figures, names),
            caption=f"{main}: mean over trials with its interval ({'; '.join(summary['interval'].unique())})",
            heads=[*_SHOWN, main, "low", "high", *others],
            rows=[
                [_cell(row[name]) for name in (*_SHOWN, main, f"{main}_low", f"{main}_high", *others)]
                for row in summary.to_dict("records")
            ],
            facts=_facts(campaign).items(),
        )
    )
    with new_file(folder / PAGE) as part:
        part.write_text(page, encoding="utf-8")


def _opening(campaign: Campaign, table: "pd.DataFrame") -> str:
    golden = campaign.evaluator.golden
    start = "" if golden.auc is None else f"Without errors its AUC is {golden.auc:.4f}. "
    return f"{start}{len(table):,} error maps in {len(campaign.conditions)} conditions, {len(campaign.evaluator.rows):,} rows."


def _cards(summary: "pd.DataFrame", recovered: "pd.DataFrame | None", main: str) -> list[dict[str, str]]:
    """What was found, a sentence with its number each."""
    drop = main == "auc_drop"
    ordered = summary.dropna(subset=[main]).sort_values(main, ascending=not drop)
    cards = []
    if len(plain := ordered[ordered["mitigation"] == NONE]):
        worst = plain.iloc[0]
        what = "costs an AUC of" if drop else f"leaves {main} at"
        cards.append({"head": "Worst without protection", "text": f"{_where(worst)} {what} {_interval(worst, main)}."})
        best = plain.iloc[-1]
        cards.append({"head": "Least harm", "text": f"{_where(best)} {what} {_interval(best, main)}."})
    if recovered is not None:
        protected = recovered[recovered["mitigation"] != NONE].dropna(subset=["recovery_low"])
        for _, row in protected.sort_values("recovery_low", ascending=False).head(1).iterrows():
            text = f"{row['mitigation']} gives back {_interval(row, 'recovery', '.0%')} of what {_where(row)} costs."
            cards.append({"head": "Best protection", "text": text})
    if few := int(summary["few_harmful"].sum()) if "few_harmful" in summary else 0:
        text = f"In {few} of {len(summary)} conditions too few trials show harm; their intervals are bounds. Run more trials."
        cards.append({"head": "Not yet sure", "text": text})
    return cards


def _raised(campaign: Campaign) -> list[dict[str, str]]:
    text = raised_trials(campaign)
    return [{"head": "Without scores", "text": f"{text}."}] if text else []


def _where(row: Mapping[str, Any]) -> str:
    rate = f" at {row['rate']:.2g}" if row["rate"] == row["rate"] else ""
    return f"{row['error_model']}{rate} in {row['target']}"


def _under(row: Mapping[str, Any]) -> str:
    return "" if row["mitigation"] == NONE else f", {row['mitigation']}"


def _interval(row: Mapping[str, Any], name: str, form: str = ".3g") -> str:
    return f"{row[name]:{form}} [{row[f'{name}_low']:{form}}, {row[f'{name}_high']:{form}}]"


def _figures(summary: "pd.DataFrame", recovered: "pd.DataFrame | None", main: str) -> Any:
    """Name, axes, data and caption of each figure."""
    is_rate = (summary["rate"] == summary["ber"]) & (summary["ber"] > 0)
    if main != "auc_drop" or summary["ber"][is_rate].nunique() < 2:
        is_rate &= False
    rates, others = summary[is_rate], summary[~is_rate]
    if len(plain := rates[rates["mitigation"] == NONE]):
        data = curves.auc_vs_ber_data(plain)
        yield "auc", curves.auc_vs_ber(data), data, "AUC against the bit error rate, without protection."
    if recovered is not None:
        of_rates = recovered[recovered["rate"] == recovered["ber"]]
        for number, (errors, rows) in enumerate(rates.groupby(["error_model", "target"], sort=False)):
            where = " in ".join(errors)
            data = curves.mitigated_auc_data(rows)
            yield f"protected_{number}", curves.mitigated_auc(data), data, f"AUC under protections, {where}."
            back = of_rates[(of_rates[["error_model", "target"]] == list(errors)).all(axis=1)]
            if back["recovery_low"].notna().any():
                data = curves.recovery_vs_ber_data(back)
                yield f"recovery_{number}", curves.recovery_vs_ber(data), data, f"Recovered AUC, {where}."
    if len(data := others[[*_SHOWN, main, f"{main}_low", f"{main}_high"]].dropna(subset=[main])):
        (ax,) = new_panels()
        ax.figure.set_size_inches(7, 1.2 + 0.3 * len(data))
        labels = [_where(row) + _under(row) for row in data.to_dict("records")]
        places = range(len(data))
        ax.errorbar(data[main], places, xerr=curves.interval(data, main), fmt="o", capsize=2.5, markersize=5)
        ax.set_yticks(places, labels)
        ax.invert_yaxis()
        ax.set_xlabel(main)
        yield "conditions", ax, data, f"{main} of each condition: mean over trials with its 95 % interval."


def _cell(value: Any) -> tuple[float | None, str]:
    """What a cell sorts by, and its text."""
    if isinstance(value, str) or value is None:
        return None, value or ""
    return (value, f"{value:.4g}") if value == value else (-1e300, "")


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
        "trials are stored in": str(campaign.store.folder),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
