"""Which bit of a float32 matters: AUC loss and PVF of one flip by bit position, component and model (experiment E1)."""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LogNorm, Normalize

from drsrobust.plots.curves import interval, picked
from drsrobust.plots.style import series_styles, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_KEYS = ["model", "dataset", "target", "bit"]
_NUMBERS = ["n", "auc_drop", "auc_drop_low", "auc_drop_high"]
_NUMBERS += ["trials_harmed", "trials_harmed_low", "trials_harmed_high", "share_nonfinite"]
_PVF = ["pvf", "pvf_low", "pvf_high"]
_FIELDS = (("sign", 31, 31), ("exponent", 23, 30), ("mantissa", 0, 22))
_LABELS = {
    "auc_drop": "mean AUC loss of one flip",
    "trials_harmed": "share of flips that lose over 0.001 AUC",
    "pvf": "share of flips that change any decision (PVF)",
}
_TITLES = {"auc_drop": "AUC loss", "trials_harmed": "share of harmful flips", "pvf": "flips that change decisions"}
_SMALLEST, _LARGEST = 1e-5, 0.5  # AUC losses that colours tell apart


def bit_sensitivity_data(summary: "pd.DataFrame", shares: "pd.DataFrame | None" = None) -> "pd.DataFrame":
    """What `bit_sensitivity` and `bit_map` draw: one row per model, data set, target and bit position, sorted.

    Args:
        summary: `dr.summarise` of campaigns of `SingleBit`.
        shares: `dr.pvf` of the same trials by model, dataset, target and error_model; adds `pvf`, `pvf_low`, `pvf_high` of the
            definition `decision_changed`.
    """
    picked(summary, [], "auc_drop_low")
    numbers = _NUMBERS
    if shares is not None:
        keys = [*_KEYS[:3], "error_model"]
        summary = summary.merge(shares[shares["definition"] == "decision_changed"][[*keys, *_PVF]], on=keys)
        numbers = [*_NUMBERS, *_PVF]
    data = summary.dropna(subset=["error_bit"])
    data = data.assign(bit=data["error_bit"].astype(int))
    return picked(data, _KEYS + numbers, "auc_drop_low").sort_values(_KEYS, ignore_index=True)


@styled
def bit_sensitivity(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "auc_drop") -> "Axes":
    """Effect of a single flip with its interval against the bit position, a series per target.

    Args:
        quantity: `auc_drop` (mean AUC loss), `trials_harmed` (share of flips that lose over 0.001 AUC) or `pvf`.
    """
    targets = list(data["target"].unique())
    for index, (target, style) in enumerate(series_styles(targets).items()):
        curve = data[data["target"] == target]
        place = curve["bit"] + 0.22 * (index - (len(targets) - 1) / 2)  # side by side, so that no bar hides another
        style = {"color": style["color"], "marker": style["marker"], "linestyle": "none", "markersize": 4.5}
        error_bars = {"yerr": interval(curve, quantity), "capsize": 1.5, "elinewidth": 1}
        ax.errorbar(place, curve[quantity], label=target, **error_bars, **style)
    ax.axvspan(22.5, 30.5, color="#F1EFE6", zorder=0, lw=0)
    if quantity == "auc_drop":
        ax.set_yscale("symlog", linthresh=1e-5, linscale=0.6)
        ax.axhline(0, color="#777777", linewidth=0.9, zorder=0)
    _bit_axis(ax)
    ax.set(ylabel=_LABELS[quantity], xlim=(31.7, -0.7))
    ax.set_xticks(range(32))
    ax.tick_params(axis="x", labelsize=7)
    if len(data):
        ax.set_title(f"{_TITLES[quantity]}, {data['model'].iloc[0]} on {data['dataset'].iloc[0]}", pad=18)
        ax.legend(title="flip in", loc="upper right")
    return ax


@styled
def bit_map(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "auc_drop") -> "Axes":
    """Effect of a single flip in many models: a row per model and target, a column per bit position, darker for more.

    Args:
        quantity: `auc_drop` (logarithmic; blank under 1e-5 or where the interval contains 0) or `pvf`.
    """
    rows = list(dict.fromkeys(data[["model", "target"]].itertuples(index=False, name=None)))
    values = np.full((len(rows), 32), np.nan)
    for row in data.to_dict("records"):
        if quantity != "auc_drop" or (row["auc_drop_low"] > 0 and row["auc_drop"] >= _SMALLEST):
            values[rows.index((row["model"], row["target"])), row["bit"]] = row[quantity]
    scale = LogNorm(_SMALLEST, _LARGEST, clip=True) if quantity == "auc_drop" else Normalize(0, 1)
    if len(rows):
        image = ax.pcolormesh(np.arange(33) - 0.5, np.arange(len(rows) + 1) - 0.5, values, cmap="Blues", norm=scale)
        image.set_rasterized(False)
        ax.figure.colorbar(image, ax=ax, pad=0.02, fraction=0.05).outline.set_visible(False)
        ax.set_ylim(len(rows) - 0.5, -0.5)
    for number, ((model, _), (next_model, _)) in enumerate(pairwise(rows)):
        if model != next_model:
            ax.axhline(number + 0.5, color="#555555", linewidth=0.8)
    for _, low, _ in _FIELDS[:2]:
        ax.axvline(low - 0.5, color="#555555", linewidth=0.8, linestyle=":")
    ax.set_yticks(range(len(rows)), [f"{model}  {target}" for model, target in rows], size=8)
    _bit_axis(ax)
    ax.set_xticks(range(0, 32, 2))
    ax.set_xlim(31.5, -0.5)
    ax.grid(False)
    ax.set_title(_LABELS[quantity], pad=18)
    ax.label_outer()
    return ax


def _bit_axis(ax: "Axes") -> None:
    ax.set_xlabel("bit position (31: sign, 0: lowest of the mantissa)")
    for name, low, high in _FIELDS:
        ax.text((low + high) / 2, 1.01, name, transform=ax.get_xaxis_transform(), ha="center", size=8, color="#666666")
