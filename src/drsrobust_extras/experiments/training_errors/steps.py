"""Training in single steps: forward and backward apart from the update, detectors that watch, a state that can be kept."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from drsrobust.data import Split
from drsrobust.extend import check_choice
from drsrobust.injection import InjectionError
from drsrobust.introspection import named_tensors
from drsrobust.metrics import auc, served
from drsrobust.models import padded_batches, score, tensors_digest
from drsrobust.training import Settings, Trainer, load_optimizer, optimizer_tensors

OPTIMIZERS = ("adam", "rowwise_adagrad")  # of tables; those that FBGEMM fuses into the backward pass hide the gradients
State = tuple[int, dict[str, torch.Tensor], dict[str, list[Any]]]  # step, tensors by name, readings of detectors


class StepBatches:
    """The batches of `count` steps of training from step `first` on, in the order of `drsrobust.training.fit`."""

    def __init__(self, split: Split, settings: Settings, first: int, count: int) -> None:
        random, parts, number = np.random.default_rng(settings.seed), [], 0
        while len(parts) < count:
            order = random.permutation(len(split))
            for start in range(0, len(order), settings.batch_size):
                rows = order[start : start + settings.batch_size]
                if len(rows) > 1 and len(parts) < count:
                    parts += [rows] if number >= first else []
                    number += 1
        self.first, self._rows = first, split.take(np.concatenate(parts))
        self._ends = np.cumsum([0, *map(len, parts)])

    def of_step(self, number: int) -> Any:
        """The batch of a step, counted from the start of training."""
        start, end = self._ends[number - self.first : number - self.first + 2]
        return self._rows.batch(slice(start, end))


@dataclass(eq=False)
class Step:
    """A step of training after its backward pass, before its update.

    Attributes:
        number: of the step, from 0 at the start of training.
        loss: mean of the batch, in nats; NaN where the step raised.
        run: that computed it.
        observed: what detectors saw during forward and backward, by name.
        error: text of the exception that the step raised.
    """

    number: int
    loss: float
    run: "Run" = field(repr=False)
    observed: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @cached_property
    def gradients(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """All parameters that have a gradient, with it."""
        return [(p, p.grad) for p in self.run.model.parameters() if p.grad is not None]

    @cached_property
    def gradient_norm(self) -> float:
        """The Euclidean norm of all gradients, in float32: infinite where their squares overflow."""
        norms = torch._foreach_norm([gradient for _, gradient in self.gradients])
        return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0

    def states(self, option: str) -> Iterator[tuple[dict[str, Any], nn.Parameter, Mapping[str, torch.Tensor]]]:
        """Group, parameter and state (empty before the first update) of all parameters whose optimizer has such an option."""
        for optimizer in self.run.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"] if option in group else ():
                    yield group, parameter, optimizer.state.get(parameter, {})

    def bits(self) -> str:
        """A hash of the loss and all gradients."""
        named = [(str(number), gradient) for number, (_, gradient) in enumerate(self.gradients)]
        return tensors_digest([*named, ("loss", torch.tensor(self.loss))])

    def bits_when_repeated(self) -> str:
        """`bits` of the step computed again, without errors; gradients and buffers stay those of this one."""
        gradients, buffers = self.gradients, [buffer.clone() for buffer in self.run.model.buffers()]
        bits = self.run.again().bits()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        self.run.set_buffers(buffers)
        return bits


class Detector:
    """A detector. Its fields are its settings.

    Attributes:
        name: of its columns in tables.
        keep: how many earlier readings `alarm` gets, at most.
        is_spike: whether its alarm in the first steps after an error makes that error a spike (`modes`).
    """

    name: ClassVar[str]
    keep: int = 0
    is_spike: ClassVar[bool] = False

    @contextmanager
    def attach(self, model: nn.Module) -> Iterator[Any]:
        """What is observed during forward and backward, which `read` finds in `step.observed[self.name]`."""
        yield None

    def read(self, step: Step, past: Sequence[Any]) -> Any:
        """What this detector compares, of a step and the readings of earlier steps, the last one at the end."""
        raise NotImplementedError

    def alarm(self, reading: Any, past: Sequence[Any]) -> bool:
        """Whether a reading shows an error; where it takes earlier ones, not without them. By default the reading says it."""
        return bool(reading)


class Run:
    """A training run in single steps; its updates are those of `drsrobust.training.fit`, bit for bit, on one thread.

    Args:
        model: in training; changed in place.
        settings: tables are updated by Adam, or by TorchRec's row-wise Adagrad with dense gradients.
        batches: of the steps; the first one comes first.
        detectors: whose readings are kept.

    Attributes:
        defect: errors of the machine in all steps, also in those that are computed again; None: a sound machine.

    Raises:
        ValueError: an optimizer of tables that hides their gradients, or another precision than float32.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        batches: StepBatches,
        detectors: Sequence[Detector] = (),
    ) -> None:
        check_choice("table_optimizer of a training campaign", settings.table_optimizer, OPTIMIZERS)
        check_choice("precision of a training campaign", settings.precision, ("float32",))
        self.model, self.batches, self.detectors, self.number = model.train(), batches, tuple(detectors), batches.first
        self._trainer = Trainer(model, replace(settings, table_optimizer="adam"), [])
        self.optimizers: list[torch.optim.Optimizer] = [self._trainer.optimizer]
        if settings.table_optimizer == "rowwise_adagrad":
            from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

            tables = self._trainer.optimizer.param_groups.pop(0)["params"]
            rate = settings.table_learning_rate or settings.learning_rate
            self.optimizers.append(RowWiseAdagrad(tables, lr=rate, eps=1e-8))
        self.past: dict[str, list[Any]] = defaultdict(list)  # readings of each detector
        self.defect: Callable[[], AbstractContextManager[Any]] | None = None
        self._before: tuple[torch.Tensor, list[torch.Tensor]] | None = None

    def compute(self, observers: Sequence[Detector] = (), errors: AbstractContextManager[Any] | None = None) -> Step:
        """The forward and backward pass of the next step, with detectors attached, inside of `errors`."""
        self._before = torch.get_rng_state(), [buffer.clone() for buffer in self.model.buffers()]
        step = Step(self.number, math.nan, self)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        with ExitStack() as stack:
            step.observed = {one.name: stack.enter_context(one.attach(self.model)) for one in observers}
            with errors or nullcontext(), nullcontext() if self.defect is None else self.defect():
                try:
                    step.loss = self._trainer.backward(self.batches.of_step(self.number))
                except InjectionError:
                    raise
                except Exception as error:
                    step.error = f"{type(error).__name__}: {error}"
        return step

    def again(self) -> Step:
        """The last step computed again, from the same state and without errors that strike once."""
        random, buffers = self._before
        torch.set_rng_state(random)
        self.set_buffers(buffers)
        return self.compute()

    def set_buffers(self, values: Sequence[torch.Tensor]) -> None:
        """Writes the model's buffers."""
        with torch.no_grad():
            for buffer, value in zip(self.model.buffers(), values, strict=True):
                buffer.copy_(value)

    def read(self, step: Step, observers: Sequence[Detector]) -> dict[str, Any]:
        """Readings of the observers, and of all detectors that compare with earlier ones."""
        return {one.name: one.read(step, self.past[one.name]) for one in self.detectors if one.keep or one in observers}

    def update(self, readings: Mapping[str, Any]) -> None:
        """Ends a step: updates the model and keeps the readings."""
        for optimizer in self.optimizers:
            optimizer.step()
        for one in self.detectors:
            if one.keep:
                self.past[one.name] = [*self.past[one.name], readings[one.name]][-one.keep :]
        self.number += 1

    def advance(self, steps: int) -> None:
        """Steps without errors."""
        for _ in range(steps):
            step = self.compute()
            if step.error:
                raise RuntimeError(f"step {step.number} of training without errors raised {step.error}")
            self.update(self.read(step, ()))

    def evaluate(self, rows: Split) -> tuple[float, int, int]:
        """AUC of float32 probabilities, rows with a NaN and rows with an infinite score."""
        scores = score(self.model, padded_batches(rows), len(rows))
        return auc(rows.labels, served(scores)), int(np.isnan(scores).sum()), int(np.isinf(scores).sum())

    def _tensors(self) -> dict[str, torch.Tensor]:
        tensors = {f"model.{name}": tensor for name, tensor in named_tensors(self.model, buffers=True)}
        for number, optimizer in enumerate(self.optimizers):
            tensors |= {f"{number}.{name}": tensor for name, tensor in optimizer_tensors(optimizer)}
        return tensors

    def digest(self) -> str:
        """SHA-256 (hex) of weights, buffers, optimizer states and random state."""
        return tensors_digest([*self._tensors().items(), ("random", torch.get_rng_state())])

    def state(self) -> State:
        """All that later steps depend on, copied."""
        tensors = {name: tensor.detach().clone() for name, tensor in self._tensors().items()}
        return self.number, tensors | {"random": torch.get_rng_state()}, {k: list(v) for k, v in self.past.items()}

    def load(self, state: State) -> None:
        """Restores `state` in place."""
        self.number, tensors, past = state
        self.past = defaultdict(list, {name: list(readings) for name, readings in past.items()})
        for number, optimizer in enumerate(self.optimizers):
            part = {name.split(".", 1)[1]: t for name, t in tensors.items() if name.startswith(f"{number}.")}
            if {name for name, _ in optimizer_tensors(optimizer)} != part.keys():
                load_optimizer(optimizer, {name: tensor.clone() for name, tensor in part.items()})
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(tensors[name])
        torch.set_rng_state(tensors["random"])
