"""Figures: for each a `<name>_data` that picks the numbers and a `<name>` that draws them. They know only DataFrames."""

from drsrobust.plots.abft import (
    abft_alarms,
    abft_alarms_data,
    abft_detection,
    abft_detection_data,
    abft_overhead,
    abft_overhead_data,
)
from drsrobust.plots.abft_repair import abft_repair, abft_repair_data
from drsrobust.plots.ber import auc_vs_ber, auc_vs_ber_data
from drsrobust.plots.bits import bit_map, bit_sensitivity, bit_sensitivity_data
from drsrobust.plots.campaign_cost import (
    campaign_cost,
    campaign_growth,
    campaign_growth_data,
    campaign_trials,
    campaign_trials_data,
)
from drsrobust.plots.clean import clean_auc, clean_auc_data, learning_curves, learning_curves_data
from drsrobust.plots.knee import ber_knees, ber_knees_data, model_curves, model_curves_data
from drsrobust.plots.memory import encoding_memory
from drsrobust.plots.mitigation import mitigated_auc, mitigated_auc_data, recovery_vs_ber, recovery_vs_ber_data
from drsrobust.plots.mitigation_cost import (
    protection_cost,
    protection_cost_data,
    protection_front,
    protection_front_data,
)
from drsrobust.plots.mitigation_rows import recovery_rows, recovery_rows_data
from drsrobust.plots.model_factors import (
    component_contribution,
    component_contribution_data,
    model_factor_levels,
    model_factors,
    model_factors_data,
)
from drsrobust.plots.speed import injection_speed, injection_speed_data
from drsrobust.plots.style import figures_folder, new_panels, save, save_table
from drsrobust.plots.vulnerability import (
    bit_class_pvf,
    bit_class_pvf_data,
    component_pvf,
    component_pvf_data,
    layer_loss,
    layer_loss_data,
    row_loss,
    row_loss_data,
)

__all__ = [
    "abft_alarms",
    "abft_alarms_data",
    "abft_detection",
    "abft_detection_data",
    "abft_overhead",
    "abft_overhead_data",
    "abft_repair",
    "abft_repair_data",
    "auc_vs_ber",
    "auc_vs_ber_data",
    "ber_knees",
    "ber_knees_data",
    "bit_class_pvf",
    "bit_class_pvf_data",
    "bit_map",
    "bit_sensitivity",
    "bit_sensitivity_data",
    "campaign_cost",
    "campaign_growth",
    "campaign_growth_data",
    "campaign_trials",
    "campaign_trials_data",
    "clean_auc",
    "clean_auc_data",
    "component_contribution",
    "component_contribution_data",
    "component_pvf",
    "component_pvf_data",
    "encoding_memory",
    "figures_folder",
    "injection_speed",
    "injection_speed_data",
    "layer_loss",
    "layer_loss_data",
    "learning_curves",
    "learning_curves_data",
    "mitigated_auc",
    "mitigated_auc_data",
    "model_curves",
    "model_curves_data",
    "model_factor_levels",
    "model_factors",
    "model_factors_data",
    "new_panels",
    "protection_cost",
    "protection_cost_data",
    "protection_front",
    "protection_front_data",
    "recovery_rows",
    "recovery_rows_data",
    "recovery_vs_ber",
    "recovery_vs_ber_data",
    "row_loss",
    "row_loss_data",
    "save",
    "save_table",
]
