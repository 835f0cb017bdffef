"""Scores of many rows, such that a row's score does not depend on which rows are beside it.

Matrix products give the same bits for a row whatever its batch, as long as batch sizes are multiples of 32, from 64 up
(measured on CPUs with AVX2; elsewhere a bound of a few float32 roundings holds). So batches are padded to that."""

import hashlib
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
    """Rows of a split (int64 [m]; None: all, in order) as batches; the last one is filled up, by its last row again, to a
    multiple of 32 from 64."""
    if size < 64 or size % 32:
        raise ValueError(f"batch size is {size}; it must be a multiple of 32, from 64 up")
    rows = np.arange(len(split)) if rows is None else rows
    batches = []
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        padding = max(64, -(-len(some) // 32) * 32) - len(some)
        batches.append(split.batch(np.append(some, np.full(padding, some[-1]))))
    return batches


def logits_of(model: nn.Module, batch: "Batch") -> torch.Tensor:
    """Logits [B] of one batch, where the model is.

    Raises:
        ValueError: the model gives something else than a tensor [B] or [B, 1].
    """
    return _logits(model, batch, _device(model))


def score(model: nn.Module, batches: Iterable["Batch"], n: int) -> np.ndarray:
    """Logits [n] of the first n rows of the batches, float32 (float64 if the model gives that). The model is in evaluation
    mode meanwhile; each module then has the mode it had.

    Raises:
        ValueError: as `logits_of`.
    """
    device = _device(model)
    with evaluating(model):
        return gathered((_logits(model, batch, device) for batch in batches), n)


def gathered(logits: Iterable[torch.Tensor], n: int) -> np.ndarray:
    """The first n of the logits ([B] or [B, 1], all alike) of several batches, as `score` gives them."""
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
        raise ValueError(f"the model gave a {type(logits).__name__}; a tensor of logits [{rows}] is expected")
    if logits.shape not in ((rows,), (rows, 1)):
        raise ValueError(f"the model gave logits of shape {list(logits.shape)}; [{rows}] is expected")
    return logits.reshape(rows)


def state_digest(model: nn.Module) -> str:
    """SHA-256 (hex) of all parameters and buffers: names, dtypes, shapes and bytes."""
    total = hashlib.sha256()
    for part in _state(model):
        total.update(part)
    return total.hexdigest()


def state_checksum(model: nn.Module) -> int:
    """CRC-32 of what `state_digest` hashes: some five times quicker, and enough to notice a change that nobody meant."""
    total = 0
    for part in _state(model):
        total = zlib.crc32(part, total)
    return total


def _state(model: nn.Module) -> Iterator[bytes | np.ndarray]:
    for name, tensor in sorted(named_tensors(model, buffers=True)):
        yield f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode()
        yield tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
