"""Errors during training: campaigns from a snapshot, detectors and actions."""

from drsrobust_extras.experiments.training_errors.actions import Action, Recompute, RollBack, Skip
from drsrobust_extras.experiments.training_errors.campaign import TrainingCampaign, modes
from drsrobust_extras.experiments.training_errors.detectors import (
    ABFTStep,
    AdagradState,
    AdamState,
    GradientNorm,
    LossSpike,
    NonFinite,
    Replay,
    WeightSize,
    adam_bound,
)
from drsrobust_extras.experiments.training_errors.steps import Detector, Step

__all__ = [
    "ABFTStep",
    "Action",
    "AdagradState",
    "AdamState",
    "Detector",
    "GradientNorm",
    "LossSpike",
    "NonFinite",
    "Recompute",
    "Replay",
    "RollBack",
    "Skip",
    "Step",
    "TrainingCampaign",
    "WeightSize",
    "adam_bound",
    "modes",
]
