"""The code that decides a campaign's trials, by digests: part of its identity, compared again before trials are computed, and
in each worker with what that runs."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from drsrobust.campaign.conditions import Condition
from drsrobust.introspection.calling import Forward
from drsrobust.introspection.code_digest import short_digest
from drsrobust.introspection.numerics import numerics
from drsrobust.introspection.patched import surroundings
from drsrobust.introspection.tensors import listed
from drsrobust.metrics.own import OwnMetric

# Parts that come to a worker with the trials' specification: threads of one process share these objects.
SHARED = ("conditions", "mitigations", "metrics")


def trial_code(
    model: nn.Module,
    forward: Forward | None,
    conditions: Sequence[Condition],
    metrics: Mapping[str, OwnMetric],
    missing: list[str] | None = None,
) -> dict[str, Any]:
    """The digests of a model, of `forward`, and by condition, mitigation's identity and metric's name of theirs; with
    `surrounding_code`. What has no digest is added to `missing`."""
    code = partial(short_digest, missing=[] if missing is None else missing)
    errors = {(id(c.error_model), id(c.transient)): [c.error_model, c.transient] for c in conditions}
    of_errors = {key: code(parts) for key, parts in errors.items()}
    return {
        "metrics": {name: code(metric.function) for name, metric in metrics.items()},
        "conditions": [of_errors[id(c.error_model), id(c.transient)] for c in conditions],
        "model code": model_code(model, missing),
        "forward code": code(forward),
        "mitigations": {c.identity: code(c.mitigation) for c in conditions if c.mitigation},
    } | surrounding_code(missing)


def model_code(model: nn.Module, missing: list[str] | None = None) -> str:
    """The digest of a model's code and settings, without its tensors' values."""
    tensors = [entry.tensor for entry in listed(model)]
    return short_digest(model, tensors, missing=[] if missing is None else missing)


def surrounding_code(missing: list[str] | None = None) -> dict[str, Any]:
    """What acts on every model of this process, where there is any, by name: PyTorch's `numerics` that are not the defaults,
    and the digests of `surroundings`."""
    present = numerics()
    parts = {
        name: short_digest(part, missing=[] if missing is None else missing) for name, part in surroundings().items()
    }
    return ({"numerics": present} if present else {}) | parts


def differing(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys under which two definitions differ."""
    return [key for key in {**first, **other} if first.get(key) != other.get(key)]


def check_worker_code(of_campaign: Mapping[str, Any], here: Mapping[str, Any], *, same_process: bool) -> None:
    """Refuses a worker that would run other code than its campaign.

    Raises:
        RuntimeError: a part differs; the message names it.
    """
    different = [key for key in differing(of_campaign, here) if not (same_process and key in SHARED)]
    if different:
        raise RuntimeError(
            f"this worker would run other code than the campaign's: they differ in {', '.join(different)}. Restart the "
            "workers, which keep modules as they first imported them; what the campaign's process changed after its imports, "
            "as an attribute, a hook or a patched function, they do not have (workers=1 computes in that process)"
        )
