"""Which bit of a float32 matters: flips that change decisions by bit position, component and model."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from drsrobust_extras.pages.plots.curves import interval
from drsrobust_extras.pages.plots.style import is_alone, legend_outside, series_styles, styled
from drsrobust_study.bit_sensitivity import flipped as flipped_words
from drsrobust_study.findings import number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

FIELDS = (("sign", 31, 31), ("exponent", 23, 30), ("mantissa", 0, 22))
_SHARE = "share of flips that change a decision"
_BOLD = (31, 30, 29)  # flips whose value a reader should see: the sign, a huge number, almost nothing


def bit_sensitivity_data(shares: "pd.DataFrame") -> "pd.DataFrame":
    """What `bit_sensitivity` and `bit_map` draw: one row per model, data set, target and bit position, sorted.

    Args:
        shares: `dr.pvf` of campaigns of `SingleBit`, by model, dataset, target and error_bit; of the definition
            `decision_changed`.
    """
    data = shares[shares["definition"] == "decision_changed"].rename(columns={"error_bit": "bit"}).astype({"bit": int})
    keys = ["model", "dataset", "target", "bit"]
    return data[[*keys, "n", "pvf", "pvf_low", "pvf_high"]].sort_values(keys, ignore_index=True)


@styled
def bit_sensitivity(data: "pd.DataFrame", ax: "Axes | None" = None, *, lowest: int = 0) -> "Axes":
    """Share of flips that change a decision, with its interval, against the bit position: a series per target.

    Args:
        data: `bit_sensitivity_data` of one model.
        ax: where to draw; None: a new figure.
        lowest: bit that is shown.
    """
    data = data[data["bit"] >= lowest]
    targets = list(data["target"].unique())
    for index, (target, style) in enumerate(series_styles(targets).items()):
        curve = data[data["target"] == target]
        place = curve["bit"] + 0.22 * (index - (len(targets) - 1) / 2)  # side by side, so that no bar hides another
        style = {"color": style["color"], "marker": style["marker"], "linestyle": "none", "markersize": 4.5}
        ax.errorbar(place, curve["pvf"], yerr=interval(curve, "pvf"), elinewidth=1, label=target, **style)
    ax.axvspan(22.5, 30.5, color="#F1EFE6", zorder=0, lw=0)
    ax.set(ylabel=_SHARE, xlim=(31.7, lowest - 0.7))
    _bit_axis(ax, lowest)
    ax.set_xticks(range(lowest, 32, 1 if is_alone(ax) else 2))
    if len(data):
        ax.set_title(f"{data['model'].iloc[0]} on {data['dataset'].iloc[0]}", pad=18)
        legend_outside(ax, title="flip in")
    return ax


@styled
def bit_map(data: "pd.DataFrame", ax: "Axes | None" = None, *, lowest: int = 0) -> "Axes":
    """The same share in many models: a row per model and target, a column per bit position, darker for more.

    Args:
        data: `bit_sensitivity_data`.
        ax: where to draw; None: a new figure.
        lowest: bit that is shown.
    """
    rows = list(dict.fromkeys(data[["model", "target"]].itertuples(index=False, name=None)))
    values = np.full((len(rows), 32), np.nan)
    for row in data.itertuples():
        values[rows.index((row.model, row.target)), row.bit] = row.pvf
    scale = Normalize(0, 1)
    if len(rows):
        image = ax.pcolormesh(np.arange(33) - 0.5, np.arange(len(rows) + 1) - 0.5, values, cmap="Blues", norm=scale)
        image.set_rasterized(False)
        ax.figure.colorbar(image, ax=ax, pad=0.02, fraction=0.05).outline.set_visible(False)
    _model_rows(ax, rows)
    for _, low, _ in FIELDS[:2]:
        ax.axvline(low - 0.5, color="#555555", linewidth=0.8, linestyle=":")
    _bit_axis(ax, lowest)
    ax.set_xticks(range(lowest, 32, 2))
    ax.set_xlim(31.5, lowest - 0.5)
    ax.grid(False)
    ax.set_title(_SHARE, pad=18)
    ax.label_outer()
    return ax


def _model_rows(ax: "Axes", rows: Sequence[tuple[str, str]]) -> None:
    """A row per model and target, with lines between models."""
    for index, ((model, _), (next_model, _)) in enumerate(pairwise(rows)):
        if model != next_model:
            ax.axhline(index + 0.5, color="#555555", linewidth=0.8)
    ax.set_yticks(range(len(rows)), [f"{model}  {target}" for model, target in rows])
    ax.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    ax.grid(False, axis="y")


def _bit_axis(ax: "Axes", lowest: int = 0) -> None:
    ax.set_xlabel("bit position")
    for name, low, high in FIELDS:
        low = max(low, lowest)
        ax.text((low + high) / 2, 1.01, name, transform=ax.get_xaxis_transform(), ha="center", size=8, color="#666666")


def bit_layout_data(weight: float, bits: Sequence[int]) -> "pd.DataFrame":
    """What `bit_layout` draws: the 32 bits of a float32 without a flip, and with one flip each.

    Args:
        weight: the value.
        bits: the flips, from the top row on; 0 the lowest of the mantissa, 31 the sign.

    Returns:
        one row each: `flipped` (-1: none), `value`, and `word`, 32 digits with the highest bit first.
    """
    import pandas as pd

    stored = np.array([weight], np.float32)
    values = np.concatenate([stored, *(flipped_words(stored, bit) for bit in bits)])
    words = [f"{word:032b}" for word in values.view(np.uint32).tolist()]
    rows = {"flipped": [-1, *bits], "value": values.astype(float), "word": words}
    return pd.DataFrame(rows)


@styled
def bit_layout(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """The bits of a float32 in boxes, coloured by field: a row per flip, with the flipped box marked and the value."""
    ax.figure.set_size_inches(7.0, 0.9 + 0.34 * len(data))
    colours = {"sign": "#E9C7DC", "exponent": "#F7D9B8", "mantissa": "#CFE3F2"}
    fields = [next(name for name, low, high in FIELDS if low <= bit <= high) for bit in range(31, -1, -1)]
    for row, (flipped, value, word) in enumerate(data[["flipped", "value", "word"]].itertuples(index=False)):
        for place, (digit, field) in enumerate(zip(word, fields, strict=True)):
            hit = 31 - place == flipped
            box = Rectangle((place, -row), 0.94, 0.8, facecolor="#C1272D" if hit else colours[field], linewidth=0)
            ax.add_patch(box)
            style = {"color": "white", "weight": "bold"} if hit else {"color": "#333333"}
            ax.text(place + 0.47, 0.4 - row, digit, ha="center", va="center", size=8, **style)
        ax.text(-0.5, 0.4 - row, "stored" if flipped < 0 else f"bit {flipped}", ha="right", va="center", size=9)
        alike = row and number(value) == number(data["value"].iloc[0])
        text = f"{value:.9f}" if alike else number(value)
        ax.text(32.6, 0.4 - row, text, va="center", size=9, weight="bold" if flipped in _BOLD else "normal")
    for name, low, high in FIELDS:
        ax.text(31.5 - (low + high) / 2, 1.0, name, ha="center", va="bottom", size=9, color="#444444")
    ax.text(32.6, 1.0, "value", va="bottom", size=9, color="#444444")
    ax.set(xlim=(-3, 37), ylim=(0.7 - len(data), 1.7))
    ax.set_axis_off()
    return ax
