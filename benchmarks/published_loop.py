"""A trial as published tools run it: reload, draw a dense error map, score every row, compute the AUC.

Written from the description of the study's procedure (arXiv:2307.10244): for each trial the checkpoint is loaded, an error map
over all bits is drawn and applied, a `DataLoader` iterates over all test rows at batch 512, and torchmetrics computes the AUC.
Only the data stays in memory between trials. A row is a record of four NumPy views, and a batch is stacked from them: of the
ways tried, the fastest that reads every row by itself. On 100,000 rows of 26 ids PyTorch's own collate takes 4 times as long
for rows of tensors, and 70 times for lists of single ids, as in the study's dataset.
"""

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset

from drsrobust.data import Split
from drsrobust.injection import resolve
from drsrobust.introspection.embedding_modules import torchrec
from drsrobust_extras.risk.timing import cpu_seconds
from drsrobust_study.injectors import DenseErrorMap

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

Row = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.float32]


class RowDataset(Dataset):
    """The rows of a split, in memory. A row is: dense [D], its ids feature by feature, how many of each feature [F] (None: one
    each), label.

    Args:
        split: the rows.
    """

    def __init__(self, split: Split) -> None:
        self.dense = np.array(split.dense, np.float32)
        self.labels = np.array(split.labels, np.float32)
        columns = list(split.sparse.values())
        self._lengths = None
        if all(ids.lengths is None for ids in columns):
            self._ids = np.stack([ids.values for ids in columns], axis=1)
            return
        ones = np.ones(len(split), np.int32)
        self._lengths = np.stack([ones if ids.lengths is None else ids.lengths for ids in columns], axis=1)
        row = np.concatenate([np.repeat(np.arange(len(split)), counts) for counts in self._lengths.T])
        self._ids = np.concatenate([ids.values for ids in columns])[np.argsort(row, kind="stable")]
        self._starts = [0, *np.cumsum(self._lengths.sum(axis=1)).tolist()]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Row:
        if self._lengths is None:
            return self.dense[index], self._ids[index], None, self.labels[index]
        ids = self._ids[self._starts[index] : self._starts[index + 1]]
        return self.dense[index], ids, self._lengths[index], self.labels[index]


def collate(features: Sequence[str]) -> "Callable[[list[Row]], Batch]":
    """A collate function for rows of these features."""
    keys = list(features)

    def collated(rows: "list[Row]") -> "Batch":
        dense, ids, lengths, labels = zip(*rows, strict=True)
        if lengths[0] is None:
            values = np.stack(ids).T.ravel()
            counts = np.ones(len(values), np.int32)
        else:
            by_row = np.stack(lengths)  # [B, F]
            feature = np.repeat(np.tile(np.arange(len(keys)), len(rows)), by_row.ravel())
            values = np.concatenate(ids)[np.argsort(feature, kind="stable")]
            counts = by_row.T.ravel()
        return torchrec().datasets.utils.Batch(
            dense_features=torch.from_numpy(np.stack(dense)),
            sparse_features=torchrec().KeyedJaggedTensor(
                keys=keys, values=torch.from_numpy(values), lengths=torch.from_numpy(counts)
            ),
            labels=torch.from_numpy(np.array(labels)),
        )

    return collated


BATCH = 512  # rows


@dataclass(frozen=True)
class LoopTrial:
    """One trial of the loop: its AUC, and the CPU time of its parts in ms."""

    auc: float
    load_ms: float
    inject_ms: float
    scoring_ms: float  # data and forward
    auc_ms: float

    @property
    def total_ms(self) -> float:
        return self.load_ms + self.inject_ms + self.scoring_ms + self.auc_ms


class ReloadLoop:
    """Trials of the published procedure, each part as fast as the procedure allows: the checkpoint is safetensors (twice as
    fast as `torch.load`), the map is `DenseErrorMap` (three times as fast as what was measured of the published tool), and
    rows come from a dataset of NumPy records with a collate function of its own (see `RowDataset`).

    Args:
        model: its weights go into the checkpoint; it is not changed itself.
        split: the test rows.
        target: as in `inject`, of whole parameters; the map is drawn over these alone.
        folder: for the checkpoint.
    """

    name = "reload loop"

    def __init__(self, model: nn.Module, split: Split, target: str, folder: Path) -> None:
        self.model = deepcopy(model).eval()
        self.checkpoint = Path(folder) / "model.safetensors"
        if not self.checkpoint.exists():
            save_file({name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}, self.checkpoint)
        parameters = dict(self.model.named_parameters())
        self.targets = {tensor.name: parameters[tensor.name] for tensor in resolve(self.model, target).tensors}
        self.rows = RowDataset(split)
        self._collate = collate(list(split.sparse))
        with (
            warnings.catch_warnings()
        ):  # of torchmetrics' import, which takes most of a second and is no part of a trial
            warnings.simplefilter("ignore", DeprecationWarning)
            self.auc(torch.tensor([0.0, 1.0]), torch.zeros(2))

    def trial(self, rate: float, seed: int) -> LoopTrial:
        """A trial at a bit error rate over 0."""
        return self._trial(lambda: self.inject(rate, seed))

    def _trial(self, inject: Callable[[], None]) -> LoopTrial:
        _, load = cpu_seconds(self.load)
        _, injecting = cpu_seconds(inject)
        (labels, logits), scoring = cpu_seconds(self.score)
        found, judging = cpu_seconds(lambda: self.auc(labels, logits))
        return LoopTrial(found, 1e3 * load, 1e3 * injecting, 1e3 * scoring, 1e3 * judging)

    def load(self) -> None:
        """Puts the checkpoint's weights into the model."""
        self.model.load_state_dict(load_file(self.checkpoint))

    def inject(self, rate: float, seed: int) -> dict[str, torch.Tensor]:
        """Draws a dense map over the targeted parameters and applies it; gives its XOR masks (int32 [words]) by name."""
        dense = DenseErrorMap(nn.ParameterList(self.targets.values()))
        dense.inject(rate, seed)
        return dict(zip(self.targets, dense.masks.values(), strict=True))

    def score(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Labels and logits [n] of all rows."""
        labels, logits = [], []
        with torch.no_grad():
            for batch in DataLoader(self.rows, batch_size=BATCH, collate_fn=self._collate):
                logits.append(self.model(dense_features=batch.dense_features, sparse_features=batch.sparse_features))
                labels.append(batch.labels)
        return torch.cat(labels), torch.cat(logits)

    @staticmethod
    def auc(labels: torch.Tensor, logits: torch.Tensor) -> float:
        """AUC of click probabilities, by torchmetrics (which ranks NaN highest)."""
        from torchmetrics.functional.classification import binary_auroc

        return float(binary_auroc(torch.sigmoid(logits), labels.int()))


class OneFlipLoop(ReloadLoop):
    """The same with exactly one flipped bit in each trial, and no map. The published tool, which knows rates only, cannot."""

    name = "reload loop, one flip"

    def trial(self, rate: float, seed: int) -> LoopTrial:
        """A trial; the rate has no meaning."""
        return self._trial(lambda: self.flip(seed))

    def flip(self, seed: int) -> None:
        """Flips one bit of the targeted parameters, any of them with equal probability."""
        rng = np.random.default_rng(seed)
        sizes = np.cumsum([parameter.numel() for parameter in self.targets.values()])
        word, bit = int(rng.integers(sizes[-1])), int(rng.integers(32))
        number = int(np.searchsorted(sizes, word, side="right"))
        parameter = list(self.targets.values())[number]
        words = parameter.data.view(-1).view(torch.int32)
        words[word - sizes[number]] ^= (1 << bit) - (1 << 32 if bit == 31 else 0)
