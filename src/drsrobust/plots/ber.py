"""AUC against bit error rate (experiment E3)."""

from typing import TYPE_CHECKING

from matplotlib.patches import Patch

from drsrobust.plots.guides import auc_guides
from drsrobust.plots.style import apart, looks, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_KEYS = ["model", "dataset", "error_model", "target"]
_NUMBERS = ["ber", "realised", "realised_low", "realised_high", "n", "auc", "auc_low", "auc_high", "auc_q10", "auc_q90"]
_NUMBERS += ["auc_golden", "share_nonfinite"]


def auc_vs_ber_data(summary: "pd.DataFrame") -> "pd.DataFrame":
    """What `auc_vs_ber` draws: one row per model, data set, error model, target and rate, sorted, with the realised rate and
    its binomial range.

    Args:
        summary: `dr.summarise` of a campaign's table, or a frame that this function returned.

    Raises:
        ValueError: a table of trials, or another one without means and intervals.
    """
    if missing := [column for column in (*_KEYS, *_NUMBERS) if column not in summary]:
        raise ValueError(
            f"the table has no column {missing[0]!r}: auc_vs_ber draws means over trials; give the summary, as "
            "dr.summarise(table)"
        )
    data = summary.loc[summary["error_model"].str.startswith("BitFlip"), _KEYS + _NUMBERS]
    return data.sort_values([*_KEYS, "ber"], ignore_index=True)


@styled
def auc_vs_ber(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """Mean AUC with its interval (bars) and the 10-90 % quantiles over trials (band) against the bit error rate.

    Args:
        data: `dr.summarise` of a campaign's table, or `auc_vs_ber_data` of it; a curve per model, data set and target. Rates
            of 0 are not drawn. Curves stand a little beside each other, so that no bar hides another.
        ax: where to draw; None: a new figure.

    Raises:
        ValueError: a table of trials, which have no means and intervals.
    """
    data = auc_vs_ber_data(data)
    ax = ax or new_panels()[0]
    data = data[data["ber"] > 0]
    differing = [key for key in _KEYS[:3] if data[key].nunique() > 1]
    curves = list(data.groupby([*differing, "target"], sort=False))
    # Where one target is hit, and models differ, curves look as those of models do.
    series = [name[:-1] if differing and data["target"].nunique() == 1 else name for name, _ in curves]
    styles = looks(", ".join(name) for name in series)
    for index, (name, curve) in enumerate(curves):
        style = styles[", ".join(series[index])]
        place = curve["ber"] * apart(index, len(curves), step=0.07)
        ax.fill_between(place, curve["auc_q10"], curve["auc_q90"], color=style["color"], alpha=0.10, lw=0)
        errors = [curve["auc"] - curve["auc_low"], curve["auc_high"] - curve["auc"]]
        label = ", ".join(name)
        ax.errorbar(place, curve["auc"], yerr=errors, label=label, capsize=2.5, markersize=5, linewidth=1.6, **style)
    auc_guides(ax, data["auc_golden"])
    if len(curves):
        ax.set_xscale("log")
        ax.label_outer()
        band = Patch(color="#999999", alpha=0.25, lw=0, label="10-90 % of trials")
        low, high = ax.get_ylim()
        above = max(0.0, (0.5 - low) / (high - low)) + 0.07  # the line of a coin toss has its name at the left
        handles = [*ax.get_legend_handles_labels()[0], band]
        ax.legend(handles=handles, title="errors in", loc="lower left", bbox_to_anchor=(0.0, above, 1.0, 1.0 - above))
        ax.set_title(" / ".join(f"{model} on {name}" for model, name in data[_KEYS[:2]].drop_duplicates().to_numpy()))
    return ax
