"""What many mitigations give back, side by side (experiment E8)."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust.plots.curves import one_bit, refuse_one_label
from drsrobust.plots.style import look, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_SHOWN = {"recovery": (-0.3, 1.15), "gained": (None, None)}  # where little is lost, bars may reach anywhere
_TITLES = {"recovery": "recovery", "gained": "the same in AUC"}
_LABELS = {"recovery": "share of the lost AUC that comes back", "gained": "AUC gained by protection"}


def recovery_rows_data(found: "pd.DataFrame", rank_at: float) -> "pd.DataFrame":
    """What `recovery_rows` draws: one row per mitigation and rate; the mitigation that gains most at one rate first.

    Args:
        found: `campaign.recovery` over rates, of one model, target and protocol.
        rank_at: the rate.

    Raises:
        ValueError: a rate that the table does not have; several mitigations of one label.
    """
    refuse_one_label(found)
    here = found[found["ber"] == rank_at]
    if not len(here):
        rates = ", ".join(f"{ber:g}" for ber in sorted(found["ber"].unique()))
        raise ValueError(f"rank_at is {rank_at!r}; the table has the rates {rates}")
    order = here.set_index("mitigation")["gained"].rank(ascending=False, method="first").astype(int)
    keys = ["model", "dataset", "protocol", "target", "mitigation", "ber", "n", "auc_golden"]
    values = [
        f"{name}{end}" for name in ("lost", "gained", "recovery", "trials_harmed") for end in ("", "_low", "_high")
    ]
    data = found[[*keys, *values, "raised"]].assign(rank=found["mitigation"].map(order))
    return data.sort_values(["rank", "ber"], kind="stable", ignore_index=True)


@styled
def recovery_rows(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "recovery") -> "Axes":
    """Recovery, or AUC gained, with its interval: a row per mitigation, a series per bit error rate.

    Args:
        data: as `recovery_rows_data` returns it; values that are blank or have no interval are not drawn.
        ax: where to draw; None: a new figure.
        quantity: `recovery`, as a share of the lost AUC, or `gained`, as AUC.
    """
    ax = ax or new_panels()[0]
    names = data.drop_duplicates("mitigation").sort_values("rank")["mitigation"].tolist()
    shown = data.dropna(subset=[quantity, f"{quantity}_low"])
    rates = sorted(data["ber"].unique())  # a rate looks alike in both panels, in whichever of them it is blank
    for index, ber in enumerate(rates):
        here, style = shown[shown["ber"] == ber], look(index)
        if here.empty:
            continue
        place = len(names) - 1 - here["mitigation"].map(names.index).to_numpy(float)
        place += 0.2 * ((len(rates) - 1) / 2 - index)
        value = here[quantity].to_numpy()
        ends = [value - here[f"{quantity}_low"], here[f"{quantity}_high"] - value]
        options = {"color": style["color"], "marker": style["marker"], "linestyle": "none", "markersize": 4.5}
        ax.errorbar(
            value, place, xerr=np.maximum(ends, 0), elinewidth=1.1, label=f"{ber:.0e}".replace("e-0", "e-"), **options
        )
    ax.figure.set_figheight(max(ax.figure.get_figheight(), 1.2 + 0.25 * len(names)))  # three markers to a row
    for number in range(0, len(names), 2):
        ax.axhspan(number - 0.5, number + 0.5, color="#F5F5F2", zorder=-1, lw=0)
    for whole in (0.0, 1.0) if quantity == "recovery" else (0.0,):
        ax.axvline(whole, color="#777777", linewidth=0.9, zorder=0)
    ax.set_yticks(range(len(names))[::-1], [one_bit(name) for name in names], fontsize=8)
    ax.set_ylim(-0.6, len(names) - 0.4)
    ax.grid(False, axis="y")
    low, high = _SHOWN[quantity]
    ax.set(title=_TITLES[quantity], xlabel=_LABELS[quantity])
    if low is not None:
        ax.set_xlim(low, high)
    place = ax.get_subplotspec()
    if rates and (place is None or place.is_last_col()):
        ax.legend(title="bit error rate", loc="center left", bbox_to_anchor=(1.01, 0.5))
    ax.label_outer()
    return ax
