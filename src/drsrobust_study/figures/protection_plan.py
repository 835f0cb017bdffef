"""What plans, and one protection of all tensors, leave of the loss on fresh error maps."""

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.statistics import ENDS
from drsrobust_extras.pages.plots.curves import NONE
from drsrobust_extras.pages.plots.style import COLOURS, SMALLEST, legend_outside, styled
from drsrobust_extras.risk.planning.protection_plan import PLAN, UNIFORM
from drsrobust_study.figures.memory_faults import protection_name

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_KINDS = {
    NONE: ("no protection", "#777777"),
    UNIFORM: ("one protection of all tensors", COLOURS[1]),
    PLAN: ("plans", COLOURS[0]),
}
_LEAST = 1e-7  # resolution of a mean loss


def protection_plan_data(measured: "pd.DataFrame") -> "pd.DataFrame":
    """What `protection_plan` draws: a row per plan, uniform protection, and without protection, on fresh maps.

    Args:
        measured: as `Plan.compare` returns it, or several as one.
    """
    columns = ["kind", "mitigation", "stored_percent", "time_percent", "n", *(f"auc_drop{end}" for end in ENDS)]
    return measured.loc[measured["kind"].isin(list(_KINDS)), columns].reset_index(drop=True)


@styled
def protection_plan(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """The mean AUC that is still lost on fresh error maps, a bar per protection on a logarithmic axis, the most at the top,
    with the bits that it stores.

    Args:
        data: `protection_plan_data`.
        ax: where to draw; None: a new figure.
    """
    data = data.sort_values("auc_drop", kind="stable")
    place, left = np.arange(len(data)), data["auc_drop"].to_numpy(float)
    ax.figure.set_figheight(1.6 + 0.26 * len(data))
    for kind, (label, colour) in _KINDS.items():
        of_kind = (data["kind"] == kind).to_numpy()
        if of_kind.any():
            ax.barh(place[of_kind], np.maximum(left[of_kind], _LEAST), 0.7, color=colour, label=label)
    for y, loss, bits in zip(place, left, data["stored_percent"], strict=True):
        lost = f"{loss:.1e}".replace("e-0", "e-") if loss > _LEAST else f"under {_LEAST:.0e}".replace("e-0", "e-")
        text = f"{lost}, +{bits:.2g} % bits"
        inside = loss > np.sqrt(_LEAST * left.max())  # of a long bar, which leaves no room beyond it
        style = {"ha": "right", "color": "white"} if inside else {}
        place_of = ((max(loss, _LEAST), y), (-4 if inside else 4, 0))
        ax.annotate(text, *place_of, textcoords="offset points", va="center", size=SMALLEST, **style)
    names = [protection_name(name).removesuffix(" time").rpartition(",")[0] if kind == PLAN else protection_name(name)
             for name, kind in zip(data["mitigation"], data["kind"], strict=True)]  # fmt: skip
    ax.set_yticks(place, [textwrap.fill(name, 34) for name in names])
    ax.grid(False, axis="y")
    ax.set_xlabel("AUC lost on fresh error maps (mean)")
    if len(data):
        ax.set(xscale="log", xlim=(_LEAST / 2, 3 * max(left.max(), _LEAST)))
        legend_outside(ax)
    return ax
