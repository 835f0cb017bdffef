"""Figures: for each a `<name>_data` that picks the numbers and a `<name>` that draws them. They know only DataFrames."""

from drsrobust.plots.ber import auc_vs_ber, auc_vs_ber_data
from drsrobust.plots.bits import bit_sensitivity, bit_sensitivity_data
from drsrobust.plots.speed import injection_speed, injection_speed_data
from drsrobust.plots.style import figures_folder, new_panels, save

__all__ = [
    "auc_vs_ber",
    "auc_vs_ber_data",
    "bit_sensitivity",
    "bit_sensitivity_data",
    "figures_folder",
    "injection_speed",
    "injection_speed_data",
    "new_panels",
    "save",
]
