"""Figures of any campaign: for each a `<name>_data` that picks the numbers and a `<name>` that draws them."""

from drsrobust_extras.pages.plots.curves import (
    auc_vs_ber,
    auc_vs_ber_data,
    mitigated_auc,
    mitigated_auc_data,
    recovery_vs_ber,
    recovery_vs_ber_data,
)
from drsrobust_extras.pages.plots.names import display_name
from drsrobust_extras.pages.plots.propagation import propagation, propagation_data, propagation_message
from drsrobust_extras.pages.plots.save import figures_folder, read_words, save, save_table
from drsrobust_extras.pages.plots.style import new_panels

__all__ = [
    "auc_vs_ber",
    "auc_vs_ber_data",
    "display_name",
    "figures_folder",
    "mitigated_auc",
    "mitigated_auc_data",
    "new_panels",
    "propagation",
    "propagation_data",
    "propagation_message",
    "read_words",
    "recovery_vs_ber",
    "recovery_vs_ber_data",
    "save",
    "save_table",
]
