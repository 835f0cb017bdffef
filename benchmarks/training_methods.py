"""Who trains in the benchmark `training`: step by step on large tables, and the study's models; ours and others'."""

import platform
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.quality import Rows, torchfm_model
from drsrobust.data import Dataset
from drsrobust.data.dataset import Schema
from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.models import build_model, padded_batches, score
from drsrobust.training.fit import Trainer
from drsrobust.training.fused import fused_tables
from drsrobust.training.settings import Settings

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


class OursStep:
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


class OursBfloat16(OursStep):
    """The same, with matrix products in bfloat16."""

    name = "drsrobust, bfloat16"
    settings = replace(OursStep.settings, precision="bfloat16")


STEP_KINDS = {method.name: method for method in (Plain, Fused, OursStep, OursBfloat16)}


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


class Ours:
    """Our model, trained by `Trainer` on `Split.batches` in a random order, scored by `padded_batches` and `score`."""

    def __init__(self, name: str, data: Dataset, settings: Settings) -> None:
        self.data, self.settings = data, settings
        self.model = build_model(name, data.schema)
        self.order = np.random.default_rng(settings.seed)

    def train(self, steps: int) -> float:
        """Rows per second of so many steps after a first one."""
        order = self.order.permutation(len(self.data.train))
        batches = self.data.train.batches(self.settings.batch_size, order=order)
        self.model.train()
        with fused_tables(self.model, self.settings) as fused:
            trainer = Trainer(self.model, self.settings, fused)
            return after_the_first(islice(batches, steps + 1), trainer.step, lambda batch: len(batch.labels))

    def score(self, split, batch: int) -> tuple[np.ndarray, float]:
        """Logits of the rows, and rows per second of all of it."""
        start = time.perf_counter()
        scores = score(self.model, padded_batches(split, batch), len(split))
        return scores, len(split) / (time.perf_counter() - start)


class Torchfm:
    """torchfm's model, fed row by row by a DataLoader, with probabilities and `BCELoss`."""

    def __init__(self, name: str, data: Dataset, settings: Settings, workers: int) -> None:
        self.data, self.settings, self.workers = data, settings, workers
        self.model = torchfm_model(name, data.schema)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.rows = Rows(data.train)

    def train(self, steps: int) -> float:
        """Rows per second of so many steps after a first one, whose wait for the workers to start does not count."""
        loss = torch.nn.BCELoss()

        def step(batch) -> None:
            ids, labels = batch
            value = loss(self.model(ids), labels)
            self.model.zero_grad()
            value.backward()
            self.optimizer.step()
            value.item()

        # The loader has just these rows, so that workers make no others.
        taken = (steps + 1) * self.settings.batch_size
        rows = torch.utils.data.Subset(self.rows, range(min(taken, len(self.rows))))
        self.model.train()
        loader = torch.utils.data.DataLoader(rows, self.settings.batch_size, shuffle=True, num_workers=self.workers)
        return after_the_first(loader, step, lambda batch: len(batch[1]))

    def score(self, split, batch: int) -> tuple[np.ndarray, float]:
        """Probabilities of the rows, and rows per second of all batches after the first."""
        parts = []
        self.model.eval()
        loader = torch.utils.data.DataLoader(Rows(split), batch, num_workers=self.workers)
        with torch.no_grad():
            rate = after_the_first(loader, lambda made: parts.append(self.model(made[0])), lambda made: len(made[1]))
        return torch.cat(parts).numpy(), rate


def after_the_first(batches: Iterable[Any], work: Callable[[Any], Any], rows: Callable[[Any], int]) -> float:
    """Rows per second of all batches but the first, of waiting for them and of work on them."""
    iterator = iter(batches)
    work(next(iterator))
    seen, start = 0, time.perf_counter()
    for batch in iterator:
        work(batch)
        seen += rows(batch)
    return seen / (time.perf_counter() - start)
