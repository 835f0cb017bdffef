"""Which bit of a float32 matters: AUC loss and PVF of one flip by bit position, component and model (experiment E1)."""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LogNorm, Normalize

from drsrobust.plots.style import looks, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_NUMBERS = [
    "n",
    "auc_drop",
    "auc_drop_low",
    "auc_drop_high",
    "trials_harmed",
    "trials_harmed_low",
    "trials_harmed_high",
]
_NUMBERS += ["share_nonfinite"]
_FIELDS = (("sign", 31, 31), ("exponent", 23, 30), ("mantissa", 0, 22))


_PVF = ["pvf", "pvf_low", "pvf_high"]
_LABELS = {
    "auc_drop": "mean AUC loss of one flip",
    "trials_harmed": "share of flips that lose over 0.001 AUC",
    "pvf": "share of flips that change any decision (PVF)",
}
_TITLES = {"auc_drop": "AUC loss", "trials_harmed": "share of flips that do harm", "pvf": "flips that change decisions"}
_SMALLEST, _LARGEST = 1e-5, 0.5  # AUC losses that colours tell apart


def bit_sensitivity_data(summary: "pd.DataFrame", shares: "pd.DataFrame | None" = None) -> "pd.DataFrame":
    """What `bit_sensitivity` and `bit_map` draw: one row per model, data set, target and bit position, sorted.

    Args:
        summary: `summarise` of campaigns of `SingleBit`.
        shares: `pvf` of the same trials by model, dataset, target and error_model: its definition `decision_changed` is
        added as
            `pvf`, `pvf_low`, `pvf_high`.
    """
    if "auc_drop_low" not in summary:
        raise ValueError("the table has no intervals (auc_drop_low): give the summary, as summarise(table)")
    columns = ["model", "dataset", "target"]
    numbers = _NUMBERS
    if shares is not None:
        flipped = shares[shares["definition"] == "decision_changed"]
        summary = summary.merge(flipped[[*columns, "error_model", *_PVF]], on=[*columns, "error_model"])
        numbers = [*_NUMBERS, *_PVF]
    bit = summary["error_model"].str.extract(r"^SingleBit\(bit=(\d+)\)$")[0]
    data = summary.assign(bit=bit)[bit.notna()].astype({"bit": int})
    keys = [*columns, "bit"]
    return data[keys + numbers].sort_values(keys, ignore_index=True)


@styled
def bit_sensitivity(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "auc_drop") -> "Axes":
    """Mean AUC loss of a single flip (or the share of flips that do harm, or PVF) against the bit position, with intervals.

    Args:
        data: as `bit_sensitivity_data` returns it, of one model and data set.
        ax: where to draw; None: a new figure.
        quantity: `auc_drop`, `trials_harmed` or `pvf`.
    """
    ax = ax or new_panels()[0]
    targets = list(data["target"].unique())
    styles = looks(targets)
    for index, target in enumerate(targets):
        curve, style = data[data["target"] == target], styles[target]
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
    ax.set(xlabel="bit position (31: sign, 0: lowest of the mantissa)", ylabel=_LABELS[quantity], xlim=(31.7, -0.7))
    ax.set_xticks(range(32))
    ax.tick_params(axis="x", labelsize=7)
    if len(data):
        ax.set_title(f"{_TITLES[quantity]}, {data['model'].iloc[0]} on {data['dataset'].iloc[0]}", pad=18)
        ax.legend(title="flip in", loc="upper right")
    return ax


@styled
def bit_map(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "auc_drop") -> "Axes":
    """The same of many models: a row per model and component, a column per bit position, darker where a flip does more.

    Args:
        data: as `bit_sensitivity_data` returns it, of one data set.
        ax: where to draw; None: a new figure.
        quantity: `auc_drop` (logarithmic; blank where it is under 1e-5 or its interval reaches to 0 or below) or `pvf`.
    """
    ax = ax or new_panels()[0]
    rows = list(dict.fromkeys(data[["model", "target"]].itertuples(index=False, name=None)))
    grid = np.full((len(rows), 32), np.nan)
    for row in data.to_dict("records"):
        sure = quantity != "auc_drop" or (row["auc_drop_low"] > 0 and row["auc_drop"] >= _SMALLEST)
        grid[rows.index((row["model"], row["target"])), row["bit"]] = row[quantity] if sure else np.nan
    scale = LogNorm(_SMALLEST, _LARGEST, clip=True) if quantity == "auc_drop" else Normalize(0, 1)
    if len(rows):
        # Lightness alone tells values apart, so grey says the same.
        image = ax.pcolormesh(np.arange(33) - 0.5, np.arange(len(rows) + 1) - 0.5, grid, cmap="Blues", norm=scale)
        image.set_rasterized(False)
        bar = ax.figure.colorbar(image, ax=ax, pad=0.02, fraction=0.05)
        bar.outline.set_visible(False)
        ax.set_ylim(len(rows) - 0.5, -0.5)
    for number, (one, other) in enumerate(pairwise(rows)):
        if one[0] != other[0]:
            ax.axhline(number + 0.5, color="#555555", linewidth=0.8)
    for _, low, _ in _FIELDS[:2]:
        ax.axvline(low - 0.5, color="#555555", linewidth=0.8, linestyle=":")
    for name, low, high in _FIELDS:
        ax.text((low + high) / 2, 1.01, name, transform=ax.get_xaxis_transform(), ha="center", size=8, color="#666666")
    ax.set_yticks(range(len(rows)), [f"{model}  {target}" for model, target in rows], size=8)
    ax.set_xticks(range(0, 32, 2))
    ax.grid(False)
    ax.set(xlabel="bit position (31: sign, 0: lowest of the mantissa)", xlim=(31.5, -0.5))
    ax.set_title(_LABELS[quantity], pad=18)
    ax.label_outer()
    return ax
