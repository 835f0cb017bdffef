"""Algorithm-based fault tolerance: modules whose outputs are checked against sums of trusted weights, and what follows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from drsrobust._environment import unknown
from drsrobust.injection.apply import open_in
from drsrobust.introspection.tensors import named_modules
from drsrobust.introspection.wrappers import evaluating
from drsrobust.mitigation.base import Cost, Current, Handle, Mitigation, Watch
from drsrobust.mitigation.memory.golden_copy import GoldenCopy, tensors_digest

ACTIONS = ("report", "recompute", "zero", "restore")
BATCH = 2048  # rows at a time, of a split that is given to learn from

Suspicion = Callable[[tuple, dict[str, Any], Any], torch.Tensor | None]


class Check(ABC):
    """What the outputs of one module are checked against."""

    @abstractmethod
    def on(self, module: nn.Module) -> Suspicion:
        """What looks at a call of the module: (args, kwargs, output) -> the numbers of wrong rows of the output, int64 [m];
        None if there are none."""

    @abstractmethod
    def zeroed(self, output: Any, rows: torch.Tensor) -> Any:
        """The output with 0 in some rows; a copy."""

    @abstractmethod
    def restore(self, module: nn.Module, golden: GoldenCopy, args: tuple, kwargs: dict, rows: torch.Tensor) -> None:
        """Puts back the words that some rows of the output were computed from."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """What is kept in memory."""


class ABFT(Mitigation):
    """Checks the outputs of modules; what it finds does not change clean values. To make one, see its subclasses' `fit`.

    Args:
        checks: module name -> check.
        action: what happens when an output is wrong:

            - `"report"`: nothing else.
            - `"recompute"`: the module runs again, which heals an error of computation, not one in memory.
            - `"zero"`: wrong rows become 0.
            - `"restore"`: the words behind wrong rows are put back from a golden copy, and the module runs again. What follows
              then depends on this batch (`ordered`), until the errors are taken out.
        every: batches (calls of the model) that pass from one check to the next; the first one after each `attach` is checked.
            Over 1, what is noticed depends on the order of batches (`ordered`).
        golden: the copy for `"restore"`.

    Raises:
        ValueError: an unknown action, or `every` is not a whole number over 0.
    """

    def __init__(self, checks: Mapping[str, Check], *, action: str, every: int, golden: GoldenCopy | None) -> None:
        check_options(action, every)
        self.checks, self.action, self.every, self.golden = dict(checks), action, every, golden
        self.ordered = action == "restore" or every > 1
        self._digest: str | None = None

    @property
    def covered(self) -> list[str]:
        """Names of the modules whose outputs are checked."""
        return list(self.checks)

    def learnt(self) -> str:
        """SHA-256 (hex) of all that is kept in memory."""
        if self._digest is None:
            kept = {f"{name}.{key}": t for name, check in self.checks.items() for key, t in check.tensors().items()}
            self._digest = tensors_digest(kept)
        return self._digest

    def settings(self) -> Any:
        golden = None if self.golden is None else self.golden.digest()
        return {"action": self.action, "every": self.every, "checks": self.learnt(), "golden": golden}

    def tells(self) -> Watch:
        return Watch(detected=False)

    def stored_bits(self) -> int:
        """Bits of checksums, thresholds and golden copy."""
        kept = [tensor for check in self.checks.values() for tensor in check.tensors().values()]
        copy = 0 if self.golden is None else self.golden.stored_bits
        return copy + sum(8 * tensor.numel() * tensor.element_size() for tensor in kept)

    @abstractmethod
    def cost(self, model: nn.Module) -> Cost: ...

    def put_on(self, model: nn.Module, watch: Current) -> Iterator[Handle]:
        modules = dict(named_modules(model))
        if missing := [name for name in self.checks if name not in modules]:
            raise ValueError(f"{self.name}: the model has no {missing[0]!r}, for which sums were learnt; it has others")
        beat = _Beat(self.every, watch)
        if self.every > 1:
            yield model.register_forward_pre_hook(beat.next)
        for name, check in self.checks.items():
            hook = self._hook(modules[name], check, beat)
            yield modules[name].register_forward_hook(hook, with_kwargs=True)

    def _hook(self, module: nn.Module, check: Check, beat: "_Beat") -> Callable[..., Any]:
        suspicious, watch = check.on(module), beat.watch

        def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
            if not beat.due or (self.action == "report" and watch.now.detected):
                return None
            rows = suspicious(args, kwargs, output)
            if rows is None:
                return None
            if self.action == "report":
                watch.now.note()
                return None
            if self.action == "zero":
                watch.now.note()
                return check.zeroed(output, rows)
            if self.action == "restore":
                check.restore(module, self.golden, args, kwargs, rows)
            # Not `module(...)`: the hooks on it have had their turn.
            again = module.forward(*args, **kwargs)
            watch.now.note(repaired=suspicious(args, kwargs, again) is None)
            return again

        return hook


class _Beat:
    """Which batches are checked: every n-th from the first one that a watch sees."""

    def __init__(self, every: int, watch: Current) -> None:
        self.every, self.watch, self.due = every, watch, True
        self._seen: Watch | None = None
        self._batch = 0

    def next(self, module: nn.Module, args: tuple) -> None:
        """A batch begins."""
        if self.watch.now is not self._seen:
            self._seen, self._batch = self.watch.now, 0
        self.due = self._batch % self.every == 0
        self._batch += 1


def check_options(action: str, every: int) -> None:
    """Raises ValueError for an unknown action, or a number of batches that is none."""
    if action not in ACTIONS:
        raise unknown("action", action, ACTIONS)
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"every is {every!r}; it must be a whole number of batches, 1 for each of them")


def refuse_errors(model: nn.Module) -> None:
    """Raises ValueError for a model with errors in it: sums of its weights could not be trusted."""
    if open_in(model):
        raise ValueError("there are errors in the model now; sums and copies must be made of trusted weights, before")


def run(model: nn.Module, rows: Any) -> Iterator[None]:
    """Scores batches one by one, in evaluation mode and without gradients; each module then has the mode it had.

    Args:
        model: forward(dense_features, sparse_features).
        rows: a Split, or batches.
    """
    batches: Iterable[Any] = rows.batches(BATCH) if hasattr(rows, "batches") else rows
    with evaluating(model):
        for batch in batches:
            model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
            yield
