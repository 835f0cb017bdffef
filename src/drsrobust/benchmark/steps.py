"""Ways to train a DLRM with large tables: TorchRec as it comes, its fused tables, ours. All start from the same weights."""

import platform
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from drsrobust._torchrec import torchrec
from drsrobust.data import Schema
from drsrobust.training.fused import fused_tables
from drsrobust.training.settings import Settings
from drsrobust.training.step import Trainer

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

_BF16 = ("avx512_bf16", "amx_bf16")  # flags of processors that multiply bfloat16 matrices


class Plain:
    """TorchRec's DLRM on a plain collection, `torch.optim.Adam` with its defaults over all parameters, a plain loop.

    Args:
        start: our DLRM with the weights to start from; it is not changed.
        schema: of the data.
    """

    name: ClassVar[str] = "plain EmbeddingBagCollection, Adam"
    learning_rate: ClassVar[float] = 1e-3

    def __init__(self, start: nn.Module, schema: Schema) -> None:
        self.model = _dlrm(start, torchrec().EmbeddingBagCollection(tables=_tables(start)), schema)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.learning_rate)

    def step(self, batch: "Batch") -> float:
        """One update; gives the mean loss before it."""
        self.optimizer.zero_grad()
        logits = self.model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
        loss = binary_cross_entropy_with_logits(logits.squeeze(1), batch.labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def close(self) -> None:
        """The end of training."""


class Fused(Plain):
    """TorchRec's DLRM on its FusedEmbeddingBagCollection with row-wise Adagrad, fused Adam for all else, a plain loop."""

    name = "TorchRec fused collection"
    table_learning_rate: ClassVar[float] = 0.02

    def __init__(self, start: nn.Module, schema: Schema) -> None:
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

        collection = FusedEmbeddingBagCollection(
            tables=_tables(start),
            optimizer_type=RowWiseAdagrad,
            optimizer_kwargs={"lr": self.table_learning_rate, "eps": 1e-8},
            device=torch.device("cpu"),
            location=EmbeddingLocation.HOST,
        )
        self.model = _dlrm(start, collection, schema)
        # The tables update themselves in the backward pass.
        rest = [parameter for name, parameter in self.model.named_parameters() if not name.startswith("sparse_arch.")]
        self.optimizer = torch.optim.Adam(rest, lr=self.learning_rate, fused=True)


class Ours:
    """Our DLRM and `Trainer`, with `fused_tables` and row-wise Adagrad."""

    name: ClassVar[str] = "drsrobust"
    settings: ClassVar[Settings] = Settings(
        learning_rate=1e-3, weight_decay=0.0, table_optimizer="rowwise_adagrad", table_learning_rate=0.02
    )

    def __init__(self, start: nn.Module, schema: Schema) -> None:
        self.model = deepcopy(start)
        self._open = ExitStack()
        fused = self._open.enter_context(fused_tables(self.model, self.settings))
        self.step = Trainer(self.model, self.settings, fused).step

    def close(self) -> None:
        """The end of training: the tables are the model's own again."""
        self._open.close()


class OursBfloat16(Ours):
    """The same, with matrix products in bfloat16."""

    name = "drsrobust, bfloat16"
    settings = replace(Ours.settings, precision="bfloat16")


STEPS = {method.name: method for method in (Plain, Fused, Ours, OursBfloat16)}


def cannot_step(name: str) -> str | None:
    """Why a method is not run on this machine; None when it is."""
    if name == OursBfloat16.name and not has_bfloat16():
        return f"this processor ({platform.machine()}) has no AVX512-BF16 or AMX"
    return None


def has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor multiplies bfloat16 matrices, by what Linux says of it."""
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    flags = {flag for line in text.splitlines() if line.startswith("flags") for flag in line.split(":")[1].split()}
    return not flags.isdisjoint(_BF16)


def _tables(start: nn.Module) -> list:
    """Fresh table configurations like those of a model of ours, drawn as TorchRec draws (the weights are then replaced)."""
    return [
        torchrec().EmbeddingBagConfig(
            name=config.name,
            embedding_dim=config.embedding_dim,
            num_embeddings=config.num_embeddings,
            feature_names=config.feature_names,
        )
        for config in start.sparse_arch.embedding_bag_collection.embedding_bag_configs()
    ]


def _dlrm(start: nn.Module, collection: nn.Module, schema: Schema) -> nn.Module:
    """TorchRec's own class with the shapes and the weights of a DLRM of ours."""

    def widths(part: nn.Module) -> list[int]:
        return [layer.out_features for layer in part.modules() if isinstance(layer, nn.Linear)]

    model = torchrec().models.dlrm.DLRM(
        embedding_bag_collection=collection,
        dense_in_features=len(schema.dense),
        dense_arch_layer_sizes=widths(start.dense_arch),
        over_arch_layer_sizes=widths(start.over_arch),
    )
    model.load_state_dict(start.state_dict())
    return model
