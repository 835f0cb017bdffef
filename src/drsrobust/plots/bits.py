"""Which bit of a float32 matters: AUC loss of one flip by bit position and component (experiment E1)."""

from typing import TYPE_CHECKING

from drsrobust.plots.style import look, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_NUMBERS = ["n", "auc_drop", "auc_drop_low", "auc_drop_high", "harmed", "harmed_low", "harmed_high", "share_nonfinite"]
_FIELDS = (("sign", 31, 31), ("exponent", 23, 30), ("mantissa", 0, 22))


def bit_sensitivity_data(summary: "pd.DataFrame") -> "pd.DataFrame":
    """What `bit_sensitivity` draws: one row per model, data set, target and bit position, sorted."""
    if "auc_drop_low" not in summary:
        raise ValueError("the table has no intervals (auc_drop_low): give the summary, as summarise(table)")
    bit = summary["error_model"].str.extract(r"^SingleBit\(bit=(\d+)\)$")[0]
    data = summary.assign(bit=bit)[bit.notna()].astype({"bit": int})
    keys = ["model", "dataset", "target", "bit"]
    return data[keys + _NUMBERS].sort_values(keys, ignore_index=True)


@styled
def bit_sensitivity(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "auc_drop") -> "Axes":
    """Mean AUC loss of a single flip (or the share of flips that do harm) against the bit position, with intervals.

    Args:
        data: as `bit_sensitivity_data` returns it, of one model and data set.
        ax: where to draw; None: a new figure.
        quantity: `auc_drop` or `harmed`.
    """
    ax = ax or new_panels()[0]
    targets = list(data["target"].unique())
    for index, target in enumerate(targets):
        curve = data[data["target"] == target]
        style = look(index)
        place = curve["bit"] + 0.22 * (index - (len(targets) - 1) / 2)  # side by side, so that no bar hides another
        errors = [curve[quantity] - curve[f"{quantity}_low"], curve[f"{quantity}_high"] - curve[quantity]]
        ax.errorbar(
            place,
            curve[quantity],
            yerr=errors,
            label=target,
            color=style["color"],
            marker=style["marker"],
            linestyle="none",
            markersize=4.5,
            capsize=1.5,
            elinewidth=1,
        )
    for name, low, high in _FIELDS:
        if name == "exponent":
            ax.axvspan(low - 0.5, high + 0.5, color="#F1EFE6", zorder=0, lw=0)
        ax.text((low + high) / 2, 1.01, name, transform=ax.get_xaxis_transform(), ha="center", size=8, color="#666666")
    if quantity == "auc_drop":
        ax.set_yscale("symlog", linthresh=1e-5, linscale=0.6)
        ax.axhline(0, color="#777777", linewidth=0.9, zorder=0)
    labels = {"auc_drop": "mean AUC loss of one flip", "harmed": "share of flips that lose over 0.001 AUC"}
    ax.set(xlabel="bit position (31: sign, 0: lowest of the mantissa)", ylabel=labels[quantity], xlim=(31.7, -0.7))
    ax.set_xticks(range(32))
    ax.tick_params(axis="x", labelsize=7)
    if len(data):
        ax.set_title(f"{data['model'].iloc[0]} on {data['dataset'].iloc[0]}", pad=18)
        ax.legend(title="flip in", loc="upper right")
    return ax
