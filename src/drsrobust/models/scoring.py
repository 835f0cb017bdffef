"""Scores of many rows; a row's score does not depend on the other rows of its batch.

Matrix products give the same bits for a row in every batch whose size is a multiple of 32, from 64 up (measured on CPUs with
AVX2; elsewhere scores are equal within a few float32 roundings). So batches are padded to such a size.
"""

import hashlib
import math
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from drsrobust.data import Split
from drsrobust.introspection.tensors import named_tensors
from drsrobust.introspection.wrappers import evaluating

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

BATCH = 2048  # rows; a multiple of 32


def padded_batches(split: Split, size: int = BATCH, rows: np.ndarray | None = None) -> list["Batch"]:
    """Rows of a split (int64 [m]; None: all, in order) as batches; the last is padded with copies of its last row."""
    if size < 64 or size % 32:
        raise ValueError(f"batch size must be a multiple of 32, from 64 up, got {size}")
    rows = np.arange(len(split)) if rows is None else rows
    batches = []
    for start in range(0, len(rows), size):
        chosen = rows[start : start + size]
        padding = max(64, 32 * math.ceil(len(chosen) / 32)) - len(chosen)
        batches.append(split.batch(np.append(chosen, np.full(padding, chosen[-1]))))
    return batches


def logits_of(model: nn.Module, batch: "Batch") -> torch.Tensor:
    """Logits [B] of one batch, on the model's device.

    Raises:
        ValueError: the model's output is not a tensor [B] or [B, 1].
    """
    return _logits(model, batch, _device(model))


def score(model: nn.Module, batches: Iterable["Batch"], n: int) -> np.ndarray:
    """Logits [n] of the first n rows of the batches, float32 (float64 if the model's are), in evaluation mode; afterwards each
    module has its previous mode.

    Raises:
        ValueError: as `logits_of`.
    """
    device = _device(model)
    with evaluating(model):
        return gathered((_logits(model, batch, device) for batch in batches), n)


def gathered(logits: Iterable[torch.Tensor], n: int) -> np.ndarray:
    """The first n logits of several batches ([B] each, or [B, 1] each), in the form of `score`."""
    joined = torch.cat(list(logits)).reshape(-1)
    return joined.to("cpu", torch.promote_types(joined.dtype, torch.float32)).numpy()[:n]


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _logits(model: nn.Module, batch: "Batch", device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        batch = batch.to(device)
    logits = model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
    rows = len(batch.labels)
    if not isinstance(logits, torch.Tensor):
        raise ValueError(f"the model must give a tensor of logits [{rows}], got a {type(logits).__name__}")
    if logits.shape not in ((rows,), (rows, 1)):
        raise ValueError(f"the model must give logits of shape [{rows}], got {list(logits.shape)}")
    return logits.reshape(rows)


def state_digest(model: nn.Module) -> str:
    """SHA-256 (hex) of all parameters and buffers: names, dtypes, shapes and bytes."""
    total = hashlib.sha256()
    for part in _state(model):
        total.update(part)
    return total.hexdigest()


def state_checksum(model: nn.Module) -> int:
    """CRC-32 of the bytes that `state_digest` hashes: five times as fast, enough to detect an accidental change."""
    total = 0
    for part in _state(model):
        total = zlib.crc32(part, total)
    return total


def _state(model: nn.Module) -> Iterator[bytes | np.ndarray]:
    for name, tensor in sorted(named_tensors(model, buffers=True)):
        yield f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode()
        yield tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
