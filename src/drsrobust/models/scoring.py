"""Scores of many rows; a row's score does not depend on the other rows of its batch.

Matrix products give the same bits for a row in every batch whose size is a multiple of 32, from 64 up (measured on CPUs with
AVX2; elsewhere scores are equal within a few float32 roundings). So batches are padded to such a size; not those of a model
whose rows affect each other (`drsrobust.evaluation.affected_rows`).
"""

import hashlib
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from drsrobust._arguments import check_function, check_whole, wrong
from drsrobust._choices import check_choice
from drsrobust.data import Split, checked_task
from drsrobust.introspection.calling import Forward, call
from drsrobust.introspection.spread import is_sharded, process_group
from drsrobust.introspection.tensors import inner_tensors, is_sparse, is_wrapper, named_tensors, sparse_parts
from drsrobust.introspection.wrappers import evaluating

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

BATCH = 2048  # rows; a multiple of 32
JOINED = 32  # batches whose outputs are put into one tensor
ROUNDING = 1e-6  # by which probabilities may pass 0 and 1, as sums of a softmax in float32 do
OUTPUTS = ("logit", "probability")
TASKS = ("click", "multi", "ranking")


class PaddedBatches(Sequence["Batch"]):
    """Rows of a split as batches, each made when it is asked for; the last is padded with copies of its last row.

    Args:
        split: the rows.
        size: of a batch; a multiple of 32, from 64 up.
        rows: numbers of rows, int64 [m]; None: all, in order.

    Raises:
        ValueError: another size.
    """

    def __init__(self, split: Split, size: int = BATCH, rows: np.ndarray | None = None) -> None:
        if check_whole("batch size", size) < 64 or size % 32:
            raise wrong("batch size", "a multiple of 32, from 64 up", size)
        self._split, self._size, self._rows = split, size, rows
        self._n = len(split) if rows is None else len(rows)
        self._replaced: dict[int, Batch] = {}

    def __len__(self) -> int:
        return -(-self._n // self._size)

    def __iter__(self) -> Iterator["Batch"]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: Any) -> Any:
        """Batch `number`, or a list of those of a slice."""
        if isinstance(number, slice):
            return [self[i] for i in range(len(self))[number]]
        if (number := range(len(self))[number]) in self._replaced:
            return self._replaced[number]
        start, end = number * self._size, min(number * self._size + self._size, self._n)
        chosen = np.arange(start, end) if self._rows is None else self._rows[start:end]
        padding = self.sizes()[number] - len(chosen)
        return self._split.batch(np.append(chosen, np.full(padding, chosen[-1])))

    def sizes(self) -> list[int]:
        """Rows of each batch, padding included."""
        last = self._n - self._size * (len(self) - 1)
        return [self._size] * (len(self) - 1) + [max(64, 32 * math.ceil(last / 32))]

    def __setitem__(self, number: int, batch: "Batch") -> None:
        """Puts another batch in the place of batch `number`."""
        self._replaced[range(len(self))[number]] = batch


def padded_batches(split: Split, size: int = BATCH, rows: np.ndarray | None = None) -> list["Batch"]:
    """All of `PaddedBatches`, in memory."""
    return list(PaddedBatches(split, size, rows))


@dataclass(frozen=True)
class Scoring:
    """How the scores of a batch are made of a model's output.

    Args:
        forward: forward(model, batch) -> output; None: as in `introspection.calling.call`.
        output: `logit`, or `probability`, of which the logit is taken, clipped to the logits of float32 probabilities.
        task: `click` (output [B] or [B, 1]), `multi` ([B, T]; a dictionary or tuple of T outputs [B] or [B, 1]) or `ranking`
            ([B, items]).
        tasks: names of the tasks, in the order of the labels; a dictionary of outputs is read by them.

    Raises:
        ValueError: another output or task.
    """

    forward: Forward | None = None
    output: str = "logit"
    task: str = "click"
    tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.forward is not None:
            check_function("forward", self.forward, "a function, forward(model, batch)")
        check_choice("output", self.output, OUTPUTS)
        object.__setattr__(self, "task", checked_task(self.task, TASKS))

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Scores of one batch, on the model's device: [B], or [B, T] or [B, items].

        Raises:
            ValueError: as `outputs`.
        """
        return self.logits(self.outputs(model, batch))

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """The scores of outputs: their logits if they are probabilities, else the outputs."""
        return _logit(outputs) if self.output == "probability" else outputs

    def outputs(self, model: nn.Module, batch: Any, number: int | None = None) -> torch.Tensor:
        """The model's outputs for one batch, in the shape of scores; `number` as in `introspection.calling.call`.

        Raises:
            ValueError: an output of another shape; the message has the shape, and those that tasks take.
        """
        output = call(model, batch, self.forward, number)
        if self.task == "multi" and isinstance(output, Mapping | list | tuple):
            parts = self._by_name(output) if isinstance(output, Mapping) else list(output)
            if parts and all(isinstance(part, torch.Tensor) and _is_column(part) for part in parts):
                output = torch.stack([part.reshape(-1) for part in parts], dim=1)
        rows = len(batch.labels) if hasattr(batch, "labels") else None
        if not isinstance(output, torch.Tensor) or is_wrapper(output):
            raise ValueError(f"the model gave {_kind(output)}; {self._wanted()}")
        if not output.is_floating_point():
            raise ValueError(f"the model gave scores of {output.dtype}; they must be floating-point numbers")
        fits = _is_column(output) if self.task == "click" else output.dim() == 2
        if not fits or rows not in (None, len(output)):
            description = f"a tensor {list(output.shape)}" + ("" if rows is None else f" for {rows} rows")
            raise ValueError(f"the model gave {description}; {self._wanted()}")
        return output.reshape(-1) if self.task == "click" else output

    def check_probabilities(self, outputs: torch.Tensor) -> None:
        """Refuses outputs [n], [n, T] or [n, items] that `output="probability"` does not take. NaN and infinite values pass.

        Raises:
            ValueError: values outside of [0, 1] by more than `ROUNDING`; the message says what they look like.
        """
        if self.output != "probability":
            return
        columns = outputs.T if self.task == "multi" else outputs[None]
        for number, column in enumerate(columns):
            values = column[column.isfinite()].double()
            if not len(values) or (values.min() >= -ROUNDING and values.max() <= 1 + ROUNDING):
                continue
            low, high = values.min().item(), values.max().item()
            of_task = f" for task {self.tasks[number]!r}" if self.tasks else ""
            raise ValueError(
                f"output='probability' takes values from 0 to 1, and the model without errors gives values from {low:.4g} to "
                f"{high:.4g}{of_task}: they look like {_seems(low, high)}"
            )

    def _by_name(self, outputs: Mapping[str, Any]) -> list[Any]:
        """The outputs of the tasks; in their own order if the tasks have no names of their own."""
        if all(name == f"task_{number}" for number, name in enumerate(self.tasks)):
            return list(outputs.values())
        if missing := [name for name in self.tasks if name not in outputs]:
            raise ValueError(
                f"the model gave {_kind(outputs)}, and the labels are of the tasks {', '.join(map(repr, self.tasks))}: "
                f"there is no {missing[0]!r}; forward=lambda model, batch: ... can rename the outputs"
            )
        return [outputs[name] for name in self.tasks]

    def _wanted(self) -> str:
        shapes = "task='click' takes scores [B] or [B, 1], 'multi' [B, tasks], 'ranking' [B, items]"
        return (
            f"{shapes}, and this is task={self.task!r}; forward=lambda model, batch: ... can pick them from the output"
        )


CLICK_SCORING = Scoring()


def _is_column(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 1 or (tensor.dim() == 2 and tensor.shape[1] == 1)


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dictionary of {', '.join(map(repr, value))}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _seems(low: float, high: float) -> str:
    """What outputs that are no probabilities most likely are, and what would be right."""
    if low >= 0 and high <= 100:
        return "percent, of which forward returns a hundredth, or logits: output='logit'"
    if low >= -1 - ROUNDING and high <= 1 + ROUNDING:
        return "a tanh, of which forward returns (1 + output) / 2, or logits: output='logit'"
    if high <= ROUNDING:
        return "logarithms of probabilities, of which forward returns .exp(), or logits: output='logit'"
    return "logits: output='logit'"


def _logit(probability: torch.Tensor) -> torch.Tensor:
    """Logits of probabilities, float32 (float64 if they are); those of 0 and 1 are finite, and 1 comes back as 1 in float32.
    Other infinities and NaN stay."""
    wide = probability.double()
    logits = torch.logit(wide.clamp(1e-38, 1 - 2**-25))
    logits = torch.where(wide.isinf(), wide, logits)
    return logits.to(torch.promote_types(probability.dtype, torch.float32))


def score(
    model: nn.Module,
    batches: Iterable[Any],
    n: int,
    scoring: Scoring = CLICK_SCORING,
    sizes: Iterable[int] | None = None,
    *,
    golden: bool = False,
) -> np.ndarray:
    """Scores of the first n rows of the batches, [n], [n, T] or [n, items], float32 (float64 if the model's are), in evaluation
    mode; afterwards each module has its previous mode.

    Args:
        sizes: rows of each batch, if they are known.
        golden: the model has no errors: outputs must be probabilities where `scoring` says so, and what it raises names the
            batch.

    Raises:
        ValueError: as `Scoring`, fewer scores than n, or another number of a batch than its rows; in a golden run also as
            `Scoring.check_probabilities`.
    """
    outputs: list[torch.Tensor] = []
    with evaluating(model):
        for number, batch in enumerate(batches):
            outputs.append(scoring.outputs(model, batch, number if golden else None))
            last = outputs[-JOINED:] if len(outputs) % JOINED == 0 else []
            if len({(part.dtype, part.shape[1:]) for part in last}) == 1:
                # Small tensors that stay, between large ones that go, would leave holes: 200 bytes a row.
                outputs[-JOINED:] = torch.cat(last).split([len(part) for part in last])
    parts = [scoring.logits(output) for output in outputs]
    for number, (part, rows) in enumerate(zip(parts, () if sizes is None else sizes, strict=False)):
        if len(part) != rows:
            raise ValueError(f"batch {number} has {rows} labels, and the model gave {len(part)} scores for it")
    if len(widths := {part.shape[1:] for part in parts}) > 1:
        raise ValueError(f"batches have scores of different shapes per row: {sorted(map(list, widths))}")
    joined = torch.cat(parts)
    if len(joined) < n:
        raise ValueError(f"the model gave {len(joined)} scores for {n} rows")
    if golden and scoring.output == "probability":
        scoring.check_probabilities(torch.cat(outputs)[:n])
    return joined.to("cpu", torch.promote_types(joined.dtype, torch.float32)).numpy()[:n]


def state_digest(model: nn.Module) -> str:
    """SHA-256 (hex) of all parameters and buffers: names, dtypes, shapes and bytes; of sparse ones indices and values. Of a
    model that is sharded over ranks, `sum128:` and a sum that is equal for every plan and number of ranks: it shows accidents,
    and is no cryptographic hash."""
    return (
        process_group().state_digest(model) if is_sharded(model) else tensors_digest(named_tensors(model, buffers=True))
    )


def tensors_digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """`state_digest` of a model with these tensors."""
    total = hashlib.sha256()
    for part in _state(tensors):
        total.update(part)
    return total.hexdigest()


def state_checksum(model: nn.Module) -> int:
    """CRC-32 of the bytes that `state_digest` hashes: five times as fast, enough to detect an accidental change."""
    if is_sharded(model):
        return int(process_group().state_digest(model)[-32:], 16)
    total = 0
    for part in _state(named_tensors(model, buffers=True)):
        total = zlib.crc32(part, total)
    return total


def _state(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[bytes | np.ndarray]:
    for name, tensor in sorted(tensors):
        yield f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode()
        parts = [part.detach() for part in inner_tensors(tensor)]
        if is_sparse(tensor):
            parts = sparse_parts(tensor.detach())
            yield f"{tensor.layout} {[f'{part.dtype} {list(part.shape)}' for part in parts]}\n".encode()
        for part in parts:
            yield part.resolve_conj().resolve_neg().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
