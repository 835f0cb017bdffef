"""Stored bits against the expected loss on fresh error maps: plans, and one protection of all tensors."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust.planning.protection_plan import PLAN, UNIFORM
from drsrobust.plots.curves import NONE, UNPROTECTED, mitigation_label
from drsrobust.plots.losses import bound_handles, draw_losses, loss_axis, loss_floor
from drsrobust.plots.style import COLOURS, DASHED, GUIDE, legend_outside, name_line, styled
from drsrobust.statistics.columns import ENDS
from drsrobust_study.figures.protection import spread_labels
from drsrobust_study.protection_plan import best_uniform

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_KINDS = {
    PLAN: ("plans: mean of fresh maps", {"color": COLOURS[0], "marker": "o"}),
    UNIFORM: ("one protection of all tensors: mean", {"color": COLOURS[1], "marker": "s"}),
}


def protection_plan_data(measured: "pd.DataFrame") -> "pd.DataFrame":
    """What `protection_plan` draws: a row per plan, uniform protection, and without protection, on fresh maps.

    Args:
        measured: as `Plan.compare` returns it.
    """
    columns = ["kind", "mitigation", "stored_percent", "time_percent", "n", *(f"auc_drop{end}" for end in ENDS)]
    return measured.loc[measured["kind"].isin([*_KINDS, NONE]), columns].reset_index(drop=True)


@styled
def protection_plan(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """AUC lost on fresh error maps, on a logarithmic axis, against stored bits: plans, and one protection of all tensors. An
    open triangle is the upper end of an interval that holds no loss, and the small mark under it the mean. The title says which
    uniform protection loses least at no more bits than the dearest plan.

    Args:
        data: `protection_plan_data`.
        ax: where to draw; None: a new figure.
    """
    ax.figure.set_figheight(5.0)
    points, plain = data[data["kind"].isin(list(_KINDS))], data[data["kind"] == NONE]
    floor, handles = loss_floor(data), []
    for kind, (label, style) in _KINDS.items():
        of_kind = points[points["kind"] == kind]
        draw_losses(ax, of_kind, of_kind["stored_percent"], floor=floor, **style)
        mean = np.maximum(of_kind["auc_drop"].to_numpy(float), floor)
        handles += ax.plot(of_kind["stored_percent"], mean, linestyle="", markersize=4, label=label, **style)
    for loss in plain["auc_drop"]:
        ax.axhline(loss, linestyle=DASHED, **GUIDE)
        name_line(ax, loss, UNPROTECTED)
    ax.set_xlim(-0.04 * points["stored_percent"].max(), 1.12 * points["stored_percent"].max()) if len(points) else None
    ax.set_xlabel("extra stored bits (% of the parameters)")
    loss_axis(ax, floor, float(data["auc_drop_high"].max()) if len(data) else floor)
    legend_outside(ax, [*handles, *bound_handles(data, floor=floor)])
    plans = data[data["kind"] == PLAN]
    if len(plans):
        dearest = plans.loc[plans["stored_percent"].idxmax()]
        best = best_uniform(data, dearest["stored_percent"])
        name = "none" if best is None else f"{mitigation_label(best['mitigation'])} (+{best['stored_percent']:.2g} %)"
        text = f"best protection of all tensors, at no more bits than the plan of {dearest['stored_percent']:.2g} %:"
        ax.set_title(f"{text}\n{name}", weight="normal")
    if len(points):
        names = [
            mitigation_label(name).removesuffix(" time").rpartition(",")[0] if kind == PLAN else mitigation_label(name)
            for name, kind in zip(points["mitigation"], points["kind"], strict=True)
        ]
        mean = np.maximum(points["auc_drop"].to_numpy(float), floor)
        spread_labels(ax, points["stored_percent"].to_numpy(float), mean, names)
    return ax
