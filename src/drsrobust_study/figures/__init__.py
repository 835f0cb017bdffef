"""The study's figures: `<name>_data` picks the numbers that `<name>` draws on `ax` (None: a new figure)."""

from drsrobust_study.figures.abft import (
    abft_alarms,
    abft_detection,
    abft_detection_data,
    abft_overhead,
    abft_overhead_data,
)
from drsrobust_study.figures.bit_sensitivity import (
    bit_layout,
    bit_layout_data,
    bit_map,
    bit_sensitivity,
    bit_sensitivity_data,
)
from drsrobust_study.figures.checkpoint_flips import checkpoint_flips
from drsrobust_study.figures.chosen_flips import worst_case
from drsrobust_study.figures.clean_models import clean_auc, clean_auc_data
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
from drsrobust_study.figures.fleet import fleet_day, fleet_day_data
from drsrobust_study.figures.injection_speed import injection_speed, injection_speed_data, peer_speed
from drsrobust_study.figures.lead import lead, lead_data
from drsrobust_study.figures.memories import matrix_shares
from drsrobust_study.figures.memory_faults import memory_fault_loss, memory_fault_loss_data, protection_ranking
from drsrobust_study.figures.mitigations import protection_places, protection_places_data, recovery_rows_data
from drsrobust_study.figures.model_factors import model_factors, model_factors_data
from drsrobust_study.figures.number_formats import number_formats, number_formats_data
from drsrobust_study.figures.one_flip import one_flip
from drsrobust_study.figures.part_curves import part_curves, rates_at_loss
from drsrobust_study.figures.probe_rows import probe_coverage
from drsrobust_study.figures.protection import protection_front, protection_front_data
from drsrobust_study.figures.protection_plan import protection_plan, protection_plan_data
from drsrobust_study.figures.recovery_curves import given_back, recovery_curves, recovery_curves_data
from drsrobust_study.figures.sequence_models import flip_cost, quality_kept
from drsrobust_study.figures.stuck_unit import stuck_unit_bits, stuck_unit_lanes, stuck_unit_seen
from drsrobust_study.figures.training_errors import training_detection
