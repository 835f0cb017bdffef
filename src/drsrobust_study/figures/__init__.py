"""The study's figures: `<name>_data` picks the numbers that `<name>` draws on `ax` (None: a new figure)."""

from drsrobust_study.figures.abft import (
    abft_detection,
    abft_detection_data,
    abft_overhead,
    abft_overhead_data,
    abft_repair,
    abft_repair_data,
)
from drsrobust_study.figures.ber_sweep import (
    ber_knees,
    ber_knees_data,
    lead_curves,
    model_curves,
    model_curves_data,
    scoring_rules,
)
from drsrobust_study.figures.bit_sensitivity import (
    bit_layout,
    bit_layout_data,
    bit_map,
    bit_sensitivity,
    bit_sensitivity_data,
)
from drsrobust_study.figures.chosen_flips import worst_case
from drsrobust_study.figures.clean_models import clean_auc, clean_auc_data, learning_curves, learning_curves_data
from drsrobust_study.figures.components import (
    error_shapes,
    error_shapes_data,
    layer_loss,
    layer_loss_data,
    part_losses,
    part_losses_data,
    row_loss,
    row_loss_data,
)
from drsrobust_study.figures.fleet import fleet_tail
from drsrobust_study.figures.injection_speed import injection_speed, injection_speed_data
from drsrobust_study.figures.lead import lead, lead_data
from drsrobust_study.figures.memory_faults import (
    fault_assumptions,
    fault_assumptions_data,
    memory_fault_loss,
    memory_fault_loss_data,
    memory_fault_years,
    protection_ranking,
)
from drsrobust_study.figures.mitigations import (
    protection_places,
    protection_places_data,
    recovery_rows,
    recovery_rows_data,
)
from drsrobust_study.figures.model_factors import (
    component_contribution,
    component_contribution_data,
    model_factor_levels,
    model_factors,
    model_factors_data,
)
from drsrobust_study.figures.number_formats import format_classes, number_formats, number_formats_data
from drsrobust_study.figures.one_flip import one_flip
from drsrobust_study.figures.probe_rows import probe_coverage, probe_latency
from drsrobust_study.figures.protection import (
    protection_cost,
    protection_cost_data,
    protection_front,
    protection_front_data,
)
from drsrobust_study.figures.protection_plan import protection_plan, protection_plan_data
from drsrobust_study.figures.training_errors import training_actions, training_detection, training_losses

__all__ = [
    "abft_detection",
    "abft_detection_data",
    "abft_overhead",
    "abft_overhead_data",
    "abft_repair",
    "abft_repair_data",
    "ber_knees",
    "ber_knees_data",
    "bit_layout",
    "bit_layout_data",
    "bit_map",
    "bit_sensitivity",
    "bit_sensitivity_data",
    "clean_auc",
    "clean_auc_data",
    "component_contribution",
    "component_contribution_data",
    "error_shapes",
    "error_shapes_data",
    "fault_assumptions",
    "fault_assumptions_data",
    "fleet_tail",
    "format_classes",
    "injection_speed",
    "injection_speed_data",
    "layer_loss",
    "layer_loss_data",
    "lead",
    "lead_curves",
    "lead_data",
    "learning_curves",
    "learning_curves_data",
    "memory_fault_loss",
    "memory_fault_loss_data",
    "memory_fault_years",
    "model_curves",
    "model_curves_data",
    "model_factor_levels",
    "model_factors",
    "model_factors_data",
    "number_formats",
    "number_formats_data",
    "one_flip",
    "part_losses",
    "part_losses_data",
    "probe_coverage",
    "probe_latency",
    "protection_cost",
    "protection_cost_data",
    "protection_front",
    "protection_front_data",
    "protection_places",
    "protection_places_data",
    "protection_plan",
    "protection_plan_data",
    "protection_ranking",
    "recovery_rows",
    "recovery_rows_data",
    "row_loss",
    "row_loss_data",
    "scoring_rules",
    "training_actions",
    "training_detection",
    "training_losses",
    "worst_case",
]
