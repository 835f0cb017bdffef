"""Algorithm-based fault tolerance: `ABFT` compares module outputs with checksums of trusted weights and repairs them."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from drsrobust.extend import (
    add_forward_hook,
    add_forward_pre_hook,
    call,
    check_choice,
    check_module,
    check_whole,
    confined_name,
    evaluating,
    tensor_names,
    within,
    wrong,
)
from drsrobust.injection import open_in
from drsrobust.introspection import Forward, listed, named_modules, sparse_type
from drsrobust.mitigation import FIT_BATCH, ActiveMitigation, Cost, Detection, Handle, Mitigation
from drsrobust_extras.protection.golden_copy import GoldenCopy, copy_digest

CHECK_ACTIONS = ("report", "recompute", "zero", "restore")

# (args, kwargs, output) of a call -> numbers of wrong output rows, int64 [m]; None if there are none
FindWrongRows = Callable[[tuple, dict[str, Any], Any], torch.Tensor | None]


class Check(ABC):
    """The check of one module's outputs."""

    @abstractmethod
    def on(self, module: nn.Module) -> FindWrongRows:
        """The function that checks calls of the module."""

    @abstractmethod
    def zeroed(self, output: Any, rows: torch.Tensor) -> Any:
        """A copy of the output with 0 in some rows."""

    @abstractmethod
    def reload(self, module: nn.Module, golden: GoldenCopy, args: tuple, kwargs: dict, rows: torch.Tensor) -> None:
        """Reloads the words that some output rows were computed from."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """What the check stores."""

    @property
    @abstractmethod
    def multiply_adds(self) -> int:
        """Per sample."""

    @property
    @abstractmethod
    def bytes_touched(self) -> int:
        """Per sample."""


class ABFT(Mitigation):
    """Checks the outputs of modules; clean values are unchanged. Use `fit` of a subclass.

    Args:
        kind: beginning of its name.
        options: shown in its name, before action and `every`.
        checks: module name -> check.
        action: what happens when an output is wrong:

            - `"report"`: nothing else.
            - `"recompute"`: the module runs again, which repairs an error of computation, not of memory.
            - `"zero"`: wrong rows become 0.
            - `"restore"`: the words behind wrong rows are reloaded from a golden copy, and the module runs again. Later batches
              then depend on this one (`ordered`), until the errors are undone.
        every: checks every n-th batch (call of the model), from the first one after `attach`. Over 1, detection depends on the
            order of batches (`ordered`).
        golden: the copy for `"restore"`.

    Raises:
        ValueError: an unknown action, or `every` is not a whole number over 0.
    """

    def __init__(
        self,
        kind: str,
        options: list[str],
        checks: Mapping[str, Check],
        *,
        action: str,
        every: int,
        golden: GoldenCopy | None,
    ) -> None:
        check_options(action, every)
        self.checks, self.action, self.every, self.golden = dict(checks), action, every, golden
        self.ordered, self.reports_only = action == "restore" or every > 1, action == "report"
        self._digest: str | None = None
        options = options + ([] if action == "report" else [action]) + ([] if every == 1 else [f"every {every}"])
        self.name = f"{kind} ({', '.join(options)})" if options else kind

    @property
    def covered(self) -> list[str]:
        """Names of the modules whose outputs are checked."""
        return list(self.checks)

    def settings(self) -> Any:
        if self._digest is None:
            tensors = {f"{name}.{key}": t for name, check in self.checks.items() for key, t in check.tensors().items()}
            self._digest = copy_digest(tensors)
        golden = None if self.golden is None else self.golden.digest()
        return {"action": self.action, "every": self.every, "checks": self._digest, "golden": golden}

    def new_detection(self) -> Detection:
        return Detection(detected=False)

    def cost(self, model: nn.Module) -> Cost:
        """Checksums, thresholds and golden copy; the work of all checks, divided by `every`."""
        stored = [tensor for check in self.checks.values() for tensor in check.tensors().values()]
        bits = sum(8 * tensor.numel() * tensor.element_size() for tensor in stored)
        bits += 0 if self.golden is None else self.golden.stored_bits
        work = sum(check.multiply_adds for check in self.checks.values())
        touched = sum(check.bytes_touched for check in self.checks.values())
        return Cost(bits, -(-work // self.every), -(-touched // self.every))

    def covers(self, model: nn.Module) -> set[str]:
        names = [entry.name for entry in listed(model)]
        return set().union(*(within(module, names) for module in self.checks))

    def on(self, tensors: Iterable[str]) -> "ABFT":
        """Keeps the checks of modules with any of the tensors; a check of several tables stays whole."""
        confined, tensors = copy(self), tensor_names(tensors)
        confined.checks = {module: check for module, check in self.checks.items() if within(module, tensors)}
        if self.golden is not None:
            confined.golden = self.golden.part(confined.checks)
        confined._digest, confined.name = None, confined_name(self.name, tensors)
        return confined

    def register_hooks(self, model: nn.Module, active: ActiveMitigation) -> Iterator[Handle]:
        modules = dict(named_modules(model))
        if missing := [name for name in self.checks if name not in modules]:
            raise ValueError(f"{self.name} was fitted to another model: this one has no module {missing[0]!r}")
        counter = _BatchCounter(self.every, active)
        if self.every > 1:
            yield add_forward_pre_hook(model, counter.next)
        for name, check in self.checks.items():
            hook = self._hook(modules[name], check, counter)
            yield add_forward_hook(modules[name], hook, with_kwargs=True)

    def _hook(self, module: nn.Module, check: Check, counter: "_BatchCounter") -> Callable[..., Any]:
        find_wrong, active = check.on(module), counter.active

        def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
            if not counter.due or (self.action == "report" and active.detection.detected):
                return None
            if not can_check(module, output):
                return None
            rows = find_wrong(args, kwargs, output)
            if rows is None:
                return None
            if self.action in ("report", "zero"):
                active.detection.record()
                return None if self.action == "report" else check.zeroed(output, rows)
            if self.action == "restore":
                check.reload(module, self.golden, args, kwargs, rows)
            # Not `module(...)`, which would run its hooks twice.
            repeated = module.forward(*args, **kwargs)
            active.detection.record(repaired=find_wrong(args, kwargs, repeated) is None)
            return repeated

        return hook


class _BatchCounter:
    """Decides which batches are checked: every n-th from the first one of a detection."""

    def __init__(self, every: int, active: ActiveMitigation) -> None:
        self.every, self.active, self.due = every, active, True
        self._detection: Detection | None = None
        self._batch = 0

    def next(self, module: nn.Module, args: tuple) -> None:
        """Counts a batch."""
        if self.active.detection is not self._detection:
            self._detection, self._batch = self.active.detection, 0
        self.due = self._batch % self.every == 0
        self._batch += 1


_UNCHECKED: WeakSet[nn.Module] = WeakSet()  # modules whose outputs had their warning


def can_check(module: nn.Module, output: Any) -> bool:
    """Whether a module's output is one that checks read: a tensor, or a KeyedTensor; else it warns, once for each module."""
    if isinstance(output, torch.Tensor) or sparse_type(output):
        return True
    if module not in _UNCHECKED:
        _UNCHECKED.add(module)
        warnings.warn(
            f"{module} gave a {type(output).__name__}; checksums are of one tensor, so its outputs are not checked",
            stacklevel=2,
        )
    return False


def check_options(action: str, every: int) -> None:
    """Raises ValueError for an unknown action, or for `every` that is not a whole number over 0."""
    check_choice("action", action, CHECK_ACTIONS)
    check_whole("every", every, 1)


def refuse_errors(model: nn.Module) -> None:
    """Raises ValueError if errors are applied to a model, since checksums need trusted weights."""
    check_module(model)
    if open_in(model):
        raise ValueError("errors are applied to the model; fit checksums before injecting")


def run(model: nn.Module, rows: Any, forward: Forward | None = None) -> Iterator[None]:
    """Scores batches one by one, in evaluation mode and without gradients; modules get their mode back afterwards.

    Args:
        model: any module.
        rows: a Split, Batches, or an iterable of batches.
        forward: forward(model, batch), as of `Evaluator`.
    """
    batches = getattr(rows, "batches", rows)
    if isinstance(rows, str | Mapping | type) or not (callable(batches) or isinstance(batches, Iterable)):
        raise wrong("rows", "training rows, as data.train, Batches or a list of batches", rows)
    with evaluating(model):
        for number, batch in enumerate(batches(FIT_BATCH) if callable(batches) else batches):
            call(model, batch, forward, number)
            yield
