"""`inject`: draw errors and have them in the model for the length of a `with` block."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from drsrobust.injection.error_map import ErrorMap
from drsrobust.injection.error_models import ErrorModel
from drsrobust.injection.space import resolve


@contextmanager
def inject(
    model: nn.Module,
    error_model: ErrorModel,
    target: str = "all",
    *,
    seed: int,
    components: Mapping[str, str] | None = None,
) -> Iterator[ErrorMap]:
    """Errors in a model inside a `with` block; afterwards the model is bit for bit what it was, also when the block
    raises or is interrupted (at any point: `restore(model)` undoes what a rare interrupt between two instructions left).

    Args:
        model: any module.
        error_model: as `BitFlip(ber=1e-6)`.
        target: what may be hit: `"all"` (parameters), `"everything"` (and buffers), a component, or a glob on names.
        seed: decides everything that is drawn.
        components: overrides of which tensor belongs to which component.

    Yields:
        the error map that was applied.

    Raises:
        TypeError: not an error model.
        ValueError: a target that matches nothing, a bit that the targeted words do not have, a seed out of range.

    Example:
        >>> import torch
        >>> from drsrobust.injection import BitFlip
        >>> layer = torch.nn.Linear(64, 64)
        >>> with inject(layer, BitFlip(ber=1e-3), seed=1) as error_map:
        ...     print(len(error_map), "of", layer.weight.numel() + layer.bias.numel(), "words are wrong")
        135 of 4160 words are wrong
    """
    if not isinstance(error_model, ErrorModel):
        raise TypeError(f"error_model is {error_model!r}; it must be an error model, as BitFlip(ber=1e-6)")
    error_map = error_model.sample(resolve(model, target, components), seed=seed)
    with error_map.applied(model):
        yield error_map
