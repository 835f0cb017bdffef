"""One step of training: forward, loss, backward, update."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from drsrobust.tensors import component_of, named_tensors
from drsrobust.training.fused import FusedTables
from drsrobust.training.settings import Settings

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch


class Trainer:
    """Adam of all parameters but those that FBGEMM updates, and how a step is made.

    Args:
        model: forward(dense_features, sparse_features) -> logits [B] or [B, 1].
        settings: see there.
        fused: what `fused_tables` yielded for this model; steps are made while its block is open.
    """

    def __init__(self, model: nn.Module, settings: Settings, fused: list[FusedTables]) -> None:
        self.model, self.settings = model, settings
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        home = component_of(model)
        taken = {id(parameter) for one in fused for parameter in one.parameters}
        tables, rest = [], []
        for name, parameter in named_tensors(model, buffers=False):
            if parameter.numel() and id(parameter) not in taken:
                (tables if home[name] == "embedding" else rest).append(parameter)
        rate = settings.learning_rate
        adam = settings.table_optimizer == "adam"
        table_rate = settings.table_learning_rate if adam and settings.table_learning_rate is not None else rate
        groups = [
            {
                "params": tables,
                "weight_decay": settings.table_weight_decay if adam else settings.weight_decay,
                "lr": table_rate,
            },
            {"params": rest, "weight_decay": settings.weight_decay},
        ]
        self.optimizer = torch.optim.Adam(groups, lr=rate, fused=True)

    def step(self, batch: "Batch") -> float:
        """One update by a batch; gives the mean loss of its rows, in nats, before the update."""
        if self.device.type != "cpu":
            batch = batch.to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision():
            logits = self.model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
        loss = binary_cross_entropy_with_logits(logits.float().reshape(-1), batch.labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @contextmanager
    def _precision(self) -> Iterator[None]:
        if self.settings.precision == "float32":
            yield
        else:
            with torch.autocast(self.device.type, getattr(torch, self.settings.precision)):
                yield
