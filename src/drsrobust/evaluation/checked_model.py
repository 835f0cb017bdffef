"""Models that an evaluator takes: it must be able to read the words of all of their tensors."""

from torch import nn

from drsrobust.introspection.tensors import inner_tensors, listed, why_wordless


def check_model(model: nn.Module) -> None:
    """Refuses a model with a tensor whose words cannot be read.

    A class that says in `__tensor_flatten__` which tensors it wraps passes: its words count for the model's state, and targets
    cannot hold them. Shards of one tensor over ranks do not.

    Raises:
        ValueError: a tensor that is not initialised or has no values, nested or opaque ones, a DTensor, or another wrapper; as
            `listed`. The message names the tensor and what to do.
    """
    for entry in listed(model):
        if entry.spread is not None:
            continue
        why = why_wordless(entry.tensor)
        if why and ("DTensor" in why or any(map(why_wordless, inner_tensors(entry.tensor)))):
            raise ValueError(f"{type(model).__name__}: {entry.name} {why}")
