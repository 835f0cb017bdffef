"""The figure that opens the project: what flips do to a model, with and without a cheap protection, and what chips do."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from drsrobust_extras.pages.plots.curves import NONE, interval
from drsrobust_extras.pages.plots.style import (
    GUIDE,
    SMALLEST,
    auc_guides,
    legend_outside,
    name_line,
    series_style,
    styled,
)
from drsrobust_study.effects import TOO_FEW
from drsrobust_study.figures.memory_faults import protection_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLIPS, CHIPS = "flips", "chips"
_KEYS = ["model", "dataset"]
_ENDS = ("", "_low", "_high")


def lead_data(
    recovery: pd.DataFrame, losses: pd.DataFrame, ranking: pd.DataFrame, *, protection: str = "range per tensor"
) -> pd.DataFrame:
    """What `lead` draws: the AUC under flips by rate (`errors` is `flips`) and under one fault of a memory chip (`chips`), with
    and without protections. An interval of the protected AUC is that of the recovery, times the mean loss.

    Args:
        recovery: `recovery_rows_data`, of one model.
        losses: `memory_fault_loss_data` of the same model; the faults of mode `any` are drawn.
        ranking: `protection_ranking`'s data, which has the recovery of the protection under the same faults.
        protection: the one that is drawn with its rates.

    Raises:
        ValueError: a table does not have the protection.
    """
    for name, table in (("recovery", recovery), ("ranking", ranking)):
        if protection not in set(table["mitigation"]):
            raise ValueError(
                f"the table {name} has no mitigation {protection!r}; it has {sorted(set(table['mitigation']))}"
            )
    golden = recovery["auc_golden"].iloc[0]
    flips = recovery[(recovery["mitigation"] == protection) & (recovery["ber"] > 0)].sort_values("ber")
    plain = pd.DataFrame({f"lost{end}": flips[f"lost{end}"] for end in _ENDS}).assign(mitigation=NONE)
    left = pd.DataFrame({"lost": flips["lost"] - flips["gained"], "mitigation": protection})
    left["lost_low"] = (flips["lost"] * (1 - flips["recovery_high"])).fillna(0.0)
    left["lost_high"] = (flips["lost"] * (1 - flips["recovery_low"])).fillna(flips["lost_high"])
    flips = pd.concat([part.assign(errors=FLIPS, ber=flips["ber"]) for part in (plain, left)])
    faults = losses[losses["error_mode"] == "any"]
    drawn = faults[faults["mitigation"].str.contains("SECDED|^chipkill") | (faults["mitigation"] == NONE)]
    chips = drawn.rename(columns={f"auc_drop{end}": f"lost{end}" for end in _ENDS})
    lost, of = chips.loc[chips["mitigation"] == NONE, "lost"].iloc[0], ranking.set_index("mitigation").loc[protection]
    shares = {"lost": of["faults"], "lost_low": of["faults_high"], "lost_high": of["faults_low"]}
    back = pd.DataFrame([{"mitigation": protection} | {name: lost * (1 - share) for name, share in shares.items()}])
    chips = pd.concat([chips, back]).assign(errors=CHIPS, ber=np.nan)
    chips["order"] = chips["mitigation"] != NONE
    chips = chips.sort_values(["order", "lost"], ascending=[True, False], kind="stable")
    data = pd.concat([flips, chips], ignore_index=True)
    signs = {"auc": "lost", "auc_low": "lost_high", "auc_high": "lost_low"}
    aucs = {name: golden - np.maximum(data[of_loss], 0) for name, of_loss in signs.items()}
    about = {key: recovery[key].iloc[0] for key in _KEYS}
    columns = [*_KEYS, "errors", "mitigation", "ber", "auc_golden", *aucs]
    return data.assign(auc_golden=golden, **about, **aucs)[columns]


@styled
def lead(data: pd.DataFrame, ax: "Axes | None" = None, *, errors: str = FLIPS) -> "Axes":
    """AUC with its interval, without and with protections: against the bit error rate, or under one fault of a memory chip.

    Args:
        data: `lead_data`.
        ax: where to draw; None: a new figure. The panel of flips has the legend.
        errors: `flips` or `chips`.
    """
    rows, golden = data[data["errors"] == errors], data["auc_golden"]
    order = [NONE, *(name for name in dict.fromkeys(data["mitigation"]) if name != NONE)]
    styles = {
        name: series_style(1 if number == 0 else (0, 2, 3, 4)[(number - 1) % 4]) for number, name in enumerate(order)
    }
    if errors == FLIPS:
        for name, curve in rows.groupby("mitigation", sort=False):
            style = styles[name]
            ax.fill_between(curve["ber"], curve["auc_low"], curve["auc_high"], color=style["color"], alpha=0.18, lw=0)
            ax.plot(curve["ber"], curve["auc"], linewidth=2, markersize=5, label=_label(name), **style)
        auc_guides(ax, golden)
        ax.set(title="independent bit flips", xscale="log")
        if len(rows):
            ax.set_ylim(top=golden.max() + 0.05)  # room for the name of the line
            legend_outside(ax)
    else:
        names = list(dict.fromkeys(rows["mitigation"]))
        for place, (name, row) in enumerate(rows.groupby("mitigation", sort=False)):
            style = styles[name] | {"linestyle": "none", "markersize": 7, "capsize": 3, "elinewidth": 1.6}
            if row["auc"].isna().all():
                centre = (golden.max(), len(names) - 1 - place)
                ax.annotate(
                    TOO_FEW, centre, (-6, 0), textcoords="offset points", ha="right", va="center", size=SMALLEST
                )
            ax.errorbar(row["auc"], [len(names) - 1 - place], xerr=interval(row, "auc"), **style)
        ax.set_yticks(range(len(names))[::-1], [_label(name) for name in names])
        ax.set_ylim(-0.6, max(len(names), 1) - 0.4)
        ax.grid(False, axis="y")
        if len(rows):
            least = rows[["auc", "auc_low"]].min(axis=None)
            span = golden.max() - least
            ax.set_xlim(least - 0.1 * span, golden.max() + 0.65 * span)
        for value in set(golden):
            ax.axvline(value, linestyle="--", **GUIDE)
            name_line(ax, value, "without errors", axis="x")
        ax.set(title="one fault of a memory chip", xlabel="AUC")
    return ax


def _label(name: str) -> str:
    return protection_name(name).replace(", ", ",\n").partition(" (")[0].partition(" RS")[0]
