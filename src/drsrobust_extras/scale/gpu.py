"""What a GPU does for models that it holds: it draws many flips, makes batches, and counts pairs."""

from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.data import Split
from drsrobust.injection import AddressSpace, ErrorClock
from drsrobust.introspection import Accelerator, device_of, register_accelerator
from drsrobust_extras.scale.device_pairs import twice_won
from drsrobust_extras.scale.device_rows import DeviceLookups, DeviceRows
from drsrobust_extras.scale.device_words import DeviceWords, drawing_gpu, drawn_places


class GPU(Accelerator):
    """As of `Accelerator`."""

    def drawn(self, space: AddressSpace, clock: ErrorClock, rate: float) -> DeviceWords | None:
        """As of `Accelerator`."""
        device = drawing_gpu(space, rate)
        return None if device is None else DeviceWords(space, drawn_places(clock, rate, device))

    def rows(self, model: nn.Module, split: Split) -> tuple[Any, Any]:
        """As of `Accelerator`."""
        rows = DeviceRows(split, device_of(model))
        return rows, DeviceLookups(model, split, rows)

    def twice_won(self, clicked: np.ndarray, scores: np.ndarray, *, device: torch.device) -> int:
        """As of `Accelerator`."""
        return twice_won(clicked, scores, device=device)


register_accelerator(GPU())
