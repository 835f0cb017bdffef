"""AUC with and without repair, on the same error maps (experiment E7)."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust.plots.guides import GUIDE, auc_guides, name_line
from drsrobust.plots.style import apart, look, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

PLAIN = "none"  # how tables name the model without protection
LEAST = 1e-8  # AUC: a smaller change is drawn here
WITHIN = 1e-4  # AUC: what repair is asked to keep
_COLUMNS = ["panel", "model", "dataset", "mitigation", "ber", "n", "auc", "auc_low", "auc_high", "auc_golden", "change"]


def abft_repair_data(summary: "pd.DataFrame", single: "pd.DataFrame") -> "pd.DataFrame":
    """What `abft_repair` draws: panel `rate`, a row per mitigation and bit error rate with the mean AUC and its interval; panel
    `single`, a row per mitigation and trial, sorted by |AUC - golden| (`change`).

    Args:
        summary: `summarise` of a campaign over bit error rates, without and with repair.
        single: the table of a campaign of one error per trial, without and with repair.
    """
    import pandas as pd

    rate = summary.assign(panel="rate").sort_values(["mitigation", "ber"], kind="stable")
    change = single["auc_drop"].abs()
    one = single.assign(panel="single", change=change, n=1).sort_values(["mitigation", "change"], kind="stable")
    parts = [part.reindex(columns=_COLUMNS) for part in (rate, one)]
    return pd.concat([part.dropna(axis=1, how="all") for part in parts], ignore_index=True)[_COLUMNS]


@styled
def abft_repair(data: "pd.DataFrame", ax: "Axes | None" = None, *, panel: str = "rate") -> "Axes":
    """AUC without and with repair.

    Args:
        data: as `abft_repair_data` returns it.
        ax: where to draw; None: a new figure.
        panel: `rate`: mean AUC with its interval against the bit error rate; `single`: of trials with one error, the share
            whose AUC differs from the golden one by at least so much.
    """
    ax = ax or new_panels()[0]
    data = data[data["panel"] == panel]
    for index, name in enumerate(data["mitigation"].drop_duplicates().sort_values(key=lambda names: names != PLAIN)):
        here = data[data["mitigation"] == name]
        style = look(index) | ({"color": "#000000"} if name == PLAIN else {})  # black without protection, as elsewhere
        label = "no protection" if name == PLAIN else "rows and layers put back"
        if panel == "rate":
            here = here[here["ber"] > 0]
            ends = np.maximum([here["auc"] - here["auc_low"], here["auc_high"] - here["auc"]], 0)
            place = here["ber"] * apart(index, 2)
            ax.errorbar(place, here["auc"], yerr=ends, label=label, capsize=2.5, markersize=5, linewidth=1.6, **style)
        else:
            change = here["change"].fillna(np.inf).to_numpy()
            least = np.unique(np.append(change[change > LEAST], LEAST))
            share = (change >= least[:, None]).mean(axis=1)
            about = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 1.8, "label": label}
            ax.step(np.append(least.clip(LEAST, 1), 1.0), np.append(share, 0.0), where="pre", **about)
    if panel == "rate":
        auc_guides(ax, data["auc_golden"])
        ax.set_title("errors in all parameters")
    else:
        ax.axvline(WITHIN, linestyle=(0, (6, 3)), **GUIDE)
        name_line(ax, WITHIN, f"within {WITHIN:g}", axis="x")
        ax.set(xlabel="|AUC - golden|", ylabel="share of trials with at least that", title="one error per trial")
        ax.set(xlim=(LEAST, 1.0), ylim=(-0.03, 1.03))
    ax.set_xscale("log")
    if len(data):
        ax.legend(loc="best")
    return ax
