"""Embedding tables in FBGEMM's table-batched kernel during training.

TorchRec's `EmbeddingBagCollection` gives every table a dense gradient. FBGEMM's kernel looks up all tables at once and updates,
in its backward pass, only the rows that were read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from drsrobust.introspection.embedding_modules import output_names, pooled_tables, pooled_weight, torchrec
from drsrobust.training.settings import Settings

if TYPE_CHECKING:
    from torchrec import EmbeddingBagCollection, KeyedJaggedTensor, KeyedTensor

_WIDTH = 4  # FBGEMM's rows are multiples of it


@contextmanager
def fused_tables(model: nn.Module, settings: Settings) -> Iterator[list["FusedTables"]]:
    """Inside the block, the model's collections look up and update through FBGEMM; yields one `FusedTables` for each.

    Parameters stay the same objects with the same names. Collections that FBGEMM does not support (a table whose width is not a
    multiple of 4, weighted lookups) do not change, nor do any with `table_optimizer="adam"`.
    """
    collection, fused = torchrec().EmbeddingBagCollection, []
    if settings.table_optimizer != "adam":
        for module in model.modules():
            if isinstance(module, collection) and _is_supported(module):
                fused.append(FusedTables(module, settings))
    try:
        for tables in fused:
            tables.collection.forward = tables.look_up
        yield fused
    finally:
        for tables in fused:
            vars(tables.collection).pop("forward", None)
            for parameter in tables.parameters:
                parameter.data = parameter.data.clone()  # FBGEMM's tables are views of one memory


class FusedTables:
    """The tables of one collection in FBGEMM's kernels, one kernel per type of pooling."""

    def __init__(self, collection: "EmbeddingBagCollection", settings: Settings) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            EmbeddingLocation,
            SplitTableBatchedEmbeddingBagsCodegen,
        )
        from torchrec.modules.embedding_configs import pooling_type_to_pooling_mode

        optimizers = {
            "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            "adagrad": EmbOptimType.EXACT_ADAGRAD,
            "sgd": EmbOptimType.EXACT_SGD,
        }
        self.collection = collection
        configs = pooled_tables(collection)
        self.parameters = [pooled_weight(collection, config.name) for config in configs]
        device = self.parameters[0].device
        place = (EmbeddingLocation.HOST, ComputeDevice.CPU)
        if device.type == "cuda":
            place = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        self._kernels, features, widths = [], [], []
        for pooling in dict.fromkeys(config.pooling for config in configs):
            group = [config for config in configs if config.pooling == pooling]
            names = [name for config in group for name in config.feature_names]
            kernel = SplitTableBatchedEmbeddingBagsCodegen(
                [(config.num_embeddings, config.embedding_dim, *place) for config in group],
                feature_table_map=[number for number, config in enumerate(group) for _ in config.feature_names],
                pooling_mode=pooling_type_to_pooling_mode(pooling),
                optimizer=optimizers[settings.table_optimizer],
                learning_rate=settings.table_learning_rate or settings.learning_rate,
                eps=1e-8,
                bounds_check_mode=BoundsCheckMode.FATAL,
                device=device,
            )
            with torch.no_grad():
                for config, memory in zip(group, kernel.split_embedding_weights(), strict=True):
                    parameter = pooled_weight(collection, config.name)
                    memory.copy_(parameter)
                    parameter.data = memory
            self._kernels.append((names, kernel))
            features += names
            widths += [config.embedding_dim for config in group for _ in config.feature_names]
        order = [features.index(name) for config in configs for name in config.feature_names]
        self._names, self._widths = output_names(collection), [widths[number] for number in order]
        self._order = None if order == sorted(order) else order
        self._group_widths = widths

    def look_up(self, features: "KeyedJaggedTensor") -> "KeyedTensor":
        """The output of the collection's forward: a KeyedTensor with values [B, sum of widths]."""
        keys, parts = features.keys(), []
        for names, kernel in self._kernels:
            jagged = features if names == keys else features.permute([keys.index(name) for name in names])
            parts.append(kernel(jagged.values(), jagged.offsets()))
        values = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if self._order is not None:
            columns = values.split(self._group_widths, dim=1)
            values = torch.cat([columns[number] for number in self._order], dim=1)
        return torchrec().KeyedTensor(keys=self._names, length_per_key=self._widths, values=values)

    def state(self) -> list[torch.Tensor]:
        """The tensors of the optimizer's state, not copied, in an order that depends only on the collection."""
        return [
            tensor for _, kernel in self._kernels for states in kernel.split_optimizer_states() for tensor in states
        ]


def _is_supported(collection: "EmbeddingBagCollection") -> bool:
    widths = [config.embedding_dim for config in pooled_tables(collection)]
    return not collection.is_weighted() and all(width % _WIDTH == 0 for width in widths)
