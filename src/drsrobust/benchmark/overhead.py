"""How much longer inference takes with a mitigation than without, in turns."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from drsrobust.benchmark.measure import cpu_seconds
from drsrobust.benchmark.trial_cost import one_thread
from drsrobust.mitigation import Mitigation
from drsrobust.models import evaluating
from drsrobust.tensors import named_modules

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch


def overhead(
    model: nn.Module,
    batches: Sequence["Batch"],
    mitigation: Mitigation,
    *,
    modules: Sequence[str] | None = None,
    turns: int = 15,
) -> dict[str, Any]:
    """CPU time of passes over some batches, one thread; each protected pass stands between two plain ones, so that what else
    the machine does meets both alike.

    Args:
        model: any.
        batches: of one size; enough of them for a pass of some 50 ms.
        mitigation: attached for each protected pass anew, which is not counted.
        modules: names of modules that are called by themselves, with what the model gives them on these batches: the operators
            that are protected. None: the model.
        turns: protected passes.

    Returns:
        `scope` (`model` or `operator`), `batch` (rows of one), `plain_ms` and `protected_ms` (per batch, medians) and
        `overhead_percent` (the median of the turns' ratios, less 1).
    """
    calls = _calls(model, batches, modules)
    with one_thread(), evaluating(model):

        def passed() -> float:
            return cpu_seconds(lambda: [call() for call in calls])[1]

        passed()
        plain, protected, ratios = [passed()], [], []
        for turn in range(turns + 1):
            with mitigation.attach(model):
                during = passed()
            plain.append(passed())
            if turn:  # in the first one what is made at a first use is made
                protected.append(during)
                ratios.append(2 * during / (plain[-1] + plain[-2]))
    return {
        "scope": "model" if modules is None else "operator",
        "batch": len(batches[0].labels),
        "plain_ms": 1e3 * float(np.median(plain)) / len(batches),
        "protected_ms": 1e3 * float(np.median(protected)) / len(batches),
        "overhead_percent": 100 * (float(np.median(ratios)) - 1),
    }


def _calls(model: nn.Module, batches: Sequence["Batch"], modules: Sequence[str] | None) -> list[Callable[[], Any]]:
    """What a pass calls."""

    def whole(batch: "Batch") -> Callable[[], Any]:
        return lambda: model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)

    if modules is None:
        return [whole(batch) for batch in batches]
    there, calls, hooks = dict(named_modules(model)), [], []

    def note(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        calls.append(lambda: module(*args, **kwargs))

    try:
        for name in modules:
            hooks.append(there[name].register_forward_pre_hook(note, with_kwargs=True))
        with evaluating(model):
            for batch in batches:
                whole(batch)()
    finally:
        for hook in hooks:
            hook.remove()
    return calls
