"""Recovery by mitigation (experiment E8)."""

from typing import TYPE_CHECKING

from drsrobust.plots.curves import interval, mitigation_label, refuse_one_label
from drsrobust.plots.style import OUTSIDE, at_edge, series_style, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_KEYS = ["model", "dataset", "protocol", "target", "mitigation", "ber", "n", "auc_golden"]
_TITLES = {"recovery": "recovery", "gained": "the same in AUC"}
_LABELS = {"recovery": "share of the lost AUC that comes back", "gained": "AUC gained by protection"}


def recovery_rows_data(recovery: "pd.DataFrame", rank_at: float) -> "pd.DataFrame":
    """What `recovery_rows` draws: one row per mitigation and rate, ranked by the AUC gained at one rate.

    Args:
        recovery: `dr.recovery` over rates, of one model, target and protocol.
        rank_at: the rate.

    Raises:
        ValueError: a rate that the table does not have; several mitigations with one label.
    """
    refuse_one_label(recovery)
    ranked = recovery[recovery["ber"] == rank_at]
    if not len(ranked):
        rates = ", ".join(f"{ber:g}" for ber in sorted(recovery["ber"].unique()))
        raise ValueError(f"rank_at is {rank_at!r}; the table has the rates {rates}")
    order = ranked.set_index("mitigation")["gained"].rank(ascending=False, method="first").astype(int)
    names, ends = ("lost", "gained", "recovery", "trials_harmed"), ("", "_low", "_high")
    columns = [*_KEYS, *(f"{name}{end}" for name in names for end in ends), "raised"]
    data = recovery[columns].assign(rank=recovery["mitigation"].map(order))
    return data.sort_values(["rank", "ber"], kind="stable", ignore_index=True)


@styled
def recovery_rows(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "recovery") -> "Axes":
    """Recovered AUC with its interval: a row per mitigation, a series per bit error rate.

    Args:
        ax: where to draw; None: a new figure. The last panel of a row has the legend.
        quantity: `recovery`, as a share of the lost AUC, or `gained`, as AUC.
    """
    names = data.drop_duplicates("mitigation").sort_values("rank")["mitigation"].tolist()
    shown = data.dropna(subset=[quantity, f"{quantity}_low"])
    rates = sorted(data["ber"].unique())  # of all data, so that a rate looks alike in both panels
    for index, ber in enumerate(rates):
        points, style = shown[shown["ber"] == ber], series_style(index)
        if points.empty:
            continue
        place = len(names) - 1 - points["mitigation"].map(names.index).to_numpy(float)
        place += 0.2 * ((len(rates) - 1) / 2 - index)
        style |= {"linestyle": "none", "markersize": 4.5, "elinewidth": 1.1, "label": f"{ber:.0e}".replace("e-0", "e-")}
        ax.errorbar(points[quantity], place, xerr=interval(points, quantity), **style)
    ax.figure.set_figheight(max(ax.figure.get_figheight(), 1.2 + 0.25 * len(names)))  # room for three markers to a row
    for number in range(0, len(names), 2):
        ax.axhspan(number - 0.5, number + 0.5, color="#F5F5F2", zorder=-1, lw=0)
    for line in (0.0, 1.0) if quantity == "recovery" else (0.0,):
        ax.axvline(line, color="#777777", linewidth=0.9, zorder=0)
    ax.set_yticks(range(len(names))[::-1], [mitigation_label(name) for name in names], fontsize=8)
    ax.set_ylim(-0.6, len(names) - 0.4)
    ax.grid(False, axis="y")
    ax.set(title=_TITLES[quantity], xlabel=_LABELS[quantity])
    if quantity == "recovery":
        ax.set_xlim(-0.3, 1.15)  # bars are very long where little is lost
    if rates and at_edge(ax, "last_col"):
        ax.legend(title="bit error rate", **OUTSIDE)
    ax.label_outer()
    return ax
